"""The straight path comes to what the careful readers come to, or hands over to them; never to anything else."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from egress.dns import straight, wire
from egress.dns.answer import DAY, parse_answer
from egress.dns.budget import Budget, Limits
from egress.dns.interceptor import WAYS, Interceptor
from egress.dns.question import Waiter
from egress.dns.straight import MOST, read_answer, shape
from egress.dns.upstream import PENDING
from tests.pure.dns.house import House
from tests.pure.dns.plays import AAAA, NXDOMAIN, A, allow, ask_bytes, policy, query
from tests.pure.dns.resolvers import reply_to
from tests.pure.dns.sides import Side

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "api.example.com"
SECTION = {qtype: wire.ask(0, NAME, qtype)[12:-11] for qtype in (A, AAAA, 16)}
OPT = b"\0\0\x29\x04\xd0\0\0\0\0\0\0"


def message(
    qtype: int = A, *addresses: bytes, ttl: int = 300, head: bytes = b"\x12\x34\x81\x80", extra: bytes = b"",
    pointer: int = 0xC00C, counts: tuple[int, int, int] | None = None, rclass: int = 1, kind: int | None = None,
) -> bytes:  # fmt: skip
    """An answer as resolvers send it; every part of it can be another one."""
    records = b"".join(
        struct.pack("!HHHIH", pointer, kind or qtype, rclass, ttl, len(packed)) + packed for packed in addresses
    )
    numbers = counts or (len(addresses), 0, 1 if extra else 0)
    return head + struct.pack("!HHHH", 1, *numbers) + SECTION[qtype] + records + extra


# -- answers -------------------------------------------------------------------------------------------------------
FOUR = st.binary(min_size=4, max_size=4)
SIXTEEN = st.binary(min_size=16, max_size=16) | FOUR.map(lambda packed: bytes(10) + b"\xff\xff" + packed)


@st.composite
def answers(draw: st.DrawFn) -> tuple[int, bytes]:
    """An ordinary answer, nearly always with something about it that is not."""
    qtype = draw(st.sampled_from([A, AAAA, 16]))
    size = (
        draw(st.sampled_from([FOUR, SIXTEEN])) if draw(st.integers(0, 9)) == 0 else SIXTEEN if qtype == AAAA else FOUR
    )
    packed = draw(st.lists(size, max_size=4) | st.lists(size, min_size=MOST - 1, max_size=MOST + 2))
    more: dict[str, Any] = {}
    odd = draw(st.integers(0, 12))
    if odd == 1:
        more["head"] = b"\x12\x34" + draw(st.binary(min_size=2, max_size=2))
    elif odd == 2:
        more["ttl"] = draw(st.sampled_from([0, 1, DAY, DAY + 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]))
    elif odd == 3:
        more["pointer"] = draw(st.sampled_from([0xC00C, 0xC010, 0xC000, 0x8000, 0xC01D]))
    elif odd == 4:
        more["counts"] = draw(st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(0, 3)))
    elif odd == 5:
        more["rclass"] = draw(st.integers(0, 4))
    elif odd == 6:
        more["kind"] = draw(st.sampled_from([1, 5, 28, 41, 46]))
    if draw(st.booleans()):
        more["extra"] = OPT[:5] + draw(st.sampled_from([b"\0\0\0\0", b"\1\0\0\0", b"\0\1\x80\0"])) + draw(
            st.sampled_from([b"\0\0", b"\0\4\0\x0a\0\0", b"\0\5"])
        )  # fmt: skip
    data = message(qtype, *packed, **more)
    if odd == 7:
        data = data[: draw(st.integers(0, len(data)))]
    elif odd == 8:
        data += draw(st.binary(max_size=20))
    elif odd == 9 and data:
        at = draw(st.integers(0, len(data) - 1))
        data = data[:at] + draw(st.binary(min_size=1, max_size=1)) + data[at + 1 :]
    return qtype, data


@given(answers())
@example((A, message(A, b"\1\2\3\4")))
@example((A, message(A, b"\1\2\3\4", b"\1\2\3\4")))
def test_e8_what_is_read_straight_is_what_the_careful_reader_reads(found: tuple[int, bytes]) -> None:
    qtype, data = found
    plain = read_answer(data, SECTION[qtype], qtype)
    if plain is None:
        return
    careful = parse_answer(data, SECTION[qtype], NAME)  # does not raise
    assert plain.answer(NAME, qtype) == careful._replace(id=0)
    assert plain.ttl == min(record.ttl for record in careful.answers)
    judge = Interceptor(policy(allow(NAME), default="allow"), 1, lambda _: None)
    outcome = judge.on_answer(NAME, qtype, careful)
    if judge.teaches_all(plain.teaches):
        assert outcome.teaches == plain.teaches
        assert (outcome.records, outcome.authority, outcome.ede, outcome.denied) == (careful.answers, (), None, "")
        assert (outcome.ttl, outcome.chain) == (plain.ttl, ())
        rendered = wire.render(NAME, outcome.records)
        assert rendered == wire.Template(0, len(plain.teaches), 0, plain.records, plain.offsets)
    else:
        assert outcome.teaches != plain.teaches


@pytest.mark.parametrize("extra", [b"", OPT])
@pytest.mark.parametrize(("qtype", "size"), [(A, 4), (AAAA, 16)])
def test_the_ordinary_is_read_straight(qtype: int, size: int, extra: bytes) -> None:
    for count in range(1, MOST + 1):
        addresses = [bytes((32, number)) + bytes(size - 2) for number in range(count)]
        plain = read_answer(message(qtype, *addresses, extra=extra), SECTION[qtype], qtype)
        assert plain is not None
        assert [packed for packed, _ in plain.teaches] == addresses
    one = bytes((32,)) * size
    for head in (b"\1\2\x85\x80", b"\1\2\x81\xa0", b"\1\2\x80\x00"):  # authoritative, authentic, no recursion
        assert read_answer(message(qtype, one, head=head), SECTION[qtype], qtype) is not None


@pytest.mark.parametrize(
    "data",
    [
        message(A, b"\1\2\3\4", head=b"\1\2\x01\x80"),  # a query
        message(A, b"\1\2\3\4", head=b"\1\2\x83\x80"),  # truncated
        message(A, b"\1\2\3\4", head=b"\1\2\x81\x83"),  # NXDOMAIN
        message(A, b"\1\2\3\4", b"\1\2\3\4"),  # twice the same
        message(A, b"\1\2\3\4", pointer=0xC010),  # of a name above
        message(A, b"\1\2\3\4", ttl=DAY + 1),
        message(A, b"\1\2\3\4", rclass=3),
        message(A, b"\1\2\3\4").replace(b"\0\4\1\2", b"\0\3\1\2"),  # an address of three octets
        message(A, b"\1\2\3\4", kind=28),
        message(A, b"\1\2\3\4", counts=(2, 0, 0)),
        message(A, b"\1\2\3\4", counts=(1, 1, 0)),
        message(A, b"\1\2\3\4")[:-1],
        message(A),
        message(A, b"\1\2\3\4", extra=OPT[:5] + b"\1" + OPT[6:]),  # BADVERS and the like
        message(A, b"\1\2\3\4", extra=OPT[:-1]),
        message(A, b"\1\2\3\4", extra=OPT[:3]),
        message(A, *[bytes((1, 2, 3, number)) for number in range(MOST + 1)]),
        b"",
    ],
)
def test_the_rest_is_left_to_the_careful_reader(data: bytes) -> None:
    assert read_answer(data, SECTION[A], A) is None


def test_e7_a_mapped_address_is_left_to_the_careful_reader() -> None:
    mapped = bytes(10) + b"\xff\xff\1\2\3\4"
    assert read_answer(message(AAAA, mapped), SECTION[AAAA], AAAA) is None
    assert read_answer(message(AAAA, b" " * 16, mapped), SECTION[AAAA], AAAA) is None


def test_another_question_s_answer_is_not_read() -> None:
    assert read_answer(message(A, b"\1\2\3\4"), SECTION[AAAA], AAAA) is None
    assert read_answer(message(A, b"\1\2\3\4"), SECTION[A].replace(b"api", b"aPi"), A) is None


@given(
    st.lists(FOUR, min_size=1, max_size=MOST, unique=True), st.integers(0, 600), st.integers(0, 400),
    st.sampled_from([None, 512, 1232]), st.sampled_from([100, 512, 1232]),
)  # fmt: skip
def test_what_is_kept_is_served_as_what_is_rendered(
    addresses: list[bytes], ttl: int, age: int, edns: int | None, limit: int
) -> None:
    plain = read_answer(message(A, *addresses, ttl=ttl), SECTION[A], A)
    assert plain is not None
    asked = query(NAME.upper(), edns=edns)
    rendered = wire.render(NAME, plain.answer(NAME, A).answers)
    assert plain.serve(asked, age, limit) == rendered.serve(asked, age, limit)


# -- questions -----------------------------------------------------------------------------------------------------
WORDS = ("a", "b", "WEB", "bad", "api", "x1-_", "-", "deep", "x", "example", "com", "org", "net", "arpa", "resolver")
LABELS = st.sampled_from((*WORDS, "use-application-dns", "_dns", "c" * 63)).map(str.encode) | st.binary(
    min_size=1, max_size=3
)
LONG = ".".join(["d" * 60] * 3) + ".example.com"
KNOWN = ["example.com", "a.example.org", "deep.example.com", "x.deep.example.com", "net", "b.b.b.example.com"]
PARENTS = st.sampled_from(
    [*KNOWN, LONG, *["Example.COM", "example.org", "arpa", "resolver.arpa", "use-application-dns.net", "example.net"]]
)


@st.composite
def queries(draw: st.DrawFn) -> bytes:
    """A client's message; mostly one that is all right."""
    labels = draw(st.lists(LABELS, min_size=1, max_size=3)) + draw(PARENTS).encode().split(b".")
    name = b"".join(bytes((len(label),)) + label for label in labels) + b"\0"
    flags = draw(st.sampled_from([0x0100, 0x0100, 0x0120, 0x0110, 0, 0x0930, 0x8100, 0x0800, 0xFFFF]))
    opt = draw(st.sampled_from([b"", b"", OPT, OPT[:3] + b"\0\x10" + OPT[5:], OPT[:6] + b"\1" + OPT[7:], OPT + b"\0"]))
    if draw(st.integers(0, 5)) == 0:
        opt = OPT[:-2] + b"\0\4\0\x0a\0\0"
    counts = draw(st.sampled_from([(1, 0, 0)] * 8 + [(0, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1)]))
    numbers = (counts[0], counts[1], counts[2], 1) if opt else (*counts, 0)
    qtype = draw(st.sampled_from([1, 1, 1, 28, 16, 255, 0x0141]))
    rclass = draw(st.sampled_from([1, 1, 1, 1, 3]))
    data = struct.pack("!HHHHHH", draw(st.integers(0, 65535)), flags, *numbers) + name
    data += struct.pack("!HH", qtype, rclass) + opt
    odd = draw(st.integers(0, 8))
    if odd == 0:
        data = data[: draw(st.integers(0, len(data)))]
    elif odd == 1:
        at = draw(st.integers(0, len(data) - 1))
        data = data[:at] + draw(st.binary(min_size=1, max_size=1)) + data[at + 1 :]
    return data


