"""What the plays of these tests are made of: policies, questions, answers, and what a client reads in a reply."""

from __future__ import annotations

import ipaddress
import json
import struct
from typing import Any, NamedTuple

import dnslib

from egress.dns import wire
from egress.dns.answer import Answer
from egress.dns.interceptor import Denial, Interceptor
from egress.dns.wire import Query, Record, encode_name
from policies.matcher import CompiledPolicy, compile_policy
from policies.parser import parse_policy

A, NS, CNAME, SOA, PTR, MX, TXT, AAAA, SRV, DNAME, HTTPS = 1, 2, 5, 6, 12, 15, 16, 28, 33, 39, 65
NOERROR, SERVFAIL, NXDOMAIN, REFUSED = 0, 2, 3, 5
BLOCKED = 15


def policy(*rules: dict[str, Any], default: str = "deny") -> CompiledPolicy:
    return compile_policy(parse_policy(json.dumps({"defaultAction": default, "egress": list(rules)}).encode()))


def allow(target: str, **more: Any) -> dict[str, Any]:
    return {"action": "allow", "target": target, **more}


def deny(target: str, **more: Any) -> dict[str, Any]:
    return {"action": "deny", "target": target, **more}


def interceptor(*rules: dict[str, Any], default: str = "deny", told: list[Denial] | None = None) -> Interceptor:
    return Interceptor(policy(*rules, default=default), 1, (told if told is not None else []).append)


def ask_bytes(name: str = "api.example.com", qtype: int = A, *, ident: int = 0x1234, edns: int | None = 1232) -> bytes:
    """A client's query; `name` keeps its case."""
    record = dnslib.DNSRecord(dnslib.DNSHeader(id=ident, rd=1), q=dnslib.DNSQuestion(name or ".", qtype))
    if edns is not None:
        record.add_ar(dnslib.EDNS0(udp_len=edns))
    return bytes(record.pack())


def query(name: str = "api.example.com", qtype: int = A, *, edns: int | None = 1232) -> Query:
    parsed = wire.parse_query(ask_bytes(name, qtype, edns=edns))
    assert isinstance(parsed, Query)
    return parsed


def address(owner: str, text: str, ttl: int = 300) -> Record:
    packed = ipaddress.ip_address(text).packed
    return Record(owner, A if len(packed) == 4 else AAAA, ttl, packed)


def cname(owner: str, target: str, ttl: int = 300) -> Record:
    return Record(owner, CNAME, ttl, encode_name(target))


def soa(owner: str, ttl: int = 60) -> Record:
    return Record(
        owner, SOA, ttl, encode_name("ns") + encode_name("hostmaster") + struct.pack("!IIIII", 1, 2, 3, 4, ttl)
    )


def answer(*records: Record, rcode: int = 0, no: Record | None = None) -> Answer:
    return Answer(7, rcode, False, records, no, no.ttl if no is not None else None)


class Reply(NamedTuple):
    """A reply as a client reads it."""

    id: int
    rcode: int
    truncated: bool
    records: tuple[tuple[str, int, int, str], ...]  # owner, type, TTL, rdata as text
    authority: tuple[tuple[str, int, int], ...]
    ede: tuple[int, str] | None
    edns: bool
    question: str


def read(data: bytes) -> Reply:
    record = dnslib.DNSRecord.parse(data)
    assert record.header.qr == 1
    assert record.header.ra == 1
    assert record.header.aa == 0
    assert record.header.ad == 0
    ede = None
    edns = False
    for extra in record.ar:
        assert extra.rtype == 41
        edns = True
        for option in extra.rdata:
            assert option.code == 15, "no EDNS option but EDE passes"
            ede = (int.from_bytes(option.data[:2], "big"), option.data[2:].decode())
    return Reply(
        record.header.id, record.header.rcode, bool(record.header.tc),
        tuple((str(rr.rname).rstrip(".").lower(), rr.rtype, rr.ttl, str(rr.rdata)) for rr in record.rr),
        tuple((str(rr.rname).rstrip(".").lower(), rr.rtype, rr.ttl) for rr in record.auth),
        ede, edns, str(record.q.qname),
    )  # fmt: skip


def answered_with(asked: bytes, *, addresses: tuple[str, ...] = ("198.51.100.7",), ttl: int = 300) -> bytes:
    """A resolver's answer to the query bytes `asked`: A or AAAA records of its name."""
    request = dnslib.DNSRecord.parse(asked)
    reply = request.reply(aa=0)
    for text in addresses:
        rdata = dnslib.A(text) if ":" not in text else dnslib.AAAA(text)
        reply.add_answer(dnslib.RR(request.q.qname, A if ":" not in text else AAAA, rdata=rdata, ttl=ttl))
    return bytes(reply.pack())
