"""Bodies in chunks: however a stream is cut, the same payload; a fault is a fault; and two other parsers agree."""

from __future__ import annotations

import itertools

import h11
import httptools
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ingress.http1.body import LINE_LIMIT, TRAILER_LIMIT, BadBody, ChunkedReader, framed, last_chunk

Reading = tuple[bytes, list[tuple[bytes, bytes]], bytes] | None
"""Payload, trailers and rest; None: a fault."""


def read(stream: bytes, cuts: list[int] | None = None) -> ChunkedReader:
    """Feed a stream in pieces; its payload is in `payload`."""
    reader = ChunkedReader()
    taken(reader, stream, cuts)
    return reader


def taken(reader: ChunkedReader, stream: bytes, cuts: list[int] | None = None) -> bytes:
    edges = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts or [])})
    payload = b""
    for start, end in itertools.pairwise(edges):
        if reader.done:
            reader.rest += stream[start:end]
            continue
        pieces = reader.feed(stream[start:end])
        assert all(pieces), "an empty piece would be the last chunk"
        payload += b"".join(pieces)
    return payload


def ours(stream: bytes, cuts: list[int] | None = None) -> Reading:
    reader = ChunkedReader()
    try:
        payload = taken(reader, stream, cuts)
    except BadBody:
        return None
    assert reader.done, "these streams are whole"
    return payload, reader.trailers, reader.rest


def by_h11(stream: bytes) -> Reading:
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert isinstance(connection.next_event(), h11.Request)
    connection.receive_data(stream)
    payload = b""
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError:
            return None
        if isinstance(event, h11.Data):
            payload += event.data
        elif isinstance(event, h11.EndOfMessage):
            return payload, list(event.headers), connection.trailing_data[0]
        else:
            return None  # it wants more


class Collector:
    def __init__(self) -> None:
        self.payload = b""
        self.trailers: list[tuple[bytes, bytes]] = []
        self.begun = self.complete = False

    def on_body(self, data: bytes) -> None:
        self.payload += data

    def on_headers_complete(self) -> None:
        self.begun = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.begun:
            self.trailers.append((name, value.strip(b" \t")))

    def on_message_complete(self) -> None:
        self.complete = True


def by_llhttp(stream: bytes) -> Reading:
    """Without a rest: llhttp reads what follows as the next request."""
    collector = Collector()
    parser = httptools.HttpRequestParser(collector)
    parser.feed_data(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
    try:
        parser.feed_data(stream)
    except httptools.HttpParserError:
        return None
    return (collector.payload, collector.trailers, b"") if collector.complete else None


# ---- tables ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stream", "payload"),
    [
        (b"0\r\n\r\n", b""),
        (b"3\r\nabc\r\n0\r\n\r\n", b"abc"),
        (b"003\r\nabc\r\n00\r\n\r\n", b"abc"),
        (b"A\r\n0123456789\r\na\r\n0123456789\r\n0\r\n\r\n", b"01234567890123456789"),
        (b"2\r\n\r\n\r\n1\r\n\n\r\n0\r\n\r\n", b"\r\n\n"),
        (b"3;a=b\r\nabc\r\n0;c\r\n\r\n", b"abc"),
        (b'3;a="b;c"\r\nabc\r\n0\r\n\r\n', b"abc"),
        (b"3 ;a=b\r\nabc\r\n0\r\n\r\n", b"abc"),
    ],
)
def test_payloads(stream: bytes, payload: bytes) -> None:
    assert ours(stream + b"rest") == (payload, [], b"rest")


def test_trailers_are_given_as_sent() -> None:
    reader = read(b"0\r\nX-Sum:  a b \t\r\nx-EMPTY:\r\n\r\n")
    assert reader.trailers == [(b"X-Sum", b"a b"), (b"x-EMPTY", b"")]


