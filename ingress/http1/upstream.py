"""The sandbox's side of the data path: one connection, one answer at a time, read as strictly as a request.

An upstream is not trusted: an answer that breaks its own framing reaches the client as a connection that breaks, never
as a clean answer, and the connection is not used again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from ingress.http1.answer import Answer
from ingress.http1.body import BadBody, ChunkedReader, framed, last_chunk
from ingress.http1.head import CHUNKED, UNTIL_CLOSE, BadHead, ResponseHead, keeps_alive, read_response
from ingress.http1.headers import REWRITTEN, crossing_trailers, response_head

if TYPE_CHECKING:
    from ingress.http1.endpoint import Endpoint
    from ingress.http1.exchange import Exchange
    from ingress.http1.headers import Rewrite

IDLE, HEAD, LENGTH, CHUNKS, CLOSE, DONE = range(6)
"""Between answers; reading a head; a body of known length; chunks; a body until close; finished, whatever comes."""

_GREETING = b"HTTP/1."
_INTERIM_LIMIT = 16
"""Interim (1xx) answers to one request."""


class Upstream(asyncio.Protocol):
    """A connection to a sandbox. `client` is whom it works for, None while idle."""

    __slots__ = (
        "_answer",
        "_buffer",
        "_chunks",
        "_interim",
        "_keep",
        "_left",
        "_plain",
        "client",
        "endpoint",
        "idle_since",
        "served",
        "state",
        "transport",
        "write_paused",
    )

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self.client: Exchange | None = None
        self.state = IDLE
        self.served = 0
        self.idle_since = 0.0
        self.write_paused = False
        self._buffer = b""
        self._left = 0
        self._chunks: ChunkedReader | None = None
        self._interim = 0
        self._keep = False
        self._plain = False
        self._answer: Answer | None = None

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.endpoint.load.connections += 1
        self.transport.set_write_buffer_limits(high=self.endpoint.core.limits.buffer_bytes)

    def data_received(self, data: bytes) -> None:
        client = self.client
        if client is None:
            self._buffer = b""
            self.close()  # nobody asked: what comes can't be an answer
            return
        client.moved = True
        state = self.state
        if state == HEAD:
            if self._buffer:
                data = self._buffer + data
            self._head(client, data)
        elif state == LENGTH:
            left = self._left - len(data)
            if left > 0:
                self._left = left
                client.send(data)
            elif left == 0:
                client.send(data)
                self._finish(client, self._keep)
            else:
                client.send(data[:left])
                self._finish(client, False)
        elif state == CHUNKS:
            self._chunked(client, data)
        elif state == CLOSE:
            client.send(framed([data]) if not self._plain else data)

    def eof_received(self) -> bool:
        if self.client is None:
            self.close()  # out of the pool before the next request looks there
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        endpoint = self.endpoint
        endpoint.load.connections -= 1
        client, self.client = self.client, None
        if client is None:
            self.close()
            return
        if self.state == CLOSE and exc is None:
            if not self._plain:
                client.send(last_chunk([]))
            self.state = DONE
            client.answered()
            return
        started, self.state = self.state, DONE
        endpoint.core.stats.upstream_error("reset" if exc is not None else "truncated")
        client.upstream_lost(self, started == HEAD and not self._buffer and not self._interim)

    def pause_writing(self) -> None:
        self.write_paused = True
        if self.client is not None:
            self.client.pause_reading()

    def resume_writing(self) -> None:
        self.write_paused = False
        if self.client is not None:
            self.client.resume_reading()

    # the client's side

    def begin(self, client: Exchange, request: bytes) -> None:
        """Send a request's head, with what there is of its body, and expect its answer."""
        self.client = client
        if client.write_paused:
            self.transport.pause_reading()  # the client hasn't read its last answer yet
        self.state = HEAD
        self.served += 1
        self._interim = 0
        self.transport.write(request)

    def usable(self) -> bool:
        """May a request be sent on it? A server may close, or speak unasked, before there is one."""
        return self.state == IDLE

    def close(self) -> None:
        """Give the connection up, whatever it is doing. Its client, if it has one, is told nothing."""
        self.client = None
        self.state = DONE
        idle = self.endpoint.idle
        if self in idle:
            idle.remove(self)
        self.transport.abort()

    # reading

    def _head(self, client: Exchange, data: bytes) -> None:
        answer = self._answer if client.plain else None
        if answer is not None and data.startswith(answer.raw):
            self._buffer = b""
            end, length, head = len(answer.raw), answer.length, answer.out
            client.status, self._keep = answer.status, answer.keep
        else:
            found = self._another(client, data, answer)
            if found is None:
                return
            end, length, head = found
        if length >= 0:
            have = len(data) - end
            if have == length:
                out = head + data[end:] if length else head
                client.sent += len(out)
                client.transport.write(out)
                self._finish(client, self._keep)
            elif have < length:
                self._left = length - have
                self.state = LENGTH
                client.send(head + data[end:] if have else head)
            else:
                client.send(head + data[end : end + length])
                self._finish(client, False)  # junk behind the answer
            return
        rest = data[end:]
        self._plain = client.version == 10
        if length == CHUNKED:
            self._chunks = ChunkedReader()
            self.state = CHUNKS
            client.send(head)
            if rest:
                self._chunked(client, rest)
        else:
            self.state = CLOSE
            client.send(head + (framed([rest]) if rest and not self._plain else rest))

    def _another(self, client: Exchange, data: bytes, last: Answer | None) -> tuple[int, int, bytes] | None:
        """A head that isn't the last one again: where it ends, the body's length, and the head for the client.

        None: it is not whole yet, or an interim one, or won't do. last: the answer's before, where it may be used.
        """
        end = data.find(b"\r\n\r\n") + 4
        if (end if end >= 4 else len(data)) > self.endpoint.core.limits.head_bytes:
            self._lie(client, "its response head is too long")
            return None
        if end < 4:
            # What will never be a head isn't waited for: another protocol's greeting, lines that end in a bare LF.
            if not data.startswith(_GREETING[: len(data)]) or b"\n\n" in data or b"\n\r\n" in data:
                self._lie(client, "it doesn't begin with a status line and header lines")
                return None
            self._buffer = data
            return None
        self._buffer = b""
        raw = data[:end]
        try:
            answer = last.similar(raw) if last is not None else None
            if answer is not None:
                self._answer = answer
                client.status, self._keep = answer.status, answer.keep
                return end, answer.length, answer.out
            fresh = self._read(raw)
            if fresh.status < 200:
                self._interim_answer(client, fresh, data[end:])
                return None
            client.status = fresh.status
            length = self._length(client, fresh)
            head = self._render(client, fresh, length)
            if client.plain and length != UNTIL_CLOSE and REWRITTEN.isdisjoint(fresh.fields.names):
                self._answer = Answer.remember(raw, head, fresh, length, self._keep)
        except BadHead as fault:
            self._lie(client, str(fault))
            return None
        return end, length, head

    def _read(self, raw: bytes) -> ResponseHead:
        head = read_response(raw)
        if len(head.fields.lines) > self.endpoint.core.limits.head_fields:
            raise BadHead("too many fields")
        return head

    def _length(self, client: Exchange, answer: ResponseHead) -> int:
        """The body's length that counts here; sets whether the connection can be used again."""
        self._keep = keeps_alive(answer.fields, answer.version) and answer.length != UNTIL_CLOSE
        if client.head_only or answer.status in (204, 304):
            self._keep = keeps_alive(answer.fields, answer.version)
            return 0
        return answer.length

    def _render(self, client: Exchange, answer: ResponseHead, length: int) -> bytes:
        shown = length
        if length < 0:
            shown = CHUNKED if client.version == 11 else UNTIL_CLOSE  # HTTP/1.0 has no chunks
        if client.head_only and answer.length == CHUNKED and client.version == 11:
            shown = CHUNKED
        if length < 0 and client.version == 10:
            client.closing = True  # the end of the connection is the end of the body
        rewrite = _rewrite(client, answer)
        return response_head(answer, shown, client.may_keep(), client.version, rewrite, client.admission.set_cookie)

    def _interim_answer(self, client: Exchange, answer: ResponseHead, rest: bytes) -> None:
        if answer.status == 101:
            if client.switch(self, answer, rest):
                return
            self._lie(client, "it switched protocols without being asked, or not as asked")
            return
        self._interim += 1
        if self._interim > _INTERIM_LIMIT:
            self._lie(client, "it sent interim answers without end")
            return
        if client.version == 11:
            client.send(response_head(answer, 0, True, 11, _rewrite(client, answer), b""))
        if rest:
            self._head(client, rest)

    def _chunked(self, client: Exchange, data: bytes) -> None:
        chunks = cast("ChunkedReader", self._chunks)
        try:
            pieces = chunks.feed(data)
        except BadBody as fault:
            self._lie(client, str(fault))
            return
        if not chunks.done:
            if pieces:
                client.send(b"".join(pieces) if self._plain else framed(pieces))
            return
        out = b"".join(pieces) if self._plain else framed(pieces)
        if not self._plain:
            out += last_chunk(crossing_trailers(chunks.trailers, self.endpoint.core.stripped))
        self._chunks = None
        if out:
            client.send(out)
        self._finish(client, self._keep and not chunks.rest)

    def _finish(self, client: Exchange, keep: bool) -> None:
        """The answer is whole. The connection goes back to the pool where it may; then the client goes on."""
        self.client = None
        if keep and client.request_sent():
            self.state = IDLE
            # A client that reads slowly may have paused us: an idle connection that isn't read never notices its end.
            if client.write_paused:
                self.transport.resume_reading()
            self.endpoint.give_back(self)
        else:
            self.close()
        client.answered()

    def _lie(self, client: Exchange, what: str) -> None:
        self.endpoint.core.stats.upstream_error("protocol")
        self.close()
        client.upstream_lied(what)


def _rewrite(client: Exchange, answer: ResponseHead) -> Rewrite | None:
    """What the client's side puts right in this head; None where there is nothing to."""
    return None if REWRITTEN.isdisjoint(answer.fields.names) else client.rewriter()
