"""A sandbox's DNS message: what we read is what dnslib reads, and every reply to it can be read and is small."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dnslib
from dnslib.label import DNSBuffer

from egress.dns import wire
from egress.dns.wire import Query, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LONGEST = 400
WORDS = (b"\x07example\x03com\0", b"\0\x01\0\x01", b"\0\x1c\0\x01", b"\0\0\x29\x04\xd0\0\0\0\0\0\0", b"\xc0\x0c")
CODES = (wire.FORMERR, wire.NOTIMP, wire.REFUSED, 0)  # 0: BADVERS has its upper half in OPT
REASON = 'api.example.com: rule egress[0] "deny *.example.com" (caf\u00e9, no mail), \x07 ' + "long " * 80
ANSWERS = (Record("api.example.com", 1, 60, b"\1\2\3\4"), Record("b.example.com", 28, 60, bytes(16)))
REPLIES: tuple[Callable[[Query], bytes], ...] = (
    lambda read: wire.error(read, wire.SERVFAIL, 22, REASON),
    lambda read: wire.denied(read, 5, 15, REASON),
    lambda read: wire.nodata(read, 5),
    lambda read: wire.render(read.name, ANSWERS).serve(read, 7, read.size),
    lambda read: wire.render(read.name, [Record(read.name, 1, 5, b"\1\2\3\4")]).serve(read, 7, read.size),
)


def seeds() -> Iterator[bytes]:
    """Plain questions, with EDNS, with options, of odd names, and of every fault that has an answer."""
    for qtype in (1, 28, 16, 255):
        yield wire.ask(qtype, "api.example.com", qtype)
    plain = wire.ask(7, "WWW.x1-_.example", 1)
    yield plain[:10] + b"\0\0" + plain[12:-11]
    yield plain[:-2] + b"\0\x0c\0\x0a\0\x08cookie!!"
    yield plain[:-5] + b"\1" + plain[-4:]
    yield wire.ask(7, "", 2)
    yield wire.ask(7, "\\000\\046\\255.b", 2)
    yield wire.ask(7, ".".join(["a" * 63] * 3 + ["b" * 61]), 1)
    yield plain[:2] + b"\x81" + plain[3:]
    yield plain[:2] + b"\x29" + plain[3:]
    yield plain[:4] + b"\0\2" + plain[6:]
    yield plain[:-13] + b"\0\3" + plain[-11:]
    yield plain[:12] + b"\xc0\x0c\0\1\0\1" + plain[-11:]


def check(data: bytes) -> None:
    """The one contract of `wire.parse_query`."""
    read = wire.parse_query(data)
    if len(data) < 12 or data[2] & 0x80:
        assert read is None, "an answer to what is no query"
        return
    assert read is not None, "a query without an answer"
    if isinstance(read, bytes):
        refused(data, read)
        return
    same_as_dnslib(data, read)
    assert wire.encode_name(read.name) == read.question[:-4].lower(), "the name's text says what the octets say"
    again = wire.parse_query(wire.ask(read.id, read.name, read.qtype))
    assert isinstance(again, Query), "what we would ask is no question"
    assert (again.name, again.qtype, again.plain) == (read.name, read.qtype, read.plain)
    replied(read, REPLIES[read.id % len(REPLIES)](read))


def refused(data: bytes, reply: bytes) -> None:
    """An error: of this query, known, and never more than was sent (but for what BADVERS has to say)."""
    header = dnslib.DNSHeader.parse(DNSBuffer(reply))
    assert reply[:2] == data[:2]
    assert header.qr
    assert header.rcode in CODES
    assert header.a == header.auth == 0
    assert len(reply) <= max(len(data), 12) + 11


def same_as_dnslib(data: bytes, read: Query) -> None:
    try:
        question = dnslib.DNSQuestion.parse(DNSBuffer(data[12:]))
    except dnslib.DNSError:
        assert not read.plain, "dnslib knows no names of other octets; plain ones it has to read"
        return
    labels = b"".join(bytes((len(label),)) + label for label in question.qname.label) + b"\0"
    assert labels == read.question[:-4]
    assert (question.qtype, question.qclass) == (read.qtype, 1)
    assert data[12 : 12 + len(read.question)] == read.question
    header = dnslib.DNSHeader.parse(DNSBuffer(data))
    assert (header.id, header.q, header.a, header.auth) == (read.id, 1, 0, 0)
    assert read.edns == (header.ar == 1)
    assert 512 <= read.size <= 65535


def replied(read: Query, reply: bytes) -> None:
    """A reply that any client can read, to the question that was asked."""
    assert len(reply) <= max(512, read.size)
    assert reply[:2] == read.id.to_bytes(2, "big")
    assert reply[12 : 12 + len(read.question)] == read.question
    try:
        parsed = dnslib.DNSRecord.parse(reply)
    except dnslib.DNSError:
        assert not read.plain
        return
    assert parsed.header.qr
    assert bool(parsed.ar) == read.edns
