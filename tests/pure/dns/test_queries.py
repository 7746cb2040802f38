"""What clients send: read strictly, answered in the order of checks that the contract fixes, never an exception."""

from __future__ import annotations

import re
import struct

import dnslib
import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress.dns.wire import Query, encode_name, parse_query

QUESTION = b"\3Api\7eXample\3com\0\0\1\0\1"
OPT = struct.pack("!BHHIH", 0, 41, 1232, 0, 0)
FORMERR, NOTIMP, REFUSED = 1, 4, 5


def message(
    question: bytes = QUESTION,
    extra: bytes = b"",
    flags: int = 0x0100,
    counts: tuple[int, int, int, int] = (1, 0, 0, 0),
) -> bytes:
    return struct.pack("!HHHHHH", 0xBEEF, flags, *counts) + question + extra


def with_opt(opt: bytes = OPT) -> bytes:
    return message(extra=opt, counts=(1, 0, 0, 1))


def rcode_of(reply: Query | bytes | None) -> int:
    """Of an error reply; checks what every error reply has."""
    assert isinstance(reply, bytes)
    ident, flags, _, answers, authorities, _ = struct.unpack_from("!HHHHHH", reply)
    assert ident == 0xBEEF
    assert flags & 0x8000
    assert not flags & 0x0600, "neither AA nor TC"
    assert (answers, authorities) == (0, 0)
    dnslib.DNSRecord.parse(reply)
    return int(flags) & 15


def test_a_plain_query() -> None:
    query = parse_query(message())
    assert query == Query(0xBEEF, 0x0100, "api.example.com", 1, QUESTION, False, 512, True)


def test_a_query_with_edns() -> None:
    query = parse_query(with_opt())
    assert isinstance(query, Query)
    assert (query.edns, query.size) == (True, 1232)


@pytest.mark.parametrize(("said", "taken"), [(0, 512), (511, 512), (512, 512), (4096, 4096), (65535, 65535)])
def test_a_udp_size_below_512_counts_as_512(said: int, taken: int) -> None:
    query = parse_query(with_opt(struct.pack("!BHHIH", 0, 41, said, 0, 0)))
    assert isinstance(query, Query)
    assert query.size == taken


@pytest.mark.parametrize("size", range(12))
def test_what_has_no_header_is_dropped(size: int) -> None:
    assert parse_query(message()[:size]) is None


@pytest.mark.parametrize(
    "data",
    [
        message(flags=0x8100),
        message(flags=0x8000 | 0x7800),
        message(flags=0x8180, counts=(0, 9, 9, 9)),
        message(b"", flags=0x8100, counts=(1, 0, 0, 0)),
    ],
)
def test_an_answer_is_dropped_before_any_other_check(data: bytes) -> None:
    assert parse_query(data) is None


@pytest.mark.parametrize("opcode", range(1, 16))
def test_an_opcode_other_than_query_is_notimp_whatever_else_is_wrong(opcode: int) -> None:
    for data in (
        message(flags=opcode << 11),
        message(flags=opcode << 11, counts=(2, 1, 1, 3)),
        message(b"\xff", flags=opcode << 11),
        message(b"", flags=opcode << 11, counts=(0, 0, 0, 0)),
    ):
        reply = parse_query(data)
        assert rcode_of(reply) == NOTIMP
        assert isinstance(reply, bytes)
        assert reply[2] >> 3 & 15 == opcode


