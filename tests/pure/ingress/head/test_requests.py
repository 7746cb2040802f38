"""Request heads: what is taken, what is refused with which status, and that h11 reads the same."""

from __future__ import annotations

import re
import string

import h11
import pytest
from hypothesis import example, find, given
from hypothesis import strategies as st

from ingress.http1.head import (
    CHUNKED,
    BadHead,
    Fields,
    RequestHead,
    body_length,
    read_again,
    read_request,
    read_similar,
    request_line,
)
from ingress.http1.headers import WRITTEN

HOST = b"Host: box.example\r\n"


def head(*lines: bytes, first: bytes = b"GET / HTTP/1.1", host: bytes = HOST) -> bytes:
    return first + b"\r\n" + host + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


def refused(raw: bytes) -> BadHead:
    with pytest.raises(BadHead) as caught:
        read_request(raw)
    return caught.value


# ---- tables ------------------------------------------------------------------------------------------------------


def test_a_head_is_read_as_it_was_sent() -> None:
    read = read_request(head(b"X-One:  a, b \t", b"x-one: c", b"X-EMPTY:", first=b"PUT /a//b/%2F..;x?y=%00#z HTTP/1.1"))
    assert (read.method, read.target, read.version, read.length) == (b"PUT", b"/a//b/%2F..;x?y=%00#z", 11, 0)
    assert read.fields.items == [
        (b"Host", b"box.example"),
        (b"X-One", b"a, b"),
        (b"x-one", b"c"),
        (b"X-EMPTY", b""),
    ]


@pytest.mark.parametrize(
    "target",
    [
        b"/",
        b"//",
        b"/%2e%2e/",
        b"/..",
        b"/;a",
        b"/?a?b",
        b"*",
        b"http://box.example/x",
        b"/" + b"a" * 60_000,
        "/caf\u00e9?q=\u4e16".encode(),
        b"/\x80\xa0\xff",
        b"http://box.example/\xe9",
    ],
)
def test_a_target_is_not_touched(target: bytes) -> None:
    assert read_request(head(first=b"GET " + target + b" HTTP/1.1")).target == target


@pytest.mark.parametrize(
    ("line", "length"),
    [
        (b"Content-Length: 0", 0),
        (b"Content-Length: 5", 5),
        (b"Content-Length: 007", 7),
        (b"content-LENGTH: 999999999999999999", 999_999_999_999_999_999),
        (b"Transfer-Encoding: chunked", CHUNKED),
        (b"Transfer-Encoding: CHUNKED", CHUNKED),
        (b"X-Nothing: of it", 0),
    ],
)
def test_the_length_of_a_body(line: bytes, length: int) -> None:
    assert read_request(head(line, first=b"POST / HTTP/1.1")).length == length


