"""A resolver's answer: read as dnslib reads it, passed on as it was read, and nothing learned off the chain.

The first octet of an input chooses the question, what follows is the answer without its question section.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any

import dnslib
from dnslib.buffer import BufferError as Overrun
from dnslib.label import DNSBuffer

from egress.dns import wire
from egress.dns.answer import _DROPPED, DAY, Answer, parse_answer, scrub_svcb
from egress.dns.interceptor import Interceptor
from egress.dns.straight import read_answer
from egress.dns.wire import WireError
from tests.pure.dns.plays import allow, deny, policy
from tests.pure.policies import naive

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST = 1200
WORDS = (
    b"\xc0\x0c\0\1\0\1\0\0\1\x2c\0\4", b"\xc0\x0c\0\x1c\0\1\0\0\1\x2c\0\x10", b"\xc0\x0c\0\5\0\1\0\0\1\x2c",
    b"\xc0\x0c", b"\0\0\x29\x04\xd0\0\0\0\0\0\0", b"\0\6\0\1", b"\0\x41\0\1", b"\0\4\0\4\1\2\3\4", b"\0\5\0\1\0",
    b"\x03cdn\xc0\x10", b"\x7f\0\0\1", b"\xa9\xfe\xa9\xfe", bytes(10) + b"\xff\xff\x7f\0\0\1",
    b"\0\x64\xff\x9b" + bytes(8) + b"\x0a\0\0\1",
)  # fmt: skip
QUESTIONS = (
    ("api.example.com", 1), ("api.example.com", 28), ("api.example.com", 5), ("api.example.com", 65), ("", 2),
    ("\\000.example.com", 16), ("api.example.com", 35), ("api.example.com", 6),
)  # fmt: skip
RULES = [allow("*.example.com"), allow("10.0.0.0/8", ports=[443]), deny("blocked.example.com"), deny("192.0.2.0/24")]
DOCUMENTS: list[dict[str, Any]] = [{"defaultAction": default, "egress": RULES} for default in ("deny", "allow")]
JUDGES = [Interceptor(policy(*RULES, default=default), 1, lambda _: None) for default in ("deny", "allow")]


def seeds() -> Iterator[bytes]:
    """One record, several, a chain, a denial with its SOA, HTTPS with everything, an upper half of an rcode."""
    a, aaaa, alias = WORDS[:3]
    opt = WORDS[4]
    yield b"\0\1\2\x81\x80\0\1\0\1\0\0\0\1" + a + b"\1\2\3\4" + opt
    yield b"\0\1\2\x81\x80\0\1\0\2\0\0\0\0" + a + b"\x0a\0\0\4" + a + b"\x7f\0\0\1"
    yield b"\1\1\2\x81\x80\0\1\0\1\0\0\0\1" + aaaa + bytes(range(32, 48)) + opt
    yield b"\0\1\2\x81\x80\0\1\0\2\0\0\0\0" + alias + b"\0\6\3cdn\xc0\x10\xc0\x2d\0\1\0\1\0\0\0\5\0\4\5\6\7\x08"
    soa = b"\xc0\x10\0\6\0\1\0\0\0\x3c\0\x18\xc0\x10\xc0\x10" + bytes(16) + b"\0\0\0\x1e"
    yield b"\0\1\2\x81\x83\0\1\0\0\0\1\0\1" + soa + opt
    yield b"\7\1\2\x81\x80\0\1\0\1\0\0\0\0" + soa
    https = b"\0\1\0\0\1\0\3\2h3\0\3\0\2\1\xbb\0\4\0\4\1\2\3\4\0\5\0\3ech\0\6\0\x10" + bytes(16)
    yield b"\3\1\2\x81\x80\0\1\0\1\0\0\0\0\xc0\x0c\0\x41\0\1\0\0\0\5" + len(https).to_bytes(2, "big") + https
    yield b"\0\1\2\x83\x80\0\1\0\0\0\0\0\0"
    yield b"\0\1\2\x81\x80\0\1\0\0\0\0\0\1\0\0\x29\x04\xd0\1\0\0\0\0\0"
    yield b"\4\1\2\x81\x80\0\1\0\1\0\0\0\0\0\0\2\0\1\0\0\0\5\0\4\2ns\0"
    yield b"\5\1\2\x81\x80\0\1\0\1\0\0\0\0\xc0\x0c\0\x10\0\1\0\0\0\5\0\3\2hi"
    yield b"\6\1\2\x81\x80\0\1\0\1\0\0\0\0\xc0\x0c\0\x23\0\1\0\0\0\5\0\x0a\0\1\0\1\1s\0\0\xc0\x10"


def check(data: bytes) -> None:
    """Any octets behind our question, as every reader reads them."""
    if len(data) < 13:
        return
    name, qtype = QUESTIONS[data[0] % len(QUESTIONS)]
    question = wire.encode_name(name) + qtype.to_bytes(2, "big") + b"\0\1"
    message = data[1:13] + question + data[13:]
    plain = read_answer(message, question, qtype)
    try:
        answer = parse_answer(message, question, name)
    except WireError:
        assert plain is None, "the straight path takes what the careful reader refuses"
        return
    if plain is not None:
        assert plain.answer(name, qtype) == answer._replace(id=0)
    if answer.truncated:
        assert not answer.answers
        return
    same_as_dnslib(message, answer)
    passed_on(name, qtype, answer)
    for record in answer.answers:
        if record.rtype in (64, 65):
            scrubbed(record.rdata)
    for document, judge in zip(DOCUMENTS, JUDGES, strict=True):
        learned(document, judge, name, qtype, answer)


def same_as_dnslib(message: bytes, answer: Answer) -> None:
    """Records found by counting alone, their names by dnslib, as far as dnslib has names of such octets."""
    buffer = DNSBuffer(message)
    theirs = []
    try:
        buffer.offset = 12
        buffer.decode_name()
        buffer.offset += 4
        for _ in range(int.from_bytes(message[6:8], "big")):
            owner = labels(buffer.decode_name())
            rtype, rclass, seconds, length = buffer.unpack("!HHIH")
            end = buffer.offset + length
            rdata = message[buffer.offset : end]
            if rtype == wire.CNAME and rclass == wire.IN:
                rdata = labels(buffer.decode_name())
            if rclass == wire.IN and rtype not in _DROPPED:
                theirs.append((owner, rtype, ttl(seconds), rdata if rtype in (1, 5, 28) else None))
            buffer.offset = end
    except (Overrun, dnslib.DNSError):
        return
    ours = [(wire.encode_name(r.owner).lower(), r.rtype, r.ttl, compared(r)) for r in answer.answers]
    assert ours == theirs


def compared(record: wire.Record) -> bytes | None:
    """What is compared: names in lower case, of other types nothing."""
    if record.rtype == wire.CNAME:
        return record.rdata.lower()
    return record.rdata if record.rtype in (1, 28) else None


def labels(name: dnslib.DNSLabel) -> bytes:
    return b"".join(bytes((len(label),)) + label for label in name.label).lower() + b"\0"


def ttl(sent: int) -> int:
    return 0 if sent > 0x7FFFFFFF else min(sent, DAY)


def passed_on(name: str, qtype: int, answer: Answer) -> None:
    """What we write is read again as what we read."""
    query = wire.parse_query(wire.ask(9, name, qtype))
    assert isinstance(query, wire.Query)
    served = wire.render(name, answer.answers).serve(query, 0, 65535)
    if not served[2] & 2:
        assert parse_answer(served, query.question, name).answers == answer.answers


def scrubbed(rdata: bytes) -> None:
    """Hints, ECH and DoH paths are gone, and doing it twice changes nothing."""
    once = scrub_svcb(rdata)
    if once is None:
        return
    assert scrub_svcb(once) == once
    at = 2
    while once[at]:
        at += once[at] + 1
    at += 1
    while at < len(once):
        key, length = int.from_bytes(once[at : at + 2], "big"), int.from_bytes(once[at + 2 : at + 4], "big")
        assert key not in (4, 5, 6, 7)
        at += 4 + length
    assert at == len(once)


def learned(document: dict[str, Any], judge: Interceptor, name: str, qtype: int, answer: Answer) -> None:
    """Only what hangs on the chain teaches, and only where a plain reading of the policy says so."""
    outcome = judge.on_answer(name, qtype, answer)
    chain = {name}
    for _ in answer.answers:
        for record in answer.answers:
            if record.owner in chain and record.rtype == wire.CNAME:
                chain.add(wire.cname_target(record.rdata))
    offered = {(r.rdata, r.ttl) for r in answer.answers if r.owner in chain and r.rtype == qtype and qtype in (1, 28)}
    for packed, seconds in outcome.teaches:
        assert not answer.rcode
        assert packed in {rdata for rdata, _ in offered} or bytes(10) + b"\xff\xff" + packed in {r for r, _ in offered}
        assert seconds <= DAY
        assert naive.teach(document, ipaddress.ip_address(packed)) == "learn", packed
        assert "blocked.example.com" not in chain
    for record in outcome.records:
        if record.rtype in (1, 28):
            address = ipaddress.ip_address(record.rdata)
            inner = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
            assert naive.teach(document, inner or address) != "strip", "a special address reaches the client"
