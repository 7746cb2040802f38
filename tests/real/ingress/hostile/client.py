"""A client over a plain socket: what it sends is what the test wrote, what it hears is kept byte for byte."""

from __future__ import annotations

import socket
import struct
import time
from typing import TYPE_CHECKING, Self

from tests.real.ingress.hostile import strict
from tests.real.ingress.hostile.ground import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator


class Client:
    """One connection to `port` of the loopback; a context manager. `source`: the address it comes from."""

    def __init__(self, port: int, *, host: str = "127.0.0.1", source: str = "", patience: float = PATIENCE) -> None:
        self.sock = socket.create_connection((host, port), patience, (source, 0) if source else None)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.heard = bytearray()
        """Every byte that came."""
        self.taken = 0
        """How much of it belongs to answers that were handed out."""
        self.ended = ""
        """"" while it is open, then "eof" or "reset"."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, data: bytes, *, pieces: int = 0) -> None:
        """Send it; in pieces of that many bytes where a number is given. A peer that has gone away is no error."""
        try:
            if not pieces:
                self.sock.sendall(data)
                return
            for at in range(0, len(data), pieces):
                self.sock.sendall(data[at : at + pieces])
        except (BrokenPipeError, ConnectionResetError):
            pass  # what it said before it left can still be read

    def half_close(self) -> None:
        """Say that nothing more comes. A peer that has gone away is no error."""
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def reset(self) -> None:
        """Close with RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def pull(self, size: int = 1 << 16) -> bytes:
        """The next bytes; b"" when the peer has ended the connection. TimeoutError after the patience."""
        try:
            data = self.sock.recv(size)
        except ConnectionResetError:
            self.ended = "reset"
            return b""
        if not data:
            self.ended = "eof"
        self.heard += data
        return data

    def answer(self, method: bytes = b"GET") -> strict.Message:
        """The next answer, read strictly. Unclear where the connection ends within it."""
        while True:
            reading = strict.responses(bytes(self.heard[self.taken :]), [method], closed=bool(self.ended))
            if reading.messages:
                self.taken = len(self.heard) - len(reading.partial)
                return reading.messages[0]
            if self.ended:
                raise strict.Unclear("the connection ended without an answer")
            self.pull()

    def ask(self, data: bytes) -> strict.Message:
        """Send one request and read its answer."""
        self.send(data)
        return self.answer(data.split(b" ", 1)[0])

    def head(self) -> bytes:
        """The next answer's head, with the empty line; what is behind it stays."""
        return self.until(b"\r\n\r\n")

    def until(self, marker: bytes) -> bytes:
        """What came up to and with the marker."""
        while (at := self.heard.find(marker, self.taken)) < 0:
            if not self.pull():
                raise strict.Unclear(f"ended before {marker!r}: {bytes(self.heard[self.taken :])[-300:]!r}")
        begin, self.taken = self.taken, at + len(marker)
        return bytes(self.heard[begin : self.taken])

    def exactly(self, size: int) -> bytes:
        while len(self.heard) < self.taken + size:
            if not self.pull():
                raise strict.Unclear(f"ended after {len(self.heard) - self.taken} of {size}")
        begin, self.taken = self.taken, self.taken + size
        return bytes(self.heard[begin : self.taken])

    def rest(self) -> bytes:
        """What comes until the peer ends the connection."""
        while self.pull():
            pass
        begin, self.taken = self.taken, len(self.heard)
        return bytes(self.heard[begin:])

    def quiet(self, seconds: float = 0.1) -> bool:
        """Nothing comes for that long, and the connection stays open."""
        self.sock.settimeout(seconds)
        try:
            return self.pull() != b"" and False
        except TimeoutError:
            return True
        finally:
            self.sock.settimeout(PATIENCE)


def answers(heard: bytes, methods: list[bytes]) -> Iterator[strict.Message]:
    """The answers in a stream that has ended; junk behind them is Unclear."""
    reading = strict.responses(heard, methods, closed=True)
    if reading.partial:
        raise strict.Unclear(f"an answer too many: {reading.partial[:200]!r}")
    yield from reading.messages


def wait(seconds: float) -> None:
    """For what can only be seen by waiting, such as that nothing happens."""
    time.sleep(seconds)