LONG = b"\x3f" + b"a" * 63


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(message(b"", counts=(0, 0, 0, 0)), id="no question"),
        pytest.param(message(QUESTION + QUESTION, counts=(2, 0, 0, 0)), id="two questions"),
        pytest.param(message(counts=(65535, 0, 0, 0)), id="many questions"),
        pytest.param(message(extra=b"\xc0\x0c\0\1\0\1\0\0\0\0\0\0", counts=(1, 1, 0, 0)), id="an answer record"),
        pytest.param(message(extra=b"\xc0\x0c\0\1\0\1\0\0\0\0\0\0", counts=(1, 0, 1, 0)), id="an authority record"),
        pytest.param(message(extra=b"\0\0\1\0\1\0\0\0\0\0\0", counts=(1, 0, 0, 1)), id="a record that is not OPT"),
        pytest.param(message(extra=b"\0\0\xfa\0\xff\0\0\0\0\0\0", counts=(1, 0, 0, 1)), id="TSIG"),
        pytest.param(message(extra=OPT + OPT, counts=(1, 0, 0, 2)), id="two OPTs"),
        pytest.param(message(extra=OPT, counts=(1, 0, 0, 2)), id="one OPT, counted twice"),
        pytest.param(with_opt(b"\1" + OPT[1:]), id="an OPT whose owner is no root"),
        pytest.param(message(extra=OPT, counts=(1, 0, 0, 0)), id="an OPT that is not counted"),
        pytest.param(message(counts=(1, 0, 0, 1)), id="an OPT that is counted only"),
        pytest.param(with_opt(b"\1a" + OPT), id="an OPT with a name"),
        pytest.param(with_opt(b"\xc0\x0c" + OPT[1:]), id="an OPT whose owner is a pointer"),
        pytest.param(with_opt(OPT[:-1]), id="an OPT cut short"),
        pytest.param(with_opt(struct.pack("!BHHIH", 0, 41, 1232, 0, 4)), id="an OPT with less data than it says"),
        pytest.param(with_opt(OPT + b"\0"), id="octets behind OPT"),
        pytest.param(message(extra=b"\0"), id="octets behind the question"),
        pytest.param(message(b"\xc0\x0c\0\1\0\1"), id="a pointer as name"),
        pytest.param(message(b"\1a\xc0\x0c\0\1\0\1"), id="a pointer in the name"),
        pytest.param(message(b"\x40" + b"a" * 64 + b"\0\0\1\0\1"), id="label type 01"),
        pytest.param(message(b"\x80" + b"a" * 64 + b"\0\0\1\0\1"), id="label type 10"),
        pytest.param(message(LONG * 3 + b"\x3e" + b"a" * 62 + b"\0\0\1\0\1"), id="a name of 256 octets"),
        pytest.param(message(LONG * 4 + b"\0\0\1\0\1"), id="a name of 257 octets"),
        pytest.param(message(LONG * 900), id="a name without end"),
        pytest.param(message(b"\1a" * 32000 + b"\0\0\1\0\1"), id="64 KiB of labels"),
        pytest.param(message(QUESTION[:-1]), id="cut in the class"),
        pytest.param(message(QUESTION[:7]), id="cut in the name"),
        pytest.param(message(b""), id="only a header"),
    ],
)
def test_what_is_not_one_plain_question_is_formerr(data: bytes) -> None:
    assert rcode_of(parse_query(data)) == FORMERR


def test_the_longest_name_is_taken() -> None:
    query = parse_query(message(LONG * 3 + b"\x3d" + b"a" * 61 + b"\0\0\1\0\1"))
    assert isinstance(query, Query)
    assert len(encode_name(query.name)) == 255


@pytest.mark.parametrize("qclass", [0, 2, 3, 4, 254, 255, 256, 257, 0x8001])
def test_a_class_other_than_in_is_refused(qclass: int) -> None:
    question = QUESTION[:-2] + struct.pack("!H", qclass)
    reply = parse_query(message(question))
    assert rcode_of(reply) == REFUSED
    assert isinstance(reply, bytes)
    assert reply[12:] == question


@pytest.mark.parametrize("version", [1, 255])
def test_an_edns_version_to_come_is_badvers(version: int) -> None:
    reply = parse_query(with_opt(struct.pack("!BHHIH", 0, 41, 4096, version << 16, 0)))
    assert rcode_of(reply) == 0
    assert isinstance(reply, bytes)
    assert reply[12 : 12 + len(QUESTION)] == QUESTION
    root, rtype, size, extended, length = struct.unpack("!BHHIH", reply[12 + len(QUESTION) :])
    assert (root, rtype, size, length) == (0, 41, 1232, 0)
    assert extended >> 24 << 4 | reply[3] & 15 == 16
    assert extended >> 16 & 255 == 0


