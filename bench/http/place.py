"""Where it is measured: everything on loopback, one core for the proxy, the other for the load and the origins.

    load ──▶ 127.0.0.1: contender ──▶ 127.0.0.1: nginx                (1 KiB answers, 10 MiB files)
                                  └─▶ 127.0.0.1: bench.http.origin    (uploads, WebSocket echo)
    [load's core]  [contender's core]            [load's core]

What the load and the origins cost is the same for every contender. Where their core is the limit, the contender's own
processor time for each request says more than the count.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.place import CHECKOUT, Cores, Process, wait_for
from lab.lacking import search_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Self

ANSWER = 1024  # octets of a small answer
BODY = 10 * 1024 * 1024  # octets of a large one
FILE = "/files/ten"
_ENDING = (signal.SIGINT, signal.SIGTERM)
_ORIGIN = """
{user}
daemon off;
worker_processes 1;
pid {folder}/origin.pid;
error_log stderr crit;
worker_rlimit_nofile 8192;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    sendfile on;
    keepalive_requests 1000000000;
    keepalive_timeout 1h;
    client_body_temp_path {folder}/origin-body;
    proxy_temp_path {folder}/origin-proxy;
    fastcgi_temp_path {folder}/origin-fastcgi;
    uwsgi_temp_path {folder}/origin-uwsgi;
    scgi_temp_path {folder}/origin-scgi;
    default_type text/plain;
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{ return 200 "{text}"; }}
        location /files/ {{ root {folder}; }}
    }}
}}
"""


class Program(Process):
    """A program on a core, in a process group of its own, so that nothing of it outlives the run."""

    def __init__(self, argv: Sequence[str], errors: Path, all_cores: Cores, cores: set[int], env: Mapping[str, str]):
        settings = {"PATH": search_path(), "LANG": "C.UTF-8", "TMPDIR": tempfile.gettempdir(), **env}
        self.errors = errors
        with errors.open("wb") as log, all_cores.pinned(cores):
            self.started = time.monotonic()
            self._popen = subprocess.Popen(
                list(argv), env=settings, cwd=CHECKOUT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=log, start_new_session=True,
            )  # fmt: skip
        self.pid = self._popen.pid

    def said(self) -> str:
        """The last line that it wrote to standard error."""
        lines = self.errors.read_text(errors="replace").strip().splitlines()
        return lines[-1].strip()[:200] if lines else "it said nothing"

    def alone(self) -> float:
        """MB of memory as if nobody else on the machine shared its pages: anonymous ones, and its files' once.

        PSS divides an interpreter's pages by all who run it, this benchmark and its origin included.
        """
        anonymous = 0
        files = 0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                found = _sizes(Path(f"/proc/{pid}/smaps_rollup").read_text())
                status = _sizes(Path(f"/proc/{pid}/status").read_text())
                anonymous += found.get("Pss_Anon", 0) + found.get("Pss_Shmem", 0)
                files = max(files, status.get("RssFile", 0))
        return (anonymous + files) / 1024

    def close(self) -> None:
        """End it, and by its process group whatever of it is left."""
        super().close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # children of one that had to be killed


class Nobody(Program):
    """Stands where no program is in between: costs nothing, weighs nothing."""

    def __init__(self) -> None:
        self.started = time.monotonic()

    def alive(self) -> bool:
        return True

    def pids(self) -> list[int]:
        return []

    def close(self) -> None:
        pass


def _sizes(text: str) -> dict[str, int]:
    """The lines `Name:  12 kB` of a file in /proc, kB."""
    found = {}
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        if colon and rest.endswith(" kB"):
            found[name] = int(rest.split()[0])
    return found


class Place:
    """The cores, the origins, a folder. A context manager; nothing is left behind."""

    def __init__(self, nginx: str | None) -> None:
        self.cores = Cores()
        os.sched_setaffinity(0, self.cores.load)
        self._folder = tempfile.TemporaryDirectory(prefix="sallyport-bench-http-")
        self.folder = Path(self._folder.name)
        self._programs: list[Program] = []
        try:
            self.echo = self.free_port()
            self.start("origin", [sys.executable, "-m", "bench.http.origin", str(self.echo)], self.cores.load)
            self.plain = self.free_port() if nginx else self.echo
            if nginx:
                self._serve_files(nginx)
            for port in {self.echo, self.plain}:
                wait_for("origin", lambda port=port: listens(port))
        except BaseException:
            self.close()
            raise

    def _serve_files(self, nginx: str) -> None:
        file = self.folder / FILE[1:]
        file.parent.mkdir()
        file.write_bytes(bytes(range(256)) * (BODY // 256))
        config = self.folder / "origin.conf"
        config.write_text(_ORIGIN.format(user=nginx_user(), folder=self.folder, port=self.plain, text="x" * ANSWER))
        self.start("origin-nginx", [nginx, "-e", "stderr", "-c", str(config)], self.cores.load)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def free_port(self) -> int:
        """A port that nobody listens on at the moment."""
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            return int(sock.getsockname()[1])

    def start(self, name: str, argv: Sequence[str], cores: set[int], env: Mapping[str, str] | None = None) -> Program:
        with _undisturbed():  # or an end asked for in between would leave a program that nobody knows of
            program = Program(argv, self.folder / f"{name}.err", self.cores, cores, env or {})
            self._programs.append(program)
        return program

    def close(self) -> None:
        for program in self._programs:
            program.close()
        self._folder.cleanup()
        os.sched_setaffinity(0, self.cores.before)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """SIGINT and SIGTERM wait until this is over; they are not blocked, which a child would inherit."""
    came: list[int] = []
    before = {number: signal.signal(number, lambda found, _: came.append(found)) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for asked in came:
            signal.raise_signal(asked)


def nginx_user() -> str:
    """Its workers stay who we are: they could not read and write in our folder as anybody else."""
    return "user root root;" if os.geteuid() == 0 else ""


def listens(port: int) -> bool:
    with socket.socket() as sock:
        sock.settimeout(0.5)
        return sock.connect_ex(("127.0.0.1", port)) == 0
