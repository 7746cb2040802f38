"""DNS over TCP for the sandbox (RFC 7766): framing, limits, and nothing of what is asked.

A connection looks like a UDP socket to the rest: `sendto` takes a message and frames it. At most CONNECTIONS are open;
a new one takes the place of the one that was idle longest, so that a thousand held open keep nobody out.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from egress.loop import Loop

CONNECTIONS = 128
IDLE = 10.0  # seconds without a complete question
QUESTION = 2048  # octets: more is not a question anybody asks
UNSENT = 256 * 1024  # octets of answers that a client does not read
SWEEP = 2.0  # seconds


class TcpClient:
    """One connection."""

    __slots__ = ("_buffer", "_out", "_server", "_sock", "active")

    def __init__(self, server: TcpListener, sock: socket.socket, now: float) -> None:
        self._server = server
        self._sock = sock
        self._buffer = bytearray()
        self._out = bytearray()
        self.active = now

    def sendto(self, message: bytes, _address: Any) -> None:
        """Frame and send; what the socket does not take now follows when it can."""
        if self._sock.fileno() < 0:
            return
        frame = len(message).to_bytes(2, "big") + message
        if not self._out:
            try:
                sent = self._sock.send(frame)
            except BlockingIOError:
                sent = 0
            except OSError:
                self.close()
                return
            frame = frame[sent:]
            if frame:
                self._server.loop.add_writer(self._sock.fileno(), self._writable)
        self._out += frame
        if len(self._out) > UNSENT:
            self.close()

    def readable(self) -> None:
        try:
            chunk = self._sock.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self.close()
            return
        buffer = self._buffer
        buffer += chunk
        while len(buffer) >= 2:
            length = buffer[0] << 8 | buffer[1]
            if length > QUESTION or length < 12:
                self.close()
                return
            if len(buffer) < length + 2:
                break
            message = bytes(buffer[2 : length + 2])
            del buffer[: length + 2]
            self.active = self._server.loop.now()
            self._server.handle(message, self)
            if self._sock.fileno() < 0:
                return

    def _writable(self) -> None:
        try:
            sent = self._sock.send(self._out)
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        del self._out[:sent]
        if not self._out:
            self._server.loop.remove_writer(self._sock.fileno())

    def close(self) -> None:
        fd = self._sock.fileno()
        if fd >= 0:
            self._server.loop.remove_reader(fd)
            self._server.loop.remove_writer(fd)
            self._sock.close()
            self._server.clients.pop(self, None)


class TcpListener:
    """Accepts on a listening socket; `handle(message, client)` gets each question."""

    def __init__(self, loop: Loop, sock: socket.socket, handle: Callable[[bytes, TcpClient], None]) -> None:
        self.loop = loop
        self.handle = handle
        self.clients: dict[TcpClient, None] = {}
        self._sock = sock
        self._sweeping = False
        loop.add_reader(sock.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(16):
            try:
                sock, _ = self._sock.accept()
            except OSError:
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if len(self.clients) >= CONNECTIONS:
                min(self.clients, key=lambda client: client.active).close()
            client = TcpClient(self, sock, self.loop.now())
            self.clients[client] = None
            self.loop.add_reader(sock.fileno(), client.readable)
            if not self._sweeping:
                self._sweeping = True
                self.loop.call_later(SWEEP, self._sweep)

    def _sweep(self) -> None:
        oldest = self.loop.now() - IDLE
        for client in [client for client in self.clients if client.active < oldest]:
            client.close()
        self._sweeping = bool(self.clients)
        if self._sweeping:
            self.loop.call_later(SWEEP, self._sweep)

    def close(self) -> None:
        self.loop.remove_reader(self._sock.fileno())
        for client in list(self.clients):
            client.close()
