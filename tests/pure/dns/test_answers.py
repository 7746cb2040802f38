"""What resolvers answer, held against dnslib; what no resolver should answer, refused with the one error."""

from __future__ import annotations

import struct

import dnslib
import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress.dns.answer import DAY, Answer, parse_answer
from egress.dns.wire import Query, Record, WireError, ask, cname_target, encode_name, name_text, parse_query, render

NAME = "api.example.com"
QUESTION = b"\3api\7example\3com\0\0\1\0\1"
HERE = b"\xc0\x0c"  # a pointer to the question's name
BEHIND = 12 + len(QUESTION)  # where the first record begins


def message(
    *records: bytes, counts: tuple[int, int, int] | None = None, flags: int = 0x8180, question: bytes = QUESTION
) -> bytes:
    """`records` are answers unless `counts` (answers, authorities, additionals) says otherwise."""
    return struct.pack("!HHHHHH", 0xBEEF, flags, 1, *(counts or (len(records), 0, 0))) + question + b"".join(records)


def rr(owner: bytes, rtype: int, rdata: bytes, ttl: int = 60, rclass: int = 1) -> bytes:
    return owner + struct.pack("!HHIH", rtype, rclass, ttl, len(rdata)) + rdata


def parse(data: bytes) -> Answer:
    return parse_answer(data, QUESTION, NAME)


ADDRESS = rr(HERE, 1, b"\xc0\0\2\1")
NUMBERS = struct.pack("!IIIII", 1, 2, 3, 4, 30)


# -- the frame -----------------------------------------------------------------------------------------------------
def test_an_answer() -> None:
    assert parse(message(ADDRESS)) == Answer(0xBEEF, 0, False, (Record(NAME, 1, 60, b"\xc0\0\2\1"),), None, None)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(message(ADDRESS, flags=0x0180), id="a query"),
        pytest.param(message(ADDRESS, flags=0x8980), id="another opcode"),
        pytest.param(message(ADDRESS, question=b"\3Api" + QUESTION[4:]), id="another case"),
        pytest.param(message(ADDRESS, question=QUESTION[:-3] + b"\x1c\0\1"), id="another type"),
        pytest.param(message(ADDRESS, question=QUESTION[:-1] + b"\3"), id="another class"),
        pytest.param(message(ADDRESS, question=b"\3www" + QUESTION[4:]), id="another name"),
        pytest.param(message(ADDRESS)[:4] + b"\0\0" + message(ADDRESS)[6:], id="no question"),
        pytest.param(message(ADDRESS)[:4] + b"\0\2" + message(ADDRESS)[6:], id="two questions"),
        pytest.param(message(counts=(1, 0, 0)), id="no record where one is counted"),
        pytest.param(message(counts=(65535, 65535, 65535)), id="65535 of everything"),
        pytest.param(message(ADDRESS, counts=(1, 1, 0)), id="no authority"),
        pytest.param(message(ADDRESS, counts=(1, 0, 1)), id="no additional"),
        pytest.param(message(ADDRESS)[:-1], id="cut in the address"),
        pytest.param(message(rr(HERE, 1, b"\0\0\0")), id="an A of 3 octets"),
        pytest.param(message(rr(HERE, 1, b"\0\0\0\0\0")), id="an A of 5 octets"),
        pytest.param(message(rr(HERE, 28, b"\0\0\0\0")), id="an AAAA of 4 octets"),
        pytest.param(message(rr(HERE, 5, b"")), id="a CNAME of nothing"),
        pytest.param(message(rr(HERE, 5, b"\1a\0x")), id="a CNAME and more"),
        pytest.param(message(rr(HERE, 5, b"\1a"), ADDRESS), id="a CNAME that runs into the next record"),
        pytest.param(message(rr(HERE, 15, b"\0\1"), ADDRESS), id="an MX without a name"),
        pytest.param(message(rr(HERE, 15, b"\0"), ADDRESS), id="an MX of one octet"),
        pytest.param(message(rr(HERE, 6, b"\0\0" + NUMBERS[:-1])), id="an SOA cut short"),
        pytest.param(message(rr(HERE, 6, b"\0\0" + NUMBERS + b"x")), id="an SOA and more"),
        pytest.param(message(rr(HERE, 35, b"\0\1\0\1\xff" + b"x" * 9)), id="a NAPTR with a string beyond its end"),
        pytest.param(message(rr(b"\x40" + b"a" * 64 + b"\0", 1, bytes(4))), id="label type 01"),
        pytest.param(message(rr((b"\x3f" + b"a" * 63) * 4 + b"\0", 1, bytes(4))), id="an owner of 257 octets"),
        pytest.param(
            message(rr((b"\x3f" + b"a" * 63) * 3 + b"\x3e" + b"a" * 62 + b"\0", 1, bytes(4))), id="an owner of 256"
        ),
        pytest.param(message(rr(HERE, 65, b"\0\1\x0aapi"), ADDRESS), id="an HTTPS name that runs into the next record"),
        pytest.param(message(rr(b"\xc0" + bytes((BEHIND,)), 1, bytes(4))), id="a pointer to itself"),
        pytest.param(message(rr(b"\xc0" + bytes((BEHIND + 2,)), 1, bytes(4))), id="a pointer forwards"),
        pytest.param(message(rr(b"\xff\xff", 1, bytes(4))), id="a pointer far beyond"),
        pytest.param(message(rr(b"\xc0\0", 1, bytes(4))), id="a pointer into the header"),
        pytest.param(message(rr(b"\1a\xc0" + bytes((BEHIND,)), 1, bytes(4))), id="a loop"),
        pytest.param(message(rr(HERE, 5, b"\1a\xc0" + bytes((BEHIND + 12,))), ADDRESS), id="a loop in a CNAME"),
        pytest.param(message(ADDRESS, rr(b"\0", 41, b""), rr(b"\0", 41, b""), counts=(1, 0, 2)), id="two OPTs"),
        pytest.param(message(ADDRESS, rr(HERE, 41, b""), counts=(1, 0, 1)), id="an OPT with a name"),
        pytest.param(message(ADDRESS, rr(b"\0", 41, b"abcd")[:-1], counts=(1, 0, 1)), id="an OPT cut short"),
        pytest.param(message(rr(HERE, 6, b"\0\0" + NUMBERS[1:]), counts=(0, 1, 0)), id="a broken SOA below"),
    ],
)
def test_what_is_no_answer_to_our_question_is_the_one_error(data: bytes) -> None:
    with pytest.raises(WireError):
        parse(data)


