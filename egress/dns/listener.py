"""DNS over TCP for the sandbox (RFC 7766): framing, limits, and nothing of what is asked.

A connection looks like a UDP socket to the rest: `sendto` takes a message and frames it. At most CONNECTIONS are open;
a new one takes the place of the one that was idle longest, so that a thousand held open keep nobody out. A client that
closes its side still gets the answers it waits for. In a turn of the loop SHARE questions are handed on, whoever asks
them; what is more waits for the next one, so that a hundred connections full of questions do not hold up everybody.
"""

from __future__ import annotations

import errno
import socket
from collections import deque

from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from egress.loop import Loop

CONNECTIONS = 128
IDLE = 10.0  # seconds without a complete question or a whole answer
AWAITING = 130.0  # seconds for one that still waits for an answer: more than the longest time-out of a resolver
QUESTION = 2048  # octets: more is not a question anybody asks
SHARE = 64  # questions in a turn of the loop, over all connections
MINE = 8  # of one of them
UNSENT = 128 * 1024  # octets of answers that a client does not read
BUFFER = 64 * 1024  # octets of them that the kernel holds before: by itself it would take megabytes
SWEEP = 2.0  # seconds
PAUSE = 0.2  # seconds without accepting, when descriptors have run out
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class TcpClient:
    """One connection."""

    __slots__ = ("_buffer", "_ended", "_fd", "_out", "_server", "_sock", "active", "awaiting", "queued")

    def __init__(self, server: TcpListener, sock: socket.socket, now: float) -> None:
        self._server = server
        self._sock = sock
        self._fd = sock.fileno()
        self._buffer = bytearray()
        self._out = bytearray()
        self._ended = False  # the client has closed its side
        self.active = now
        self.awaiting = 0  # questions handed on and not answered
        self.queued = False  # it has questions that wait for the next turn

    def sendto(self, message: bytes, _address: Any) -> None:
        """Frame and send; what the socket does not take now follows when it can."""
        if self._fd < 0:
            return
        self.awaiting -= 1
        frame = len(message).to_bytes(2, "big") + message
        if not self._out:
            try:
                sent = self._sock.send(frame)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError:
                self.close()
                return
            frame = frame[sent:]
            if frame:
                self._server.loop.add_writer(self._fd, self._writable)
        self._out += frame
        if len(self._out) > UNSENT:
            self.close()
        elif not self._out:
            self._sent()

    def _sent(self) -> None:
        self.active = self._server.loop.now()
        if self._ended and self.awaiting <= 0:
            self.close()

    def readable(self) -> None:
        """Take what came, and hand on every complete question that there is time for."""
        if self.queued:
            return  # what it has sent first comes first
        try:
            chunk = self._sock.recv(4096)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        if not chunk:
            self._half_closed()
            return
        self._buffer += chunk
        self.hand_on()

    def hand_on(self) -> None:
        """The complete questions in the buffer, as long as this turn's share lasts."""
        buffer = self._buffer
        mine = 0
        while len(buffer) >= 2 and self._fd >= 0:
            length = buffer[0] << 8 | buffer[1]
            if length > QUESTION or length < 12:
                self.close()
                return
            if len(buffer) < length + 2:
                break
            if mine == MINE or not self._server.has_time():
                self._server.queue(self)
                break
            mine += 1
            message = bytes(buffer[2 : length + 2])
            del buffer[: length + 2]
            self.active = self._server.loop.now()
            self.awaiting += 1
            self._server.handle(message, self)

    def _half_closed(self) -> None:
        if self._buffer or (self.awaiting <= 0 and not self._out):
            self.close()
            return
        self._ended = True
        self._server.loop.remove_reader(self._fd)  # it would be ready forever

    def _writable(self) -> None:
        try:
            sent = self._sock.send(self._out)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        del self._out[:sent]
        if not self._out:
            self._server.loop.remove_writer(self._fd)
            self._sent()

    def close(self) -> None:
        """Hang up; answers that come later are dropped."""
        if self._fd >= 0:
            self._server.loop.remove_reader(self._fd)
            self._server.loop.remove_writer(self._fd)
            self._fd = -1
            self._sock.close()
            self._server.clients.pop(self, None)


class TcpListener:
    """Accepts on a listening socket; `handle(message, client)` gets each question."""

    def __init__(self, loop: Loop, sock: socket.socket, handle: Callable[[bytes, TcpClient], None]) -> None:
        self.loop = loop
        self.handle = handle
        self.clients: dict[TcpClient, None] = {}
        self._sock = sock
        self._closed = False
        self._sweeping = False
        self._turn = 0  # the loop's, that `_left` questions are left of
        self._left = SHARE
        self._queue: deque[TcpClient] = deque()
        loop.add_reader(sock.fileno(), self._accept)

    def has_time(self) -> bool:
        """May one more question be handed on in this turn?"""
        turn = self.loop.turns
        if turn != self._turn:
            self._turn = turn
            self._left = SHARE
        if not self._left:
            return False
        self._left -= 1
        return True

    def queue(self, client: TcpClient) -> None:
        """It goes on in the next turn, behind those that wait already."""
        if not self._queue:
            self.loop.call_soon(self._resume)
        client.queued = True
        self._queue.append(client)

    def _resume(self) -> None:
        waiting, self._queue = self._queue, deque()
        for client in waiting:
            client.queued = False
            client.hand_on()

    def _accept(self) -> None:
        for _ in range(16):
            try:
                sock, _ = self._sock.accept()
            except OSError as error:
                if error.errno in _NO_ROOM:
                    self._make_room()
                elif error.errno == errno.ECONNABORTED:
                    continue
                return
            try:
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
                if len(self.clients) >= CONNECTIONS:
                    self._hang_up_on_one()
                client = TcpClient(self, sock, self.loop.now())
                self.loop.add_reader(sock.fileno(), client.readable)
            except OSError:
                sock.close()
                continue
            self.clients[client] = None
            if not self._sweeping:
                self._sweeping = True
                self.loop.call_later(SWEEP, self._sweep)

    def _hang_up_on_one(self) -> None:
        """On who was idle longest; on those that wait for an answer only when everybody does."""
        min(self.clients, key=lambda client: (client.awaiting > 0, client.active)).close()

    def _make_room(self) -> None:
        """Without a descriptor the socket stays ready, and the loop would do nothing else."""
        if self.clients:
            self._hang_up_on_one()
            return
        self.loop.remove_reader(self._sock.fileno())
        self.loop.call_later(PAUSE, self._go_on)

    def _go_on(self) -> None:
        if not self._closed:
            self.loop.add_reader(self._sock.fileno(), self._accept)

    def _sweep(self) -> None:
        now = self.loop.now()
        for client in list(self.clients):
            if now - client.active > (AWAITING if client.awaiting > 0 else IDLE):
                client.close()
        self._sweeping = bool(self.clients)
        if self._sweeping:
            self.loop.call_later(SWEEP, self._sweep)

    def close(self) -> None:
        """Accept no more and hang up on everybody; the listening socket stays its owner's."""
        self._closed = True
        self.loop.remove_reader(self._sock.fileno())
        for client in list(self.clients):
            client.close()
