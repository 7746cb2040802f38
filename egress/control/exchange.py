"""What the HTTP server and the API hand each other: a request's head, a reply, and who answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Head(NamedTuple):
    """A request up to its body."""

    method: str
    path: str  # without the query, not percent-decoded
    headers: tuple[tuple[bytes, bytes], ...]  # names in lower case
    local: bool  # came over the unix socket, whose file mode is its guard

    def values(self, name: bytes) -> list[bytes]:
        """Every value of one header, in order."""
        return [value for key, value in self.headers if key == name]


class Reply(NamedTuple):
    """A whole response."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


class Application(Protocol):
    """Answers requests; called on the loop, must not block it."""

    def admit(self, head: Head) -> Reply | int:
        """Judge a request before its body is read: a reply that refuses it, or how many bytes of body are taken."""

    def handle(self, head: Head, body: bytes, reply: Callable[[Reply], None]) -> None:
        """Answer an admitted request by calling `reply` once, at once or later, on the loop."""

    def fault(self, status: int, reason: str) -> Reply:
        """The reply to a request that broke the protocol or a limit."""