def test_every_cut_of_an_answer_is_the_one_error() -> None:
    soa = rr(b"\xc0\x10", 6, encode_name("ns.test") + b"\xc0\x10" + NUMBERS)
    whole = message(rr(HERE, 5, b"\1x" + HERE), soa, rr(b"\0", 41, b""), counts=(1, 1, 1), flags=0x8183)
    assert parse(whole).soa is not None
    for end in range(len(whole)):
        with pytest.raises(WireError):
            parse(whole[:end])


def test_of_a_truncated_answer_nothing_is_read() -> None:
    assert parse(message(ADDRESS, flags=0x8380)) == Answer(0xBEEF, 0, True, (), None, None)
    assert parse(message(counts=(9, 9, 9), flags=0x8380)).truncated


def test_what_lies_behind_the_last_record_is_ignored() -> None:
    assert parse(message(ADDRESS) + b"junk") == parse(message(ADDRESS))


@pytest.mark.parametrize("rcode", range(16))
@pytest.mark.parametrize("upper", [0, 1, 255])
def test_the_response_code_has_an_upper_half_in_edns(rcode: int, upper: int) -> None:
    opt = rr(b"\0", 41, b"", ttl=upper << 24, rclass=1232)
    for data in (
        message(ADDRESS, opt, counts=(1, 0, 1), flags=0x8180 | rcode),
        message(ADDRESS, rr(HERE, 2, b"\0"), ADDRESS, opt, counts=(1, 1, 2), flags=0x8180 | rcode),
        message(opt, ADDRESS, counts=(0, 0, 2), flags=0x8180 | rcode),
    ):
        assert parse(data).rcode == upper << 4 | rcode


# -- records -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("sent", "kept"), [(0, 0), (1, 1), (DAY, DAY), (DAY + 1, DAY), (0x7FFFFFFF, DAY), (0x80000000, 0), (0xFFFFFFFF, 0)]
)
def test_ttls_are_bounded(sent: int, kept: int) -> None:
    assert parse(message(rr(HERE, 1, bytes(4), ttl=sent))).answers[0].ttl == kept
    soa = rr(b"\0", 6, b"\0\0" + struct.pack("!IIIII", 0, 0, 0, 0, sent), ttl=sent)
    assert parse(message(soa, counts=(0, 1, 0))).negative_ttl == kept


@pytest.mark.parametrize("rclass", [0, 2, 3, 4, 254, 255, 1232])
def test_records_of_another_class_are_left_out(rclass: int) -> None:
    assert parse(message(rr(HERE, 1, bytes(4), rclass=rclass), ADDRESS)).answers == parse(message(ADDRESS)).answers


