"""A Redis of the test's own, real, on a unix socket and a loopback port, and servers that only look like one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

from lab.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PASSWORD = "s3cret/with:signs"
PATIENCE = 20.0


class RealRedis:
    """redis-server as a child process; `start` again after `kill` finds it empty."""

    def __init__(self, folder: Path, *settings: str) -> None:
        self.path = str(folder / "redis.sock")
        self.port = free_port()
        self.certificate = str(folder / "server.crt")
        self._folder = folder
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        self._process = subprocess.Popen(
            [
                "redis-server",
                *("--bind", "127.0.0.1", "--port", str(self.port), "--unixsocket", self.path),
                *("--save", "", "--appendonly", "no", "--dir", str(self._folder), "--logfile", "log"),
                *self._settings,
            ],
            stdout=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                self.ask("PING")
                return
            except OSError:
                time.sleep(0.01)
        raise AssertionError((self._folder / "log").read_text())

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process = None
        if os.path.exists(self.path):
            os.unlink(self.path)

    def freeze(self) -> None:
        """Hung: the kernel accepts connections, nobody answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def ask(self, *command: str) -> list[bytes]:
        """One command on a connection of its own; the lines of the answer, RESP's own signs and lengths included."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(20)
            sock.connect(self.path)
            commands = [command, ("QUIT",)]
            if "--requirepass" in self._settings and command != ("PING",):
                commands.insert(0, ("AUTH", PASSWORD))
            for each in commands:
                sock.sendall(b"*%d\r\n" % len(each))
                for part in each:
                    sock.sendall(b"$%d\r\n%s\r\n" % (len(part.encode()), part.encode()))
            data = b""
            while part_read := sock.recv(65536):
                data += part_read
        lines = data.split(b"\r\n")[:-1]
        return lines[1:-1] if len(commands) == 3 else lines[:-1]

    def intents(self, key: str = "opensandbox:renew:intent", database: int = 0) -> list[dict[str, Any]]:
        """What was pushed, the newest first."""
        assert database == 0
        return [json.loads(line) for line in self.ask("LRANGE", key, "0", "-1") if line.startswith(b"{")]


def _need_redis() -> None:
    if shutil.which("redis-server"):
        return
    if os.environ.get("CI"):
        pytest.fail("continuous integration has to run this: redis-server is missing", pytrace=False)
    pytest.skip("redis-server is missing (make setup installs it)")


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RealRedis]:
    """A running Redis."""
    _need_redis()
    made = RealRedis(tmp_path)
    made.start()
    yield made
    made.kill()


@pytest.fixture
def guarded_redis(tmp_path: Path) -> Iterator[RealRedis]:
    """A running Redis that wants a password."""
    _need_redis()
    made = RealRedis(tmp_path, "--requirepass", PASSWORD)
    made.start()
    yield made
    made.kill()


@pytest.fixture
def encrypted_redis(tmp_path: Path) -> Iterator[RealRedis]:
    """A running Redis whose port speaks TLS only, with a certificate for localhost that nobody signed."""
    _need_redis()
    crt, key = tmp_path / "server.crt", tmp_path / "server.key"
    request = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*request, *names, "-keyout", key, "-out", crt], check=True, capture_output=True)
    port = free_port()
    files = ["--tls-cert-file", str(crt), "--tls-key-file", str(key), "--tls-auth-clients", "no"]
    made = RealRedis(tmp_path, "--port", "0", "--tls-port", str(port), *files)
    made.port = port
    made.start()
    yield made
    made.kill()
