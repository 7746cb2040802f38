"""Refused packets, whose every octet is the sandbox's, and the netlink messages around them."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from egress.firewall.nflog import parse
from egress.firewall.nfnetlink import attribute, attributes, failure, message, messages, nested, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST = 256
WORDS = (b"\x45", b"\x46", b"\x60", b"\x06", b"\x11", b"\x2c", b"\x3c", b"\0\x2b")
V4 = bytes.fromhex("4500003c0000400040060000") + bytes([10, 0, 0, 2, 192, 0, 2, 1])
V6 = struct.pack(">IHBB", 0x60000000, 16, 60, 64) + bytes(15) + b"\1" + bytes(15) + b"\2"
WALKED = {0, 43, 44, 60, 135}


def seeds() -> Iterator[bytes]:
    """IPv4 with and without options, IPv6 with extensions, and a message as the kernel sends it."""
    yield V4 + struct.pack(">HH", 40000, 443)
    yield b"\x46" + V4[1:] + bytes(4) + struct.pack(">HH", 40000, 443)
    yield V4[:9] + b"\x11" + V4[10:] + struct.pack(">HH", 1, 53)
    yield V6 + bytes([17, 0]) + bytes(6) + struct.pack(">HH", 1, 53)
    yield V6 + bytes([44, 1]) + bytes(14) + bytes([6, 0]) + bytes(6) + struct.pack(">HH", 1, 443)
    yield message(0x400, 0, 1, 2, attribute(9, V4) + nested(1, attribute(2, b"abc")))


def check(data: bytes) -> None:
    """Packets as a plain reading has them; attributes and messages that come back."""
    found = parse(data)
    plain = reading(data)
    assert plain == (None if found is None else (found.source, found.destination, found.port))
    total = 0
    for kind, value in walk(data):
        total += 4 + len(value)
        assert attribute(kind, value)[4:] == value + bytes(-len(value) % 4)
    assert total <= len(data)
    assert attributes(nested(1, data))[1] == data
    for _, _, _, body in messages(data):
        assert len(body) <= len(data) - 16
        str(failure(5, body))


def reading(data: bytes) -> tuple[bytes, bytes, int] | None:
    """RFC 791 and RFC 8200, one field after the other."""
    if len(data) >= 20 and data[0] >> 4 == 4:
        number, source, target, rest = data[9], data[12:16], data[16:20], data[4 * (data[0] & 15) :]
    elif len(data) >= 40 and data[0] >> 4 == 6:
        number, source, target, rest = data[6], data[8:24], data[24:40], data[40:]
        for _ in range(8):
            if number not in WALKED or len(rest) < 8:
                break
            number, rest = rest[0], rest[8 if number == 44 else 8 * (rest[1] + 1) :]
    else:
        return None
    return source, target, int.from_bytes(rest[2:4], "big") if number in (6, 17) else 0
