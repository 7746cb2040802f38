"""HTTP requests on port 80 as the name guard walks through them: what it lets through has one reading, and one name.

The first octet of an input says how it is cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from egress.sni.names import Refused
from egress.sni.requests import Requests
from tests.real.ingress.hostile import strict

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST = 500
WORDS = (
    b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n", b"POST /x HTTP/1.1\r\n", b"\r\nHost: b.example",
    b"\r\nhost:a.example:80", b"\r\nContent-Length: 5", b"\r\nTransfer-Encoding: chunked", b"0\r\n\r\n",
    b"5;x=y\r\nhello\r\n", b"\r\nConnection: close", b"\r\nUpgrade: h2c", b"\r\nExpect: 100-continue", b"\r\n\r\n",
    b"\n", b"\0", b"\r\n ", b"http://b.example/", b"CONNECT b:1 HTTP/1.1", b"PRI * HTTP/2.0",
    b"\r\nContent_Length: 5", b"OPTIONS * HTTP/1.1", b" HTTP/1.0\r\n", b"X-T: 1\r\n",
)  # fmt: skip
GET = b"GET /a HTTP/1.1\r\nHost: a.example\r\n\r\n"


def seeds() -> Iterator[bytes]:
    """Requests of every framing, several on a connection, and what is refused."""
    post = b"POST /x HTTP/1.1\r\nHost: A.example:80\r\n"
    yield b"\1" + GET + GET
    yield b"\2" + post + b"Content-Length: 5\r\n\r\nhello" + GET
    yield b"\3" + post + b"Transfer-Encoding: chunked\r\n\r\n4\r\nwiki\r\n5;x=y\r\npedia\r\n0\r\nX-T: 1\r\n\r\n" + GET
    yield b"\4" + GET.replace(b"1.1", b"1.0")
    yield b"\5" + GET + GET.replace(b"a.example", b"b.example")
    yield b"\6" + GET.replace(b"\r\n\r\n", b"\r\nUpgrade: websocket\r\n\r\n")
    yield b"\7OPTIONS * HTTP/1.1\r\nhost:a.example\t\r\nX-Empty:\r\n\r\n"


def check(data: bytes) -> None:
    """In pieces as at once; and what has gone on is read by h11 as requests for that one name."""
    if not data:
        return
    step, stream = data[0] % 32 + 1, data[1:]
    name, passed, refused = walk(stream, len(stream) or 1)
    named, gone, stopped = walk(stream, step)
    assert stream.startswith(gone), "not as it came"
    assert refused == stopped, "what is refused depends on how it was cut"
    if not refused:
        assert (name, passed) == (named, gone)
    if not gone:
        return
    assert named
    high = any(octet > 126 for octet in gone)  # in targets h11 knows none of these, and nobody reads them in two ways
    try:
        reading = strict.requests(gone)
    except strict.Unclear:
        assert high, f"it has gone on, and can be read in two ways: {gone!r}"
        return
    for message in reading.messages:
        (host,) = message.all("host")
        written, _, port = host.lower().partition(":")
        assert written == named
        assert not port or int(port) == 80
        assert message.method != b"CONNECT"


def walk(stream: bytes, step: int) -> tuple[str, bytes, bool]:
    """The name, what went on, and whether it was refused in the end."""
    requests, passed = Requests(), b""
    try:
        for at in range(0, len(stream), step):
            passed += requests.feed(stream[at : at + step])
    except Refused as error:
        assert str(error).isprintable()
        return requests.name, passed, True
    return requests.name, passed, False
