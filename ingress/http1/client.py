"""The client's side of the data path: one connection, its requests one after the other.

    head -> gate -> endpoint -> upstream -> answer -> next head
                 \\-> a refusal, said here

What a client sends while its request is under way waits (and then isn't read) until the answer is whole. After an
answer that the client can't be expected to have finished its request for, the connection lingers: what still comes is
thrown away for a moment, because closing at once would take the answer back from the wire (RFC 9112 section 9.6).
"""

from __future__ import annotations

import asyncio
import re
import struct
import time
from socket import SO_LINGER, SOL_SOCKET
from typing import TYPE_CHECKING, cast

from ingress.body import BadBody, ChunkedReader, framed, last_chunk
from ingress.gate import Admission, Reply
from ingress.head import CHUNKED, BadHead, Fields, RequestHead, ResponseHead, read_request, request_line
from ingress.headers import Outside, crossing_trailers, is_websocket, keeps_alive, request_fields
from ingress.http1.tunnel import accepts, open_tunnel
from ingress.prefix import Rewriter
from ingress.refusal import Refusal

if TYPE_CHECKING:
    from ingress.http1.core import Gateway
    from ingress.http1.endpoint import Endpoint
    from ingress.http1.upstream import Upstream
    from ingress.limits import Limits

IDLE, BODY, ANSWER, WAITING, LINGER, GONE = range(6)
"""Between requests, or in a head; a request's body; its answer; for a sandbox to be ready; to be closed; closed."""