@pytest.mark.parametrize(
    "rtype", [24, 25, 30, 41, 43, 46, 47, 48, 50, 51, 59, 60, 249, 250, 251, 252, 253, 254, 255, 32769]
)
def test_dnssec_and_what_is_no_data_is_left_out(rtype: int) -> None:
    assert parse(message(rr(HERE, rtype, b"whatever"), ADDRESS)).answers == parse(message(ADDRESS)).answers


@pytest.mark.parametrize(
    ("owner", "text"),
    [
        (b"\3API\7Example\3COM\0", NAME),
        (b"\3API\xc0\x10", NAME),
        (b"\xc0\x10", "example.com"),
        (b"\0", ""),
        (b"\5a.b\\\0\xc0\x10", "a\\046b\\092\\000.example.com"),
        (b"\x0bapi.example\3com\0", "api\\046example.com"),
    ],
)
def test_owners_are_canonical_text(owner: bytes, text: str) -> None:
    assert parse(message(rr(owner, 1, bytes(4)))).answers[0].owner == text


def test_a_pointer_may_lead_to_a_pointer() -> None:
    second = rr(b"\xc0" + bytes((BEHIND,)), 1, bytes(4))
    assert [record.owner for record in parse(message(ADDRESS, second)).answers] == [NAME, NAME]


TYPES = [
    "api.example.com 60 A 192.0.2.1",
    "api.example.com 60 AAAA 2001:db8::1",
    "api.example.com 60 CNAME edge.api.example.com",
    "api.example.com 60 NS ns.example.com",
    "api.example.com 60 PTR host.example.com",
    "api.example.com 60 MX 10 mail.example.com",
    "api.example.com 60 SOA ns.example.com host.api.example.com 1 2 3 4 5",
    "api.example.com 60 SRV 1 2 443 api.example.com",
    'api.example.com 60 TXT "v=1" "more"',
    "api.example.com 60 CAA 0 issue ca.example",
    "api.example.com 60 NAPTR 1 2 u E2U+sip !^.*$!sip:x@example.com! api.example.com",
    "api.example.com 60 HTTPS 1 api.example.com alpn=h2",
]  # fmt: skip


@pytest.mark.parametrize("zone", TYPES, ids=lambda zone: zone.split()[2])
def test_what_dnslib_builds_is_read_and_dnslib_reads_it_back(zone: str) -> None:
    built = dnslib.DNSRecord.parse(ask(7, NAME, 1)).reply()
    built.add_answer(*dnslib.RR.fromZone(zone))
    built.add_answer(*dnslib.RR.fromZone(zone))
    answer = parse(built.pack())
    again = dnslib.DNSRecord.parse(render(NAME, answer.answers).serve(_query(), 0, 65535))
    assert [rr.toZone() for rr in again.rr] == [rr.toZone() for rr in built.rr]


EMBEDDED = [
    (2, b""), (5, b""), (12, b""), (39, b""), (15, b"\0\1"), (33, b"\0\1\0\2\1\xbb"), (64, b"\0\1"), (65, b"\0\0"),
    (35, b"\0\1\0\2\1u\0\3a.b"),
]  # fmt: skip


@pytest.mark.parametrize(("rtype", "head"), EMBEDDED)
def test_compressed_names_in_rdata_are_written_out(rtype: int, head: bytes) -> None:
    answer = parse(message(rr(HERE, rtype, head + b"\4Edge\xc0\x10")))
    assert answer.answers[0].rdata == head + b"\4Edge\7example\3com\0"


def test_both_names_of_an_soa_are_written_out() -> None:
    answer = parse(message(rr(HERE, 6, b"\2ns\xc0\x10" + HERE + NUMBERS)))
    assert answer.answers[0].rdata == b"\2ns\7example\3com\0" + QUESTION[:-4] + NUMBERS


def test_a_chain_of_cnames() -> None:
    first = rr(HERE, 5, b"\4Edge\xc0\x10")
    place = BEHIND + 12
    second = rr(b"\xc0" + bytes((place,)), 5, b"\3cdn\4test\0")
    last = rr(b"\xc0" + bytes((place + 7 + 12,)), 1, bytes(4))
    answers = parse(message(first, second, last)).answers
    assert [record.owner for record in answers] == [NAME, "edge.example.com", "cdn.test"]
    assert [cname_target(record.rdata) for record in answers[:2]] == ["edge.example.com", "cdn.test"]


