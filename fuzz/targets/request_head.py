"""A client's request heads: strictly read, as h11 reads them, and a connection's memory of the last changes nothing.

An input is one or two heads, the second behind the first one's empty line, as on one connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingress.http1.head import CHUNKED, BadHead, RequestHead, read_request, read_similar
from ingress.http1.headers import WRITTEN, Outside, is_websocket, request_recipe
from tests.real.ingress.hostile import strict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ingress.http1.head import Fields

LONGEST = 500
WORDS = (
    b"GET / HTTP/1.1\r\n", b"POST /a HTTP/1.0\r\n", b"\r\n\r\n", b"\r\nHost: b.example", b"\r\nContent-Length: 5",
    b"\r\nTransfer-Encoding: chunked", b"\r\nConnection: close", b"\r\nConnection: keep-alive, x-a",
    b"\r\nUpgrade: websocket", b"\r\nExpect: 100-continue", b"\r\n ", b"\r\n\t", b"\n", b"\0", b" :",
    b"CONNECT a:1 HTTP/1.1", b"\r\nTE: trailers", b"\r\nX-Forwarded-For: 1.2.3.4", b"\r\nCookie: a=b",
    b"http://b.example/",
)  # fmt: skip
OUTSIDE = Outside("192.0.2.7", False)
TRUSTED = Outside("192.0.2.7", True, True, "10.0.0.1")
STRIPPED = WRITTEN | {b"x-own"}
FIXED = (STRIPPED | {b"cookie", b"origin"}) - {b"content-length"}


def seeds() -> Iterator[bytes]:
    """Requests of every framing, an upgrade, forwarded fields, and two on a connection."""
    get = b"GET /a?b=c HTTP/1.1\r\nHost: b.example\r\nCookie: a=b\r\n\r\n"
    post = b"POST / HTTP/1.1\r\nHost: b.example\r\nContent-Length: 5\r\nX-A:  v \r\n\r\n"
    yield get + get.replace(b"a=b", b"a=c")
    yield post + post.replace(b"5", b"7").replace(b"v", b"w")
    yield b"PUT /x HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: chunked\r\nTrailer: x\r\n\r\n"
    yield b"GET /ws HTTP/1.1\r\nHost: b\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    yield b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    yield b"GET / HTTP/1.1\r\nHost: b\r\nX-Forwarded-For: 1.2.3.4, 5.6.7.8\r\nX-Forwarded-Proto: https\r\n\r\n"
    yield b"GET / HTTP/1.1\r\nHost: b\r\nOrigin: http://b\r\n\r\n"
    yield b"OPTIONS * HTTP/1.1\r\nhost:b:80\r\nConnection: close, x-a,\r\nX-A: 1\r\nExpect: 100-continue\r\n\r\n"


def check(data: bytes) -> None:
    """The first head by every reader; the second one by the way that knows the first."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return
    raw, rest = data[: end + 4], data[end + 4 :]
    head = read(raw)
    if head is None:
        return
    same_as_h11(raw, head)
    sent_on(head)
    end = rest.find(b"\r\n\r\n")
    if end < 0:
        return
    similar(rest[: end + 4], head)


def read(raw: bytes) -> RequestHead | None:
    try:
        return read_request(raw)
    except BadHead as error:
        assert error.status in (400, 405, 501, 505)
        assert str(error).isprintable()
        return None


def seen(fields: Fields) -> list[tuple[bytes, bytes]]:
    """Fields as h11 has them: names in lower case, and the one coding that it knows as well."""
    pairs = [(name.lower(), value) for name, value in fields.items]
    return [(name, value.lower() if name == b"transfer-encoding" else value) for name, value in pairs]


def same_as_h11(raw: bytes, head: RequestHead) -> None:
    """A reader of somebody else's must see the same request, or refuse it."""
    length = head.length
    body = b"0\r\n\r\n" if length == CHUNKED else b"x" * length if length <= 64 else b""
    try:
        message, left = strict.request(raw + body + b"NEXT")
    except strict.Unclear:
        return  # h11 knows fewer methods' characters and targets; what matters is what both take
    if message is None:
        assert length > 64
        return
    assert left == b"NEXT", "two ends of one request"
    assert message.start == b"%b %b HTTP/1.%d" % (head.method, head.target, head.version - 10)
    assert message.headers == seen(head.fields)


def sent_on(head: RequestHead) -> None:
    """What crosses to the sandbox is one head, without what may not cross."""
    fields = head.fields
    for outside in (OUTSIDE, TRUSTED):
        recipe = request_recipe(fields, outside, STRIPPED, b"127.0.0.1:80", b"/p", is_websocket(fields))
        lines = recipe.apply(fields)
        raw = b"%b %b HTTP/1.1\r\n%b" % (head.method, head.target, lines)
        assert b"\r\n\r\n" not in raw, "an empty line of the client's making"
        while not raw.endswith(b"\r\n\r\n"):
            raw += b"\r\n"
        again = read_request(raw)
        names = again.fields.names
        assert b"x-own" not in names
        assert b"content-length" not in names
        assert b"transfer-encoding" not in names
        assert names.count(b"host") == 1
        assert names.count(b"x-forwarded-for") == 1
        if outside is OUTSIDE:
            assert again.fields.get(b"x-forwarded-for") == b"192.0.2.7"


def similar(raw: bytes, before: RequestHead) -> None:
    """`read_similar` says what `read_request` says, or nothing."""
    plain = read(raw)
    try:
        head = read_similar(raw, before, FIXED)
    except BadHead:
        assert plain is None
        return
    if head is None:
        return
    assert plain is not None, "what is refused alone is taken behind another"
    assert (head.method, head.target, head.version, head.length, head.keep) == (
        plain.method, plain.target, plain.version, plain.length, plain.keep,
    )  # fmt: skip
    assert head.fields.items == plain.fields.items
    assert head.fields.names == plain.fields.names
    for name in set(plain.fields.names):
        assert head.fields.all(name) == plain.fields.all(name)
