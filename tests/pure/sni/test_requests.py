"""The walk through HTTP/1 requests: what passes, what is refused, and that h11 reads what passed in the same way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress.sni.names import Refused
from egress.sni.requests import HEAD, Requests

if TYPE_CHECKING:
    from collections.abc import Sequence

NAME = "api.example.com"
GET = b"GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n"


def post(*fields: bytes, body: bytes = b"", host: bytes = NAME.encode()) -> bytes:
    return b"POST /x HTTP/1.1\r\nHost: " + host + b"\r\n" + b"".join(f + b"\r\n" for f in fields) + b"\r\n" + body


def walk(data: bytes, sizes: Sequence[int] = ()) -> tuple[str, bytes]:
    """The name, and what went on; in segments of these sizes, the rest in one."""
    requests, passed = Requests(), b""
    for size in (*sizes, len(data)):
        passed += requests.feed(data[:size])
        data = data[size:]
    return requests.name, passed


def refusal(data: bytes) -> str:
    with pytest.raises(Refused) as caught:
        walk(data)
    return str(caught.value)


CHUNKED = post(b"Transfer-Encoding: chunked", body=b"4\r\nwiki\r\n5;x=y\r\npedia\r\n0\r\nX-T: 1\r\n\r\n")
LENGTH = post(b"Content-Length: 5", body=b"hello")
GOOD = (
    GET,
    LENGTH,
    CHUNKED,
    post(b"Content-Length: 0"),
    b"GET / HTTP/1.0\r\nHost: API.example.com:80\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: api.example.com.\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: api.example.com.:80\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nhost:api.example.com\t\r\nX-Empty:\r\n\r\n",
    b"HEAD /a?b=%20 HTTP/1.1\r\nHost: api.example.com\r\nConnection: close\r\n\r\n",
    b"DELETE /a HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 1\r\n\r\nx",
)


@pytest.mark.parametrize("data", GOOD)
def test_what_programs_send_passes_as_it_came(data: bytes) -> None:
    assert walk(data) == (NAME, data)


@given(st.lists(st.sampled_from(GOOD), min_size=1, max_size=6), st.data())
def test_one_request_after_the_other_in_any_segments(requests: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(requests)
    sizes = data.draw(st.lists(st.integers(1, 60), max_size=20))
    assert walk(stream, sizes) == (NAME, stream)


@given(st.integers(0, len(GET) - 1))
def test_nothing_of_a_head_goes_on_before_its_end(size: int) -> None:
    assert walk(GET[:size]) == ("", b"")
    assert walk(LENGTH + GET[:size]) == (NAME, LENGTH)


def test_a_later_request_for_another_name_is_refused() -> None:
    other = GET.replace(b"api.", b"evil.")
    for first in GOOD:
        requests = Requests()
        assert requests.feed(first) == first
        with pytest.raises(Refused, match="another Host on the same connection"):
            requests.feed(other)
        assert refusal(first + other) == "another Host on the same connection"


def test_a_body_is_no_request() -> None:
    """What stands in a body is for the name of its request, however it looks."""
    inner = GET.replace(b"api.", b"evil.")
    for data in (
        post(b"Content-Length: %d" % len(inner), body=inner),
        post(b"Transfer-Encoding: chunked", body=b"%x\r\n%s\r\n0\r\n\r\n" % (len(inner), inner)),
    ):
        assert walk(data + GET) == (NAME, data + GET)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "no Host"),
        (b"GET / HTTP/1.0\r\n\r\n", "no Host"),
        (b"GET / HTTP/1.1\r\nHost: a.example\r\nHost: a.example\r\n\r\n", "Host twice"),
        (b"GET / HTTP/1.1\r\nHost: a.example\r\nhOST: b.example\r\n\r\n", "Host twice"),
        (b"GET / HTTP/1.1\r\nHost: a.example, b.example\r\n\r\n", "no host name"),
        (b"GET / HTTP/1.1\r\nHost:\r\n\r\n", "empty"),
        (b"GET / HTTP/1.1\r\nHost: .\r\n\r\n", "empty"),
        (b"GET / HTTP/1.1\r\nHost: a.example..\r\n\r\n", "no host name"),
        (b"GET / HTTP/1.1\r\nHost: 192.0.2.1.\r\n\r\n", "an address"),
        (b"GET / HTTP/1.1\r\nHost: a.example:8080\r\n\r\n", "another port"),
        (b"GET / HTTP/1.1\r\nHost: 192.0.2.1\r\n\r\n", "an address"),
        (b"GET / HTTP/1.1\r\nHost: [2001:db8::1]\r\n\r\n", "an address"),
        (b"GET / HTTP/1.1\r\nHost: user@a.example\r\n\r\n", "no host name"),
        (b"GET / HTTP/1.1\r\nHost: a.example/b\r\n\r\n", "no host name"),
        (b"GET http://evil.example/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n", "no path"),
        (b"GET evil.example:80 HTTP/1.1\r\nHost: api.example.com\r\n\r\n", "no path"),
        (b"GET * HTTP/1.1\r\nHost: api.example.com\r\n\r\n", "no path"),
        (b"CONNECT evil.example:443 HTTP/1.1\r\nHost: api.example.com\r\n\r\n", "CONNECT"),
        (post(b"Upgrade: websocket", b"Connection: Upgrade"), "Upgrade"),
        (post(b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQAAP__"), "Upgrade"),
        (post(b"Expect: 100-continue", b"Content-Length: 1"), "Expect"),
        (post(b"Content-Length: 5", b"Content-Length: 5"), "Content-Length twice"),
        (post(b"Content-Length: 5, 5"), "no number"),
        (post(b"Content-Length: +5"), "no number"),
        (post(b"Content-Length: 0x5"), "no number"),
        (post(b"Content-Length: -1"), "no number"),
        (post(b"Content-Length:"), "no number"),
        (post(b"Content-Length: 5", b"Transfer-Encoding: chunked"), "Content-Length and Transfer-Encoding"),
        (post(b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity"), "Transfer-Encoding twice"),
        (post(b"Transfer-Encoding: gzip, chunked"), "other than chunked"),
        (post(b"Transfer-Encoding: xchunked"), "other than chunked"),
        (post(b"Transfer-Encoding: \x0bchunked"), "not well-formed"),
        (post(b"Transfer_Encoding: chunked"), "take for another"),
        (post(b"Content_Length: 5"), "take for another"),
        (post(b"Transfer-Encoding : chunked"), "not well-formed"),
        (post(b"X: a\r\n folded"), "not well-formed"),
        (post(b"X: a\0b"), "not well-formed"),
        (post(b": x"), "not well-formed"),
        (post(b"no colon"), "not well-formed"),
        (b"POST / HTTP/1.0\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n", "other than chunked"),
        (b"GET / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 1\r\n\r\nx", "a body with GET"),
        (b"HEAD / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n", "a body with HEAD"),
        (b"GET / HTTP/1.1\nHost: a.example\n\n", "CR LF"),
        (b"GET / HTTP/1.1\r\nHost: a.example\nX: y\r\n\r\n", "CR LF"),
        (b"GET / HTTP/1.1\r\nHost: a.example\rX: y\r\n\r\n", "not well-formed"),
        (b"GET  / HTTP/1.1\r\nHost: a.example\r\n\r\n", "not an HTTP/1 request"),
        (b"GET /a b HTTP/1.1\r\nHost: a.example\r\n\r\n", "not an HTTP/1 request"),
        (b"GET / HTTP/2.0\r\nHost: a.example\r\n\r\n", "not an HTTP/1 request"),
        (b"GET /\r\n", "not an HTTP/1 request"),
        (b"\r\nGET / HTTP/1.1\r\nHost: a.example\r\n\r\n", "not an HTTP/1 request"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "not an HTTP/1 request"),
        (b"SSH-2.0-OpenSSH\r\n", "not an HTTP/1 request"),
        (b"\x16\x03\x01\x02\x00\x01", "not an HTTP/1 request"),
        (CHUNKED.replace(b"4\r\nwiki", b"0x4\r\nwiki"), "a chunk"),
        (CHUNKED.replace(b"4\r\nwiki", b"4 \r\nwiki"), "a chunk"),
        (CHUNKED.replace(b"4\r\nwiki", b"4\nwiki"), "CR LF"),
        (CHUNKED.replace(b"wiki\r\n", b"wikix\r\n"), "a chunk"),
        (CHUNKED.replace(b"X-T: 1", b"Host: evil.example"), "a trailer"),
        (CHUNKED.replace(b"X-T: 1", b"X T: 1"), "a trailer"),
        (GET[:-2] + b"X: " + b"x" * HEAD, "too long"),
        (b"GET /" + b"x" * HEAD, "too long"),
        (CHUNKED.split(b"4\r\n")[0] + b"0" * HEAD, "too long"),
    ],
)
def test_what_has_two_readings_is_refused(data: bytes, reason: str) -> None:
    assert reason in refusal(data)
    assert reason in refusal(GET.replace(b"api.example.com", b"a.example") + data) or "another Host" in refusal(
        GET.replace(b"api.example.com", b"a.example") + data
    )


# -- the differential: h11 -------------------------------------------------------------------------------------------
def of_h11(data: bytes) -> list[tuple[bytes, list[bytes], bytes]]:
    """What h11's server side reads: target, Hosts and body of each whole request. Raises h11.RemoteProtocolError."""
    found: list[tuple[bytes, list[bytes], bytes]] = []
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    while True:
        request = connection.next_event()
        if not isinstance(request, h11.Request):
            return found
        body = b""
        while isinstance(event := connection.next_event(), h11.Data):
            body += bytes(event.data)
        if not isinstance(event, h11.EndOfMessage):
            return found
        hosts = [value for name, value in request.headers if name == b"host"]
        found.append((request.target, hosts, body))
        connection.send(h11.Response(status_code=200, headers=[("Content-Length", "0")]))
        connection.send(h11.EndOfMessage())
        if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
            return found
        connection.start_next_cycle()


