"""Response heads: a sandbox is read as strictly as a client (I8)."""

from __future__ import annotations

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingress.http1.answer import Answer
from ingress.http1.head import CHUNKED, UNTIL_CLOSE, BadHead, ResponseHead, read_response


def head(*lines: bytes, first: bytes = b"HTTP/1.1 200 OK") -> bytes:
    return first + b"\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


@pytest.mark.parametrize(
    ("first", "status", "reason", "version"),
    [
        (b"HTTP/1.1 200 OK", 200, b"OK", 11),
        (b"HTTP/1.0 404 Not Found", 404, b"Not Found", 10),
        (b"HTTP/1.1 204 ", 204, b"", 11),
        (b"HTTP/1.1 204", 204, b"", 11),
        (b"HTTP/1.1 100 Continue", 100, b"Continue", 11),
        (b"HTTP/1.1 999 who knows", 999, b"who knows", 11),
        ("HTTP/1.1 200 schön\t!".encode(), 200, "schön\t!".encode(), 11),
    ],
)
def test_a_status_line_is_read_as_it_was_sent(first: bytes, status: int, reason: bytes, version: int) -> None:
    read = read_response(head(first=first))
    assert (read.status, read.reason, read.version, read.length) == (status, reason, version, UNTIL_CLOSE)


@pytest.mark.parametrize(
    ("line", "length"),
    [
        (b"Content-Length: 5", 5),
        (b"Content-Length: 0", 0),
        (b"transfer-encoding: Chunked", CHUNKED),
        (b"X-Nothing: of it", UNTIL_CLOSE),
    ],
)
def test_the_length_of_a_body(line: bytes, length: int) -> None:
    assert read_response(head(line)).length == length


I8 = {
    "both lengths": head(b"Content-Length: 5", b"Transfer-Encoding: chunked"),
    "two lengths": head(b"Content-Length: 5", b"Content-Length: 6"),
    "the same length twice": head(b"Content-Length: 5", b"Content-Length: 5"),
    "a list of lengths": head(b"Content-Length: 5, 5"),
    "a signed length": head(b"Content-Length: +5"),
    "gzip, chunked": head(b"Transfer-Encoding: gzip, chunked"),
    "identity": head(b"Transfer-Encoding: identity"),
    "chunked in HTTP/1.0": head(b"Transfer-Encoding: chunked", first=b"HTTP/1.0 200 OK"),
    "a space before the colon": head(b"X-One : a"),
    "a folded line": head(b"X-One: a", b" b"),
    "a bare line feed": head(b"X-One: a\nSet-Cookie: b=c"),
    "a bare carriage return": head(b"X-One: a\rSet-Cookie: b=c"),
    "a nul": head(b"X-One: a\0"),
    "a bare line feed in the status line": head(first=b"HTTP/1.1 200 OK\nX: y"),
    "a bare carriage return in the reason": head(first=b"HTTP/1.1 200 O\rK"),
    "a nul in the reason": head(first=b"HTTP/1.1 200 O\0K"),
    "an escape in the reason": head(first=b"HTTP/1.1 200 \x1b[2J"),
    "a delete in the reason": head(first=b"HTTP/1.1 200 \x7f"),
    "two spaces": head(first=b"HTTP/1.1  200 OK"),
    "two digits": head(first=b"HTTP/1.1 20 OK"),
    "four digits": head(first=b"HTTP/1.1 2000 OK"),
    "a status below the lowest": head(first=b"HTTP/1.1 099 OK"),
    "a status of nothing": head(first=b"HTTP/1.1 000 OK"),
    "a signed status": head(first=b"HTTP/1.1 +20 OK"),
    "HTTP/2": head(first=b"HTTP/2 200 OK"),
    "HTTP/0.9": head(first=b"HTTP/0.9 200 OK"),
    "another protocol": head(first=b"ICY 200 OK"),
    "an empty line first": b"\r\n" + head(),
    "a request": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "markup": b"<html>\r\n\r\n",
}


@pytest.mark.parametrize("raw", I8.values(), ids=I8.keys())
def test_i8_an_answer_of_two_readings_is_refused(raw: bytes) -> None:
    with pytest.raises(BadHead):
        read_response(raw)


