"""The admin port: liveness, readiness and metrics, for probes and scrapers. A small HTTP/1 server of its own.

It answers from memory only, so a full gateway or a provider that is gone can't hold it up, and it stays small on
purpose: GET and HEAD, no bodies. Nothing it says is secret; still the port belongs inside, for nobody is asked for a
password.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple, cast

from ingress.http1.head import BadHead, read_request
from ingress.telemetry.metrics import CONTENT_TYPE

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingress.http1.head import RequestHead

HEAD_BYTES = 8192
CONNECTIONS = 64
_TEXT = b"text/plain; charset=utf-8"


class Timeouts(NamedTuple):
    """In seconds."""

    head: float = 10.0
    """From a request's first octet to the end of its head."""
    idle: float = 120.0
    """Between two requests: above the minute that scrapers are often set to."""
    write: float = 30.0
    """An answer that its reader does not take."""


class Admin:
    """What the connections of the admin port share.

    state: `(ready, text)` at once; the text is `ok` or `degraded: ...` where ready, else `starting: ...` or `draining`.
    metrics: the whole text for Prometheus, at once.
    rally: whether the numbers will be those of now only in a moment; then it calls what it is given.
    """

    def __init__(
        self,
        state: Callable[[], tuple[bool, str]],
        metrics: Callable[[], bytes],
        rally: Callable[[Callable[[], None]], bool],
        timeouts: Timeouts = Timeouts(),  # noqa: B008 - it is a frozen value
    ) -> None:
        self.state = state
        self.metrics = metrics
        self.rally = rally
        self.timeouts = timeouts
        self.closing = False
        self.open: dict[AdminConnection, None] = {}
        """The connections, the one that was used last at the end."""

    def protocol(self) -> AdminConnection:
        """A new connection's protocol: the factory for loop.create_server()."""
        return AdminConnection(self)

    def close(self) -> None:
        """End every connection once its answer is out; later ones get one answer each. The listener is the caller's."""
        self.closing = True
        for connection in list(self.open):
            connection.close()

    def answer(self, head: RequestHead) -> tuple[int, bytes, bytes, bytes]:
        """Status, content type, further header lines and body for a request."""
        path = _path(head.target)
        if path not in _PATHS:
            return 404, _TEXT, b"", b"not found; there are %s\n" % b", ".join(_PATHS)
        if head.method not in (b"GET", b"HEAD"):
            return 405, _TEXT, _ALLOW, b"only GET and HEAD are served here\n"
        if path == b"/metrics":
            return 200, CONTENT_TYPE, b"", self.metrics()
        if path == b"/readyz":
            ready, text = self.state()
            return 200 if ready else 503, _TEXT, b"", text.encode(errors="replace") + b"\n"
        return 200, _TEXT, b"", b"OK" if path == b"/status.ok" else b"ok\n"


_ALLOW = b"Allow: GET, HEAD\r\n"
_PATHS = (b"/livez", b"/readyz", b"/metrics", b"/status.ok")


def _path(target: bytes) -> bytes:
    """The path of a request target, in origin-form or absolute-form (RFC 9112 section 3.2)."""
    if target[:7].lower() == b"http://":
        target = b"/" + target[7:].partition(b"/")[2]
    return target.partition(b"?")[0]


class AdminConnection(asyncio.Protocol):
    """One client of the admin port."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._buffer = b""
        self._blocked = False
        self._asked: RequestHead | None = None
        """A request for numbers, while they come in; what is behind it waits."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it
        others = self._admin.open
        if len(others) >= CONNECTIONS:
            # The one that was silent longest gives way, so that a probe always gets in.
            next(iter(others)).abort()
        others[self] = None
        self._wait(self._admin.timeouts.head, self._too_slow)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._forget()

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        fresh = not self._buffer
        self._buffer = (self._buffer + data).lstrip(b"\r\n")  # empty lines before a request: RFC 9112 section 2.2
        if fresh and self._buffer and not self._blocked:
            self._wait(self._admin.timeouts.head, self._too_slow)
        self._go_on()

    def pause_writing(self) -> None:
        self._blocked = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
            self._wait(self._admin.timeouts.write, self.abort)

    def resume_writing(self) -> None:
        self._blocked = False
        if self._transport is not None and not self._transport.is_closing() and self._asked is None:
            self._transport.resume_reading()
            self._between()
            self._go_on()

    def close(self) -> None:
        """End the connection when what was answered is out, and what is being answered now."""
        if self._transport is not None and self._asked is None:
            self._transport.close()
            self._wait(self._admin.timeouts.write, self.abort)

    def abort(self) -> None:
        """End the connection now."""
        if self._transport is not None:
            self._transport.abort()
        self._forget()

    def _go_on(self) -> None:
        """Answer every request whose head is whole, as long as the client takes the answers."""
        while self._transport is not None and not self._transport.is_closing():
            if self._blocked or self._asked is not None:
                return
            end = self._buffer.find(b"\r\n\r\n", 0, HEAD_BYTES)
            if end < 0:
                if len(self._buffer) >= HEAD_BYTES:
                    self._say_no(431, f"the request's head is longer than {HEAD_BYTES} bytes")
                return
            raw, self._buffer = self._buffer[: end + 4], self._buffer[end + 4 :].lstrip(b"\r\n")
            try:
                head = read_request(raw)
            except BadHead as error:
                self._say_no(error.status, str(error))
                return
            if _path(head.target) == b"/metrics" and self._admin.rally(self._rallied):
                self._asked = head
                self._transport.pause_reading()
                self._wait(self._admin.timeouts.write, self.abort)
            else:
                self._serve(head)

    def _rallied(self) -> None:
        head, self._asked = self._asked, None
        if head is not None and self._transport is not None and not self._transport.is_closing():
            if not self._blocked:
                self._transport.resume_reading()
            self._serve(head)
            self._go_on()

    def _serve(self, head: RequestHead) -> None:
        admin = self._admin
        admin.open.pop(self, None)
        admin.open[self] = None
        keep = head.version == 11 and b"close" not in head.fields.tokens(b"connection") and not admin.closing
        # A body is not read here, and must not be taken for the next request.
        keep = keep and head.length == 0
        status, kind, lines, body = admin.answer(head)
        self._write(status, kind, lines, body, head_only=head.method == b"HEAD", keep=keep)

    def _say_no(self, status: int, message: str) -> None:
        self._buffer = b""
        lines = _ALLOW if status == 405 else b""
        self._write(status, _TEXT, lines, message.encode() + b"\n", head_only=False, keep=False)

    def _write(self, status: int, kind: bytes, lines: bytes, body: bytes, *, head_only: bool, keep: bool) -> None:
        assert self._transport is not None
        head = b"HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nCache-Control: no-store\r\n%s%s\r\n" % (
            status,
            HTTPStatus(status).phrase.encode(),
            kind,
            len(body),
            lines,
            b"" if keep else b"Connection: close\r\n",
        )
        self._between()
        self._transport.write(head if head_only else head + body)
        if not keep:
            self.close()

    def _between(self) -> None:
        timeouts = self._admin.timeouts
        if self._buffer:
            self._wait(timeouts.head, self._too_slow)
        else:
            self._wait(timeouts.idle, self.close)

    def _too_slow(self) -> None:
        if self._buffer:
            self._say_no(408, "the request's head did not come in time")
        else:
            self.close()

    def _wait(self, seconds: float, then: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, then)

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._transport = None
        self._admin.open.pop(self, None)
