"""10 MiB bodies, down and up, on a few connections at once.

What comes down is counted and thrown away in the kernel (MSG_TRUNC, tcp(7)), so that the load's core is not the limit;
that every body is whole is checked by its length, and the first one down by its content.
"""

from __future__ import annotations

import hashlib
import re
import select
import socket
import time
from typing import TYPE_CHECKING

from bench.http.load import Burst, connect, head, response
from bench.http.place import BODY, FILE

if TYPE_CHECKING:
    from bench.http.contender import Contender

CONNECTIONS = 4
_BUFFER = bytearray(1 << 20)
_SENT = memoryview(bytes(BODY))
_PIECE = 1 << 18
_STUCK = 10.0  # seconds without any progress


class Transfer:
    """One connection that sends the same request again and again."""

    def __init__(self, contender: Contender, port: int, message: bytes, body: memoryview) -> None:
        self.sock = connect(contender, port)
        self.sock.setblocking(False)
        self._message = message
        self._body = body
        self._down = not body
        self.bodies = 0
        self._begin()

    def _begin(self) -> None:
        self.unsent = memoryview(self._message)
        self._more = self._body
        self._answer = b""
        self._left = 0
        self._in_body = False

    def moved(self, events: int) -> None:
        """Send and take what can be sent and taken. Raises RuntimeError where an answer is not what it should be."""
        if events & ~select.EPOLLOUT:
            self._take()
        if events & select.EPOLLOUT:
            self._send()

    def _send(self) -> None:
        if not self.unsent and self._more:
            self.unsent, self._more = self._more[:_PIECE], self._more[_PIECE:]
        if self.unsent:
            self.unsent = self.unsent[self.sock.send(self.unsent) :]

    @property
    def sending(self) -> bool:
        return bool(self.unsent or self._more)

    def _take(self) -> None:
        if self._in_body:
            count = self.sock.recv_into(_BUFFER, min(self._left, len(_BUFFER)), socket.MSG_TRUNC)
            self._need(bool(count))
            self._left -= count
            if not self._left:
                self._done()
            return
        data = self.sock.recv(65536)
        self._need(bool(data))
        self._answer += data
        fields, blank, body = self._answer.partition(b"\r\n\r\n")
        if not blank:
            return
        self._need(fields.startswith(b"HTTP/1.1 200"))
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", fields)
        if length is None:
            if body.endswith(b"0\r\n\r\n"):
                self._done()
            elif self._down:
                self._answer = fields + b"\r\n\r\n" + body[-5:]
            return
        self._need(not self._down or int(length[1]) == BODY)
        self._left = int(length[1]) - len(body)
        if self._left:
            self._in_body = True
        else:
            self._need(self._down or int(body.split()[-1]) >= BODY)
            self._done()

    def _need(self, good: bool) -> None:
        if not good:
            raise RuntimeError(f"a body was not carried: {self._answer[:120]!r}")

    def _done(self) -> None:
        self._need(not self.sending)
        self.bodies += 1
        self._begin()


def check(contender: Contender) -> None:
    """One file down, with its content looked at. Raises RuntimeError."""
    if contender.place.plain == contender.place.echo:
        return  # without nginx behind it, there is no pattern to look for
    with connect(contender, contender.place.plain) as sock:
        body = response(sock, head(contender, "GET", contender.place.plain, FILE)).partition(b"\r\n\r\n")[2]
    if hashlib.sha256(body).digest() != hashlib.sha256(bytes(range(256)) * (BODY // 256)).digest():
        raise RuntimeError("a file came down altered (or in chunks)")


def down(contender: Contender, seconds: float, connections: int = CONNECTIONS) -> Burst:
    """Files of 10 MiB from the origin; `rate` is octets a second, `cpu` µs a body."""
    message = head(contender, "GET", contender.place.plain, FILE)
    return _carry(contender, contender.place.plain, message, memoryview(b""), seconds, connections)


def up(contender: Contender, seconds: float, connections: int = CONNECTIONS) -> Burst:
    """Uploads of 10 MiB to the origin."""
    message = head(contender, "POST", contender.place.echo, "/up", Content_Length=str(BODY), Content_Type="text/plain")
    return _carry(contender, contender.place.echo, message, _SENT, seconds, connections)


def _carry(
    contender: Contender, port: int, message: bytes, body: memoryview, seconds: float, connections: int
) -> Burst:
    """Bodies begun are finished, and all of them count, over the time that it took."""
    transfers = [Transfer(contender, port, message, body) for _ in range(connections)]
    process = contender.running
    poll = select.epoll()
    by_fd = {transfer.sock.fileno(): transfer for transfer in transfers}
    wanted = dict.fromkeys(by_fd, select.EPOLLIN | select.EPOLLOUT)
    for fd, events in wanted.items():
        poll.register(fd, events)
    bodies = 0
    before = process.cpu()
    begin = time.monotonic()
    try:
        while by_fd:
            ready = poll.poll(_STUCK)
            if not ready:
                raise RuntimeError(f"no octet moved for {_STUCK:g} s")
            for fd, events in ready:
                transfer = by_fd[fd]
                count = transfer.bodies
                try:
                    transfer.moved(events)
                except BlockingIOError:
                    continue
                if transfer.bodies != count:
                    bodies += 1
                    if time.monotonic() - begin > seconds:
                        poll.unregister(fd)
                        del by_fd[fd]
                        continue
                events = select.EPOLLIN | (select.EPOLLOUT if transfer.sending else 0)
                if wanted[fd] != events:
                    wanted[fd] = events
                    poll.modify(fd, events)
    finally:
        took = time.monotonic() - begin
        used = process.cpu() - before
        poll.close()
        for transfer in transfers:
            transfer.sock.close()
    return Burst(bodies * BODY / took, used / bodies * 1e6, used / took)