# -- negative answers ----------------------------------------------------------------------------------------------
def soa_of(owner: str, ttl: int = 60, minimum: int = 30) -> bytes:
    numbers = struct.pack("!IIIII", 1, 2, 3, 4, minimum)
    return rr(encode_name(owner), 6, encode_name("ns.test") + encode_name("me.test") + numbers, ttl)


@pytest.mark.parametrize("flags", [0x8180, 0x8183])
@pytest.mark.parametrize(("ttl", "minimum", "kept"), [(60, 30, 30), (30, 60, 30), (0, 9, 0), (9, 1 << 31, 0)])
def test_how_long_a_no_lasts(flags: int, ttl: int, minimum: int, kept: int) -> None:
    answer = parse(message(soa_of("example.com", ttl, minimum), counts=(0, 1, 0), flags=flags))
    assert answer.negative_ttl == kept
    assert answer.soa is not None
    assert (answer.soa.owner, answer.soa.ttl, len(answer.soa.rdata)) == ("example.com", ttl, 38)


@pytest.mark.parametrize(
    ("owner", "taken"),
    [
        (NAME, True), ("example.com", True), ("com", True), ("", True),
        ("other.com", False), ("xapi.example.com", False), ("ample.com", False), ("a.api.example.com", False),
        ("api\\046example.com", False),
    ],
)  # fmt: skip
def test_the_soa_must_be_of_a_zone_that_holds_the_name(owner: str, taken: bool) -> None:
    answer = parse(message(soa_of(owner), counts=(0, 1, 0), flags=0x8183))
    assert (answer.soa is not None, answer.negative_ttl) == (taken, 30 if taken else None)


def test_after_a_cname_the_soa_may_be_of_any_zone() -> None:
    link = rr(HERE, 5, encode_name("cdn.test"))
    assert parse(message(link, soa_of("test"), counts=(1, 1, 0))).negative_ttl == 30


def test_only_the_authority_sections_soa_of_class_in_counts() -> None:
    other = soa_of("com").replace(b"\3com\0\0\6\0\1", b"\3com\0\0\6\0\3", 1)
    assert parse(message(other, counts=(0, 1, 0))).negative_ttl is None
    assert parse(message(soa_of("com"), counts=(0, 0, 1))).negative_ttl is None
    assert parse(message(other, soa_of("com"), soa_of(""), counts=(0, 3, 0))).soa == Record(
        "com", 6, 60, soa_of("com")[-38:]
    )
    assert parse(message(ADDRESS, soa_of("com"), counts=(1, 1, 0))).soa is None


# -- bounded work --------------------------------------------------------------------------------------------------
def ladder(hops: int) -> bytes:
    """A TXT record with `hops` pointers in a row, each to the one before, the first to a root name."""
    base = BEHIND + 12
    steps = [base, *range(base + 1, base + 1 + 2 * (hops - 1), 2)]
    return rr(HERE, 16, b"\0" + b"".join(struct.pack("!H", 0xC000 | step) for step in steps))


def test_few_pointers_may_follow_each_other() -> None:
    base = BEHIND + 12
    for hops in (1, 2, 30):
        top = struct.pack("!H", 0xC000 | base + 1 + 2 * (hops - 1))
        assert parse(message(ladder(hops), rr(top, 1, bytes(4)))).answers[1].owner == ""
    with pytest.raises(WireError, match="follow"):
        parse(message(ladder(4000), rr(struct.pack("!H", 0xC000 | base + 7999), 1, bytes(4))))


@pytest.mark.parametrize(
    ("name", "record"),
    [
        pytest.param(b"\1a" * 126 + b"\0", rr(HERE, 2, struct.pack("!H", 0xC000 | BEHIND + 12)), id="many labels"),
        pytest.param(
            (b"\x3f" + b"\xff" * 63) * 3 + b"\0", rr(HERE, 5, struct.pack("!H", 0xC000 | BEHIND + 12)), id="long texts"
        ),
        pytest.param(
            (b"\x3f" + b"\xff" * 63) * 3 + b"\0",
            rr(b"\1\xfe" + struct.pack("!H", 0xC000 | BEHIND + 12), 16, b""),
            id="long owners",
        ),
    ],
)
def test_a_message_cannot_ask_for_endless_work(name: bytes, record: bytes) -> None:
    few = message(rr(HERE, 16, name), *[record] * 20)
    assert len(parse(few).answers) == 21
    many = message(rr(HERE, 16, name), *[record] * 4400)
    assert len(many) < 65536
    with pytest.raises(WireError, match="too much work"):
        parse(many)


