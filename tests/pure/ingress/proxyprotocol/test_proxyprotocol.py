"""PROXY headers: haproxy's specification by table, and by property: whole or piece by piece they are read the same."""

from __future__ import annotations

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingress.process.proxyprotocol import (
    LONGEST,
    V1_LONGEST,
    V2_LONGEST,
    V2_SIGNATURE,
    BadHeader,
    Header,
    parse,
)


def v2(command: int, family: int, transport: int, rest: bytes, *, version: int = 2, length: int | None = None) -> bytes:
    size = len(rest) if length is None else length
    return V2_SIGNATURE + bytes([version << 4 | command, family << 4 | transport]) + struct.pack("!H", size) + rest


def four(source: str = "192.0.2.7", port: int = 4711, tlv: bytes = b"") -> bytes:
    packed = socket.inet_aton(source) + socket.inet_aton("198.51.100.1") + struct.pack("!HH", port, 443)
    return v2(1, 1, 1, packed + tlv)


def six(source: str = "2001:db8::7") -> bytes:
    addresses = b"".join(socket.inet_pton(socket.AF_INET6, text) for text in (source, "2001:db8::1"))
    return v2(1, 2, 1, addresses + struct.pack("!HH", 4711, 443))


@pytest.mark.parametrize(
    ("data", "address", "port"),
    [
        (b"PROXY TCP4 192.0.2.7 198.51.100.1 4711 443\r\n", "192.0.2.7", 4711),
        (b"PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n", "255.255.255.255", 65535),
        (b"PROXY TCP6 2001:db8::7 2001:db8::1 4711 443\r\n", "2001:db8::7", 4711),
        (b"PROXY TCP6 2001:DB8:0::7 ::1 0 443\r\n", "2001:db8::7", 0),
        (b"PROXY TCP6 ::ffff:192.0.2.7 ::1 1 443\r\n", "192.0.2.7", 1),
        (b"PROXY UNKNOWN\r\n", "", 0),
        (b"PROXY UNKNOWN ff:ff " + b"x" * 80 + b"\r\n", "", 0),
        (four(), "192.0.2.7", 4711),
        (four(tlv=b"\x01\x00\x02h2\xee\x00\x01x"), "192.0.2.7", 4711),
        (six(), "2001:db8::7", 4711),
        (six("::ffff:192.0.2.7"), "192.0.2.7", 4711),
        (v2(0, 0, 0, b""), "", 0),  # LOCAL: a health check of the balancer's
        (v2(0, 1, 1, b"\0" * 12), "", 0),
        (v2(1, 0, 0, b"any"), "", 0),  # UNSPEC
        (v2(1, 3, 1, b"/" * 216), "", 0),  # UNIX
        (v2(1, 1, 2, b"\0" * 12), "", 0),  # datagrams, over TCP
    ],
)
def test_headers(data: bytes, address: str, port: int) -> None:
    assert parse(data) == Header(len(data), address, port)
    assert parse(data + b"GET / HTTP/1.1\r\n\r\n") == Header(len(data), address, port)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST / HTTP/1.1\r\n",
        b"PROXY",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 4711\r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 4711 443 1\r\n",
        b"PROXY  TCP4 192.0.2.7 198.51.100.1 4711 443\r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 04711 443\r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 65536 443\r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 -1 443\r\n",
        b"PROXY TCP4 192.0.2.07 198.51.100.1 1 443\r\n",
        b"PROXY TCP4 2001:db8::7 2001:db8::1 1 443\r\n",
        b"PROXY TCP6 192.0.2.7 198.51.100.1 1 443\r\n",
        b"PROXY TCP6 fe80::1%eth0 ::1 1 443\r\n",
        b"PROXY UDP4 192.0.2.7 198.51.100.1 1 443\r\n",
        b"PROXY tcp4 192.0.2.7 198.51.100.1 1 443\r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 1 443\nGET",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 1 443\rGET",
        b"PROXY TCP4 192.0.2.7\x00 198.51.100.1 1 443\r\n",
        b"PROXY \xd9\xa1\r\n",
        b"PROXY UNKNOWN " + b"x" * V1_LONGEST + b"\r\n",
        b"\x16\x03\x01\x02\x00",
        b"\r\n\r\nGET / HTTP/1.1\r\n",
        v2(1, 1, 1, b"\0" * 12, version=1),
        v2(1, 1, 1, b"\0" * 12, version=3),
        v2(2, 1, 1, b"\0" * 12),
        v2(1, 4, 1, b"\0" * 12),
        v2(1, 1, 3, b"\0" * 12),
        v2(1, 1, 1, b"\0" * 11),
        v2(1, 2, 1, b"\0" * 35),
        v2(1, 1, 1, b"", length=V2_LONGEST),
    ],
)
def test_what_is_no_header(data: bytes) -> None:
    if data == b"PROXY":
        assert parse(data) == 6  # may become one
        return
    with pytest.raises(BadHeader) as caught:
        parse(data)
    assert str(caught.value).isprintable()


