"""One direction of a relayed connection: by splice(2) through a pipe, so that no octet is copied to us.

    source ─▶ [through: read and judged, for as long as that is needed] ─▶ head ─▶ ┐
    source ────────────────────────────────────────────────────────────▶ pipe ─▶ ┴▶ sink

A lane reads only when what it had is gone, so the sink's slowness is the source's. Pipes are lent for as long as
something is in them: idle connections have none.
"""

from __future__ import annotations

import os
import socket

from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from egress.loop import Loop

    class Through(Protocol):
        """Reads along: gives back what may go on."""

        done: bool  # nothing more has to be read

        def feed(self, data: bytes) -> bytes: ...


CHUNK = 65_536  # octets in one go: what a pipe holds
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
        """Back; one that is not empty is somebody's secret."""
        if empty and len(self._spare) < _SPARE:
            self._spare.append(pipe)
        else:
            os.close(pipe[0])
            os.close(pipe[1])


class Lane:
    """One direction. `ended` is told when the source's end has reached the sink; errors go to `broke`."""

    __slots__ = (
        "_broke", "_ended", "_inside", "_last", "_loop", "_pipe", "_pipes", "_reading", "_writing", "done", "head",
        "sink", "source", "through",
    )  # fmt: skip

    def __init__(
        self,
        loop: Loop,
        pipes: Pipes,
        source: socket.socket,
        sink: socket.socket,
        head: bytes,
        through: Through | None,
        ended: Callable[[], None],
        broke: Callable[[Exception], None],
    ) -> None:
        self.source = source
        self.sink = sink
        self.head = head
        self.through = through
        self.done = False
        self._loop = loop
        self._pipes = pipes
        self._ended = ended
        self._broke = broke
        self._pipe: tuple[int, int] | None = None
        self._inside = 0  # octets in the pipe
        self._last = False  # the source has ended
        self._reading = self._writing = False

    def begin(self) -> None:
        if self.head:
            self.pump()
        else:
            self._wait(reading=True)

    def pump(self) -> None:
        """Move what can be moved."""
        try:
            self._move()
        except Exception as error:  # noqa: BLE001 - OSError of either end, Refused of what reads along
            self._broke(error)

    def _move(self) -> None:
        for _ in range(_ROUNDS):
            try:
                if self.head:
                    self.head = self.head[self.sink.send(self.head) :]
                elif self._inside:
                    assert self._pipe is not None
                    self._inside -= os.splice(self._pipe[0], self.sink.fileno(), self._inside, flags=_FLAGS)
            except BlockingIOError:
                self._wait(writing=True)
                return
            if self.head or self._inside:
                continue
            if self._last:
                self._finish()
                return
            try:
                self._read()
            except BlockingIOError:
                self._release()
                self._wait(reading=True)
                return
        if self.head or self._inside:
            self._wait(writing=True)
        else:
            self._release()
            self._wait(reading=True)

    def _read(self) -> None:
        if self.through is not None:
            data = self.source.recv(CHUNK)
            if data:
                self.head = self.through.feed(data)
                if self.through.done:
                    self.through = None
            self._last = not data
            return
        if self._pipe is None:
            self._pipe = self._pipes.take()
        self._inside = os.splice(self.source.fileno(), self._pipe[1], CHUNK, flags=_FLAGS)
        self._last = not self._inside

    def _finish(self) -> None:
        self.done = True
        self.close()
        self.sink.shutdown(socket.SHUT_WR)
        self._ended()

    def _wait(self, *, reading: bool = False, writing: bool = False) -> None:
        if reading is not self._reading:
            self._reading = reading
            if reading:
                self._loop.add_reader(self.source.fileno(), self.pump)
            else:
                self._loop.remove_reader(self.source.fileno())
        if writing is not self._writing:
            self._writing = writing
            if writing:
                self._loop.add_writer(self.sink.fileno(), self.pump)
            else:
                self._loop.remove_writer(self.sink.fileno())

    def _release(self) -> None:
        if self._pipe is not None:
            self._pipes.give(self._pipe, empty=not self._inside)
            self._pipe, self._inside = None, 0

    def close(self) -> None:
        """Let go of the loop and the pipe; the sockets are the connection's."""
        self._wait()
        self._release()