@pytest.mark.parametrize("flags", [0x0000, 0x0400, 0x0200, 0x0080, 0x0040, 0x0020, 0x0010, 0x000F, 0x07FF])
def test_other_flags_are_ignored(flags: int) -> None:
    query = parse_query(message(flags=flags))
    assert isinstance(query, Query)
    assert (query.name, query.flags) == ("api.example.com", flags)


def test_edns_options_and_flags_are_ignored() -> None:
    options = struct.pack("!HH", 8, 7) + b"\0\1\x18\0\xc6\x33\x64" + struct.pack("!HH", 10, 8) + b"A" * 8
    query = parse_query(with_opt(struct.pack("!BHHIH", 0, 41, 1232, 0x8000, len(options)) + options))
    assert isinstance(query, Query)
    assert query.edns


labels = st.lists(st.binary(min_size=1, max_size=63), max_size=6).filter(lambda x: sum(map(len, x)) + len(x) < 255)


def escaped(parts: tuple[bytes, ...]) -> str:
    """The canonical text, written another way."""
    text = []
    for part in parts:
        piece = ""
        for octet in part:
            character = chr(octet)
            if character.isascii() and (character.isalnum() or character in "-_"):
                piece += character.lower()
            else:
                piece += "\\" + str(octet).zfill(3)
        text.append(piece)
    return ".".join(text)


@given(labels, st.integers(0, 65535), st.integers(0, 65535), st.none() | st.integers(0, 65535), st.booleans())
def test_what_dnslib_asks_is_understood(
    parts: list[bytes], qtype: int, ident: int, size: int | None, recursion: bool
) -> None:
    record = dnslib.DNSRecord(
        dnslib.DNSHeader(id=ident, rd=int(recursion)), q=dnslib.DNSQuestion(dnslib.DNSLabel(tuple(parts)), qtype)
    )
    if size is not None:
        record.add_ar(dnslib.EDNS0(udp_len=size))
    data = record.pack()
    query = parse_query(data)
    assert isinstance(query, Query)
    assert (query.id, query.qtype, query.edns) == (ident, qtype, size is not None)
    assert query.name == escaped(tuple(parts))
    assert query.plain == ("\\" not in query.name)
    assert query.size == max(512, size or 0)
    assert query.question == data[12 : 12 + len(query.question)]
    assert len(query.question) == sum(map(len, parts)) + len(parts) + 5


def check(data: bytes) -> None:
    """A value that agrees with the bytes, and with dnslib."""
    found = parse_query(data)
    if found is None:
        assert len(data) < 12 or data[2] & 0x80
        return
    if isinstance(found, bytes):
        assert found[:2] == data[:2]
        assert found[2] & 0x80
        assert len(found) <= 512
        return
    try:
        record = dnslib.DNSRecord.parse(data)
    except dnslib.DNSError:  # it wants labels in UTF-8 and reads options, which don't concern us
        assert re.search(r"\\(1[2-9]|2)\d", found.name) or (found.edns and len(data) > 23 + len(found.question))
        return
    assert [escaped(question.qname.label) for question in record.questions] == [found.name]
    assert record.q.qtype == found.qtype
    assert record.q.qclass == 1
    assert (record.rr, record.auth) == ([], [])
    assert len(record.ar) == found.edns
    assert data[12:].startswith(found.question)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_query_a_reply_or_silence(data: bytes) -> None:
    check(data)


@given(st.binary(max_size=200), st.integers(0, 2))
def test_any_bytes_behind_a_good_header_are_a_query_or_a_reply(data: bytes, additionals: int) -> None:
    check(message(data, counts=(1, 0, 0, additionals)))


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), max_size=4), st.integers(0, 60))
def test_a_damaged_query_is_consistent_or_refused(changes: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(with_opt())
    for place, octet in changes:
        data[place % len(data)] = octet
    check(bytes(data[: len(data) - cut % 12]))