@given(st.lists(queries(), min_size=1, max_size=12), st.integers(0, 3))
def test_e8_a_question_goes_the_same_way_straight_and_carefully(asked: list[bytes], again: int) -> None:
    one, other = Side(), Side()
    for parent in (
        "example.com",
        "a.example.org",
        "deep.example.com",
        "x.deep.example.com",
        "net",
        "b.b.b.example.com",
    ):
        for edns in (None, 1232):  # shapes and parents that are known are what goes straight
            one.straight(ask_bytes(f"warm.{parent}", edns=edns))
            one.taken()
    for data in asked * (again + 1):
        assert one.straight(data) == other.careful(data)


@given(
    st.lists(FOUR, min_size=1, max_size=MOST, unique=True),
    st.integers(0, 400), st.integers(0, 400).map(lambda tenths: tenths / 10 * 10.1),
    st.sampled_from([None, 512, 1232]), st.sampled_from(["api", "API", "aPi"]), st.booleans(),
)  # fmt: skip
def test_what_is_kept_is_served_straight_as_it_is_carefully(
    addresses: list[bytes], ttl: int, age: float, edns: int | None, label: str, is_plain: bool
) -> None:
    one, other = Side(), Side()
    plain = read_answer(message(A, *addresses, ttl=ttl), SECTION[A], A)
    assert plain is not None
    kept = plain if is_plain else wire.render(NAME, plain.answer(NAME, A).answers)
    one.straight(ask_bytes("warm.example.com", edns=edns))
    for side in (one, other):
        side.taken()
        side.service.interceptor.keep(NAME, A, kept, ttl, 1000.0 - age)
    data = ask_bytes(f"{label}.example.com", edns=edns)
    assert one.straight(data) == other.careful(data)
    assert one.service._same.known == other.service._same.known


