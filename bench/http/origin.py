"""What stands behind the proxies for uploads and WebSockets: `python -m bench.http.origin PORT`.

One thread, epoll, no event loop in between, so that the proxy is the limit and not this.

    GET /…                     200, 1 KiB
    GET /files/…               200, 10 MiB
    POST or PUT /…             200, and how many octets of body came; they are thrown away in the kernel
    GET with Upgrade           101, then every message comes back
"""

from __future__ import annotations

import base64
import hashlib
import select
import socket
import sys

from bench.http.place import ANSWER, BODY

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, 1.3
_BUFFER = bytearray(1 << 20)
_PIECE = 1 << 16  # from 128 KiB on malloc maps and unmaps pages for each read
_READ, _WRITE = select.EPOLLIN, select.EPOLLIN | select.EPOLLOUT
_CLOSE = 8


class Connection:
    """One of them, and what is expected next on it: a head, so many octets of body, the last chunk, or frames."""

    __slots__ = ("buffer", "chunked", "echoes", "left", "message", "pending", "reply", "size", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.buffer = b""
        self.left = 0
        self.chunked = False
        self.echoes = False
        self.size = 0
        self.message = self.reply = b""  # the last one that came in one piece, and its echo
        self.pending = memoryview(b"")

    def readable(self) -> bool:
        """Take what is there; False where the connection is over."""
        if self.left:
            # MSG_TRUNC: counted, not copied (tcp(7)).
            count = self.sock.recv_into(_BUFFER, min(self.left, len(_BUFFER)), socket.MSG_TRUNC)
            self.left -= count
            if count and not self.left:
                self.answer(b"%d\n" % self.size)
            return bool(count)
        data = self.sock.recv(_PIECE)
        if not data:
            return False
        if self.echoes:
            return self.echo(data)
        if self.chunked:
            self.chunk(data)
            return True
        self.buffer += data
        while b"\r\n\r\n" in self.buffer:
            head, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
            self.head(head)
        return True

    def head(self, head: bytes) -> None:
        first, *lines = head.split(b"\r\n")
        method, target, _ = first.split(b" ", 2)
        fields = {}
        for line in lines:
            name, _, value = line.partition(b":")
            fields[name.lower()] = value.strip()
        if b"upgrade" in fields:
            self.upgrade(fields)
        elif b"chunked" in fields.get(b"transfer-encoding", b""):
            self.chunked = True
            self.size = 0
            rest, self.buffer = self.buffer, b""
            self.chunk(rest)
        elif length := int(fields.get(b"content-length", b"0")):
            self.size = length
            self.left = length - len(self.buffer)
            self.buffer = b""
            if not self.left:
                self.answer(b"%d\n" % length)
        elif method == b"GET" and target.startswith(b"/files/"):
            self.answer(bytes(BODY))
        else:
            self.answer(b"x" * ANSWER)

    def upgrade(self, fields: dict[bytes, bytes]) -> None:
        accept = base64.b64encode(hashlib.sha1(fields[b"sec-websocket-key"] + _GUID).digest())
        self.send(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"
        )
        self.echoes = True
        rest, self.buffer = self.buffer, b""
        if rest:
            self.echo(rest)

    def chunk(self, data: bytes) -> None:
        """Bodies here hold no line ends, so the last chunk is known by its end."""
        self.size += len(data)
        self.buffer = (self.buffer + data)[-5:]
        if self.buffer == b"0\r\n\r\n":
            self.chunked = False
            self.buffer = b""
            self.answer(b"chunked, %d\n" % self.size)

    def echo(self, data: bytes) -> bool:
        """Client frames shorter than 126 octets, masked (RFC 6455, 5.2), come back as server frames."""
        if data == self.message and not self.buffer:  # the load's messages are all alike: this core is to be quick
            self.send(self.reply)
            return True
        if self.buffer:
            data = self.buffer + data
        end = len(data)
        at = 0
        while end - at >= 6:
            size = data[at + 1] & 0x7F
            start = at + 6
            if end - start < size:
                break
            if data[at] & 0x0F == _CLOSE:
                return False
            mask = data[at + 2 : start] * (size // 4 + 1)
            plain = int.from_bytes(data[start : start + size], "big") ^ int.from_bytes(mask[:size], "big")
            reply = bytes((data[at], size)) + plain.to_bytes(size, "big")
            self.send(reply)
            if start + size == end and not at:
                self.message, self.reply = data, reply
            at = start + size
        self.buffer = data[at:]
        return True

    def answer(self, body: bytes) -> None:
        self.send(
            b"HTTP/1.1 200 OK\r\nServer: bench\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(body)
            + body
        )

    def send(self, data: bytes) -> None:
        if not self.pending:
            try:
                sent = self.sock.send(data)
            except BlockingIOError:
                sent = 0
            if sent == len(data):
                return
            self.pending = memoryview(data)[sent:]
        else:
            self.pending = memoryview(bytes(self.pending) + data)

    def writable(self) -> None:
        self.pending = self.pending[self.sock.send(self.pending) :]


def serve(port: int) -> None:
    listener = socket.create_server(("127.0.0.1", port), backlog=4096)
    listener.setblocking(False)
    poll = select.epoll()
    poll.register(listener, select.EPOLLIN)
    connections: dict[int, Connection] = {}
    while True:
        for fd, events in poll.poll():
            connection = connections.get(fd)
            if connection is None:
                accept(listener, poll, connections)
                continue
            try:
                waiting = bool(connection.pending)
                alive = connection.readable() if events & ~select.EPOLLOUT else True
                if events & select.EPOLLOUT and connection.pending:
                    connection.writable()
                if waiting != bool(connection.pending):
                    poll.modify(fd, _WRITE if connection.pending else _READ)
            except BlockingIOError:
                continue
            except (OSError, ValueError, KeyError):
                alive = False
            if not alive:
                del connections[fd]
                connection.sock.close()


def accept(listener: socket.socket, poll: select.epoll, connections: dict[int, Connection]) -> None:
    for _ in range(256):
        try:
            sock = listener.accept()[0]
        except BlockingIOError:
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connections[sock.fileno()] = Connection(sock)
        poll.register(sock.fileno(), _READ)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
