"""A client's connection: octets to request heads, the gateway's own answers, and how it ends.

What a client sends while its request is under way waits (and then isn't read) until the answer is whole. After an
answer that the client can't be expected to have finished its request for, the connection lingers: what still comes is
thrown away for a moment, because closing at once would take the answer back from the wire (RFC 9112 section 9.6).
"""

from __future__ import annotations

import asyncio
import fcntl
import re
import struct
import sys
import termios
import time
from socket import SO_LINGER, SOL_SOCKET
from typing import TYPE_CHECKING, cast

from ingress.http1.head import BadHead, RequestHead, read_again, read_request, read_similar
from ingress.refusal import Refusal

if TYPE_CHECKING:
    from ingress.http1.client import Client
    from ingress.http1.core import Gateway
    from ingress.http1.headers import Outside

IDLE, BODY, ANSWER, WAITING, LINGER, GONE = range(6)
"""Between requests, or in a head; a request's body; its answer; for a sandbox to be ready; to be closed; closed."""

_OPENING = re.compile(rb"(?:\r\n)*[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}(?: |$)|(?:\r\n)*\r?$").match
"""What the first octets of a request look like; anything else needs no waiting for."""
_EMPTY_LINES = re.compile(rb"\A(?:\r\n)++").sub

_CODES = {
    405: "method_not_allowed",
    414: "target_too_long",
    431: "head_too_large",
    501: "method_too_long",
    505: "http_version",
}
_LINES = {405: b"Allow: GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS\r\n"}

LINGER_SECONDS = 2
"""How long a client that says nothing is lingered for."""
LINGER_MOST = 10.0
"""Seconds, whatever it still says."""
LINGER_BYTES = 1_048_576
LINGERING = 128
"""Connections over the limit that are lingered for; more are told so and closed at once, or they would take the
descriptors that are left for sandboxes."""


