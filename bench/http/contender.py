"""What every contender is: one worker, one core, upstream connections enough for the load, no access log.

`/box/<port>/<rest>` goes to `<rest>` on that port, for all of them: the prefix is taken off as each does it best. Ours
reads sandbox and port from the path, the others have the two origins written into their configuration. `X-Forwarded-*`
is set by all but the two of our own few lines.
"""

from __future__ import annotations

import http.client
import time
from typing import TYPE_CHECKING, ClassVar

from bench.http.place import ANSWER, listens

if TYPE_CHECKING:
    from bench.http.peers import Peers
    from bench.http.place import Place, Program

PATIENCE = 15.0  # seconds until a contender has to answer
SANDBOX = "box"


class Contender:
    """One proxy. `start` begins a fresh life."""

    key = ""
    name = ""
    needs: ClassVar[tuple[str, ...]] = ()
    requests = True
    bodies = True
    websockets = True
    memory = True
    quick = True  # also in a shortened run
    compiles = False  # while it runs, so that it needs a while until it is fast

    def __init__(self, place: Place, peers: Peers) -> None:
        self.place = place
        self.peers = peers
        self.port = place.free_port()
        self.folder = place.folder / self.key
        self.folder.mkdir()
        self.program: Program | None = None

    @property
    def running(self) -> Program:
        assert self.program is not None, "not started"
        return self.program

    @property
    def path(self) -> str:
        """Of the program it needs."""
        found = self.peers.program(self.needs[0])
        assert found is not None, self.needs
        return found

    def versions(self) -> list[str]:
        """What it is made of: `nginx 1.22.1`."""
        return [f"{need} {self.peers.version(need)}" for need in self.needs]

    def argv(self) -> list[str]:
        raise NotImplementedError

    def env(self) -> dict[str, str]:
        return {}

    def address(self, port: int) -> int:  # noqa: ARG002
        """The port to connect to for this origin."""
        return self.port

    def prefix(self, port: int) -> str:
        """What stands before the path of a request for this origin."""
        return f"/{SANDBOX}/{port}"

    def headers(self, port: int) -> dict[str, str]:  # noqa: ARG002
        """What a request for this origin carries besides."""
        return {}

    def start(self) -> None:
        """Raises RuntimeError where it does not answer within PATIENCE."""
        self.stop()
        self.program = self.place.start(self.key, self.argv(), self.place.cores.server, self.env())
        deadline = time.monotonic() + PATIENCE
        while not listens(self.port):
            self._still_there(deadline, "does not listen")
            time.sleep(0.01)
        self.listening()
        for port in {self.place.plain, self.place.echo}:
            while not self.answers(port):
                self._still_there(deadline, "does not answer")
                time.sleep(0.02)

    def _still_there(self, deadline: float, what: str) -> None:
        if not self.running.alive():
            raise RuntimeError(f"ended by itself: {self.running.said()}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: {self.running.said()}")

    def listening(self) -> None:
        """What is left to do when it listens."""

    def answers(self, port: int) -> bool:
        """Does a request go through to this origin?"""
        client = http.client.HTTPConnection("127.0.0.1", self.address(port), timeout=5)
        try:
            client.request("GET", self.prefix(port) + "/", headers=self.headers(port))
            response = client.getresponse()
            return response.status == 200 and len(response.read()) == ANSWER
        except (OSError, http.client.HTTPException):
            return False
        finally:
            client.close()

    def settle(self, seconds: float = 2.0) -> None:
        """Until it has nothing to do: requests whose client is gone may be under way still."""
        deadline = time.monotonic() + seconds
        before = self.running.cpu()
        while time.monotonic() < deadline:
            time.sleep(0.05)
            now = self.running.cpu()
            if now - before < 0.005:
                return
            before = now

    def stop(self) -> None:
        if self.program is not None:
            self.program.close()
            self.program = None