@pytest.mark.parametrize(
    ("first", "second"),
    [("one.example.com", "TWO.Example.com"), ("web.example.com", "web.example.com"), ("Example.net", "Example.net")],
)
def test_the_second_of_a_kind_goes_straight(monkeypatch: pytest.MonkeyPatch, first: str, second: str) -> None:
    side = Side()
    assert side.straight(ask_bytes(first))[0]

    def refuse(_: bytes) -> None:
        raise AssertionError("read carefully")

    waiting: list[Waiter] = []

    def ask(*arguments: Any) -> bool:
        waiting.append(arguments[2])
        return True

    monkeypatch.setattr(wire, "parse_query", refuse)
    monkeypatch.setattr(side.noted, "ask", ask)
    side.straight(ask_bytes(second, ident=7))
    (waiter,) = waiting
    assert Waiter(*waiter).shape is not None


@pytest.mark.parametrize("length", [64, 100, 0xC0])
def test_a_label_that_is_none_is_not_taken_for_one(length: int) -> None:
    one, other = Side(), Side()
    one.straight(ask_bytes("one.example.com", edns=None))
    data = ask_bytes("x.example.com", edns=None)
    data = data[:12] + bytes((length,)) + b"a" * length + data[14:]
    assert one.straight(data) == other.careful(data)
    assert other.taken() == ([], [], [])