I1 = {
    "no size": b"\r\nabc\r\n",
    "an extension and no size": b";a\r\n",
    "a size in other letters": b"g\r\n",
    "a size with 0x": b"0x3\r\nabc\r\n",
    "a size with a sign": b"+3\r\nabc\r\n",
    "a negative size": b"-3\r\nabc\r\n",
    "a size with an underscore": b"1_0\r\n",
    "a space before the size": b" 3\r\nabc\r\n",
    "a space behind the size": b"3 \r\nabc\r\n",
    "a size of sixteen digits": b"0000000000000003\r\nabc\r\n",
    "a size that overflows": b"10000000000000003\r\nabc\r\n",
    "a size line with a bare line feed": b"3\nabc\r\n",
    "a size line with a bare carriage return": b"3\rabc\r\n",
    "an extension with a bare line feed": b"3;a\nabc\r\n",
    "an extension with a bare carriage return": b"3;a\rb\r\nabc\r\n",
    "an extension with a nul": b"3;a\0\r\nabc\r\n",
    "a nul for an extension": b"3\0\r\nabc\r\n",
    "a chunk longer than its size": b"3\r\nabcd\r\n",
    "a chunk shorter than its size": b"3\r\nab\r\n0\r\n\r\n",
    "a chunk that ends in a line feed": b"3\r\nabc\n",
    "a chunk that ends in a carriage return and more": b"3\r\nabc\rx",
    "a chunk that ends in two line feeds": b"3\r\nabc\n\n",
    "a trailer without a colon": b"0\r\nabc\r\n\r\n",
    "a trailer with a space before the colon": b"0\r\nA : b\r\n\r\n",
    "a trailer that is folded": b"0\r\nA: b\r\n c\r\n\r\n",
    "a trailer with a bare line feed": b"0\r\nA: b\nC: d\r\n\r\n",
    "a trailer with a nul": b"0\r\nA: b\0\r\n\r\n",
    "a trailer without a name": b"0\r\n: b\r\n\r\n",
    "an end of a line feed": b"0\r\n\n",
    "an end with a bare line feed": b"0\n\r\n",
}


@pytest.mark.parametrize("stream", I1.values(), ids=I1.keys())
def test_i1_chunk_tricks_are_refused(stream: bytes) -> None:
    for cuts in ([], list(range(len(stream)))):
        with pytest.raises(BadBody):
            read(stream, cuts)


def test_i7_a_size_line_has_an_end() -> None:
    longest = b"3;" + b"a" * (LINE_LIMIT - 4) + b"\r\n"
    assert len(longest) == LINE_LIMIT
    assert ours(longest + b"abc\r\n0\r\n\r\n") == (b"abc", [], b"")
    for line in (b"3;" + b"a" * (LINE_LIMIT - 3) + b"\r\n", b"3;" + b"a" * LINE_LIMIT):
        for cuts in ([], list(range(len(line)))):
            with pytest.raises(BadBody, match="too long"):
                read(line, cuts)


def test_i7_trailers_have_an_end() -> None:
    line = b"A: " + b"b" * 1_000 + b"\r\n"
    fits = TRAILER_LIMIT // (len(line) - 2)
    reading = ours(b"0\r\n" + line * fits + b"\r\n")
    assert reading is not None
    assert len(reading[1]) == fits
    with pytest.raises(BadBody, match="trailers are too long"):
        read(b"0\r\n" + line * (fits + 1))


class Counted(bytes):
    """Counts the octets that are copied by joining and slicing it."""

    touched = 0

    def __radd__(self, other: bytes) -> Counted:
        Counted.touched += len(other) + len(self)
        return Counted(bytes(other) + bytes(self))

    def __getitem__(self, key: slice | int) -> bytes | int:  # type: ignore[override]
        part = bytes.__getitem__(self, key)
        if isinstance(part, bytes):
            Counted.touched += len(part)
            return Counted(part)
        return part