class Connection(asyncio.Protocol):
    """The part of a client's connection that knows nothing of sandboxes. Times are in ticks, one a second."""

    __slots__ = (
        "__weakref__",
        "_buffer",
        "_eof",
        "_last",
        "_outside",
        "_paused",
        "_raw",
        "_secure",
        "_sent_before",
        "_started",
        "address",
        "closing",
        "core",
        "head",
        "head_only",
        "moved",
        "quiet",
        "received",
        "sent",
        "state",
        "status",
        "transport",
        "version",
    )

    def __init__(self, core: Gateway, address: str, secure: bool) -> None:
        self.core = core
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self.state = IDLE
        self.moved = False
        self.quiet = 0
        self.closing = False
        self.head: RequestHead = cast("RequestHead", None)
        self.head_only = False
        self.version = 11
        self.status = 0
        """The answer's status, 0 before it has one."""
        self.address = address
        self.received = 0
        """Octets of the request's body so far."""
        self.sent = 0
        """Octets of the answer that are not counted yet, its head included."""
        self._sent_before = 0
        self._outside: Outside = cast("Outside", None)
        self._paused = False
        self._secure = secure
        self._buffer = b""
        self._eof = False
        self._started = 0.0
        # The last header section and its head: most clients send the same one again, or nearly.
        self._raw = b""
        """The last request's head as it came, and what was read from it."""
        self._last: RequestHead = cast("RequestHead", None)

    def serve(self, head: RequestHead, rest: bytes) -> bytes:
        """Begin with a request; gives what of `rest` is not its body. A state other than IDLE: it is under way."""
        raise NotImplementedError

    def take_body(self, data: bytes) -> None:
        """More of the request's body."""
        raise NotImplementedError

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        core = self.core
        if not self.address:
            peer = transport.get_extra_info("peername")
            self.address = plain_address(peer[0]) if peer else ""
        self._outside = core.outside(self.address, self._secure)
        core.stats.connections += 1
        core.stats.connections_total += 1
        self.transport.set_write_buffer_limits(high=core.limits.buffer_bytes)
        core.arrived(cast("Client", self))
        over = len(core.clients) - core.limits.connections
        if over > 0:
            self.refuse(
                Refusal(503, "connections", "the gateway has all the connections it takes", retry_after=1, close=True)
            )
        if over > LINGERING:
            if self._secure:  # the end of TLS waits for the other side
                self.abort()
            else:
                self.close()

    def data_received(self, data: bytes) -> None:
        self.moved = True
        state = self.state
        if state == IDLE:
            if self._buffer:
                data = self._buffer + data
                self._buffer = b""
            self.read_requests(data)
        elif state == BODY:
            self.take_body(data)
        elif state == LINGER:
            self.received += len(data)
            if self.received > LINGER_BYTES:
                self.abort()
        elif state != GONE:
            self._buffer += data
            if len(self._buffer) > self.core.limits.head_bytes:
                self._pause()

    def read_requests(self, data: bytes) -> None:
        """Serve what is whole, keep the rest."""
        while data:
            try:
                if data == self._raw:  # the last request once more, and nothing behind it
                    data = self.serve(self._last, b"")
                else:
                    end = data.find(b"\r\n\r\n") + 4
                    if end < 4:
                        self._unfinished(data)
                        break
                    if data.startswith(b"\r\n"):
                        data = _EMPTY_LINES(b"", data, 1)  # passed over, all at once (RFC 9112 section 2.2)
                        continue
                    self._take_head(data[:end])
                    data = self.serve(self._last, data[end:])
            except BadHead as fault:
                code = _CODES.get(fault.status, "bad_request")
                lines = _LINES.get(fault.status, b"")
                self.refuse(Refusal(fault.status, code, str(fault), close=True, headers=lines))
                return
            if self.state != IDLE:
                self._buffer = data
                return
        if self._eof and self.state == IDLE:
            self.close()  # it has said all it would

    def _take_head(self, raw: bytes) -> None:
        """Read a head, or see that its header section, or all of it, is the last one's."""
        last = self._raw
        if raw == last:
            return
        if len(raw) > self.core.limits.head_bytes:
            raise self._too_long(raw)
        cut = raw.find(b"\r\n")
        section = raw[cut:]
        head = None
        if last.endswith(section) and last.find(b"\r\n") == len(last) - len(section):
            head = read_again(raw[:cut], self._last)
        self._last = head or self._read(raw)
        self._raw = raw

    def _read(self, raw: bytes) -> RequestHead:
        if self._raw:
            head = read_similar(raw, self._last, self.core.fixed)
            if head is not None:
                return head
        head = read_request(raw)
        if len(head.fields.lines) > self.core.limits.head_fields:
            raise BadHead("too many header fields", 431)
        return head

    def _unfinished(self, data: bytes) -> None:
        if len(data) >= self.core.limits.head_bytes:
            raise self._too_long(data)
        if _OPENING(data[:80]) is None or b"\n\n" in data or b"\n\r\n" in data:
            self.refuse(Refusal(400, "bad_request", "this is not an HTTP/1.1 request", close=True))
        else:
            if not self._started:
                self._started = time.monotonic()
                self.quiet = 0
            self._buffer = data

    def _too_long(self, data: bytes) -> BadHead:
        """The limit is on the whole head, its empty line included."""
        if 0 <= data.find(b"\n") <= self.core.limits.head_bytes:
            return BadHead("the request's head is too long", 431)
        return BadHead("the request line is too long", 414)

    def _pause(self) -> None:
        self._paused = True
        self.transport.pause_reading()

    def _resume(self) -> None:
        self._paused = False
        self.transport.resume_reading()

    def send(self, data: bytes) -> None:
        """Octets for the client, framed as its version wants them."""
        self.sent += len(data)
        self.transport.write(data)

    def total_sent(self) -> int:
        """Octets of the answer, its head included."""
        return self.sent + self._sent_before

    def count(self, code: str, status: int) -> None:
        core = self.core
        stats = core.stats
        seconds = time.monotonic() - self._started if self._started else 0.0
        stats.bytes_out += self.sent
        stats.bytes_in += self.received
        stats.answered(status, code, seconds)
        if core.access is not None:
            core.log_access(cast("Client", self), code, status, seconds)
        self.sent = 0  # counted; the next tick must not count it again

    def may_keep(self) -> bool:
        """May the connection go on after this answer? Asked when the answer's head is written."""
        if self.state != ANSWER or self.core.draining:
            self.closing = True
        return not self.closing

    def refuse(self, refusal: Refusal) -> None:
        """Say it. The state is IDLE afterwards where the connection goes on."""
        core = self.core
        head = self.head
        accept = b""
        if self.state in (BODY, ANSWER, WAITING):
            accept = b",".join(head.fields.all(b"accept"))
        else:
            self.head_only = False
            refusal.close = True
        keep = not refusal.close and self.may_keep()
        if refusal.status == 429:
            core.stats.throttled(refusal.code)
        self.status = refusal.status
        self.send(refusal.render(accept=accept, head_only=self.head_only, keep_alive=keep, detail=core.detail))
        self.count(refusal.code, refusal.status)
        self.over(closing=not keep)

    def over(self, *, closing: bool = False) -> None:
        """After an answer of the gateway's own."""
        if closing or self.closing or self.core.draining:
            self.linger()
        else:
            self.state = IDLE
            self.quiet = 0
            self._started = 0.0

    def linger(self) -> None:
        """Close, but not so that the answer is lost: what the client is still sending would reset the connection."""
        self.state = LINGER
        self.quiet = 0
        self.received = 0
        self._started = time.monotonic()
        self._buffer = b""
        if self._eof or not self.transport.can_write_eof():
            self.transport.close()
            return
        self.transport.write_eof()
        self._resume()

    def close(self) -> None:
        """End it when what was written has left; nothing is read any more."""
        self.state = LINGER
        self.quiet = 0
        self._started = 0.0
        self.transport.close()

    def abort(self) -> None:
        """Break off so that the client can tell: a reset, where the system allows it."""
        sock = self.transport.get_extra_info("socket")
        if sock is not None:
            try:
                sock.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
            except OSError:
                pass  # already closed
        self.transport.abort()

    def _unsent(self) -> int:
        """Octets of an answer that would be lost if the connection ended now. With TLS those count that the client has
        yet to take: how many have left us is known to the layer below it only."""
        if not self._secure:
            return self.transport.get_write_buffer_size()
        try:
            waiting = fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
        except (OSError, ValueError):  # it has just gone
            return 0
        return int.from_bytes(waiting, sys.byteorder)

    def tick_idle(self) -> None:
        """A second has passed while no request was under way."""
        limits = self.core.limits
        if self.state == LINGER:
            if self._unsent():  # a client that reads slowly gets the end of its answer too
                if self.quiet > limits.body_timeout:
                    self.abort()
            elif self.quiet > LINGER_SECONDS or (self._started and time.monotonic() - self._started > LINGER_MOST):
                self.transport.abort()
        elif self._started:
            if time.monotonic() - self._started > limits.head_timeout:
                self.refuse(Refusal(408, "head_timeout", "the request's head took too long", close=True))
        elif self.quiet > limits.idle_timeout:
            self.close()


def plain_address(text: str) -> str:
    """A peer's address as people write it: IPv4 is IPv4 though the socket be IPv6; no zone."""
    if text.startswith("::ffff:") and "." in text:
        return text[7:]
    return text.partition("%")[0]
