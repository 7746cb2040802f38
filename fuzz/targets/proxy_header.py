"""PROXY headers: whole or octet by octet they are read the same, and a header that is written anew says the same."""

from __future__ import annotations

import ipaddress
import struct
from typing import TYPE_CHECKING

from ingress.process.proxyprotocol import LONGEST as HEADER_LONGEST
from ingress.process.proxyprotocol import V1_LONGEST, V2_SIGNATURE, BadHeader, Header, parse

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST = 300
WORDS = (
    b"PROXY TCP4 ", b"PROXY TCP6 ", b"PROXY UNKNOWN", b"\r\n", V2_SIGNATURE, b"\x21\x11\0\x0c", b"\x21\x21\0\x24",
)  # fmt: skip


def seeds() -> Iterator[bytes]:
    """Both versions, both families, what names nobody, and what follows a header."""
    yield b"PROXY TCP4 192.0.2.7 198.51.100.1 4711 443\r\nGET / HTTP/1.1\r\n\r\n"
    yield b"PROXY TCP6 2001:db8::7 ::ffff:192.0.2.1 0 65535\r\n"
    yield b"PROXY UNKNOWN ff:ff x\r\n"
    yield v2(0x21, 0x11, bytes(range(12)))
    yield v2(0x21, 0x21, bytes(range(36)) + b"\x01\0\2h2")
    yield v2(0x20, 0, b"")
    yield v2(0x21, 0x31, b"/" * 216)


def v2(command: int, family: int, rest: bytes) -> bytes:
    return V2_SIGNATURE + bytes((command, family)) + struct.pack("!H", len(rest)) + rest


def check(data: bytes) -> None:
    """The contract of `parse`: what it asks for is never too much, and what it has said it doesn't take back."""
    whole = outcome(data)
    at = 0
    while True:
        part = outcome(data[:at])
        if not isinstance(part, int):
            break
        assert at < part <= max(HEADER_LONGEST, V1_LONGEST), "it asks for more, and not without end"
        if part > len(data):
            assert not isinstance(whole, Header), "what is whole is not read, piece by piece"
            return
        at = part
    if isinstance(part, Header):
        assert part == whole, "in pieces and whole are two readings"
        named(data, part)
    else:
        assert whole == "bad"


def outcome(data: bytes) -> Header | int | str:
    try:
        return parse(data)
    except BadHeader:
        return "bad"


def named(data: bytes, header: Header) -> None:
    """Cut short by one octet it is no header; and who it names is who stands in it."""
    assert header.size <= len(data)
    assert isinstance(outcome(data[: header.size - 1]), int)
    assert outcome(data[: header.size] + b"junk") == header
    if not header.address:
        assert header.port == 0
        return
    address = ipaddress.ip_address(header.address)
    assert getattr(address, "ipv4_mapped", None) is None, "IPv4 is IPv4"
    again = f"PROXY TCP{address.version} {address} {address} {header.port} 1\r\n".encode()
    assert outcome(again) == Header(len(again), header.address, header.port)
    if data[:1] != b"P":
        length = 4 if data[13] >> 4 == 1 else 16
        stated = ipaddress.ip_address(data[16 : 16 + length])
        assert address in (stated, getattr(stated, "ipv4_mapped", None))
