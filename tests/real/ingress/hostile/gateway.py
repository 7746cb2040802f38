"""The program under test, as its users start it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tests.real.ingress.hostile.client import Client
from tests.real.ingress.hostile.ground import PATIENCE

if TYPE_CHECKING:
    from tests.real.ingress.hostile import strict

CHECKOUT = Path(__file__).resolve().parents[4]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Gateway:
    """`ingress serve` on the static provider; a context manager.

    Sandboxes are written as the file has them: `{"box": {"host": "127.0.0.1"}}`.
    """

    def __init__(
        self,
        folder: Path,
        *flags: str,
        mode: str = "header+uri",
        sandboxes: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
        allow: tuple[str, ...] = ("127.0.0.0/8",),
    ) -> None:
        self.port, self.admin_port = free_port(), free_port()
        self.file = folder / "routes.json"
        self.log_file = folder / "gateway.log"
        self.route(sandboxes if sandboxes is not None else {"box": {"host": "127.0.0.1"}})
        arguments = ["--provider-type", "static", "--routes", str(self.file), "--mode", mode]
        arguments += ["--port", str(self.port), "--admin-port", str(self.admin_port), "--workers", "1"]
        for network in allow:
            arguments += ["--allow-target", network]
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ingress", "serve", *arguments, *flags],
                cwd=CHECKOUT,
                env=os.environ | (environment or {}),
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> Self:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                if self.admin("/readyz").status == 200:
                    return self
            except OSError:
                pass
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                raise AssertionError(f"the gateway did not start: {self.log()}")
            time.sleep(0.01)

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(5)

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def route(self, sandboxes: dict[str, Any]) -> None:
        """Replace the routes file, by rename."""
        self.write(json.dumps({"sandboxes": sandboxes}))

    def write(self, text: str) -> None:
        fresh = self.file.with_suffix(".new")
        fresh.write_text(text)
        fresh.rename(self.file)

    def client(self, *, source: str = "", patience: float = PATIENCE) -> Client:
        return Client(self.port, source=source, patience=patience)

    def ask(self, data: bytes, *, source: str = "") -> strict.Message:
        """One request on a connection of its own."""
        with self.client(source=source) as client:
            return client.ask(data)

    def admin(self, path: str) -> strict.Message:
        with Client(self.admin_port) as client:
            return client.ask(b"GET %s HTTP/1.1\r\nHost: admin\r\nConnection: close\r\n\r\n" % path.encode())

    def pids(self) -> list[int]:
        """The master and its workers."""
        master = self.process.pid
        children = Path(f"/proc/{master}/task/{master}/children").read_text().split()
        return [master, *map(int, children)]

    def memory(self) -> int:
        """Resident octets of the master and its workers together."""
        total = 0
        for pid in self.pids():
            status = Path(f"/proc/{pid}/status").read_text()
            total += int(status.split("VmRSS:")[1].split()[0]) * 1024
        return total

    def descriptors(self) -> int:
        """Open files of the workers."""
        return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in self.pids()[1:])
