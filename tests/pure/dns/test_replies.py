"""What we send: read back by dnslib, held against what was meant."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING

import dnslib
import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress.dns import wire
from egress.dns.wire import Query, Record, WireError, encode_name, parse_query, render

if TYPE_CHECKING:
    from collections.abc import Callable

QUESTION = b"\3Api\7eXample\3com\0\0\1\0\1"
BLOCKED = 15
LONG = (b"\x3f" + b"a" * 63) * 3 + b"\x3d" + b"a" * 61 + b"\0\0\1\0\1"


def ask(question: bytes = QUESTION, *, edns: bool = True, flags: int = 0x0100) -> Query:
    opt = struct.pack("!BHHIH", 0, 41, 1232, 0, 0) if edns else b""
    query = parse_query(struct.pack("!HHHHHH", 0xBEEF, flags, 1, 0, 0, int(edns)) + question + opt)
    assert isinstance(query, Query)
    return query


def explained(reply: bytes) -> tuple[int, str] | None:
    """The EDE of a reply; checks the OPT record around it."""
    record = dnslib.DNSRecord.parse(reply)
    if not record.ar:
        return None
    (opt,) = record.ar
    assert (opt.rtype, opt.rclass, opt.ttl, str(opt.rname)) == (41, 1232, 0, ".")
    if not opt.rdata:
        return None
    (option,) = opt.rdata
    assert option.code == 15
    return int.from_bytes(option.data[:2], "big"), option.data[2:].decode()


REPLIES: dict[str, tuple[Callable[[Query, str], bytes], int]] = {
    "error": (lambda query, text: wire.error(query, 2, BLOCKED, text), 2),
    "denied": (lambda query, text: wire.denied(query, 7, BLOCKED, text), 3),
    "nodata": (lambda query, text: wire.nodata(query, 7, BLOCKED, text), 0),
}


@pytest.mark.parametrize("kind", REPLIES)
@pytest.mark.parametrize("edns", [False, True])
@pytest.mark.parametrize("flags", [0x0000, 0x0100, 0x0010, 0x0110, 0x07FF])
def test_head_and_question(kind: str, edns: bool, flags: int) -> None:
    make, rcode = REPLIES[kind]
    reply = make(ask(edns=edns, flags=flags), "why")
    assert reply[:2] == b"\xbe\xef"
    assert int.from_bytes(reply[2:4], "big") == 0x8080 | flags & 0x0110 | rcode, "QR, RA, RD and CD as asked, rcode"
    assert reply[12 : 12 + len(QUESTION)] == QUESTION
    assert explained(reply) == ((BLOCKED, "why") if edns else None)


@pytest.mark.parametrize("kind", ["denied", "nodata"])
@pytest.mark.parametrize(
    ("question", "owner"),
    [
        (QUESTION, "eXample.com."),
        (b"\5local\0\0\1\0\1", "."),
        (b"\0\0\1\0\1", "."),
        (LONG, "a" * 63 + "." + "a" * 63 + "." + "a" * 61 + "."),
    ],
)
def test_a_no_can_be_remembered(kind: str, question: bytes, owner: str) -> None:
    record = dnslib.DNSRecord.parse(REPLIES[kind][0](ask(question), "why"))
    assert record.rr == []
    (soa,) = record.auth
    assert (soa.rtype, soa.rclass, soa.ttl, str(soa.rname)) == (6, 1, 7, owner)
    assert soa.rdata.times[4] == 7
    assert str(soa.rdata.mname).endswith(".invalid.")


def test_no_ede_no_option() -> None:
    for reply in (wire.error(ask(), 2), wire.nodata(ask(), 5)):
        (opt,) = dnslib.DNSRecord.parse(reply).ar
        assert opt.rdata == []


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("", ""),
        ("b\u00fccher: no", "b\u00fccher: no"),
        ("a\0b\nc\x7fd\x1b[31m", "a?b?c?d?[31m"),
        ("a\u202eb\u2028c\ud800d", "a?b?c?d"),
        ("a" * 299 + "\u00e4", "a" * 299),
        ("a" * 298 + "\u00e4", "a" * 298 + "\u00e4"),
        ("a" * 70000, "a" * 300),
    ],
)
def test_the_text_is_short_printable_and_whole(text: str, sent: str) -> None:
    assert explained(wire.denied(ask(), 5, BLOCKED, text)) == (BLOCKED, sent)


@pytest.mark.parametrize("kind", REPLIES)
@pytest.mark.parametrize("question", [QUESTION, LONG, b"\0\0\1\0\1"])
def test_what_we_write_ourselves_fits_the_smallest_client(kind: str, question: bytes) -> None:
    reply = REPLIES[kind][0](ask(question), "\u20ac" * 500)
    found = explained(reply)
    assert found is not None
    assert len(reply) <= 512
    assert len(reply) > 500 or len(found[1].encode()) == 300


def test_what_is_asked_of_a_resolver() -> None:
    record = dnslib.DNSRecord.parse(wire.ask(77, "api.example.com", 65))
    assert (record.header.id, record.header.bitmap, str(record.q.qname), record.q.qtype) == (
        77, 0x0100, "api.example.com.", 65,
    )  # fmt: skip
    (opt,) = record.ar
    assert (opt.rtype, opt.rclass, opt.ttl, opt.rdata) == (41, 1232, 0, [])
    assert wire.ask(1, "", 2)[12:17] == b"\0\0\2\0\1"
    assert dnslib.DNSRecord.parse(wire.ask(1, "a", 1, 512)).ar[0].rclass == 512


# -- answers -------------------------------------------------------------------------------------------------------
API = Record("api.example.com", 1, 60, socket.inet_aton("192.0.2.1"))


def records_of(reply: bytes) -> list[tuple[str, int, int, str]]:
    parsed = dnslib.DNSRecord.parse(reply)
    return [(str(rr.rname).lower(), rr.rtype, rr.ttl, str(rr.rdata)) for rr in (*parsed.rr, *parsed.auth)]


def test_an_answer_is_served_to_every_query_of_its_question() -> None:
    template = render("api.example.com", [API])
    for ident, question, flags, edns in ((1, QUESTION, 0x0110, True), (2, QUESTION.lower(), 0, False)):
        query = ask(question, edns=edns, flags=flags)._replace(id=ident)
        reply = template.serve(query, 0, 1232)
        assert int.from_bytes(reply[:2], "big") == ident
        assert int.from_bytes(reply[2:4], "big") == 0x8080 | flags
        assert reply[12 : 12 + len(question)] == question
        assert records_of(reply) == [("api.example.com.", 1, 60, "192.0.2.1")]
        assert len(dnslib.DNSRecord.parse(reply).ar) == edns
        assert explained(reply) is None


def test_ttls_grow_old_and_end_at_zero() -> None:
    other = API._replace(ttl=5)
    template = render("api.example.com", [API, other], authority=[Record("com", 2, 86400, encode_name("ns.test"))])
    for age in (0, 1, 1, 5, 6, 61, 86401, 3, 0):  # any order: what was served last must not matter
        ttls = [record[2] for record in records_of(template.serve(ask(), age, 1232))]
        assert ttls == [max(0, 60 - age), max(0, 5 - age), max(0, 86400 - age)]


def test_what_does_not_fit_is_truncated_and_empty() -> None:
    template = render("api.example.com", [API._replace(rdata=bytes((192, 0, 2, n))) for n in range(40)])
    for edns in (False, True):
        whole = template.serve(ask(edns=edns), 0, 65535)
        assert template.serve(ask(edns=edns), 0, len(whole)) == whole
        short = template.serve(ask(edns=edns), 0, len(whole) - 1)
        parsed = dnslib.DNSRecord.parse(short)
        assert (parsed.header.tc, parsed.rr, parsed.auth, len(parsed.ar)) == (1, [], [], edns)
        assert short[12 : 12 + len(QUESTION)] == QUESTION
        assert not dnslib.DNSRecord.parse(whole).header.tc


def test_the_response_code_is_passed_on() -> None:
    assert render("api.example.com", (), rcode=3).serve(ask(), 9, 512)[3] & 15 == 3


def test_owners_are_compressed() -> None:
    link = Record("api.example.com", 5, 9, encode_name("edge.cdn.example.net"))
    end = Record("edge.cdn.example.net", 1, 8, bytes((192, 0, 2, 7)))
    soa = Record("example.com", 6, 7, encode_name("ns.test") + encode_name("me.test") + bytes(20))
    reply = render("api.example.com", [link, end, end], authority=[soa]).serve(ask(), 0, 1232)
    assert [record[:3] for record in records_of(reply)] == [
        ("api.example.com.", 5, 9), ("edge.cdn.example.net.", 1, 8), ("edge.cdn.example.net.", 1, 8),
        ("example.com.", 6, 7),
    ]  # fmt: skip
    assert len(reply) == 12 + len(QUESTION) + 4 * 12 + len(link.rdata) + 4 + 4 + len(soa.rdata) + 11


def test_a_name_that_cannot_be_written_is_the_one_error() -> None:
    with pytest.raises(WireError):
        render("api.example.com", [API._replace(owner="a..b")])
    with pytest.raises(WireError):
        render("api.example.com", [API._replace(rtype=5, rdata=b"\5short")])


names = st.sampled_from(
    ["", "com", "example.com", "api.example.com", "xapi.example.com", "i.example.com", "a\\046b.example.com", "net"]
) | st.lists(st.sampled_from(["a", "b", "x" * 63]), min_size=1, max_size=3).map(".".join)
records = st.builds(
    lambda owner, ttl, target: Record(owner, 5 if target is not None else 16, ttl, encode_name(target or "")),
    names, st.integers(0, 86400), st.none() | names,
)  # fmt: skip


@given(names, st.lists(records, max_size=40), st.lists(records, max_size=3), st.integers(0, 90000))
def test_what_is_rendered_reads_back_the_same(
    name: str, answers: list[Record], authority: list[Record], age: int
) -> None:
    query = ask(encode_name(name) + b"\0\1\0\1")
    reply = render(name, answers, authority=authority).serve(query, age, 65535)
    parsed = dnslib.DNSRecord.parse(reply)
    assert (len(parsed.rr), len(parsed.auth)) == (len(answers), len(authority))
    for found, meant in zip((*parsed.rr, *parsed.auth), (*answers, *authority), strict=True):
        assert b"".join(bytes((len(part),)) + part for part in found.rname.label) + b"\0" == encode_name(meant.owner)
        assert (found.rtype, found.ttl) == (meant.rtype, max(0, meant.ttl - age))
        if meant.rtype == 5:
            target = b"".join(bytes((len(part),)) + part for part in found.rdata.label.label) + b"\0"
            assert target == meant.rdata


def test_owners_beyond_the_reach_of_pointers_are_written_out() -> None:
    filler = [Record("api.example.com", 16, 1, bytes((255,)) + b"x" * 255)] * 70
    late = [Record("late.test", 1, 1, bytes(4)), Record("late.test", 1, 2, bytes(4))]
    links = [Record("api.example.com", 5, 3, encode_name("end.test")), Record("end.test", 1, 4, bytes(4))]
    reply = render("api.example.com", [*filler, *late, *links]).serve(ask(), 0, 65535)
    assert [record[:3] for record in records_of(reply)[70:]] == [
        ("late.test.", 1, 1), ("late.test.", 1, 2), ("api.example.com.", 5, 3), ("end.test.", 1, 4),
    ]  # fmt: skip
