"""One client of the control API: its bytes, its phase, its deadline.

    idle ──bytes──▶ head ──admitted──▶ body ──whole──▶ busy ──reply──▶ write ──▶ idle (keep-alive)
                      └── refused, malformed, too large, too slow ───────┘  └──▶ drain ──▶ closed

A reply to a request that was not read to its end is followed by a drain: the sending side is shut down and what still
arrives is thrown away for a moment, because closing at once would send a reset that can overtake the reply.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import h11

from egress.control.exchange import Head, Reply

if TYPE_CHECKING:
    from egress.control.server import Listener

HEAD_BYTES = 16 * 1024
"""Request line and headers together."""
BUFFERED = 16 * 1024 * 1024
"""Bytes of request bodies held at a time, over all connections."""
FIRST, HEAD, BODY, BUSY, WRITE, IDLE, DRAIN = 10.0, 10.0, 15.0, 60.0, 30.0, 60.0, 5.0
"""Seconds: to the first byte, for the head, for the body, for the answer, to take it, between requests, to hang up."""

_SLICE = 64  # protocol events handled in one go
_RECEIVE = 16 * 1024
_DRAIN_BYTES = 64 * 1024 * 1024
_REASONS = {
    200: b"OK",
    201: b"Created",
    400: b"Bad Request",
    401: b"Unauthorized",
    404: b"Not Found",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    413: b"Content Too Large",
    415: b"Unsupported Media Type",
    417: b"Expectation Failed",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    503: b"Service Unavailable",
    505: b"HTTP Version Not Supported",
}


class Connection:
    """One client."""

    __slots__ = (
        "_body", "_closing", "_fd", "_head", "_http", "_limit", "_listener", "_method", "_out", "_refusal", "_server",
        "_size", "_sock", "_turn", "deadline", "phase", "since",
    )  # fmt: skip

    def __init__(self, listener: Listener, sock: socket.socket) -> None:
        self._listener = listener
        self._server = listener.server
        self._sock = sock
        self._fd = sock.fileno()
        self._http: h11.Connection | None = None  # made with the first byte: idle connections stay cheap
        self._head: Head | None = None
        self._method = ""
        self._refusal: Reply | None = None
        self._body: list[bytes] = []
        self._size = 0
        self._limit = 0
        self._out = b""
        self._closing = False
        self._turn = 0  # counts requests: a late reply must not answer the next one
        self._enter("idle", FIRST)
        self._server.loop.add_reader(self._fd, self._readable)

    def _enter(self, phase: str, seconds: float) -> None:
        self.phase = phase
        self.since = self._server.loop.now()
        self.deadline = self.since + seconds

    def close(self) -> None:
        if self.phase == "closed":
            return
        self.phase = "closed"
        self._turn += 1
        self._server.loop.remove_reader(self._fd)
        self._server.loop.remove_writer(self._fd)
        self._sock.close()
        self._forget_body()
        self._listener.connections.pop(self, None)

    def expire(self) -> None:
        """The phase's time is up."""
        if self.phase in ("head", "body"):
            self._fault(408, "the request did not arrive in time")
        elif self.phase == "busy":
            self._fault(500, "no answer in time")
        else:
            self.close()

    # -- reading -------------------------------------------------------------------------------------------------
    def _readable(self) -> None:
        if self.phase != "drain" and not self._server.has_time():
            return
        try:
            data = self._sock.recv(_RECEIVE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        if self.phase == "drain":
            self._size += len(data)
            if not data or self._size > _DRAIN_BYTES:
                self.close()
            return
        if self._http is None:
            if not data:
                self.close()
                return
            self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
        if self.phase == "idle" and data:
            self._enter("head", HEAD)
        try:
            self._http.receive_data(data)
        except h11.RemoteProtocolError as error:
            self._broken(error)
            return
        self._pump()

    def _pump(self) -> None:
        """Handle what has arrived, a slice at a time."""
        http = self._http
        if http is None or self.phase not in ("idle", "head", "body"):
            return
        for _ in range(_SLICE):
            try:
                event = http.next_event()
            except h11.RemoteProtocolError as error:
                self._broken(error)
                return
            if event is h11.NEED_DATA:
                if self.phase == "body" and http.they_are_waiting_for_100_continue:
                    self._send(http.send(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")))
                return
            if isinstance(event, h11.Request):
                self._requested(event)
            elif isinstance(event, h11.Data):
                self._received(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                self._complete()
                return
            else:  # closed, or paused behind a reply that is still on its way
                if isinstance(event, h11.ConnectionClosed):
                    self.close()
                return
            if self.phase not in ("head", "body"):
                return
        turn = self._turn
        self._server.loop.remove_reader(self._fd)
        self._server.loop.call_soon(lambda: self._resume(turn))

    def _resume(self, turn: int) -> None:
        if self.phase in ("head", "body") and turn == self._turn:
            if not self._server.has_time():
                self._server.loop.call_soon(lambda: self._resume(turn))
                return
            self._server.loop.add_reader(self._fd, self._readable)
            self._pump()

    def _requested(self, event: h11.Request) -> None:
        target = event.target.decode("ascii", "replace").partition("?")[0]
        if target[:7].lower() == "http://":  # absolute-form, RFC 9112 section 3.2.2
            target = "/" + target[7:].partition("/")[2]
        headers = tuple((bytes(name), bytes(value)) for name, value in event.headers)
        head = Head(event.method.decode("ascii", "replace"), target, headers, self._listener.local)
        self._head = head
        self._method = head.method
        if event.http_version not in (b"1.0", b"1.1"):
            self._fault(505, "this server speaks HTTP/1.1")
            return
        announced = head.values(b"content-length")
        length = int(announced[0]) if announced else 0  # h11 has checked its form and that it is one
        verdict = self._server.application.admit(head)
        if isinstance(verdict, Reply):
            if length or head.values(b"transfer-encoding"):
                self._answer(verdict, hang_up=True)
                return
            self._refusal = verdict
        else:
            self._limit = verdict
            if length > verdict:
                self._fault(413, f"the body is larger than {verdict} bytes")
                return
        if any(value.lower() != b"100-continue" for value in head.values(b"expect")):
            self._fault(417, "the only expectation met here is 100-continue")
            return
        self._enter("body", BODY)

    def _received(self, data: bytes) -> None:
        if self._size + len(data) > self._limit:
            self._fault(413, f"the body is larger than {self._limit} bytes")
        elif self._server.buffered + len(data) > BUFFERED:
            self._fault(503, "too many large requests at a time; try again")
        else:
            self._body.append(data)
            self._size += len(data)
            self._server.buffered += len(data)

    def _complete(self) -> None:
        body = b"".join(self._body)
        self._forget_body()
        self._server.loop.remove_reader(self._fd)  # nothing is read ahead while this one is answered
        self._enter("busy", BUSY)
        head, refusal, turn = self._head, self._refusal, self._turn
        self._head = self._refusal = None
        if refusal is not None:
            self._answer(refusal)
            return
        assert head is not None
        try:
            self._server.application.handle(head, body, lambda reply: self._reply(turn, reply))
        except Exception as error:  # noqa: BLE001 - a fault in one request must not take the others along
            self._server.report(error)
            self._reply(turn, self._server.application.fault(500, "internal error"))

    def _forget_body(self) -> None:
        self._server.buffered -= self._size if self._body else 0
        self._body = []
        self._size = 0

    # -- answering -----------------------------------------------------------------------------------------------
    def _reply(self, turn: int, reply: Reply) -> None:
        if turn == self._turn and self.phase == "busy":
            self._answer(reply)

    def _broken(self, error: h11.RemoteProtocolError) -> None:
        status = error.error_status_hint
        if status not in _REASONS:
            status = 400
        self._fault(status, f"malformed request: {str(error).encode('unicode_escape').decode('ascii')[:200]}")

    def _fault(self, status: int, reason: str) -> None:
        self._answer(self._server.application.fault(status, reason), hang_up=True)

    def _answer(self, reply: Reply, *, hang_up: bool = False) -> None:
        """Send a reply; with `hang_up` the connection ends with it."""
        http = self._http
        self._turn += 1
        self._forget_body()
        if http is None or http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.close()
            return
        headers = [
            ("Content-Type", reply.content_type),
            ("Content-Length", str(len(reply.body))),
            ("Cache-Control", "no-store"),
            *reply.headers,
        ]
        if hang_up:
            headers.append(("Connection", "close"))
        reason = _REASONS.get(reply.status, b"")
        bare = self._method == "HEAD"
        data = http.send(h11.Response(status_code=reply.status, headers=headers, reason=reason)) or b""
        if reply.body and not bare:
            data += http.send(h11.Data(data=reply.body)) or b""
        data += http.send(h11.EndOfMessage()) or b""
        self._closing = hang_up
        self._enter("write", WRITE)
        self._server.loop.remove_reader(self._fd)
        self._send(data)

    def _send(self, data: bytes | None) -> None:
        self._out += data or b""
        self._flush()

    def _flush(self) -> None:
        try:
            while self._out:
                sent = self._sock.send(self._out)
                self._out = self._out[sent:]
        except (BlockingIOError, InterruptedError):
            self._server.loop.add_writer(self._fd, self._flush)
            return
        except OSError:
            self.close()
            return
        self._server.loop.remove_writer(self._fd)
        if self.phase == "write":
            self._written()

    def _written(self) -> None:
        http = self._http
        if self._closing or http is None or not _done(http):
            try:
                self._sock.shutdown(socket.SHUT_WR)
            except OSError:
                self.close()
                return
            self._enter("drain", DRAIN)
            self._server.loop.add_reader(self._fd, self._readable)
            return
        http.start_next_cycle()
        self._method = ""
        waiting, closed = http.trailing_data
        if waiting or closed:  # pipelined, or the peer has sent its last; in a later turn, so that others get theirs
            self._enter("head", HEAD)
            turn = self._turn
            self._server.loop.call_soon(lambda: self._resume(turn))
        else:
            self._enter("idle", IDLE)
            self._server.loop.add_reader(self._fd, self._readable)


def _done(http: h11.Connection) -> bool:
    """Both sides have finished this exchange, and the connection may be used for another."""
    return (http.our_state, http.their_state) == (h11.DONE, h11.DONE)