NAMES = st.sampled_from([b"Content-Length", b"Transfer-Encoding", b"Connection", b"X-One", b"Set-Cookie"])
VALUES = st.sampled_from([b"", b"0", b"5", b"chunked", b"close", b"a=b; Path=/", b"gzip", b"a b"]) | st.binary(
    max_size=6
)
FIELD = st.builds(
    lambda name, colon, value, end: name + colon + value + end,
    NAMES,
    st.just(b": ") | st.sampled_from([b":", b" :", b""]),
    VALUES,
    st.just(b"\r\n") | st.sampled_from([b"\r\n", b"\n", b"\r", b"\r\n "]),
)
FIRST = st.builds(
    lambda version, status, reason: version + b" " + status + reason + b"\r\n",
    st.sampled_from([b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0"]),
    st.sampled_from([b"200", b"404", b"500", b"099", b"20", b"2000"]) | st.integers(200, 999).map(b"%d".__mod__),
    st.sampled_from([b" OK", b" ", b"", b"  x"]) | st.binary(max_size=6).map(b" ".__add__),
)


@st.composite
def heads(draw: st.DrawFn) -> bytes:
    """Something like a response's head, cut at the first empty line as a connection cuts it."""
    raw: bytes = draw(FIRST) + b"".join(draw(st.lists(FIELD, max_size=4))) + b"\r\n"
    end = raw.find(b"\r\n\r\n")
    return raw[: end + 4] if end >= 0 else raw + b"\r\n\r\n"


def by_h11(read: ResponseHead, raw: bytes) -> None:
    """Hold h11 to having read the same from the same octets."""
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method=b"GET", target=b"/", headers=[(b"Host", b"a")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(raw)
    answer = connection.next_event()
    assert isinstance(answer, h11.Response), answer
    assert answer.status_code == read.status
    assert answer.reason == read.reason
    assert answer.http_version == (b"1.1" if read.version == 11 else b"1.0")
    ours = [(name.lower(), value) for name, value in read.fields.items]
    assert list(answer.headers) == [(n, value.lower() if n == b"transfer-encoding" else value) for n, value in ours]
    if read.status in (204, 304):
        return
    if read.length == 0:
        assert isinstance(connection.next_event(), h11.EndOfMessage)
        return
    connection.receive_data(b"3\r\nabc\r\n0\r\n\r\n" if read.length == CHUNKED else b"abc")
    if read.length == UNTIL_CLOSE:
        connection.receive_data(b"")
    wanted = b"abc" if read.length < 0 else b"abc"[: read.length]
    got = b""
    while got != wanted:
        data = connection.next_event()
        assert isinstance(data, h11.Data)
        got += data.data
    if read.length <= 3:
        assert isinstance(connection.next_event(), h11.EndOfMessage)


@given(heads())
def test_i8_what_is_taken_h11_reads_the_same_way(raw: bytes) -> None:
    try:
        read = read_response(raw)
    except BadHead:
        return
    by_h11(read, raw)


@given(st.binary(max_size=80) | st.builds(lambda raw: b"HTTP/1.1 200 OK\r\n" + raw, st.binary(max_size=40)))
def test_any_octets_give_a_head_or_this_one_error(raw: bytes) -> None:
    for octets in (raw, raw + b"\r\n\r\n"):
        try:
            read = read_response(octets)
        except BadHead as error:
            fault = error
        else:
            assert 100 <= read.status <= 999
            assert read.length >= UNTIL_CLOSE
            continue
        assert str(fault).isprintable()


@pytest.mark.parametrize("name", [b"X-One", b"Content-Length"])
@pytest.mark.parametrize("status", [200, 304])
def test_i8_a_changed_line_of_an_answer_is_read_as_strictly_as_the_first(name: bytes, status: int) -> None:
    """Every octet at every place of a value: where it is taken without llhttp, llhttp takes it too."""
    other = b"Content-Length: 0" if name == b"X-One" else b"X-One: 0"
    form = b"HTTP/1.1 %d OK\r\n%b\r\n%b:%b\r\n\r\n"
    raw = form % (status, other, name, b" 1")
    head = read_response(raw)
    last = Answer.remember(raw, raw, head, 0, True)
    taken = 0
    for octet in range(256):
        for value in (b" %c7", b" 7%c", b" 7%c7", b"%c7", b" 7%c ", b" %c"):
            raw = form % (status, other, name, value % octet)
            try:
                similar = last.similar(raw)
            except BadHead:
                continue
            if similar is not None:
                taken += 1
                assert read_response(raw).status == similar.status
    assert taken > (50 if name == b"Content-Length" else 500)