PIECES = (
    b"GET ", b"POST ", b"/ ", b"/x ", b"http://b.example/ ", b"HTTP/1.1\r\n", b"HTTP/1.0\r\n", b"Host: a.example\r\n",
    b"Host: b.example\r\n", b"Host: a.example\r\n\r\n", b"\r\n", b"\n", b"Content-Length: 3\r\n",
    b"Content-Length: 0\r\n", b"Transfer-Encoding: chunked\r\n",
    b"abc", b"3\r\nabc\r\n", b"0\r\n\r\n", b"X: y\r\n", b" ", b"\0", b":",
    b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n", b"POST / HTTP/1.1\r\nHost: a.example\r\n",
)  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=14).map(b"".join), st.data())
def test_h11_reads_what_passed_in_the_same_way(data: bytes, draw: st.DataObject) -> None:
    try:
        name, passed = walk(data, draw.draw(st.lists(st.integers(1, 30), max_size=8)))
    except Refused:
        return
    read = of_h11(passed)  # raises where h11 would refuse it
    assert all(hosts == [name.encode()] for _, hosts, _ in read)
    # And it does not see fewer requests than we did: what it takes for a body, we do too.
    assert passed.count(b"Host: ") <= len(read) + 1


@given(st.binary(max_size=300), st.lists(st.integers(1, 40), max_size=10))
def test_anything_at_all(data: bytes, sizes: list[int]) -> None:
    reason = ""
    try:
        walk(b"GET / HTTP/1.1\r\n" + data, sizes)
    except Refused as refused:
        reason = str(refused)
    assert reason.isprintable()


@pytest.mark.parametrize("size", [b"4 ;x=y", b"4\t;x", b'4;x="y', b'4;x="y"'])
def test_fuzz_a_chunk_extension_that_readers_take_differently_is_refused(size: bytes) -> None:
    """h11 refuses the space, and a quote that is not closed goes on behind the line for who reads it so."""
    chunk = size + b"\r\nwiki\r\n0\r\n\r\n"
    assert refusal(post(b"Transfer-Encoding: chunked", body=chunk)) == "a chunk that is not well-formed"
    assert walk(post(b"Transfer-Encoding: chunked", body=chunk.replace(size, b"4;x=y")))[0] == NAME