def test_fuzz_the_shortest_header_is_read_though_nothing_follows() -> None:
    """Before the first octet it asked for sixteen, as version 2 has them, and this one has fifteen."""
    shortest = b"PROXY UNKNOWN\r\n"
    needed = parse(b"")
    assert isinstance(needed, int)
    assert needed <= len(shortest)
    assert parse(shortest) == Header(len(shortest), "", 0)


@pytest.mark.parametrize("data", [b"PROXY TCP4 192.0.2.7 198.51.100.1 4711 443\r\n", four(tlv=b"\1\0\1x"), six()])
def test_piece_by_piece_it_asks_for_more_and_never_for_too_much(data: bytes) -> None:
    for length in range(len(data)):
        needed = parse(data[:length])
        assert isinstance(needed, int)
        assert length < needed <= len(data)
    have = 0
    while isinstance(found := parse(data[:have]), int):
        have = found
    assert found.size == len(data) == have


@pytest.mark.parametrize("line", [b"PROXY UNKNOWN a\n\rb\r\n", b"PROXY UNKNOWN a\rb\r\n", b"PROXY UNKNOWN a\nb\r\n"])
def test_fuzz_a_bare_line_end_behind_unknown_is_refused_whole_as_it_is_in_pieces(line: bytes) -> None:
    for data in (line, line[:-2]):
        with pytest.raises(BadHeader, match="CR LF"):
            parse(data)


@pytest.mark.parametrize(
    "text", ["::eb00:0", "::102:304", "2001:db8::7", "::1", "::ffff:192.0.2.7", "64:ff9b::102:304"]
)
def test_fuzz_an_address_is_spelt_the_same_in_both_versions(text: str) -> None:
    """inet_ntop writes ::102:304 as ::1.2.3.4, and one client would have been two."""
    one, two = parse(f"PROXY TCP6 {text} ::1 4711 443\r\n".encode()), parse(six(text))
    assert isinstance(one, Header)
    assert isinstance(two, Header)
    assert one.address == two.address


def test_the_longest_are_taken() -> None:
    line = b"PROXY UNKNOWN " + b"x" * (V1_LONGEST - 16) + b"\r\n"
    assert parse(line) == Header(V1_LONGEST, "", 0)
    header = v2(1, 0, 0, b"x" * (V2_LONGEST - 16))
    assert parse(header) == Header(V2_LONGEST, "", 0)


@given(
    st.sampled_from([b"", b"PROXY ", b"PROXY TCP4 ", V2_SIGNATURE, V2_SIGNATURE + b"\x21\x11"]), st.binary(max_size=64)
)
def test_anything_is_a_header_not_yet_one_or_refused(start: bytes, rest: bytes) -> None:
    data = start + rest
    try:
        found = parse(data)
    except BadHeader:
        return
    if isinstance(found, Header):
        assert 0 < found.size <= len(data)
        assert 0 <= found.port <= 65535
    else:
        assert len(data) < found <= LONGEST


@given(st.ip_addresses(), st.integers(0, 65535), st.binary(max_size=40))
def test_versions_1_and_2_say_the_same(address: object, port: int, after: bytes) -> None:
    text = str(address)
    if "%" in text:
        return
    kind, number = (socket.AF_INET6, 2) if ":" in text else (socket.AF_INET, 1)
    line = f"PROXY TCP{4 if number == 1 else 6} {text} {text} {port} 1\r\n".encode()
    packed = socket.inet_pton(kind, text)
    binary = v2(1, number, 1, packed + packed + struct.pack("!HH", port, 1))
    one, other = parse(line + after), parse(binary + after)
    assert isinstance(one, Header)
    assert isinstance(other, Header)
    assert (one.address, one.port) == (other.address, other.port)
    assert (one.size, other.size) == (len(line), len(binary))