def test_a_large_honest_answer_is_read() -> None:
    addresses = [rr(HERE, 1, struct.pack("!I", number)) for number in range(4090)]
    assert len(parse(message(*addresses)).answers) == 4090
    hosts = [rr(HERE, 12, b"\5h%04d" % number + b"\xc0\x10") for number in range(3200)]
    assert len(parse(message(*hosts)).answers) == 3200


def test_a_written_out_name_never_makes_rdata_too_long() -> None:
    question = (b"\x3f" + b"x" * 63) * 3 + b"\x3d" + b"x" * 61 + b"\0\0\x41\0\1"
    name = ".".join(["x" * 63] * 3 + ["x" * 61])
    data = message(rr(HERE, 65, b"\0\1" + HERE + bytes(65_535 - 12 - len(question) - 16)), question=question)
    assert len(data) == 65_535
    (record,) = parse_answer(data, question, name).answers
    assert 65_500 < len(record.rdata) < 65_536
    with pytest.raises(WireError):
        parse_answer(data + b"x", question, name)


# -- any bytes -----------------------------------------------------------------------------------------------------
def _query() -> Query:
    query = parse_query(ask(1, NAME, 1))
    assert isinstance(query, Query)
    return query


def addresses_of(data: bytes) -> list[tuple[str, int, bytes]] | None:
    """A and AAAA of class IN in the answer section as dnslib reads them; None where it doesn't."""
    try:
        parsed = dnslib.DNSRecord.parse(data)
    except dnslib.DNSError:
        return None
    found = []
    for record in parsed.rr:
        if record.rclass == 1 and record.rtype in (1, 28):
            found.append((name_text(list(record.rname.label))[0], record.rtype, bytes(record.rdata.data)))
    return found


def check(data: bytes) -> None:
    """The one error, or a value that dnslib agrees with and that can be sent on."""
    try:
        answer = parse(data)
    except WireError:
        return
    assert data[12:BEHIND] == QUESTION
    assert answer.id == data[0] << 8 | data[1]
    for record in answer.answers:
        assert 0 <= record.ttl <= DAY
        assert encode_name(record.owner)
    assert answer.negative_ttl is None or 0 <= answer.negative_ttl <= DAY
    authority = (answer.soa,) if answer.soa is not None else ()
    render(NAME, answer.answers, authority=authority).serve(_query(), 1, 65535)
    theirs = addresses_of(data)
    if theirs is not None and not answer.truncated:
        ours = [(record.owner, record.rtype, record.rdata) for record in answer.answers if record.rtype in (1, 28)]
        assert ours == theirs


SAMPLE = message(
    rr(HERE, 5, b"\4edge\xc0\x10"), rr(b"\xc0" + bytes((BEHIND + 12,)), 1, b"\xc6\x33\x64\1"),
    rr(b"\xc0" + bytes((BEHIND + 12,)), 28, bytes(16)), rr(HERE, 65, b"\0\1\0\0\4\0\4abcd"),
    soa_of("example.com"), rr(b"\0", 41, b""), counts=(4, 1, 1),
)  # fmt: skip


def test_the_sample_is_an_answer() -> None:
    assert addresses_of(SAMPLE) == [("edge.example.com", 1, b"\xc6\x33\x64\1"), ("edge.example.com", 28, bytes(16))]
    check(SAMPLE)


@given(st.binary(max_size=400))
def test_any_bytes_are_an_answer_or_the_one_error(data: bytes) -> None:
    check(data)


@given(st.binary(max_size=200), st.integers(0, 4), st.integers(0, 3), st.integers(0, 2))
def test_any_bytes_behind_our_question_are_an_answer_or_the_one_error(data: bytes, a: int, b: int, c: int) -> None:
    check(message(data, counts=(a, b, c)))


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=5), st.integers(0, 20))
def test_a_damaged_answer_is_consistent_or_refused(changes: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(SAMPLE)
    for place, octet in changes:
        data[place % len(data)] = octet
    check(bytes(data[: len(data) - cut // 4]))


pointers = st.integers(0, 300).map(lambda place: struct.pack("!H", 0xC000 | place))
fragments = st.lists(
    pointers | st.sampled_from([b"\0", b"\1a", b"\3api", b"\x3f" + b"x" * 63]), min_size=1, max_size=5
).map(b"".join)


@given(st.lists(st.tuples(fragments, st.sampled_from([1, 2, 5, 6, 15, 16, 35, 65]), fragments), max_size=6))
def test_names_put_together_at_random(records: list[tuple[bytes, int, bytes]]) -> None:
    check(message(*[rr(owner, rtype, b"\xc0\0\2\1" if rtype == 1 else rdata) for owner, rtype, rdata in records]))
