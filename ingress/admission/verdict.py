"""What the gate says of a request that it doesn't refuse: it may go on, or here is its answer. Pure."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ingress.routes import Sandbox


class Admission(NamedTuple):
    """A request that may go on."""

    sandbox: Sandbox
    port: int
    target: bytes
    """What to ask the sandbox for, in origin-form or `*`: the octets after the prefix, unchanged; never empty."""
    prefix: bytes
    """Path mode: the public prefix that was taken off, such as /box/8080 or /box/8080/1abc/deadbeefk; else b""."""
    set_cookie: bytes
    """Further lines for the response's head, each `Name: value\\r\\n`, or b""."""
    renew: bool
    """False where the client sent `OpenSandbox-Access-Renew: skip`."""
    authority: bytes
    """The Host to show the application; b"": as the client sent it."""
    timeout: float = 0.0
    """agent-sandbox: seconds the caller gives this request; 0: no word of it."""
    asked: str = ""
    """The id as the route wrote it, which renew intents name; the sandbox's own may be a candidate for it."""
    jar: bytes = b""
    """With a route cookie: how the names begin by which this sandbox's cookies are kept for the whole host."""

    @property
    def request_uri(self) -> str:
        """For the renew intent: the inner path without its query in uri mode, else ""."""
        return self.target.partition(b"?")[0].decode(errors="replace") if self.prefix else ""

    def with_target(self, target: bytes) -> Admission:
        """The same for another target, without further lines for the answer."""
        # Past the constructor, which is a function of Python's and takes three times as long.
        return tuple.__new__(Admission, (self.sandbox, self.port, target, self.prefix, b"", *self[5:]))


class Reply(NamedTuple):
    """An answer of the gateway's own that is no refusal. `headers`: lines `Name: value\\r\\n`, no Content-Length."""

    status: int
    headers: bytes
    body: bytes

    def render(self, *, head_only: bool, keep_alive: bool) -> bytes:
        """The whole response; for HEAD without its body."""
        return b"HTTP/1.1 %d %b\r\n%bContent-Length: %d\r\n%b\r\n%b" % (
            self.status,
            HTTPStatus(self.status).phrase.encode(),
            self.headers,
            len(self.body),
            b"" if keep_alive else b"Connection: close\r\n",
            b"" if head_only else self.body,
        )
