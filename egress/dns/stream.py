"""Questions over TCP, where UDP would not do: a truncated answer, or a port that is being guessed at (RFC 7766)."""

from __future__ import annotations

from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from egress.loop import Loop

CHUNK = 16_384  # octets read at once


class Stream:
    """One question over one connection. `done` is called once, with the message, or None when the connection broke."""

    __slots__ = ("_buffer", "_done", "_fd", "_loop", "_out", "_sock", "server")

    def __init__(
        self, loop: Loop, sock: socket.socket, server: int, message: bytes, done: Callable[[bytes | None], None]
    ) -> None:
        """`sock` is non-blocking and may still be connecting."""
        self.server = server
        self._loop = loop
        self._sock = sock
        self._fd = sock.fileno()
        self._out = len(message).to_bytes(2, "big") + message
        self._buffer = bytearray()
        self._done = done
        loop.add_writer(self._fd, self._writable)
        loop.add_reader(self._fd, self._readable)

    def _writable(self) -> None:
        try:
            sent = self._sock.send(self._out)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._end(None)
            return
        self._out = self._out[sent:]
        if not self._out:
            self._loop.remove_writer(self._fd)

    def _readable(self) -> None:
        try:
            chunk = self._sock.recv(CHUNK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._end(None)
            return
        buffer = self._buffer
        buffer += chunk
        if len(buffer) >= 2:
            length = buffer[0] << 8 | buffer[1]
            if len(buffer) >= length + 2:
                self._end(bytes(buffer[2 : length + 2]))
                return
        if not chunk:
            self._end(None)

    def _end(self, message: bytes | None) -> None:
        self.close()
        self._done(message)

    def close(self) -> None:
        """Hang up; `done` is not called."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
            self._sock.close()
            self._fd = -1
