"""One direction of a relayed connection. What is long goes by splice(2) through a pipe and is never copied to us.

    source ─▶ [through: read along and judged, for as long as that is needed] ─▶ head ─▶ ┐
    source ─▶ few octets: read ─────────────────────────────────────────────────▶ head ─▶ ┼▶ sink
    source ─▶ many: ────────────────────────────────────────────────────────────▶ pipe ─▶ ┘

A lane reads only when what it had is gone, so the sink's slowness is the source's. Pipes are lent for as long as
something is in them: idle connections have none.
"""

from __future__ import annotations

import os

from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    from socket import SocketType
    from typing import Protocol

    from egress.loop import Loop

    class Through(Protocol):
        """Reads along: gives back what may go on."""

        done: bool  # nothing more has to be read

        def feed(self, data: bytes) -> bytes: ...

    class Owner(Protocol):
        """Whose lane it is."""

        loop: Loop
        pipes: Pipes

        def ended(self, lane: Lane) -> None:
            """All that the source said before its end is with the sink; has to `close` the lane."""

        def broke(self, error: Exception) -> None:
            """OSError of either end, Refused of what reads along."""


CHUNK = 65_536  # octets in one go: what a pipe holds
FEW = 16_384  # octets that are read rather than spliced: two calls, not three
_ROUNDS = 4  # goes before others have their turn
_FLAGS = os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE
_SPARE = 64  # empty pipes that are kept


class Pipes:
    """Pipes on loan."""

    def __init__(self) -> None:
        self._spare: list[tuple[int, int]] = []

    def take(self) -> tuple[int, int]:
        """An empty pipe. Raises OSError."""
        return self._spare.pop() if self._spare else os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def give(self, pipe: tuple[int, int], *, empty: bool) -> None:
        """Back; one that is not empty holds what is somebody's."""
        if empty and len(self._spare) < _SPARE:
            self._spare.append(pipe)
        else:
            os.close(pipe[0])
            os.close(pipe[1])


class Lane:
    """One direction."""

    __slots__ = (
        "_drained", "_inside", "_last", "_many", "_owner", "_pipe", "_reading", "_writing", "done", "head", "sink",
        "source", "through",
    )  # fmt: skip

    def __init__(
        self,
        owner: Owner,
        source: SocketType,
        sink: SocketType,
        head: bytes,
        through: Through | None,
        *,
        reading: bool = False,
    ) -> None:
        """`reading`: the loop reads the source already, for somebody before us."""
        self.source = source
        self.sink = sink
        self.head = head
        self.through = through
        self.done = False
        self._owner = owner
        self._pipe: tuple[int, int] | None = None
        self._inside = 0  # octets in the pipe
        self._last = False  # the source has ended
        self._drained = False  # the source had no more when it was read
        self._many = False  # the source has much to say
        self._reading, self._writing = reading, False
        if reading:
            owner.loop.add_reader(source.fileno(), self.pump)

    def begin(self) -> None:
        """Pass on what there is already."""
        self._drained = True
        self._pump()

    def pump(self) -> None:
        """Move what can be moved."""
        self._drained = False
        if self._writing or self._many or self.through is not None:
            self._pump()
            return
        try:  # nothing is under way, and as a rule little comes and goes at once: two calls and no more
            data = self.source.recv(FEW)
        except BlockingIOError:
            return
        except OSError as error:
            self._owner.broke(error)
            return
        count = len(data)
        self.head = data
        if 0 < count < FEW:
            try:
                sent = self.sink.send(data)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                self._owner.broke(error)
                return
            self.head = data[sent:]
            if sent == count:
                return
        self._last, self._many, self._drained = not count, count == FEW, count < FEW
        self._pump()

    def _pump(self) -> None:
        try:
            self._move()
        except Exception as error:  # noqa: BLE001 - OSError of either end, Refused of what reads along
            self._owner.broke(error)

    def _move(self) -> None:
        rounds = _ROUNDS
        while True:
            try:
                self._flush()
            except BlockingIOError:
                self._wait(reading=False, writing=True)
                return
            if self._last:
                self.done = True
                self._owner.ended(self)
                return
            if self._drained or not rounds:
                break
            rounds -= 1
            try:
                self._read()
            except BlockingIOError:
                break
        self._release()
        self._wait(reading=True, writing=False)

    def _flush(self) -> None:
        while self.head:
            sent = self.sink.send(self.head)
            self.head = self.head[sent:]
        while self._inside:
            assert self._pipe is not None
            self._inside -= os.splice(self._pipe[0], self.sink.fileno(), self._inside, flags=_FLAGS)

    def _read(self) -> None:
        if self._many and self.through is None:
            if self._pipe is None:
                self._pipe = self._owner.pipes.take()
            count = self._inside = os.splice(self.source.fileno(), self._pipe[1], CHUNK, flags=_FLAGS)
            self._many = count >= FEW
        else:
            data = self.source.recv(FEW)
            count = len(data)
            self._many = count == FEW
            if self.through is None:
                self.head = data
            elif data:
                self.head = self.through.feed(data)
                if self.through.done:
                    self.through = None
        self._last = not count
        self._drained = count < FEW

    def _wait(self, *, reading: bool, writing: bool) -> None:
        if reading is not self._reading:
            self._reading = reading
            if reading:
                self._owner.loop.add_reader(self.source.fileno(), self.pump)
            else:
                self._owner.loop.remove_reader(self.source.fileno())
        if writing is not self._writing:
            self._writing = writing
            if writing:
                self._owner.loop.add_writer(self.sink.fileno(), self.pump)
            else:
                self._owner.loop.remove_writer(self.sink.fileno())

    def _release(self) -> None:
        if self._pipe is not None:
            self._owner.pipes.give(self._pipe, empty=not self._inside)
            self._pipe, self._inside = None, 0

    def close(self, *, sockets_too: bool = False) -> None:
        """Let go of the pipe and, unless the sockets are closed next, of the loop."""
        self._release()
        if not sockets_too:
            self._wait(reading=False, writing=False)
