"""An answer that the gateway itself makes, instead of a sandbox's. Pure.

Every refusal in this package is one of these, so that status, reason and words are decided where the fault is found,
and rendered in one place.
"""

from __future__ import annotations

import json
import re
from http import HTTPStatus

SOURCE_HEADER = b"Sallyport-Error"
"""The response header that says: the gateway made this answer, not the sandbox. Its value is the refusal's code."""


class Refusal(Exception):
    """What the client is told.

    status: the HTTP status code.
    code: a short name of the cause for programs and metrics, such as `unknown_sandbox`; letters and underscores.
    message: a sentence for people, with what to do about it; never a secret.
    sandbox: the sandbox's id where one is known, else "".
    retry_after: seconds after which another try makes sense, 0 for none.
    close: the connection can't go on after it (the byte stream is not to be trusted, or is being shut).
    headers: further lines for the response head, each `Name: value\\r\\n`.
    """

    __slots__ = ("close", "code", "headers", "message", "retry_after", "sandbox", "status")

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        sandbox: str = "",
        retry_after: int = 0,
        close: bool = False,
        headers: bytes = b"",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.sandbox = sandbox
        self.retry_after = retry_after
        self.close = close
        self.headers = headers

    def render(
        self, *, accept: bytes = b"", head_only: bool = False, keep_alive: bool = True, detail: bool = False
    ) -> bytes:
        """The whole response. JSON, or plain text where `accept` (the request's Accept) would rather have text.

        head_only: for HEAD, the body is left out. keep_alive: the client's connection may go on, unless `close`.
        detail: the shape of agent-sandbox's router, `{"detail": …}`.
        """
        if detail:
            kind, body = b"application/json", json.dumps({"detail": self.message})
        elif _wants_text(accept):
            kind, body = b"text/plain; charset=utf-8", self.message + "\n"
        else:
            kind = b"application/json"
            error = {"code": self.code, "message": self.message, "sandbox": self.sandbox}
            body = json.dumps({"error": error}) + "\n"
        payload = body.encode()
        head = b"HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n%s: %s\r\nCache-Control: no-store\r\n" % (
            self.status,
            HTTPStatus(self.status).phrase.encode(),
            kind,
            len(payload),
            SOURCE_HEADER,
            self.code.encode(),
        )
        if self.retry_after:
            head += b"Retry-After: %d\r\n" % self.retry_after
        head += self.headers
        if self.close or not keep_alive:
            head += b"Connection: close\r\n"
        return head + b"\r\n" + (b"" if head_only else payload)


_WEIGHT = re.compile(rb"q[ \t]*=[ \t]*([01](?:\.[0-9]{0,3})?)").fullmatch


def _wants_text(accept: bytes) -> bool:
    """Does an Accept field ask for text rather than for JSON (RFC 9110 section 12.5.1)? Who asks for neither gets JSON,
    and so does who wants both as much and names both; a name counts for more than a wildcard that covers it."""
    low = accept.lower()
    if b"text/" not in low:
        return False
    text = json_named = -1.0
    wildcard = 0.0
    for part in low.split(b","):
        kind, *parameters = (piece.strip(b" \t") for piece in part.split(b";"))
        weight = next((float(found[1]) for piece in parameters if (found := _WEIGHT(piece))), 1.0)
        if kind.startswith(b"text/"):
            text = max(text, weight)
        elif kind.endswith((b"/json", b"+json")):
            json_named = max(json_named, weight)
        elif kind in (b"application/*", b"*/*"):
            wildcard = max(wildcard, weight)
    if text <= 0:
        return False
    return text > json_named if json_named >= 0 else text >= wildcard
