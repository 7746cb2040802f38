"""The program under test, as its users start it, for as long as a module or all of them need it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tests.real.ingress.conftest import StartGateway
from tests.real.ingress.hostile.client import Client
from tests.real.ingress.hostile.ground import PATIENCE

if TYPE_CHECKING:
    from tests.real.ingress.hostile import strict


class Gateway:
    """`ingress serve` on the static provider, loopback allowed; a context manager.

    sandboxes: as the file has them, `{"box": {"host": "127.0.0.1"}}`. flags: further ones, which win. At its end it has
    to have left with exit code 0, no traceback and no process behind it.
    """

    def __init__(
        self,
        folder: Path,
        *flags: str,
        sandboxes: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        self._starter = StartGateway(folder)
        self._sandboxes = {"box": {"host": "127.0.0.1"}} if sandboxes is None else sandboxes
        self._flags = flags
        self._environment = environment

    def __enter__(self) -> Self:
        try:
            self.program = self._starter(self._sandboxes, self._flags, environ=self._environment)
        except BaseException:
            for program in self._starter.started:
                program.stop()
            raise
        self.port = self.program.port
        return self

    def __exit__(self, *_: object) -> None:
        self.program.stop()

    def route(self, sandboxes: dict[str, Any]) -> None:
        """Replace the routes file, by rename."""
        self._starter.write_routes(sandboxes)

    @property
    def file(self) -> Path:
        """The routes file."""
        return self._starter.routes_file

    def client(self, *, source: str = "", patience: float = PATIENCE) -> Client:
        return Client(self.port, source=source, patience=patience)

    def ask(self, data: bytes, *, source: str = "") -> strict.Message:
        """One request on a connection of its own."""
        with self.client(source=source) as client:
            return client.ask(data)

    def memory(self) -> int:
        """Resident octets of the workers together."""
        total = 0
        for pid in self.program.workers:
            status = Path(f"/proc/{pid}/status").read_text()
            total += int(status.split("VmRSS:")[1].split()[0]) * 1024
        return total

    def descriptors(self) -> int:
        """Open files of the workers."""
        return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in self.program.workers)