@pytest.mark.parametrize("chunk", [1, 100, 30_000])
def test_i7_one_octet_at_a_time_costs_a_bounded_number_each(chunk: int) -> None:
    """A body that drips may not cost the square of its length: no part of it is held once it is payload."""
    total = 30_000
    stream = framed([b"x" * chunk] * (total // chunk)) + last_chunk([])
    reader = ChunkedReader()
    Counted.touched = 0
    for at in range(len(stream)):
        reader.feed(Counted(stream[at : at + 1]))
    assert reader.done
    assert Counted.touched < 12 * len(stream)


# ---- properties --------------------------------------------------------------------------------------------------

PAYLOAD = st.binary(min_size=1, max_size=40)
TOKEN = st.text("abcXYZ-_.!#", min_size=1, max_size=8).map(str.encode)
VALUE = st.text("abc ;,=\"\t'%", max_size=10).map(lambda text: text.strip(" \t").encode())
TRAILERS = st.lists(st.tuples(TOKEN, VALUE), max_size=3)
CUTS = st.lists(st.integers(0, 10_000), max_size=12)


@given(st.lists(PAYLOAD, max_size=6), TRAILERS, st.binary(max_size=20), CUTS)
def test_what_is_framed_is_read_back_however_it_is_cut(
    pieces: list[bytes], trailers: list[tuple[bytes, bytes]], rest: bytes, cuts: list[int]
) -> None:
    stream = (framed(pieces) if pieces else b"") + last_chunk(trailers)
    assert ours(stream + rest, cuts) == (b"".join(pieces), trailers, rest)
    assert ours(stream + rest, list(range(len(stream)))) == (b"".join(pieces), trailers, rest)
    assert by_h11(stream) == (b"".join(pieces), [(name.lower(), value) for name, value in trailers], b"")
    assert by_llhttp(stream) == (b"".join(pieces), trailers, b"")


SIZE = st.integers(0, 20).map(b"%x".__mod__) | st.sampled_from([b"", b"00", b"0A", b"3 ", b" 3", b"0x3", b"+3", b"g"])
EXTENSION = st.sampled_from([b"", b"", b"", b";a", b";a=b", b' ; a = "b"', b";\t", b";\x0b", b";a\rb", b" ", b"\0"])
END = st.just(b"\r\n") | st.sampled_from([b"\r\n", b"\n", b"\r", b"", b"\r\r\n"])
CHUNK = st.builds(
    lambda size, extension, end, payload, after: size + extension + end + payload + after,
    SIZE,
    EXTENSION,
    END,
    st.binary(max_size=20),
    END,
) | PAYLOAD.map(lambda payload: framed([payload]))
ENDING = st.just(b"0\r\n\r\n") | st.sampled_from(
    [
        b"0\r\nA: b\r\n\r\n",
        b"0\r\nA : b\r\n\r\n",
        b"0\r\n b\r\n\r\n",
        b"0\r\n\n",
        b"0\r\nA: b\n\r\n\r\n",
        b"00;x\r\n\r\n",
    ]
)
STREAM = st.builds(lambda chunks, end: b"".join(chunks) + end, st.lists(CHUNK, max_size=4), ENDING)


@given(STREAM, CUTS)
@example(b"3\r\nabc\r", [])
def test_i1_cuts_change_nothing(stream: bytes, cuts: list[int]) -> None:
    """The same payload, trailers and rest, or a fault each time; the payload before it doesn't differ either."""
    results: list[tuple[str, bytes, list[tuple[bytes, bytes]], bytes]] = []
    for where in ([], cuts, list(range(len(stream)))):
        reader = ChunkedReader()
        try:
            payload = taken(reader, stream, where)
        except BadBody as fault:
            results.append((str(fault), b"", [], b""))
        else:
            results.append((str(reader.done), payload, reader.trailers, reader.rest))
    assert results[0] == results[1] == results[2]


@given(STREAM)
@example(b"3 ;a\r\nabc\r\n0\r\n\r\n")
@example(b"3 \r\nabc\r\n0\r\n\r\n")
@example(b"0\r\nA: b\r\n c\r\n\r\n")
def test_i1_what_is_taken_two_others_read_the_same_way_or_not_at_all(stream: bytes) -> None:
    """h11 takes white space behind a size and folded trailers, llhttp control characters in some places: refused here.

    Taken here and not by them: white space before an extension's semicolon, which RFC 9112 section 7.1.1 has recipients
    take, and extensions that are not well formed. Neither ever reaches a sandbox: the payload is framed anew.
    """
    reader = ChunkedReader()
    try:
        payload = taken(reader, stream)
    except BadBody:
        return
    if not reader.done:
        return
    whole = stream[: len(stream) - len(reader.rest)]
    for other in (by_h11(whole), by_llhttp(whole)):
        if other is None:
            assert b";" in whole, "only extensions are read more leniently than elsewhere"
            continue
        assert other[0] == payload
        assert [(name.lower(), value) for name, value in other[1]] == [(n.lower(), v) for n, v in reader.trailers]


@given(st.binary(max_size=60), CUTS)
def test_any_octets_give_payload_or_this_one_error(stream: bytes, cuts: list[int]) -> None:
    try:
        read(stream, cuts)
    except BadBody as error:
        fault = error
    else:
        return
    assert str(fault).isprintable()
