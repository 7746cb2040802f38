"""A sandbox's answers: strictly read, as h11 reads them, and what the client gets is one head that can be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuzz.targets.request_head import seen
from ingress.http1.head import CHUNKED, UNTIL_CLOSE, BadHead, ResponseHead, read_response
from ingress.http1.headers import response_head
from tests.real.ingress.hostile import strict

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST = 400
WORDS = (
    b"HTTP/1.1 200 OK\r\n", b"HTTP/1.0 404 \r\n", b"HTTP/1.1 204\r\n", b"\r\n\r\n", b"\r\nContent-Length: 5",
    b"\r\nTransfer-Encoding: chunked", b"\r\nConnection: close", b"\r\nSet-Cookie: a=b; Path=/", b"\r\nLocation: /x",
    b"\r\nConnection: x-a", b"\r\nUpgrade: h2c", b"\r\n ", b"\n", b"\0", b" :",
)  # fmt: skip


def seeds() -> Iterator[bytes]:
    """Answers of every framing, with what path mode writes anew."""
    yield b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A:  v \r\n\r\n"
    yield b"HTTP/1.1 200 Fine, thanks\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n"
    yield b"HTTP/1.0 500\r\nConnection: close, x-a\r\nX-A: 1\r\n\r\n"
    yield b"HTTP/1.1 302 \xe4\r\nLocation: http://b/x\r\nSet-Cookie: a=b; Path=/\r\n\r\n"
    yield b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nSet-Cookie: =sallyport-x\r\n\r\n"
    yield b"HTTP/1.1 204 No\r\n\r\n"
    yield b"HTTP/1.1 101 S\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"


def check(data: bytes) -> None:
    """One head, by every reader."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return
    raw = data[: end + 4]
    try:
        head = read_response(raw)
    except BadHead as error:
        assert str(error).isprintable()
        return
    same_as_h11(raw, head)
    if head.status == 101:
        return  # goes another way: it is answered, not passed on
    for keep, version, rewrite in ((True, 11, None), (False, 10, lambda _, value: [value, b"again"])):
        length = head.length if head.status >= 200 and head.status not in (204, 304) else 0
        sent = response_head(head, length, keep and length != UNTIL_CLOSE, version, rewrite, b"")
        assert sent.endswith(b"\r\n\r\n")
        assert sent.count(b"\r\n\r\n") == 1, "an empty line of the sandbox's making"
        again = read_response(sent)
        assert again.status == head.status
        if head.status >= 200 and head.status not in (204, 304):
            assert again.length == length
        assert b"upgrade" not in again.fields.names


def same_as_h11(raw: bytes, head: ResponseHead) -> None:
    """A reader of somebody else's must see the same answer, or refuse it."""
    if head.status < 200 or head.status in (204, 304):
        return
    length = head.length
    body = b"0\r\n\r\n" if length == CHUNKED else b"" if length == UNTIL_CLOSE else b"x" * min(length, 64)
    closed = length == UNTIL_CLOSE
    try:
        reading = strict.responses(raw + body + (b"" if closed else b"NEXT"), [b"GET"], closed=closed)
    except strict.Unclear:
        return
    if not reading.messages:
        assert length > 64
        return
    assert reading.partial == (b"" if closed else b"NEXT")
    assert reading.messages[0].status == head.status
    assert reading.messages[0].headers == seen(head.fields)
