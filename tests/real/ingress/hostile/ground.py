"""Servers to stand behind the gateway: they keep every byte that arrives, and answer as their script says.

All of them live on one loop in a thread of its own, so that a test's own code can be plain and blocking.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Any, Self

from tests.real.ingress.hostile import strict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    Script = Callable[["Link"], Awaitable[None]]

PATIENCE = 15.0
"""Seconds after which a test gives up on something that should have happened; generous, for busy machines."""


class Link(asyncio.Protocol):
    """One connection that came in: what it brought, and the hands of the script that answers."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.data = bytearray()
        """Every byte that came, in order; not kept where the origin only counts."""
        self.count = 0
        self.progress = 0
        """For scripts that count."""
        self.ended = ""
        """"" while it is open, then "eof", "reset", or "closed" where the script ended it."""
        self.lost = False
        """The connection is over in both directions."""
        self.taken = 0
        """How much of `data` the script has read."""
        self.transport: Any = None
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._task: asyncio.Task[None] | None = None

    # -- asyncio's calls -----------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.origin.links.append(self)
        if self.origin.closed:  # it was accepted in the last moment
            self.close()
            return
        self._task = asyncio.get_running_loop().create_task(self._run())

    def data_received(self, data: bytes) -> None:
        self.count += len(data)
        if self.origin.keep:
            self.data += data
        self._news.set()

    def eof_received(self) -> bool:
        self.ended = self.ended or "eof"
        self._news.set()
        return True  # the script decides when to close

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self.ended = "reset"
        self.ended = self.ended or "closed"
        self.lost = True
        self._news.set()
        self._room.set()

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    async def _run(self) -> None:
        try:
            await self.origin.script(self)
        except Gone:
            pass
        except Exception as error:  # noqa: BLE001 - a script's slip is the test's business
            self.origin.errors.append(error)
        finally:
            self.close()

    # -- for scripts ---------------------------------------------------------------------------------------------
    async def more(self) -> None:
        """Wait for news; Gone when the connection has ended."""
        if self.ended:
            raise Gone
        self._news.clear()
        await self._news.wait()

    async def until(self, marker: bytes) -> bytes:
        """What came up to and with the marker."""
        while (at := self.data.find(marker, self.taken)) < 0:
            await self.more()
        begin, self.taken = self.taken, at + len(marker)
        return bytes(self.data[begin : self.taken])

    async def exactly(self, size: int) -> bytes:
        while len(self.data) < self.taken + size:
            await self.more()
        begin, self.taken = self.taken, self.taken + size
        return bytes(self.data[begin : self.taken])

    async def request(self) -> strict.Message:
        """The next whole request."""
        while True:
            message, rest = strict.request(bytes(self.data[self.taken :]))
            if message is not None:
                self.taken = len(self.data) - len(rest)
                return message
            await self.more()

    async def end(self) -> None:
        """Wait until the peer has ended the connection."""
        while not self.ended:
            self._news.clear()
            await self._news.wait()

    async def send(self, data: bytes) -> None:
        """Write, and wait while the peer doesn't read."""
        if self.ended in ("reset", "closed"):
            raise Gone
        self.transport.write(data)
        await self._room.wait()

    def half_close(self) -> None:
        self.transport.write_eof()

    def close(self) -> None:
        if self.transport is not None and not self.lost:
            self.transport.close()

    def reset(self) -> None:
        """Close with RST."""
        sock = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()


class Gone(Exception):
    """The peer has ended the connection."""


async def echo(link: Link) -> None:
    """Answer each request with its method, target and body's size, as long as the connection lasts."""
    while True:
        seen = await link.request()
        text = b"%s %s %d" % (seen.method, seen.target, len(seen.body))
        size = len(text)
        body = b"" if seen.method == b"HEAD" else text
        await link.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s" % (size, body))


def saying(*answers: bytes, close: bool = False) -> Script:
    """A script that answers each request with the next of these, raw; then it stays silent, or closes."""

    async def script(link: Link) -> None:
        for answer in answers:
            await link.request()
            await link.send(answer)
        if not close:
            await link.end()

    return script


class Origin:
    """A listening server. `links` are the connections that came, in order."""

    def __init__(self, ground: Ground, script: Script, sock: socket.socket, *, keep: bool = True) -> None:
        self.ground = ground
        self.script = script
        self.keep = keep
        self.links: list[Link] = []
        self.errors: list[BaseException] = []
        self.port: int = sock.getsockname()[1]
        self.server: asyncio.Server | None = None
        self.closed = False

    def connections(self) -> int:
        return len(self.links)

    def mark(self) -> dict[Link, int]:
        """Where each connection stands now."""
        return {link: len(link.data) for link in self.links}

    def since(self, mark: dict[Link, int]) -> list[tuple[Link, bytes]]:
        """What each connection brought after the mark; silent ones are left out."""
        news = [(link, bytes(link.data[mark.get(link, 0) :])) for link in list(self.links)]
        return [(link, data) for link, data in news if data]

    def requests(self) -> list[strict.Message]:
        """Every whole request so far, read strictly, connection by connection."""
        return [message for link in list(self.links) for message in strict.requests(bytes(link.data)).messages]

    def close(self) -> None:
        self.ground.call(self._close())

    async def _close(self) -> None:
        self.closed = True
        if self.server is not None:
            # What asyncio has accepted and not yet attached would be lost, unclosed, were its server closed now.
            for sock in self.server.sockets:
                self.ground.loop.remove_reader(sock.fileno())
            await _turns()
            self.server.close()
        for link in self.links:
            if link._task is not None:
                link._task.cancel()
            if link.transport is not None and not link.lost:
                link.transport.abort()
        await _turns()


async def _turns() -> None:
    """Let the loop finish what it has begun: a connection is made, or lost, a turn or two after its cause."""
    for _ in range(4):
        await asyncio.sleep(0)


class Ground:
    """The loop that origins live on; a context manager."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.call(self._finish())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        self.loop.close()

    async def _finish(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE)

    def do(self, work: Callable[[], object]) -> None:
        """Run something short on the loop's thread and wait for it."""

        async def run() -> None:
            work()

        self.call(run())

    def origin(self, script: Script = echo, *, host: str = "127.0.0.1", port: int = 0, keep: bool = True) -> Origin:
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(4096)
        made = Origin(self, script, sock, keep=keep)

        async def serve() -> None:
            made.server = await self.loop.create_server(lambda: Link(made), sock=sock, backlog=4096)

        self.call(serve())
        return made


def soon(check: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """What `check` returns once it is true, or its last word after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := check()) and time.monotonic() < deadline:
        time.sleep(0.005)
    return value


def settled(count: Callable[[], int]) -> int:
    """The count, once it stands still."""
    seen = [count()]
    while len(seen) < 4 or len(set(seen[-4:])) > 1:
        time.sleep(0.05)
        seen.append(count())
    return seen[-1]
