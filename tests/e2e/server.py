"""OpenSandbox's own server, and its SDK, in processes of their own beside the daemon."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from lab import LabError, http

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from lab import Namespace
    from tests.e2e.daemon import Daemon

CHECKOUT = Path(__file__).resolve().parents[2]
ENVIRONMENT = CHECKOUT / "build" / "opensandbox-sdk"
DRIVE = Path(__file__).with_name("drive.py")
KEY = "of-this-test-only"
_START_SECONDS = 240.0
_CONFIG = """
[server]
host = "127.0.0.1"
port = {port}
api_key = "{key}"
[log]
level = "INFO"
[runtime]
type = "docker"
execd_image = "{execd}"
[store]
path = "{folder}/store.db"
[docker]
network_mode = "bridge"
publish_host = "127.0.0.1"
[ingress]
mode = "direct"
[egress]
image = "{egress}"
mode = "{mode}"
readiness_timeout_seconds = {patience}
"""


def request(
    namespace: Namespace,
    url: str,
    method: str = "GET",
    *,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
) -> http.Response:
    """One HTTP request, sent from inside the namespace. Raises OSError."""
    parts = urlsplit(url if "//" in url else f"http://{url}")
    with namespace.entered():
        sock = _connected(parts.hostname or "", parts.port or 80)
    data = None if body is None else json.dumps(body).encode()
    kind = {} if body is None else {"Content-Type": "application/json"}
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return http.exchange(sock, method, path, host=parts.netloc, body=data, headers={**kind, **(headers or {})})


def _connected(host: str, port: int) -> Any:
    import socket

    return socket.create_connection((host, port), 10)


class Server:
    """opensandbox-server. A context manager, on entry it is ready; started by then, so that two may start at once."""

    def __init__(
        self, daemon: Daemon, *, port: int, egress: str, execd: str, mode: str = "dns+nft", patience: int = 30
    ) -> None:
        self.namespace = daemon.lab.sandbox
        self.address = f"127.0.0.1:{port}"
        folder = daemon.folder / f"server-{port}"
        folder.mkdir()
        config = folder / "config.toml"
        config.write_text(
            _CONFIG.format(
                port=port, key=KEY, execd=execd, folder=folder, egress=egress, mode=mode, patience=f"{patience}.0"
            )
        )
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self._process = self.namespace.popen(
                [str(ENVIRONMENT / "bin" / "opensandbox-server"), "--config", str(config)],
                env={"HOME": str(folder), "DOCKER_HOST": daemon.host, "PATH": os.environ["PATH"]},
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
            )

    def __enter__(self) -> Self:
        self.wait_ready()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def log(self) -> str:
        """What it has said."""
        return self._log.read_text()

    def call(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> http.Response:
        """A call of its HTTP API, with the key. Raises OSError."""
        headers = {"OPEN-SANDBOX-API-KEY": KEY, **(headers or {})}
        return request(self.namespace, f"{self.address}{path}", method, body=body, headers=headers)

    def wait_ready(self) -> None:
        """Until it answers. Raises LabError if it never does."""
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with contextlib.suppress(OSError):
                if self.call("GET", "/health").status == 200:
                    return
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise LabError(f"opensandbox-server did not come up:\n{self.log()[-3000:]}")
            time.sleep(0.05)


class Answer:
    """What came of a call of the SDK."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.value: Any = told.get("value")
        self.seconds = float(told.get("seconds", 0.0))
        self.fault: str = told.get("fault", "")
        self.text: str = told.get("text", "")


class Sdk:
    """The SDK in a process of its own, for one server. A context manager."""

    def __init__(self, server: Server) -> None:
        self._process = server.namespace.popen(
            [str(ENVIRONMENT / "bin" / "python"), str(DRIVE), server.address, KEY],
            env={"HOME": "/nonexistent", "PATH": os.environ["PATH"]},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def ask(self, do: str, box: str = "box", **more: Any) -> Answer:
        """Make a call; what came of it, whatever it is."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, "box": box, **more}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the SDK's process ended"
        return Answer(json.loads(line))

    def call(self, do: str, box: str = "box", **more: Any) -> Any:
        """What a call gave; a failure if it failed."""
        answer = self.ask(do, box, **more)
        assert not answer.fault, f"{do}: {answer.fault}: {answer.text}"
        return answer.value

    def run(self, command: str, box: str = "box") -> str:
        """What a command in the sandbox prints; a failure if it fails."""
        done = self.call("run", box, command=command)
        assert done["code"] == 0, done
        return str(done["out"]).strip()
