"""A request's way through the gateway, seen from the client's connection: what its own octets and the sandbox's do.

head -> gate -> endpoint -> upstream -> answer -> next head
             \\-> a refusal, said here
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, cast

from ingress.admission.verdict import Admission, Reply
from ingress.http1.body import BadBody, ChunkedReader, framed, last_chunk
from ingress.http1.connection import ANSWER, BODY, GONE, IDLE, LINGER, WAITING, Connection
from ingress.http1.headers import crossing_trailers
from ingress.http1.outgoing import request_head, too_large, wants_websocket
from ingress.http1.prefix import rewriter
from ingress.http1.tunnel import accepts, open_tunnel
from ingress.refusal import Refusal

if TYPE_CHECKING:
    from ingress.http1.client import Client
    from ingress.http1.core import Gateway
    from ingress.http1.endpoint import Endpoint
    from ingress.http1.head import RequestHead, ResponseHead
    from ingress.http1.headers import Rewrite
    from ingress.http1.upstream import Upstream

_IDEMPOTENT = frozenset((b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE", b"TRACE", b"PROPFIND", b"REPORT", b"SEARCH"))
"""Methods that may be sent again (RFC 9110 section 9.2.2)."""
_NONE = cast("Admission", None)  # before the gate was asked
_FRAMING = 65_536
"""Octets of chunk framing that a body may have however small its limit is."""


class Exchange(Connection):
    """A client's connection and the request that is under way on it."""

    __slots__ = (
        "_chunks",
        "_endpoint",
        "_keep",
        "_lately",
        "_left",
        "_outgoing",
        "_replay",
        "_retried",
        "_upstream",
        "admission",
        "plain",
        "write_paused",
    )

    def __init__(self, core: Gateway, address: str, secure: bool) -> None:
        super().__init__(core, address, secure)
        self.admission: Admission = _NONE
        self.plain = False
        """The answer's head depends on nothing but what the sandbox sends."""
        self.write_paused = False
        self._keep = True
        self._left = 0
        self._chunks: ChunkedReader | None = None
        self._outgoing = b""
        self._replay = b""
        self._retried = False
        self._endpoint: Endpoint | None = None
        self._lately: Endpoint | None = None
        self._upstream: Upstream | None = None

    # asyncio's side

    def eof_received(self) -> bool:
        self._eof = True
        if self.state in (ANSWER, WAITING):
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
            self.count("client_gone", 499)
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

    # the request

    def serve(self, head: RequestHead, rest: bytes) -> bytes:
        """Begin with a request; gives what of `rest` is not its body. A state other than IDLE: it is under way."""
        core = self.core
        self._started = time.monotonic()
        self.head = head
        self.version = head.version
        self.head_only = head.method == b"HEAD"
        self._keep = head.keep and not core.draining
        self.closing = not self._keep
        self.received = self.sent = self._sent_before = 0
        self._retried = False
        self.admission = _NONE
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
            limit = core.limits.body_bytes
            if limit and length > limit:
                self.refuse(too_large(limit))
                return b""
        try:
            self._admit()
        except Refusal as refusal:
            return self._refused(refusal, rest)
        if self.state != BODY:
            return rest
        self._buffer = b""
        if rest:
            self.take_body(rest)
        self._give_up_half_a_body()
        return self._buffer

    def _give_up_half_a_body(self) -> None:
        if self._eof and self.state == BODY:  # the rest of it will never come
            self._drop_upstream()
            self.count("client_gone", 499)
            self.close()

    def _admit(self) -> None:
        """Ask the gate, find a connection, send the head. Refusal where it can't be."""
        core = self.core
        head = self.head
        outside = self._outside
        if outside.trusted:
            outside = core.behind(outside, head.fields)
        found = core.gate.admit(head, outside.address, outside.secure, time.time())
        if isinstance(found, Reply):
            self._reply(found)
            return
        self.admission = admission = found
        sandbox = admission.sandbox
        endpoint = self._lately
        if (
            endpoint is None
            or endpoint.sandbox is not sandbox
            or endpoint.route_port != admission.port
            or endpoint.retired
        ):
            endpoint = self._lately = core.endpoint(sandbox, admission.port)
        load = endpoint.load
        if load.inflight >= core.limits.inflight_per_sandbox:
            raise Refusal(
                429,
                "sandbox_busy",
                f"this sandbox has {core.limits.inflight_per_sandbox} requests under way, which is the limit",
                sandbox=sandbox.id,
                retry_after=1,
            )
        request = request_head(head, admission, outside, endpoint)
        if core.renewer is not None and admission.renew:
            core.renewer.note(admission.asked, admission.port, admission.request_uri)
        load.inflight += 1
        core.stats.inflight += 1
        self._endpoint = endpoint
        if self.state == ANSWER:
            self.plain = self._keep and head.version == 11 and not self.head_only and not admission.set_cookie
            idempotent = head.method in _IDEMPOTENT
        else:
            idempotent = False
        self._replay = request if idempotent else b""
        upstream = endpoint.take(idempotent)
        if upstream is None:
            self._outgoing = request
            core.spawn(self._connect(endpoint))
        else:
            self._upstream = upstream
            upstream.begin(self, request)

    async def _connect(self, endpoint: Endpoint) -> None:
        try:
            upstream = await endpoint.open()
        except Refusal as refusal:
            if self._endpoint is endpoint and self._upstream is None:
                self._fail(refusal)
            return
        if self._endpoint is not endpoint or self._upstream is not None or self.state not in (BODY, ANSWER):
            if upstream.usable():
                endpoint.give_back(upstream)
            return
        if endpoint.retired:  # while we dialled: the address may be another's now
            upstream.close()
            self._elsewhere()
            return
        if not upstream.usable():
            self._fail(
                Refusal(502, "upstream_closed", "the sandbox closed the connection, or spoke before it was asked")
            )
            return
        request, self._outgoing = self._outgoing, b""
        self._upstream = upstream
        upstream.begin(self, request)
        self.resume_reading()

    # its body

    def take_body(self, data: bytes) -> None:
        chunks = self._chunks
        if chunks is None:
            self.received += len(data)
            left = self._left - len(data)
            if left > 0:
                self._left = left
                self._to_upstream(data)
                return
            rest = data[self._left :] if left else b""
            self.received -= len(rest)
            self._to_upstream(data[: self._left] if left else data)
        else:
            try:
                pieces = chunks.feed(data)
            except BadBody as fault:
                self._fail(Refusal(400, "bad_body", f"the request's body: {fault}", close=True))
                return
            self.received += sum(map(len, pieces))
            limit = self.core.limits.body_bytes
            # The payload is what counts; its framing may be as large again, but not a body cut into crumbs.
            if limit and (self.received > limit or chunks.octets - self.received > max(limit, _FRAMING)):
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
        self.plain = self._keep and self.version == 11 and not self.head_only and not self.admission.set_cookie
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

    # the answer; called by the upstream

    def request_sent(self) -> bool:
        """Has the sandbox been sent all of the request?"""
        return self.state == ANSWER

    def rewriter(self) -> Rewrite | None:
        """What has to be put back in the answer's head."""
        core = self.core
        if core.detail:
            return None  # agent-sandbox's router passes answers on as they are
        return rewriter(self.head, self.admission, core.upstream_host, self._outside.trusted)

    def answered(self) -> None:
        """The answer is whole."""
        self._release()
        self.count("", self.status)
        if self.state == BODY:
            self.linger()
        elif self.closing:
            self.close()
        else:
            self._next()

    def upstream_lost(self, upstream: Upstream, nothing_yet: bool) -> None:
        """The sandbox's connection broke off. nothing_yet: before the first octet of an answer."""
        if nothing_yet and self._replay and upstream.served > 1 and not self._retried:
            # An idle connection that closed while the request was on its way: nobody has seen it, send it anew.
            self._retried = True
            self._upstream = None
            endpoint = cast("Endpoint", self._endpoint)
            if endpoint.retired:
                self._elsewhere()
                return
            self._outgoing = self._replay
            self.core.spawn(self._connect(endpoint))
            return
        self._fail(
            Refusal(
                502,
                "upstream_closed",
                "the sandbox closed the connection "
                + ("without an answer" if nothing_yet else "in the middle of its answer"),
            )
        )

    def _elsewhere(self) -> None:
        """The sandbox has moved before it was sent anything: ask again where it is."""
        if self.state == BODY or not self._replay:
            self._fail(Refusal(503, "sandbox_moved", "the sandbox moved just now; try again", retry_after=1))
            return
        self._release()
        try:
            self._admit()
        except Refusal as refusal:
            self._fail(refusal)
            return
        if self.state == IDLE:
            self._next()

    def upstream_lied(self, what: str) -> None:
        """The sandbox's answer can't be understood in one way."""
        self._fail(Refusal(502, "upstream_protocol", f"the sandbox's answer is not HTTP/1.1: {what}"))

    def switch(self, upstream: Upstream, answer: ResponseHead, rest: bytes) -> bool:
        """The sandbox agrees to a WebSocket. False: nobody asked, or that isn't how one agrees."""
        head = self.head
        if b"upgrade" not in head.fields or not wants_websocket(head) or not accepts(head.fields, answer):
            return False
        early, self._buffer = self._buffer, b""
        self.count("", 101)
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
            self.read_requests(data)
        elif self._eof:
            self.close()

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
        self.send(reply.render(head_only=self.head_only, keep_alive=keep))
        self.count("gateway", reply.status)
        self.over()

    def _refused(self, refusal: Refusal, rest: bytes) -> bytes:
        """A request that goes no further than its head; gives what comes after it."""
        if refusal.code == "not_ready" and self.core.limits.wait_ready > 0:
            self.state = WAITING
            self.core.wait(cast("Client", self), refusal)
            return rest
        self.refuse(refusal)
        return rest if self.state == IDLE else b""

    def _fail(self, refusal: Refusal) -> None:
        """The request can't go on. Before its answer began: say so; after: break off."""
        self._drop_upstream()
        if not refusal.sandbox and self.admission is not None:
            refusal.sandbox = self.admission.sandbox.id
        if self.status:
            self.count(refusal.code, self.status)
            self.state = LINGER
            self.abort()
            return
        self.refuse(refusal)
        if self.state == IDLE:
            self._next()