I1 = {
    "both lengths": head(b"Content-Length: 5", b"Transfer-Encoding: chunked"),
    "both lengths, other order": head(b"Transfer-Encoding: chunked", b"Content-Length: 5"),
    "two content lengths": head(b"Content-Length: 5", b"Content-Length: 6"),
    "the same length twice": head(b"Content-Length: 5", b"Content-Length: 5"),
    "a list of lengths": head(b"Content-Length: 5, 5"),
    "a signed length": head(b"Content-Length: +5"),
    "a negative length": head(b"Content-Length: -5"),
    "a hexadecimal length": head(b"Content-Length: 0x5"),
    "a length with an underscore": head(b"Content-Length: 1_0"),
    "a length in other digits": head("Content-Length: \u0665".encode()),
    "no length": head(b"Content-Length:"),
    "a length beyond 64 bits": head(b"Content-Length: 99999999999999999999"),
    "a length of nineteen digits": head(b"Content-Length: 1000000000000000000"),
    "xchunked": head(b"Transfer-Encoding: xchunked"),
    "chunked twice": head(b"Transfer-Encoding: chunked, chunked"),
    "chunked in two fields": head(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
    "gzip, chunked": head(b"Transfer-Encoding: gzip, chunked"),
    "chunked, identity": head(b"Transfer-Encoding: chunked, identity"),
    "identity": head(b"Transfer-Encoding: identity"),
    "a quoted coding": head(b'Transfer-Encoding: "chunked"'),
    "a coding with a parameter": head(b"Transfer-Encoding: chunked;a=b"),
    "a vertical tab before the coding": head(b"Transfer-Encoding: \x0bchunked"),
    "an empty coding": head(b"Transfer-Encoding:"),
    "chunked on HTTP/1.0": head(b"Transfer-Encoding: chunked", first=b"POST / HTTP/1.0"),
    "two hosts": head(b"Host: other.example"),
    "the same host twice": head(HOST.rstrip()),
    "no host": head(host=b""),
    "a space before the colon": head(b"X-One : a"),
    "a tab before the colon": head(b"Transfer-Encoding\t: chunked"),
    "an empty name": head(b": a"),
    "no colon": head(b"X-One"),
    "a folded line": head(b"X-One: a", b" b"),
    "a folded first line": head(host=b" Host: a\r\n"),
    "a bare line feed": head(b"X-One: a\nX-Two: b"),
    "a bare carriage return": head(b"X-One: a\rX-Two: b"),
    "a bare line feed after the request line": b"GET / HTTP/1.1\nHost: a\r\n\r\n",
    "an end of two line feeds": b"GET / HTTP/1.1\r\nHost: a\n\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
    "an end of a line feed": b"GET / HTTP/1.1\r\nHost: a\r\n\nX: y\r\n\r\n",
    "a nul in a value": head(b"X-One: a\0b"),
    "a nul in a name": head(b"X\0One: a"),
    "a delete in a value": head(b"X-One: a\x7fb"),
    "a control character in a value": head(b"X-One: a\x01b"),
    "a high byte in a name": head(b"X-\xfcne: a"),
    "a nul in the target": head(first=b"GET /\0 HTTP/1.1"),
    "a delete in the target": head(first=b"GET /\x7f HTTP/1.1"),
    "a carriage return in the target": head(first=b"GET /\ra HTTP/1.1"),
    "a line feed in the target": head(first=b"GET /\na HTTP/1.1"),
    "a high byte in the method": head(first=b"G\xc9T / HTTP/1.1"),
    "a colon in the method": head(first=b"GET: / HTTP/1.1"),
    "a nul in the method": head(first=b"GE\0T / HTTP/1.1"),
    "no method": head(first=b" / HTTP/1.1"),
    "a tab in the target": head(first=b"GET /\ta HTTP/1.1"),
    "a space in the target": head(first=b"GET /a b HTTP/1.1"),
    "two spaces": head(first=b"GET  / HTTP/1.1"),
    "a tab for a space": head(first=b"GET\t/\tHTTP/1.1"),
    "a space at the end of the request line": head(first=b"GET / HTTP/1.1 "),
    "a line feed before the method": b"\n" + head(),
    "an empty line before the method": b"\r\n" + head(),
    "a space before the method": head(first=b" GET / HTTP/1.1"),
    "no version": head(first=b"GET /"),
    "a version in lower case": head(first=b"GET / http/1.1"),
    "another protocol": head(first=b"GET / RTSP/1.0"),
    "an empty target": head(first=b"GET  HTTP/1.1"),
    "a target that is no path": head(first=b"GET index.html HTTP/1.1"),
}


@pytest.mark.parametrize("raw", I1.values(), ids=I1.keys())
def test_i1_a_head_of_two_readings_is_refused(raw: bytes) -> None:
    assert refused(raw).status == 400


def test_i1_the_same_head_without_the_fault_is_taken() -> None:
    assert read_request(head(b"Content-Length: 5", b"X-One: a")).length == 5
    assert read_request(head(b"Transfer-Encoding: chunked")).length == CHUNKED


@pytest.mark.parametrize(
    ("first", "status"),
    [
        (b"GET / HTTP/2.0", 505),
        (b"GET / HTTP/1.2", 505),
        (b"GET / HTTP/0.9", 505),
        (b"PRI * HTTP/2.0", 505),
        (b"GET / HTTP/1.10", 505),
        (b"CONNECT box.example:443 HTTP/1.1", 405),
        (b"connect / HTTP/1.1", 405),
        (b"PRI * HTTP/1.1", 405),
        (b"pri / HTTP/1.0", 405),
        (b"B" * 65 + b" / HTTP/1.1", 501),
        (b"GET / HTTP/11", 505),
        (b"GET / HTTP/x.y", 400),
    ],
)
def test_what_is_understood_but_not_served_has_its_own_status(first: bytes, status: int) -> None:
    assert refused(head(first=first)).status == status


def test_an_http_1_0_request_may_come_without_a_host() -> None:
    read = read_request(b"GET / HTTP/1.0\r\n\r\n")
    assert (read.version, read.length, read.fields.items) == (10, 0, [])


@pytest.mark.parametrize(
    "method",
    [
        b"GET",
        b"HEAD",
        b"POST",
        b"PUT",
        b"PATCH",
        b"DELETE",
        b"OPTIONS",
        b"PROPFIND",
        b"REPORT",
        b"MKCOL",
        b"TRACE",
        b"VERSION-CONTROL",
        b"BASELINE-CONTROL",
        b"PLAY",
        b"get",
        b"x_Y.z",
        b"!#$%&'*+-.^_`|~09",
        b"B" * 64,
    ],
)
def test_a_method_is_any_token(method: bytes) -> None:
    assert read_request(head(first=method + b" / HTTP/1.1")).method == method


def test_an_upgrade_is_read_to_its_end() -> None:
    read = read_request(head(b"Connection: Upgrade", b"Upgrade: websocket", b"X-Last: 1"))
    assert read.fields.get(b"x-last") == b"1"


# ---- fields ------------------------------------------------------------------------------------------------------


def test_fields_by_name() -> None:
    fields = Fields([b"Accept: a", b"ACCEPT:b \t", b"Connection:  Keep-Alive , ,X", b"connection: y", b"Empty:"])
    assert fields.items[:2] == [(b"Accept", b"a"), (b"ACCEPT", b"b")]
    assert fields.items[4] == (b"Empty", b"")
    assert fields.get(b"accept") == b"a"
    assert fields.all(b"accept") == [b"a", b"b"]
    assert fields.get(b"absent") is None
    assert fields.all(b"absent") == []
    assert fields.tokens(b"connection") == [b"keep-alive", b"x", b"y"]
    assert fields.tokens(b"absent") == []


# ---- properties --------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(
    [b"Content-Length", b"Transfer-Encoding", b"Connection", b"Host", b"Upgrade", b"X-One", b"Expect", b"TE", b"x_one"]
)
VALUES = st.sampled_from(
    [
        b"",
        b"0",
        b"5",
        b"05",
        b"+5",
        b"5, 5",
        b"chunked",
        b"Chunked",
        b"gzip, chunked",
        b"close",
        b"upgrade",
        b"a",
        b"websocket",
        b"100-continue",
        b"trailers",
        b"a b",
        b'"q"',
        b"\xfc",
        b"\x0b5",
        b"a\tb",
        b"box.example:80",
    ]
)
GOOD = st.sampled_from(
    [
        b"Content-Length: 5\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Connection: upgrade\r\n",
        b"X-One: \xfc\r\n",
        b"Upgrade: websocket\r\n",
        b"content-LENGTH:  005 \t\r\n",
        b"transfer-encoding:Chunked\r\n",
        b"X-Empty:\r\n",
    ]
)
WILD = st.builds(
    lambda name, colon, value, end: name + colon + value + end,
    NAMES,
    st.sampled_from([b": ", b":", b":\t ", b" :", b"\t:", b""]) | st.just(b": "),
    VALUES | st.binary(max_size=8),
    st.just(b"\r\n") | st.sampled_from([b"\r\n", b"\n", b"\r", b"\r\n ", b" \r\n", b"\0\r\n"]),
)
FIELDS = st.lists(GOOD, max_size=3) | st.lists(GOOD | WILD, max_size=4)
FIRST = st.builds(
    lambda method, space, target, other, version: method + space + target + other + version + b"\r\n",
    st.sampled_from(
        [b"GET", b"POST", b"HEAD", b"OPTIONS", b"PUT", b"get", b"CONNECT", b"G T", b"PRI", b"VERSION-CONTROL"]
    )
    | st.binary(max_size=8),
    st.just(b" ") | st.sampled_from([b" ", b"  ", b"\t"]),
    st.sampled_from([b"/", b"*", b"/a?b#c", b"//x", b"http://a/b", b"/%00", b"/\xc3\xa9", b""]) | st.binary(max_size=8),
    st.just(b" ") | st.sampled_from([b" ", b"  ", b"\t"]),
    st.sampled_from([b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/1.1 "]),
)


@st.composite
def heads(draw: st.DrawFn) -> bytes:
    """Something like a head, cut at the first empty line as a connection cuts it."""
    first = draw(st.sampled_from([b"POST /a HTTP/1.1\r\n", b"GET //?%00 HTTP/1.1\r\n", b"PUT / HTTP/1.0\r\n"]) | FIRST)
    raw = first + draw(st.just(HOST) | st.sampled_from([HOST, b""])) + b"".join(draw(FIELDS)) + b"\r\n"
    if draw(st.booleans()):
        at = draw(st.integers(0, len(raw) - 1))
        raw = raw[:at] + draw(st.binary(max_size=2)) + raw[at + draw(st.integers(0, 2)) :]
    end = raw.find(b"\r\n\r\n")
    return raw[: end + 4] if end >= 0 else raw + b"\r\n\r\n"


def ascii_target(raw: bytes) -> bytes:
    """The head with an x for each octet above ASCII in its request line, where h11 takes none."""
    line_end = raw.find(b"\r\n")
    return re.sub(rb"[\x80-\xff]", b"x", raw[:line_end]) + raw[line_end:]


def by_h11(read: RequestHead, raw: bytes) -> None:
    """Hold h11 to having read the same from the same octets, and to taking a body of that length behind it."""
    assert raw.startswith(b"%b %b HTTP/1." % (read.method, read.target))
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(ascii_target(raw))
    request = connection.next_event()
    assert isinstance(request, h11.Request), request
    assert request.method == read.method
    assert request.target == ascii_target(read.target + b"\r\n")[:-2]
    assert request.http_version == (b"1.1" if read.version == 11 else b"1.0")
    ours = [(name.lower(), value) for name, value in read.fields.items]
    lowered = [(name, value.lower() if name == b"transfer-encoding" else value) for name, value in ours]
    assert list(request.headers) == lowered
    if read.length == 0:
        assert isinstance(connection.next_event(), h11.EndOfMessage)
        return
    assert connection.next_event() is h11.NEED_DATA
    if read.length == CHUNKED:
        connection.receive_data(b"3\r\nabc\r\n0\r\n\r\n")
        wanted = 3
    else:
        wanted = min(read.length, 1_000)
        connection.receive_data(b"a" * wanted)
    data = connection.next_event()
    assert isinstance(data, h11.Data)
    assert len(data.data) == wanted
    if wanted == read.length or read.length == CHUNKED:
        assert isinstance(connection.next_event(), h11.EndOfMessage)


def accepted(raw: bytes) -> bool:
    try:
        read_request(raw)
    except BadHead:
        return False
    return True


@given(heads())
@example(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 5\r\n\r\n")
@example(b"POST / HTTP/1.0\r\nContent-Length: 3\r\n\r\n")
def test_i1_what_is_taken_h11_reads_the_same_way(raw: bytes) -> None:
    try:
        read = read_request(raw)
    except BadHead:
        return
    by_h11(read, raw)


def test_the_generator_of_heads_makes_good_ones_too() -> None:
    """The control: nothing is proved by heads that are all refused."""
    find(heads(), lambda raw: accepted(raw) and b"hunked" in raw)
    find(heads(), lambda raw: accepted(raw) and b"005" in raw)


FIXED = WRITTEN - {b"content-length"}


@given(st.lists(heads(), min_size=1, max_size=4), st.sampled_from([b"\r", b"\n", b"\r\n", b" ", b"\0"]))
@example([b"GET / HTTP/1.1\r\nHost: a\r\nX-One: 1\r\n\r\n", b"GET /b HTTP/1.1\r\nHost: a\r\nX-One: 2\r\n\r\n"], b"\r")
@example([b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"GET / HTTP/1.1\r\nHost: b\r\n\r\n"], b"\n")
@example(
    [
        b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n",
        b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n",
    ],
    b"\n",
)
def test_i1_a_head_like_the_last_one_is_read_as_if_it_were_the_first(raws: list[bytes], junk: bytes) -> None:
    last: RequestHead | None = None
    for raw in [*raws, *(junk + raw for raw in raws), *(raw.replace(b"1", b"2") for raw in raws)]:
        try:
            read = read_request(raw)
        except BadHead:
            if last is not None:
                try:
                    assert read_similar(raw, last, FIXED) is None
                except BadHead:
                    pass
            continue
        similar = read_similar(raw, last, FIXED) if last is not None else None
        if similar is not None:
            by_h11(similar, raw)
            assert (similar.method, similar.target, similar.version) == (read.method, read.target, read.version)
            assert (similar.length, similar.fields.items) == (read.length, read.fields.items)
            assert similar.fields.names == read.fields.names
            for name in read.fields.names:
                assert similar.fields.all(name) == read.fields.all(name)
        last = read


@pytest.mark.parametrize("name", [b"X-One", b"Content-Length"])
def test_i1_a_changed_line_is_read_as_strictly_as_the_first(name: bytes) -> None:
    """Every octet at every place of a value: where it is taken without llhttp, llhttp takes it, to the same length."""
    last = read_request(b"PUT / HTTP/1.1\r\nHost: a\r\n%b: 1\r\nX-Two: 2\r\n\r\n" % name)
    taken = 0
    for octet in range(256):
        for value in (b" %c7", b" 7%c", b" 7%c7", b"%c7", b" 7%c ", b" %c"):
            raw = b"PUT /b HTTP/1.1\r\nHost: a\r\n%b:%b\r\nX-Two: 2\r\n\r\n" % (name, value % octet)
            try:
                similar = read_similar(raw, last, FIXED)
            except BadHead:
                continue
            if similar is not None:
                taken += 1
                read = read_request(raw)
                assert (similar.length, similar.fields.items) == (read.length, read.fields.items), raw
    assert taken > (500 if name == b"X-One" else 50)


@pytest.mark.parametrize(
    "line", [b"GET /%c HTTP/1.1", b"GET %c/ HTTP/1.1", b"%cGET / HTTP/1.1", b"GET / HTTP/1.%c", b"GET / HTTP/1.1%c"]
)
def test_i1_a_request_line_above_a_known_section_is_read_as_strictly(line: bytes) -> None:
    last = read_request(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    taken = 0
    for octet in range(256):
        again = read_again(line % octet, last)
        if again is not None:
            taken += 1
            read = read_request(line % octet + b"\r\nHost: a\r\n\r\n")
            assert (again.method, again.target, again.version) == (read.method, read.target, read.version)
    assert taken == {b"GET /%c HTTP/1.1": 94, b"GET / HTTP/1.%c": 1}.get(line, 0) + (line == b"GET %c/ HTTP/1.1")


@given(st.binary(max_size=80) | st.builds(lambda raw: b"GET / HTTP/1.1\r\nHost: a\r\n" + raw, st.binary(max_size=40)))
def test_any_octets_give_a_head_or_this_one_error(raw: bytes) -> None:
    for octets in (raw, raw + b"\r\n\r\n"):
        try:
            read = read_request(octets)
        except BadHead as error:
            fault = error
        else:
            assert read.length >= CHUNKED
            continue
        assert fault.status in (400, 405, 501, 505)
        assert str(fault).isprintable()


@given(st.binary(max_size=40))
def test_any_request_line_gives_three_parts_or_this_one_error(line: bytes) -> None:
    try:
        method, target, version = request_line(line)
    except BadHead:
        return
    assert b"%b %b HTTP/%b" % (method, target, b"1.1" if version == 11 else b"1.0") == line


@pytest.mark.parametrize(
    ("line", "taken"),
    [
        (b"G%cT / HTTP/1.1", b"!#$%&'*+-.^_`|~" + string.digits.encode() + string.ascii_letters.encode()),
        (b"GET /a%cb HTTP/1.1", bytes(range(0x21, 0x7F)) + bytes(range(0x80, 0x100))),
    ],
)
def test_i1_each_octet_of_a_request_line_is_a_tokens_or_visible(line: bytes, taken: bytes) -> None:
    """RFC 9110 section 9.1; no control character, no space and no DEL in either part."""
    found = bytes(octet for octet in range(256) if accepted(line % octet + b"\r\nHost: a\r\n\r\n"))
    assert sorted(found) == sorted(taken)


@given(heads(), st.sampled_from([b"FROB /\xc3\xa9", b"head /", b"VERSION-CONTROL *", b"GET http://a/\xff", b"! /"]))
@example(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n", b"FROB /")
@example(b"POST / HTTP/1.0\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n", b"FROB /")
def test_i1_a_section_is_read_alike_under_every_method_and_target(raw: bytes, beginning: bytes) -> None:
    first, end, section = raw.partition(b"\r\n")
    version = first[-8:]
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        return
    readings: list[object] = []
    for line in (b"GET /", beginning):
        try:
            read = read_request(line + b" " + version + end + section)
        except BadHead as fault:
            readings.append((fault.status, str(fault)))
        else:
            assert b"%b %b" % (read.method, read.target) == line
            readings.append((read.version, read.length, read.keep, read.fields.items))
    assert readings[0] == readings[1]


@given(st.sampled_from([10, 11]), st.lists(VALUES, max_size=2), st.lists(VALUES, max_size=2))
def test_i1_a_length_is_only_ever_one_thing(version: int, codings: list[bytes], lengths: list[bytes]) -> None:
    fields = Fields([b"Transfer-Encoding:" + value for value in codings] + [b"Content-Length:" + v for v in lengths])
    try:
        length = body_length(fields, version, 0)
    except BadHead:
        return
    if codings:
        assert (length, version, lengths, b",".join(codings).lower()) == (CHUNKED, 11, [], b"chunked")
    else:
        assert length == int(lengths[0] if lengths else 0)
        assert len(lengths) < 2
