"""Questions through the service: the straight path does what the careful one does, whatever came before.

An input is several queries; each begins with its length, one octet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from egress.dns import wire
from tests.pure.dns.sides import Side

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST = 400
WORDS = (
    b"\x03web\x07example\x03com\0", b"\x03bad\x07example\x03com\0", b"\4deep\7example\3com\0",
    b"\1x\4deep\7example\3com\0", b"\1a\7example\3org\0", b"\7example\3net\0", b"\4_dns\x08resolver\4arpa\0",
    b"\x13use-application-dns\3net\0", b"\0\x01\0\x01", b"\0\x1c\0\x01", b"\0\x10\0\1",
    b"\0\0\x29\x04\xd0\0\0\0\0\0\0",
)  # fmt: skip


def seeds() -> Iterator[bytes]:
    """Names that are open, closed and half open, asked with and without EDNS."""
    names = ("web.example.com", "bad.example.com", "y.x.deep.example.com", "y.deep.example.com", "a.a.example.org")
    for name in names:
        asked = wire.ask(7, name, 1)
        plain = asked[:10] + b"\0\0" + asked[12:-11]
        yield packed(asked, plain, asked, plain)  # what is known of a kind of query goes straight
    yield packed(wire.ask(1, "a.net", 28), wire.ask(2, "use-application-dns.net", 1), wire.ask(3, "B.a.net", 28))
    yield packed(wire.ask(1, "x.arpa", 1), wire.ask(2, "resolver.arpa", 1), wire.ask(3, "_dns.resolver.arpa", 64))


def packed(*queries: bytes) -> bytes:
    return b"".join(bytes((len(query),)) + query for query in queries)


def check(data: bytes) -> None:
    """One side gets them as packets, the other reads each with care."""
    one, other = Side(), Side()
    at = 0
    while at < len(data):
        query = data[at + 1 : at + 1 + data[at]]
        at += 1 + data[at]
        assert one.straight(query) == other.careful(query)