@pytest.mark.parametrize(
    ("known", "asked"),
    [
        ("x.net", "use-application-dns.net"),
        ("x.arpa", "resolver.arpa"),
        ("x.resolver.arpa", "y.resolver.arpa"),
        ("x.arpa", "_dns.resolver.arpa"),
        ("x.example.com", "a b.example.com"),
        ("x.example.com", "a\\.b.example.com"),
        ("x.example.com", "\xe4.example.com"),
        ("x.example.com", "bad.example.com"),
        ("x.example.com", "web.example.com"),
        ("x.example.com", "y.deep.example.com"),
    ],
)
def test_what_holds_for_a_parent_is_not_taken_to_hold_for_every_name_below(known: str, asked: str) -> None:
    one, other = Side(), Side()
    one.straight(ask_bytes(known, edns=None))
    labels = [label.replace("\\", "\0").encode("latin-1") for label in asked.split(".")]
    name = b"".join(bytes((len(label),)) + label for label in labels)
    data = b"\0\1\1\0\0\1" + bytes(6) + name + b"\0\0\1\0\1"
    one.taken()
    assert one.straight(data) == other.careful(data)


def test_a_name_that_is_too_long_is_refused_however_well_its_parent_is_known() -> None:
    one, other = Side(), Side()
    for label, taken in ((50, True), (58, True), (59, False), (63, False)):
        data = b"".join(bytes((len(part),)) + part for part in [b"e" * label, *LONG.encode().split(b".")])
        data = b"\0\1\1\0\0\1" + bytes(6) + data + b"\0\0\1\0\1"
        found = one.straight(data)
        assert found == other.careful(data)
        assert bool(found[0]) is taken


def test_e14_shapes_and_parents_are_bounded() -> None:
    side = Side()
    for number in range(5000):
        side.straight(ask_bytes(f"a.n{number}.example.com", edns=512 + number))
    assert len(side.service.interceptor.ways) <= WAYS
    asked = query()
    assert shape(ask_bytes(), asked, 512) is not None
    assert shape(ask_bytes()[:-2] + b"\0\4\0\x0a\0\0", asked, 512) is None  # options differ from query to query


def test_e14_spellings_of_exact_names_are_bounded() -> None:
    side = Side()
    for number in range(WAYS + 200):
        letters = "".join(
            letter.upper() if number >> place & 1 else letter for place, letter in enumerate("webexamplecom")
        )
        side.straight(ask_bytes(f"{letters[:3]}.{letters[3:10]}.{letters[10:]}"))
    assert 0 < len(side.service.interceptor.named) <= WAYS


