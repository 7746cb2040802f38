"""A ClientHello as the name guard reads it: in any pieces the same, and the name that a plain reading of the RFC finds.

The first octet of an input says how it is cut and whether it is the second ClientHello of a connection.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from egress.sni.clienthello import LONGEST as HELLO_LONGEST
from egress.sni.clienthello import Hello, Reader, asks_again
from egress.sni.names import Refused
from tests.pure.sni.hellos import body, handshake, hello, record, server_name, vector

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST = 500
WORDS = (
    b"\x16\x03\x01", b"\x16\x03\x03", b"\x14\x03\x03\0\1\1", b"\x17\x03\x03", b"\x01\0\0", b"\x03\x03", b"\0\0",
    b"\xfe\x0d", b"\0\x2a\0\0", server_name(b"a.example"), server_name(b"b.example", b"c.example"), b"10.0.0.1",
    b"\0\x17\0\0",
)  # fmt: skip
BEFORE = Hello("api.example.com", encrypted=False, early=True)
_NAME = re.compile(rb"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")
_NUMBER = re.compile(rb"[0-9]+|0x[0-9a-f]*")
_ENCRYPTED = {*range(0xFE08, 0xFE0E), 0xFF02, 0xFF03, 0xFFCE}


def seeds() -> Iterator[bytes]:
    """Whole, in many records, encrypted, with early data, of a second try, and of every kind that is refused."""
    yield b"\x01" + hello()
    whole = handshake(body(b"A.Example_1.", extensions=((10, b"\0\2\0\x1d"), (43, b"\2\3\4"))))
    yield b"\x03" + record(whole[:3]) + record(whole[3:9]) + record(whole[9:])
    yield b"\x02" + hello(extensions=((0xFE0D, b"x"),))
    yield b"\x02" + hello(extensions=((42, b""),)) + record(b"early", 23)
    yield b"\x82" + record(b"\1", 20) + record(b"early", 23) + hello()
    yield b"\x01" + hello(None)
    yield b"\x01" + hello(None, extensions=((0, server_name(b"a.example", b"b.example")),))
    yield b"\x01" + hello(b"10.0.0.1")
    yield b"\x01" + hello(session=b"s" * 33)
    yield b"\x01" + hello(tail=b"x")
    yield b"\x01" + hello(suites=b"\x13")
    yield b"\x01" + hello(version=0x0203)
    yield b"\x01" + record(handshake(b"", 2))
    yield b"\x01GET / HTTP/1.1\r\n"
    yield b"\x01" + hello(extensions=((16, vector(2, b"\2h2")), (16, b"")))


def check(data: bytes) -> None:
    """Whole, in pieces and plainly."""
    if not data:
        return
    again = BEFORE if data[0] & 0x80 else None
    step, stream = data[0] % 32 + 1, data[1:]
    whole = read(stream, len(stream) or 1, again)
    pieces = read(stream, step, again)
    if isinstance(whole, tuple):
        assert isinstance(pieces, tuple) or pieces == "refused"  # what follows it may be told from it only at once
        if isinstance(pieces, tuple):
            assert whole == pieces
        assert plainly(stream, again is not None) == whole, "not the name that stands there"
        end = whole[1]
        assert read(stream[: end - 1], end, again) is None, "one octet less is no whole one"
        assert read(stream[:end], step, again) == whole, "whole, in pieces it is another"
    elif whole is None:
        assert pieces is None, "in pieces more is understood, or less"
    else:
        assert not isinstance(pieces, tuple) or len(stream) > pieces[1], "refused whole, and taken in pieces"
    asks_again(stream)


def read(stream: bytes, step: int, again: Hello | None) -> tuple[Hello, int] | str | None:
    """Hello and its end, "refused", or None: more is needed."""
    reader = Reader(again)
    try:
        for at in range(0, len(stream), step):
            found = reader.feed(stream[at : at + step])
            if found is not None:
                assert reader.hello == found
                return found, reader.end
    except Refused as error:
        assert str(error).isprintable()
        return "refused"
    return None


def plainly(stream: bytes, second: bool) -> tuple[Hello, int] | None:
    """RFC 8446 sections 4.1.2, 4.2 and 5.1, RFC 6066 section 3; None for what has no name."""
    at, content = 0, b""
    while True:
        kind, length = stream[at], int.from_bytes(stream[at + 3 : at + 5], "big")
        fragment = stream[at + 5 : at + 5 + length]
        at += 5 + length
        if kind == 22:
            content += fragment
        else:
            assert second, "something else before a first ClientHello"
        if len(content) >= 4 and len(content) >= 4 + int.from_bytes(content[1:4], "big"):
            break
    assert content[0] == 1
    assert len(content) <= HELLO_LONGEST
    message = content[4:]
    at_session = 34
    at_suites = at_session + 1 + message[at_session]
    at_compression = at_suites + 2 + int.from_bytes(message[at_suites : at_suites + 2], "big")
    at_extensions = at_compression + 1 + message[at_compression]
    rest = message[at_extensions + 2 :]
    assert len(rest) == int.from_bytes(message[at_extensions : at_extensions + 2], "big")
    names: list[bytes] = []
    kinds: list[int] = []
    while rest:
        kinds.append(int.from_bytes(rest[:2], "big"))
        length = int.from_bytes(rest[2:4], "big")
        if kinds[-1] == 0:
            names.append(rest[4 : 4 + length])
        rest = rest[4 + length :]
    assert len(set(kinds)) == len(kinds)
    (listed,) = names
    assert listed[:2] == (len(listed) - 2).to_bytes(2, "big")
    assert listed[2:5] == b"\0" + (len(listed) - 5).to_bytes(2, "big")
    name = listed[5:].lower()
    assert _NAME.fullmatch(name)
    assert len(name) <= 253
    assert not _NUMBER.fullmatch(name.split(b".")[-1])
    return Hello(name.decode(), not _ENCRYPTED.isdisjoint(kinds), 42 in kinds), at