_IDEMPOTENT = frozenset((b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE", b"TRACE", b"PROPFIND", b"REPORT", b"SEARCH"))
"""Methods that may be sent again (RFC 9110 section 9.2.2)."""
_KNOWN = frozenset((b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"))
_TARGET = re.compile(rb"[\x21-\x7e]+").fullmatch
_OPENING = re.compile(rb"(?:\r\n)*[A-Z-]{1,20}(?: |$)|(?:\r\n)*\r?$").match
"""What the first octets of a request look like; anything else needs no waiting for."""

LINGER_SECONDS = 2
LINGER_BYTES = 1_048_576
EOF_GRACE = 5
"""Seconds that a client which has closed its sending side is still answered when nothing moves."""


class Client(asyncio.Protocol):
    """A client's connection. Times are in ticks of the gateway, one a second."""

    __slots__ = (
        "_block",
        "_block_version",
        "_buffer",
        "_chunks",
        "_endpoint",
        "_eof",
        "_fields",
        "_keep",
        "_left",
        "_outgoing",
        "_outside",
        "_paused",
        "_replay",
        "_retried",
        "_secure",
        "_sent_before",
        "_started",
        "_upstream",
        "address",
        "admission",
        "closing",
        "core",
        "head",
        "head_only",
        "moved",
        "plain",
        "quiet",
        "received",
        "sent",
        "state",
        "status",
        "transport",
        "version",
        "write_paused",
    )

    def __init__(self, core: Gateway, address: str, secure: bool) -> None:
        self.core = core
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self.state = IDLE
        self.moved = False
        self.quiet = 0
        self.closing = False
        self.write_paused = False
        self.plain = False
        self.head_only = False
        self.version = 11
        self.status = 0
        self.head: RequestHead = cast("RequestHead", None)
        self.admission: Admission = cast("Admission", None)
        self.address = address
        self.received = 0
        """Octets of the request's body so far."""
        self.sent = 0
        """Octets of the answer so far, its head included; `tick` counts a long one in parts."""
        self._sent_before = 0
        self._outside: Outside = cast("Outside", None)
        self._paused = False
        self._secure = secure
        self._buffer = b""
        self._eof = False
        self._keep = True
        self._left = 0
        self._chunks: ChunkedReader | None = None
        self._outgoing = b""
        self._replay = b""
        self._retried = False
        self._started = 0.0
        self._endpoint: Endpoint | None = None
        self._upstream: Upstream | None = None
        # The last header section, as it came and as it was read: most clients send the same one again and again.
        self._block = b""
        self._block_version = 0
        self._fields: Fields = cast("Fields", None)

    # asyncio's side

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
        core.clients.add(self)
        if len(core.clients) > core.limits.connections:
            self._refuse(
                Refusal(503, "connections", "the gateway has all the connections it takes", retry_after=1, close=True)
            )

    def data_received(self, data: bytes) -> None:
        self.moved = True
        state = self.state
        if state == IDLE:
            if self._buffer:
                data = self._buffer + data
                self._buffer = b""
            self._requests(data)
        elif state == BODY:
            self._body(data)
        elif state == LINGER:
            self.received += len(data)
            if self.received > LINGER_BYTES:
                self.abort()
        elif state != GONE:
            self._buffer += data
            if len(self._buffer) > self.core.limits.head_bytes:
                self._pause()

    def eof_received(self) -> bool:
        self._eof = True
        if self.state in (ANSWER, WAITING):
            self.closing = True
            self.plain = False
            return not self._secure  # it may only have closed its sending side; `tick` gives it a few seconds
        if self.state == BODY:
            self._drop_upstream()
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # why it went changes nothing
        core = self.core
        state, self.state = self.state, GONE
        core.clients.discard(self)
        core.stats.connections -= 1
        if state in (BODY, ANSWER, WAITING):
            self._drop_upstream()
            self._count("client_gone", 499)
        self._buffer = b""

    def pause_writing(self) -> None:
        self.write_paused = True
        if self._upstream is not None:
            self._upstream.transport.pause_reading()

    def resume_writing(self) -> None:
        self.write_paused = False
        self.moved = True
        if self._upstream is not None:
            self._upstream.transport.resume_reading()

    # requests

    def _requests(self, data: bytes) -> None:
        """Serve what is whole, keep the rest."""
        while data:
            end = data.find(b"\r\n\r\n")
            if end <= 0 or data.startswith((b"\r\n", b"\n")):
                stripped = data.lstrip(b"\r\n") if data.startswith(b"\r\n") else data
                if end >= 0 and len(stripped) != len(data):
                    data = stripped  # empty lines before a request are passed over (RFC 9112 section 2.2)
                    continue
                self._unfinished(data)
                return
            line_end = data.find(b"\r\n")
            block = data[line_end + 2 : end + 2]
            try:
                if end > self.core.limits.head_bytes:
                    raise BadHead("the request's head is too long", 431)
                head = self._known(data[:line_end]) if block == self._block else None
                if head is None:
                    head = read_request(data[: end + 4])
                    if len(head.fields.items) > self.core.limits.head_fields:
                        raise BadHead("too many header fields", 431)
                    if head.length == 0:
                        self._block, self._block_version, self._fields = block, head.version, head.fields
                rest = data[end + 4 :]
                data = self._serve(head, rest)
            except BadHead as fault:
                code = _BAD_HEAD.get(fault.status, "bad_request")
                lines = _BAD_HEAD_LINES.get(fault.status, b"")
                self._refuse(Refusal(fault.status, code, str(fault), close=True, headers=lines))
                return
            if self.state != IDLE:
                self._buffer = data
                return

    def _known(self, line: bytes) -> RequestHead | None:
        """The head whose header section is the last one's; None where llhttp should look at the request line."""
        method, target, version = request_line(line)
        if method not in _KNOWN or version != self._block_version or _TARGET(target) is None or target[0] != 47:
            return None
        return RequestHead(method, target, version, self._fields, 0)

    def _unfinished(self, data: bytes) -> None:
        if len(data) > self.core.limits.head_bytes:
            line_end = data.find(b"\n")
            if 0 <= line_end <= self.core.limits.head_bytes:
                self._refuse(Refusal(431, "head_too_large", "the request's head is too long", close=True))
            else:
                self._refuse(Refusal(414, "target_too_long", "the request line is too long", close=True))
        elif _OPENING(data[:24]) is None or b"\n\n" in data or b"\n\r\n" in data:
            self._refuse(Refusal(400, "bad_request", "this is not an HTTP/1.1 request", close=True))
        else:
            if not self._started:
                self._started = time.monotonic()
                self.quiet = 0
            self._buffer = data

    def _serve(self, head: RequestHead, rest: bytes) -> bytes:
        """Begin with a request; gives what of `rest` is not its body. A state other than IDLE: it is under way."""
        core = self.core
        self._started = time.monotonic()
        self.head = head
        self.version = head.version
        self.head_only = head.method == b"HEAD"
        self._keep = keeps_alive(head.fields, head.version) and not core.draining
        self.closing = not self._keep
        self.received = self.sent = self._sent_before = 0
        self._retried = False
        self._chunks = None
        self._left = 0
        self.status = 0
        length = head.length
        if length == 0:
            self.state = ANSWER
        else:
            self.state = BODY
            self.plain = False
            if length > 0:
                self._left = length
            else:
                self._chunks = ChunkedReader()
            if core.limits.body_bytes and length > core.limits.body_bytes:
                self._refuse(too_large(core.limits.body_bytes))
                return b""
        try:
            self._admit()
        except Refusal as refusal:
            return self._refused(refusal, rest)
        if self.state != BODY:
            return rest
        self._buffer = b""
        if rest:
            self._body(rest)
        return self._buffer

    def _admit(self) -> None:
        """Ask the gate, find a connection, send the head. Refusal where it can't be."""
        core = self.core
        head = self.head
        outside = self._outside
        if outside.trusted:
            outside = core.behind(outside, head.fields)
        found = core.gate.admit(head, outside.address, outside.secure, time.time())
        if type(found) is Reply:
            self._reply(found)
            return
        self.admission = admission = cast("Admission", found)
        sandbox = admission.sandbox
        endpoint = core.endpoint(sandbox, admission.port)
        load = endpoint.load
        if load.inflight >= core.limits.inflight_per_sandbox:
            raise Refusal(
                429,
                "sandbox_busy",
                f"this sandbox has {core.limits.inflight_per_sandbox} requests under way, which is the limit",
                sandbox=sandbox.id,
                retry_after=1,
            )
        request = self._request(outside, endpoint)
        if core.renewer is not None and admission.renew:
            core.renewer.note(sandbox.id, admission.port, admission.request_uri)
        load.inflight += 1
        core.stats.inflight += 1
        self._endpoint = endpoint
        self.plain = self._may_be_plain() and self.state == ANSWER
        idempotent = self.state == ANSWER and head.method in _IDEMPOTENT
        self._replay = request if idempotent else b""
        upstream = endpoint.take(idempotent)
        if upstream is None:
            self._outgoing = request
            core.spawn(self._connect(endpoint))
        else:
            self._upstream = upstream
            upstream.begin(self, request)

    def _may_be_plain(self) -> bool:
        return self._keep and self.version == 11 and not self.head_only and not self.admission.set_cookie

    def _request(self, outside: Outside, endpoint: Endpoint) -> bytes:
        """The head for the sandbox, whole. Its fields are kept with the header section they were made from."""
        head, admission = self.head, self.admission
        fields = head.fields
        websocket = b"upgrade" in fields.values and wants_websocket(head)
        core = self.core
        known = fields.memo.get("request")
        authority = admission.authority
        if known is not None and known[0] is outside and known[1] == admission.prefix and known[2] == authority:
            lines = known[3]
        else:
            shown = authority or core.upstream_host or fields.get(b"host") or endpoint.authority()
            lines = request_fields(fields, outside, core.stripped, shown, admission.prefix, websocket)
            if not websocket:
                fields.memo["request"] = (outside, admission.prefix, authority, lines)
        length = head.length
        if length == 0:
            framing = b"Content-Length: 0\r\n\r\n" if b"content-length" in fields.values else b"\r\n"
        elif length == CHUNKED:
            framing = b"Transfer-Encoding: chunked\r\n\r\n"
        else:
            framing = b"Content-Length: %d\r\n\r\n" % length
        return b"%b %b HTTP/1.1\r\n%b%b" % (head.method, admission.target, lines, framing)

    async def _connect(self, endpoint: Endpoint) -> None:
        try:
            upstream = await endpoint.open()
        except Refusal as refusal:
            if self._endpoint is endpoint and self._upstream is None:
                self._fail(refusal)
            return
        if self._endpoint is not endpoint or self._upstream is not None or self.state not in (BODY, ANSWER):
            endpoint.give_back(upstream)
            return
        request, self._outgoing = self._outgoing, b""
        self._upstream = upstream
        upstream.begin(self, request)
        if self.write_paused:
            upstream.transport.pause_reading()
        self.resume_reading()

    # the request's body

    def _body(self, data: bytes) -> None:
        self.received += len(data)
        limit = self.core.limits.body_bytes
        chunks = self._chunks
        if chunks is None:
            left = self._left - len(data)
            if left > 0:
                self._left = left
                self._to_upstream(data)
                return
            rest = data[self._left :] if left else b""
            self._to_upstream(data[: self._left] if left else data)
        else:
            try:
                pieces = chunks.feed(data)
            except BadBody as fault:
                self._fail(Refusal(400, "bad_body", f"the request's body: {fault}", close=True))
                return
            if limit and self.received > limit:
                self._fail(too_large(limit))
                return
            if not chunks.done:
                if pieces:
                    self._to_upstream(framed(pieces))
                return
            rest = chunks.rest
            trailers = crossing_trailers(chunks.trailers, self.core.stripped)
            self._to_upstream(framed(pieces) + last_chunk(trailers))
            self._chunks = None
        self._left = 0
        self.state = ANSWER
        self.plain = self._may_be_plain()
        self._buffer = rest

    def _to_upstream(self, data: bytes) -> None:
        upstream = self._upstream
        if upstream is not None:
            upstream.transport.write(data)
        else:
            self._outgoing += data
            if len(self._outgoing) > self.core.limits.head_bytes:
                self._pause()

    def pause_reading(self) -> None:
        """The sandbox doesn't keep up."""
        if self.state == BODY:
            self._pause()

    def resume_reading(self) -> None:
        """The sandbox takes more."""
        self.moved = True
        if self._paused and len(self._buffer) <= self.core.limits.head_bytes:
            self._resume()

    def _pause(self) -> None:
        self._paused = True
        self.transport.pause_reading()

    def _resume(self) -> None:
        self._paused = False
        self.transport.resume_reading()

    # the answer; called by the upstream

    def send(self, data: bytes) -> None:
        """Octets for the client, framed as its version wants them."""
        self.sent += len(data)
        self.transport.write(data)

    def request_sent(self) -> bool:
        """Has the sandbox been sent all of the request?"""
        return self.state == ANSWER

    def may_keep(self) -> bool:
        """May the connection go on after this answer? Asked when the answer's head is written."""
        if self.state != ANSWER or self.core.draining:
            self.closing = True
        return not self.closing

    def rewriter(self) -> Rewriter | None:
        """What path mode has to do to the answer's head."""
        prefix = self.admission.prefix
        if not prefix:
            return None
        fields = self.head.fields
        return Rewriter(prefix, self.core.origins(fields.get(b"host") or b"", self.admission))

    def answered(self) -> None:
        """The answer is whole."""
        self._release()
        self._count("", self.status)
        if self.state == BODY:
            self._linger()
        elif self.closing or self.core.draining or self._eof:
            self._close()
        else:
            self._next()

    def upstream_lost(self, upstream: Upstream, nothing_yet: bool) -> None:
        """The sandbox's connection broke off. nothing_yet: before the first octet of an answer."""
        if nothing_yet and self._replay and upstream.served > 1 and not self._retried:
            # An idle connection that closed while the request was on its way: nobody has seen it, send it anew.
            self._retried = True
            self._upstream = None
            self._outgoing = self._replay
            self.core.spawn(self._connect(cast("Endpoint", self._endpoint)))
            return
        self._fail(
            Refusal(
                502,
                "upstream_closed",
                "the sandbox closed the connection "
                + ("without an answer" if nothing_yet else "in the middle of its answer"),
            )
        )

    def upstream_lied(self, what: str) -> None:
        """The sandbox's answer can't be understood in one way."""
        self._fail(Refusal(502, "upstream_protocol", f"the sandbox's answer is not HTTP/1.1: {what}"))

    def switch(self, upstream: Upstream, answer: ResponseHead, rest: bytes) -> bool:
        """The sandbox agrees to a WebSocket. False: nobody asked, or that isn't how one agrees."""
        head = self.head
        if b"upgrade" not in head.fields.values or not wants_websocket(head) or not accepts(head.fields, answer):
            return False
        early, self._buffer = self._buffer, b""
        self._count("", 101)
        self._release()
        self.state = GONE
        self.core.clients.discard(self)
        self.core.stats.connections -= 1
        open_tunnel(self, upstream, answer, early, rest)
        return True

    # ends

    def _next(self) -> None:
        self.state = IDLE
        self.quiet = 0
        self._started = 0.0
        if self._paused:
            self._resume()
        if self._buffer:
            data, self._buffer = self._buffer, b""
            self._requests(data)

    def _release(self) -> None:
        """The request is no longer under way."""
        endpoint, self._endpoint = self._endpoint, None
        self._upstream = None
        self._replay = self._outgoing = b""
        if endpoint is not None:
            endpoint.load.inflight -= 1
            self.core.stats.inflight -= 1

    def _drop_upstream(self) -> None:
        """Give up the request: its connection can't be used again."""
        upstream = self._upstream
        if upstream is not None:
            upstream.close()
        self._release()

    def _reply(self, reply: Reply) -> None:
        """An answer of the gateway's own that is no refusal."""
        keep = self.may_keep()
        self.status = reply.status
        self.send(
            b"HTTP/1.1 %d %b\r\n%bContent-Length: %d\r\n%b\r\n%b"
            % (
                reply.status,
                _REASONS.get(reply.status, b"OK"),
                reply.headers,
                len(reply.body),
                b"" if keep else b"Connection: close\r\n",
                b"" if self.head_only else reply.body,
            )
        )
        self._count("gateway", reply.status)
        self._over()

    def _refused(self, refusal: Refusal, rest: bytes) -> bytes:
        """A request that goes no further than its head; gives what comes after it."""
        if refusal.code == "not_ready" and self.core.limits.wait_ready > 0:
            self.state = WAITING
            self.core.wait(self, refusal)
            return rest
        self._refuse(refusal)
        return rest if self.state == IDLE else b""

    def retry(self) -> None:
        """The table has changed for a sandbox that this request waits for."""
        if self.state != WAITING:
            return
        self._proceed()
        try:
            self._admit()
        except Refusal as refusal:
            if refusal.code == "not_ready":
                self.state = WAITING
                self.core.wait(self, refusal)
            else:
                self._fail(refusal)
            return
        if self.state == BODY:
            data, self._buffer = self._buffer, b""
            self.resume_reading()
            if data:
                self._body(data)

    def waits(self) -> bool:
        """Is the request still held for a sandbox that isn't ready?"""
        return self.state == WAITING

    def give_up(self, refusal: Refusal) -> None:
        """The wait is over, and the sandbox still isn't ready."""
        if self.state == WAITING:
            self._proceed()
            self._fail(refusal)

    def _proceed(self) -> None:
        self.state = BODY if self._left or self._chunks is not None else ANSWER

    def sandbox_gone(self, sandbox_id: str) -> None:
        """A sandbox was deleted: a request under way to it ends."""
        if self._endpoint is not None and self._endpoint.sandbox.id == sandbox_id:
            self._fail(Refusal(502, "sandbox_gone", "the sandbox was deleted"))

    def drain(self) -> None:
        """The gateway is going: no request after the one under way."""
        self.plain = False
        self.closing = True
        if self.state == IDLE and not self._started:
            self._close()

    def _fail(self, refusal: Refusal) -> None:
        """The request can't go on. Before its answer began: say so; after: break off."""
        self._drop_upstream()
        if not refusal.sandbox and self.admission is not None:
            refusal.sandbox = self.admission.sandbox.id
        if self.status:
            self._count(refusal.code, self.status)
            self.state = LINGER
            self.abort()
            return
        self._refuse(refusal)
        if self.state == IDLE:
            self._next()

    def _refuse(self, refusal: Refusal) -> None:
        """Say it. The state is IDLE afterwards where the connection goes on."""
        core = self.core
        head = self.head
        accept = b""
        if self.state in (BODY, ANSWER, WAITING):
            accept = head.fields.get(b"accept") or b""
        else:
            self.head_only = False
            refusal.close = True
        keep = not refusal.close and self.may_keep()
        if refusal.status == 429:
            core.stats.throttled(refusal.code)
        self.status = refusal.status
        self.send(refusal.render(accept=accept, head_only=self.head_only, keep_alive=keep, detail=core.detail))
        self._count(refusal.code, refusal.status)
        self._over(closing=not keep)

    def _over(self, *, closing: bool = False) -> None:
        """After an answer of the gateway's own."""
        if closing or self.closing or self.core.draining or self._eof:
            self._linger()
        else:
            self.state = IDLE
            self.quiet = 0
            self._started = 0.0

    def _linger(self) -> None:
        """Close, but not so that the answer is lost: what the client is still sending would reset the connection."""
        self.state = LINGER
        self.quiet = 0
        self.received = 0
        self._buffer = b""
        if self._eof or not self.transport.can_write_eof():
            self.transport.close()
            return
        self.transport.write_eof()
        self._resume()

    def _close(self) -> None:
        self.state = LINGER
        self.quiet = 0
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

    def total_sent(self) -> int:
        """Octets of the answer, its head included."""
        return self.sent + self._sent_before

    def _count(self, code: str, status: int) -> None:
        core = self.core
        stats = core.stats
        seconds = time.monotonic() - self._started if self._started else 0.0
        stats.bytes_out += self.sent
        stats.bytes_in += self.received
        stats.answered(status, code, seconds)
        if core.access is not None:
            core.log_access(self, code, status, seconds)

    # time

    def tick(self) -> None:
        """A second has passed."""
        if self.moved:
            self.moved = False
            self.quiet = 0
            if self.state == ANSWER and self.status:
                self._renew()
            if self.sent:
                self.core.stats.bytes_out += self.sent
                self._sent_before += self.sent
                self.sent = 0
            if self.state != IDLE or not self._started:
                return
        self.quiet += 1
        self._overdue(self.core.limits)

    def _renew(self) -> None:
        core, admission = self.core, self.admission
        if core.renewer is not None and admission.renew:
            core.renewer.note(admission.sandbox.id, admission.port, admission.request_uri)

    def _overdue(self, limits: Limits) -> None:
        quiet, state = self.quiet, self.state
        if state == IDLE:
            if self._started:
                if time.monotonic() - self._started > limits.head_timeout:
                    self._refuse(Refusal(408, "head_timeout", "the request's head took too long", close=True))
            elif quiet > limits.idle_timeout:
                self._close()
        elif state == LINGER:
            if quiet > LINGER_SECONDS:
                self.transport.abort()
        elif state == BODY:
            if quiet > limits.body_timeout:
                self._fail(Refusal(408, "body_timeout", "the request's body stopped coming", close=True))
        elif state == ANSWER:
            if self._eof and quiet > EOF_GRACE:
                self._drop_upstream()
                self._count("client_gone", 499)
                self._close()
            elif self.write_paused:
                if quiet > limits.body_timeout:
                    self._fail(Refusal(408, "reader_timeout", "the client stopped reading"))
            elif self.status:
                if limits.stream_timeout and quiet > limits.stream_timeout:
                    self._fail(Refusal(504, "stream_timeout", "the sandbox stopped sending"))
            else:
                allowed = self.admission.timeout or limits.response_timeout
                if allowed and quiet > allowed and self._upstream is not None:
                    self.core.stats.upstream_error("timeout")
                    self._fail(Refusal(504, "response_timeout", f"the sandbox did not answer within {allowed:g} s"))


_REASONS = {200: b"OK", 303: b"See Other", 302: b"Found", 405: b"Method Not Allowed"}
_BAD_HEAD = {405: "method_not_allowed", 431: "head_too_large", 501: "unknown_method", 505: "http_version"}
_BAD_HEAD_LINES = {405: b"Allow: GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS\r\n"}


def wants_websocket(head: RequestHead) -> bool:
    """Is this the opening of a WebSocket (RFC 6455 section 4.1)?"""
    return head.method == b"GET" and head.version == 11 and head.length == 0 and is_websocket(head.fields)


def too_large(limit: int) -> Refusal:
    """The request's body is over the operator's limit."""
    return Refusal(413, "body_too_large", f"the request's body is over {limit} bytes, which is the limit", close=True)


def plain_address(text: str) -> str:
    """A peer's address as people write it: IPv4 is IPv4 though the socket be IPv6; no zone."""
    if text.startswith("::ffff:") and "." in text:
        return text[7:]
    return text.partition("%")[0]