def test_e10_an_exact_name_that_hides_another_is_paid_for_each_time() -> None:
    """`api.example.com` with a search domain behind it counts as `api.example.com`, whoever names the whole."""
    rules = policy(allow("*.example.com"), allow("api.example.com.svc.local"), allow("api.svc.local"))
    judge = Interceptor(rules, 1, lambda _: None, Budget(Limits(octets=1000), ("svc.local",)))
    for name in ("api.example.com.svc.local", "api.svc.local"):
        data, asked = ask_bytes(name), query(name)
        judge.learn_way(data, asked, 1232, rules.decide_name(name).ports, asked.question)
    assert [key[0] for key, *_ in judge.named.values()] == ["api.svc.local"]


def test_octets_of_opt_that_look_like_letters_are_not_confused() -> None:
    side = Side()
    for size in (0x0261, 0x0241, 0x0261, 0x0241):  # 609 and 577
        ((*_, limit, _),) = side.straight(ask_bytes(f"a{size}.example.com", edns=size))[0]
        assert limit == size


def test_what_is_remembered_of_records_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(straight, "RECORDS", 8)
    for ttl in range(40):
        assert read_answer(message(A, b"\1\2\3\4", ttl=ttl, extra=OPT), SECTION[A], A) is not None
    assert 0 < len(straight._ADDRESSES) <= 8


# -- all of it -----------------------------------------------------------------------------------------------------
@pytest.fixture
def house() -> Iterator[House]:
    built = House()
    yield built
    built.close()


def test_e11_an_answer_to_a_question_of_another_policy_is_decided_carefully(house: House) -> None:
    house.resolve("warm.example.com")
    house.ask("api.example.com")
    house.change(allow("api.example.com", ports=[443], protocol="tcp"))
    house.resolver.answer(house.resolver.one())
    assert house.one().rcode == 0
    assert [str(ports) for _, what in house.events if _ == "write" for _, ports in what][-1] == "tcp 443"


def test_e11_the_second_of_two_answers_waits_for_the_first_one_s_write(house: House) -> None:
    house.resolve("warm.example.com", "198.51.100.1")
    for name in ("one", "two"):
        house.ask(f"{name}.example.com")
    house.fault = OSError("no")
    for asked in house.resolver.take():
        house.resolver.answer(asked, "198.51.100.2")
    assert [reply.rcode for reply in house.replies()] == [2, 2]
    assert len(house.leases) == 1


def test_e7_an_address_that_may_not_be_taught_is_found_on_the_straight_path_too(house: House) -> None:
    house.resolve("warm.example.com")
    for address in ("169.254.169.254", "127.0.0.1", "10.0.0.1"):
        reply = house.resolve("api.example.com", address)
        assert reply.records == ()
        assert reply.ede is not None
    assert house.written() == ["198.51.100.7"]


def test_a_client_with_options_and_one_without_share_an_ordinary_answer(house: House) -> None:
    house.resolve("warm.example.com")
    house.ask("api.example.com", ident=1)
    data = ask_bytes("api.example.com", ident=2)
    house.client.send(data[:-2] + b"\0\4\0\x0a\0\0")
    house.clock.settle()
    asked = house.resolver.one()
    house.resolver.send(asked, reply_to(asked))
    assert {reply.id: [record[3] for record in reply.records] for reply in house.replies()} == {
        1: ["198.51.100.7"], 2: ["198.51.100.7"],
    }  # fmt: skip


def test_a_name_in_the_cache_is_not_asked_again_by_another_shape_of_query(house: House) -> None:
    house.ask("warm.example.com", edns=600)
    house.resolver.answer(house.resolver.one())
    house.replies()
    house.resolve("api.example.com")
    house.ask("api.example.com", edns=600)
    assert house.one().records[0][3] == "198.51.100.7"
    assert house.resolver.take() == []


def test_e14_too_much_in_flight_costs_the_oldest_on_the_straight_path_too(house: House) -> None:
    house.resolve("warm.example.com")
    for number in range(PENDING):
        house.ask(f"n{number}.example.com")
    assert house.replies() == []
    house.ask("api.example.com")
    assert house.one().rcode == 2
    assert ("n0.example.com", A) not in house.stage.upstream._flying
    assert ("api.example.com", A) in house.stage.upstream._flying
    house.ask("bad.example.com")
    assert house.one().rcode == NXDOMAIN
