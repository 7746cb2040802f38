"""An answer that the gateway itself makes, instead of a sandbox's. Pure.

Every refusal in this package is one of these, so that status, reason and words are decided where the fault is found,
and rendered in one place.
"""

from __future__ import annotations

import json
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
        """The whole response. JSON, or plain text where `accept` (the request's Accept) asks for text and not for JSON.

        head_only: for HEAD, the body is left out. keep_alive: the client's connection may go on, unless `close`.
        detail: the shape of agent-sandbox's router, `{"detail": …}`.
        """
        if detail:
            kind, body = b"application/json", json.dumps({"detail": self.message})
        elif b"text/" in accept and b"json" not in accept:
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
