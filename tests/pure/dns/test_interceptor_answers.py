"""Answers on their way to the client: what is passed on, what is learned, what stops a chain."""

from __future__ import annotations

import ipaddress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress.dns.answer import Answer
from egress.dns.interceptor import BLOCKED, INVALID_DATA, LINKS, Denial, Interceptor, Outcome
from egress.dns.wire import Record, cname_target, encode_name
from policies.ports import EVERYTHING, PortSet
from tests.pure.dns.plays import (
    AAAA,
    CNAME,
    DNAME,
    HTTPS,
    MX,
    NOERROR,
    NXDOMAIN,
    SERVFAIL,
    TXT,
    A,
    address,
    allow,
    answer,
    cname,
    deny,
    interceptor,
    query,
    read,
    soa,
)  # fmt: skip

NAME = "api.example.com"
ALLOWED = (allow("*.example.com"),)
GOOD = address(NAME, "198.51.100.7", 300)


def on(*records: Record, place: Interceptor | None = None, qtype: int = A, rcode: int = 0) -> Outcome:
    return (place or interceptor(*ALLOWED)).on_answer(NAME, qtype, answer(*records, rcode=rcode))


def taught(outcome: Outcome) -> set[str]:
    return {str(ipaddress.ip_address(packed)) for packed, _ in outcome.teaches}


def nothing_learned(outcome: Outcome) -> bool:
    return not outcome.teaches and not any(record.rtype in (A, AAAA) for record in outcome.records)


# -- plain answers -------------------------------------------------------------------------------------------------
def test_an_ordinary_address_is_passed_on_and_learned_on_the_rules_ports() -> None:
    outcome = on(GOOD, address(NAME, "198.51.100.8", 60))
    assert (outcome.rcode, len(outcome.records), outcome.ttl) == (NOERROR, 2, 60)
    assert outcome.teaches == ((b"\xc6\x33\x64\x07", 300), (b"\xc6\x33\x64\x08", 60))
    assert outcome.ports == EVERYTHING
    assert on(GOOD, place=interceptor(allow(NAME, ports=[443], protocol="tcp"))).ports == PortSet(
        ((443, 443),), (), False
    )


def test_a_denied_name_teaches_nothing_even_if_it_was_asked_under_another_policy() -> None:
    outcome = on(GOOD, place=interceptor(deny(NAME), allow("*")))
    assert nothing_learned(outcome)
    assert outcome.denied == f'{NAME}: rule egress[0] "deny {NAME}"'
    assert outcome.rule == "egress[0]"


def test_the_same_address_twice_is_one_with_the_lower_ttl() -> None:
    outcome = on(GOOD, address(NAME, "198.51.100.7", 20), address(NAME, "198.51.100.8", 50))
    assert [(record.rdata[-1], record.ttl) for record in outcome.records] == [(7, 20), (8, 50)]
    assert len(outcome.teaches) == 2


def test_e8_records_of_another_owner_teach_nothing() -> None:
    assert taught(on(GOOD, address("other.example.com", "198.51.100.66"))) == {"198.51.100.7"}
    assert nothing_learned(on(address("other.example.com", "198.51.100.66")))
    assert nothing_learned(on(address("", "198.51.100.66")))


def test_e8_records_of_another_type_teach_nothing() -> None:
    outcome = on(GOOD, address(NAME, "2001:db8::7"), Record(NAME, TXT, 5, b"\1x"))
    assert outcome.records == (GOOD,)
    assert taught(outcome) == {"198.51.100.7"}
    assert nothing_learned(on(address(NAME, "2001:db8::7")))
    for qtype in (TXT, MX, HTTPS, CNAME):
        assert nothing_learned(on(GOOD, qtype=qtype)), qtype


@pytest.mark.parametrize("rcode", [1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 15, 16, 23, 4095])
def test_nothing_is_learned_from_a_failure(rcode: int) -> None:
    outcome = on(GOOD, rcode=rcode)
    assert (outcome.rcode, outcome.records, outcome.teaches, outcome.ttl) == (SERVFAIL, (), (), 0)


def test_nothing_is_learned_from_nxdomain_with_addresses() -> None:
    outcome = on(GOOD, rcode=NXDOMAIN)
    assert (outcome.rcode, outcome.records, outcome.teaches) == (NXDOMAIN, (), ())
    outcome = on(cname(NAME, "x.example.net"), address("x.example.net", "198.51.100.7"), rcode=NXDOMAIN)
    assert outcome.rcode == NXDOMAIN
    assert nothing_learned(outcome)


def test_nothing_is_learned_from_a_truncated_answer() -> None:
    outcome = interceptor(*ALLOWED).on_answer(NAME, A, Answer(7, 0, True, (GOOD,)))
    assert (outcome.rcode, outcome.records, outcome.teaches) == (SERVFAIL, (), ())


# -- chains --------------------------------------------------------------------------------------------------------
def chain_of(count: int, end: str = "198.51.100.7") -> list[Record]:
    """`count` CNAMEs from NAME, and the address at their end."""
    names = [NAME, *(f"l{n}.cdn.example.net" for n in range(count))]
    return [*(cname(a, b) for a, b in pairwise(names)), address(names[-1], end)]


def test_a_chain_may_lead_through_names_without_a_rule() -> None:
    outcome = on(*chain_of(3))
    assert [record.rtype for record in outcome.records] == [CNAME, CNAME, CNAME, A]
    assert taught(outcome) == {"198.51.100.7"}
    assert outcome.chain == ("l0.cdn.example.net", "l1.cdn.example.net", "l2.cdn.example.net")


def test_the_order_of_the_records_does_not_matter() -> None:
    outcome = on(*reversed(chain_of(4)))
    assert [record.rtype for record in outcome.records] == [CNAME] * 4 + [A]
    assert taught(outcome) == {"198.51.100.7"}


def test_links_may_have_odd_names() -> None:
    odd = r"a\032b.\255.example.net"
    assert taught(on(cname(NAME, odd), address(odd, "198.51.100.7"))) == {"198.51.100.7"}


@pytest.mark.parametrize("place", range(4))
def test_e8_an_explicit_deny_of_a_link_stops_the_chain_wherever_it_stands(place: int) -> None:
    told: list[Denial] = []
    rules = (allow("*.example.com"), deny(f"l{place}.cdn.example.net", comment="tracker"))
    judge = interceptor(*rules, told=told)
    outcome = on(*chain_of(4), place=judge)
    assert nothing_learned(outcome)
    reply = read(judge.deny_link(query(), outcome))
    assert (reply.rcode, reply.records) == (NXDOMAIN, ())
    assert reply.authority
    link = f"l{place}.cdn.example.net"
    assert reply.ede == (BLOCKED, f'{NAME}: leads to {link}: rule egress[1] "deny {link}" (tracker)')
    assert [(denial.name, denial.rule) for denial in told] == [(NAME, "egress[1]")]


@pytest.mark.parametrize("rules", [(deny("*"),), (allow("*.example.com"), deny("*")), (allow(NAME), deny("*"))])
def test_e8_the_target_any_does_not_count_for_links(rules: tuple[dict[str, object], ...]) -> None:
    outcome = on(*chain_of(2), place=interceptor(allow(NAME), *rules))
    assert taught(outcome) == {"198.51.100.7"}
    assert on(*chain_of(2), place=interceptor(deny("*.cdn.example.net"), allow("*"))).denied


def test_an_allow_of_the_link_before_its_deny_wins_there_too() -> None:
    outcome = on(*chain_of(2), place=interceptor(allow(NAME), allow("*.cdn.example.net"), deny("l0.cdn.example.net")))
    assert taught(outcome) == {"198.51.100.7"}


def test_e8_a_deny_of_some_ports_takes_them_from_the_chain() -> None:
    rules = (allow("*.example.com", ports=[25, 443]), deny("l1.cdn.example.net", ports=[25]))
    outcome = on(*chain_of(3), place=interceptor(*rules))
    assert taught(outcome) == {"198.51.100.7"}
    assert outcome.ports == PortSet(((443, 443),), ((443, 443),), False)


def test_e8_denies_of_some_ports_add_up_along_the_chain() -> None:
    rules = (
        allow("*.example.com", ports=[25, 80, 443]), deny("l0.cdn.example.net", ports=[25]),
        deny("l2.cdn.example.net", ports=[80]),
    )  # fmt: skip
    outcome = on(*chain_of(3), place=interceptor(*rules))
    assert outcome.ports == PortSet(((443, 443),), ((443, 443),), False)
    more = interceptor(*rules, deny("l1.cdn.example.net", ports=[443]))
    stopped = on(*chain_of(3), place=more)
    assert nothing_learned(stopped)
    assert "leads to l2.cdn.example.net" in stopped.denied, "the link that took the last port away"


def test_a_deny_of_ports_that_the_name_does_not_open_changes_nothing() -> None:
    rules = (allow("*.example.com", ports=[443]), deny("l0.cdn.example.net", ports=[25]))
    assert on(*chain_of(1), place=interceptor(*rules)).ports == PortSet(((443, 443),), ((443, 443),), False)


def test_the_port_class_of_a_chain_is_one_that_the_ruleset_has() -> None:
    rules = [allow("*.example.com")]
    rules += [deny(f"l{n}.cdn.example.net", ports=[1000 + n]) for n in range(12)]
    judge = interceptor(*rules)
    outcome = on(*chain_of(12), place=judge)
    assert outcome.denied or outcome.ports in judge.policy.port_classes()


@pytest.mark.parametrize(("links", "passes"), [(1, True), (LINKS, True), (LINKS + 1, False), (40, False)])
def test_sixteen_links_and_no_more(links: int, passes: bool) -> None:
    outcome = on(*chain_of(links))
    assert (outcome.rcode, bool(outcome.teaches)) == ((NOERROR, True) if passes else (SERVFAIL, False))
    assert outcome.records or outcome.ede == INVALID_DATA


@pytest.mark.parametrize(
    "targets",
    [
        (NAME,),
        ("a.example.net", NAME),
        ("a.example.net", "a.example.net"),
        ("a.example.net", "b.example.net", "a.example.net"),
    ],
)
@pytest.mark.parametrize("qtype", [A, TXT])
def test_loops_are_servfail(targets: tuple[str, ...], qtype: int) -> None:
    owners = (NAME, *targets)
    links = [cname(a, b) for a, b in zip(owners, targets, strict=False)]
    outcome = on(*links, GOOD, address("a.example.net", "198.51.100.7"), qtype=qtype)
    assert (outcome.rcode, outcome.records, outcome.teaches) == (SERVFAIL, (), ())


def test_the_same_cname_twice_is_one_with_the_lower_ttl() -> None:
    outcome = on(
        cname(NAME, "x.example.net", 300), cname(NAME, "x.example.net", 10), address("x.example.net", "198.51.100.7")
    )
    assert [(record.rtype, record.ttl) for record in outcome.records] == [(CNAME, 10), (A, 300)]
    assert (outcome.ttl, taught(outcome)) == (10, {"198.51.100.7"})


@pytest.mark.parametrize("where", [NAME, "x.example.net"])
def test_two_different_cnames_at_one_name_are_servfail(where: str) -> None:
    outcome = on(
        cname(NAME, "x.example.net"), cname(where, "y.example.net"), address("x.example.net", "198.51.100.7"),
        address("y.example.net", "198.51.100.8"), *([cname("x.example.net", "z.example.net")] if where != NAME else []),
    )  # fmt: skip
    assert (outcome.rcode, outcome.records, outcome.teaches) == (SERVFAIL, (), ())


def test_two_different_cnames_beside_the_chain_do_not_matter() -> None:
    aside = (cname("o.example.net", "p.example.net"), cname("o.example.net", "q.example.net"))
    assert taught(on(*chain_of(1), *aside)) == {"198.51.100.7"}


def test_e8_records_beside_a_cname_teach_nothing() -> None:
    outcome = on(cname(NAME, "x.example.net"), address(NAME, "198.51.100.66"), address("x.example.net", "198.51.100.7"))
    assert taught(outcome) == {"198.51.100.7"}
    assert all(record.rdata != b"\xc6\x33\x64\x42" for record in outcome.records)


def test_e8_records_beside_the_chain_teach_nothing() -> None:
    outcome = on(
        *chain_of(2), address("l0.cdn.example.net", "198.51.100.66"), address("cdn.example.net", "198.51.100.67")
    )
    assert taught(outcome) == {"198.51.100.7"}
    assert nothing_learned(on(cname("other.example.com", "x.example.net"), address("x.example.net", "198.51.100.66")))


def test_e8_of_a_dname_only_the_cname_made_from_it_counts() -> None:
    dname = Record("example.com", DNAME, 300, encode_name("example.net"))
    assert nothing_learned(on(dname, address("api.example.net", "198.51.100.7")))
    outcome = on(dname, cname(NAME, "api.example.net"), address("api.example.net", "198.51.100.7"))
    assert taught(outcome) == {"198.51.100.7"}
    assert [record.rtype for record in outcome.records] == [CNAME, A]
    own = Record(NAME, DNAME, 300, encode_name("example.net"))
    assert nothing_learned(on(own, address("example.net", "198.51.100.7")))


def test_a_question_for_a_cname_gets_the_first_link_only() -> None:
    outcome = on(*chain_of(3), qtype=CNAME)
    assert [(record.owner, record.rtype) for record in outcome.records] == [(NAME, CNAME)]
    assert not outcome.teaches
    assert on(*chain_of(3), qtype=CNAME, place=interceptor(*ALLOWED, deny("l0.cdn.example.net"))).denied


def test_a_chain_without_an_end_is_nodata_behind_its_links() -> None:
    outcome = interceptor(*ALLOWED).on_answer(
        NAME, AAAA, answer(cname(NAME, "x.example.net", 40), no=soa("example.net", 30))
    )
    assert (outcome.rcode, [record.rtype for record in outcome.records], outcome.ttl) == (NOERROR, [CNAME], 30)
    assert [record.owner for record in outcome.authority] == ["example.net"]


# -- special addresses ---------------------------------------------------------------------------------------------
NEVER = [
    "127.0.0.1", "127.255.255.255", "::1", "0.0.0.0", "0.1.2.3", "::", "224.0.0.1", "239.255.255.250", "ff02::1",
    "240.0.0.1", "255.255.255.255", "169.254.0.1", "169.254.169.254", "fe80::1", "fd00:ec2::254", "fd20:ce::254",
    "fd00:42::42", "100.100.100.200", "168.63.129.16", "192.0.0.192", "::ffff:127.0.0.1", "::ffff:169.254.169.254",
    "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2002:a9fe:a9fe::1", "2002:e000:1::",
]  # fmt: skip
INTERNAL = [
    "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1", "100.127.255.255", "fc00::1", "fdff::1",
    "fec0::1", "198.18.0.1", "198.19.255.255", "2001:2::1", "192.0.0.1", "100::1", "64:ff9b:1::1", "2001::1",
    "::10.1.2.3", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::",
]  # fmt: skip
ORDINARY = [
    "198.51.100.7", "192.0.2.1", "203.0.113.9", "8.8.8.8", "172.32.0.1", "100.128.0.1", "192.0.1.1", "198.20.0.1",
    "2001:db8::1", "2600::1", "::ffff:198.51.100.7", "64:ff9b::c633:6407", "2002:c633:6407::1", "2001:3::1",
]  # fmt: skip


def teaching(text: str, judge: Interceptor) -> Outcome:
    record = address(NAME, text)
    return judge.on_answer(NAME, record.rtype, answer(record))


@pytest.mark.parametrize("default", ["deny", "allow"])
@pytest.mark.parametrize("text", NEVER)
def test_e7_special_addresses_are_stripped_under_any_default(text: str, default: str) -> None:
    outcome = teaching(text, interceptor(*ALLOWED, default=default))
    assert (outcome.rcode, outcome.records, outcome.teaches, outcome.ede) == (NOERROR, (), (), BLOCKED)
    assert outcome.note.startswith(f"{NAME}: ")


@pytest.mark.parametrize("text", INTERNAL)
def test_e7_internal_addresses_are_stripped_under_default_deny_only(text: str) -> None:
    outcome = teaching(text, interceptor(*ALLOWED))
    assert (outcome.records, outcome.teaches, outcome.ede) == ((), (), BLOCKED)
    assert len(teaching(text, interceptor(*ALLOWED, default="allow")).teaches) == 1


@pytest.mark.parametrize("default", ["deny", "allow"])
@pytest.mark.parametrize("text", ORDINARY)
def test_e7_ordinary_addresses_are_learned_mapped_ones_as_ipv4(text: str, default: str) -> None:
    outcome = teaching(text, interceptor(*ALLOWED, default=default))
    assert len(outcome.records) == 1
    expected = address(NAME, text.removeprefix("::ffff:")).rdata
    assert outcome.teaches == ((expected, 300),)


def test_e7_only_the_special_ones_are_removed() -> None:
    records = (address(NAME, "10.0.0.1"), GOOD, address(NAME, "127.0.0.1", 5))
    outcome = on(*records)
    assert (outcome.records, taught(outcome), outcome.ttl) == ((GOOD,), {"198.51.100.7"}, 300)


def test_e7_behind_a_cname_nothing_left_is_nodata_without_the_links() -> None:
    outcome = on(*chain_of(2, "169.254.169.254"))
    assert (outcome.rcode, outcome.records, outcome.teaches, outcome.ede) == (NOERROR, (), (), BLOCKED)
    assert "169.254.169.254" in outcome.note


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("10.0.0.5", "10.0.0.0/8"),
        ("169.254.169.254", "169.254.169.254"),
        ("fd00::5", "fd00::/8"),
        ("127.0.0.1", "127.0.0.1"),
    ],
)
def test_e7_an_address_rule_keeps_the_address_but_the_name_does_not_widen_it(text: str, target: str) -> None:
    outcome = teaching(text, interceptor(*ALLOWED, allow(target, ports=[443])))
    assert (len(outcome.records), outcome.teaches, outcome.ede) == (1, (), None)


@pytest.mark.parametrize(
    ("text", "target"), [("169.254.169.254", "0.0.0.0/0"), ("fe80::1", "::/0"), ("168.63.129.16", "168.0.0.0/8")]
)
def test_e7_a_broad_prefix_does_not_open_metadata(text: str, target: str) -> None:
    outcome = teaching(text, interceptor(*ALLOWED, allow(target)))
    assert (outcome.records, outcome.ede) == ((), BLOCKED)


# -- services ------------------------------------------------------------------------------------------------------
def test_e9_hints_and_ech_are_gone_and_malformed_records_too() -> None:
    params = b"\0\1\0\3\2h2" + b"\0\4\0\4\xc6\x33\x64\x07" + b"\0\5\0\2ec"
    good = Record(NAME, HTTPS, 60, b"\0\1\0" + params)
    bad = Record(NAME, HTTPS, 60, b"\0\1\0\0\1\0\xffx")
    outcome = on(good, bad, qtype=HTTPS)
    assert [record.rdata for record in outcome.records] == [b"\0\1\0\0\1\0\3\2h2"]
    assert on(bad, qtype=HTTPS).records == ()


def test_an_svcb_alias_to_a_denied_name_passes() -> None:
    alias = Record(NAME, HTTPS, 60, b"\0\0" + encode_name("bad.example.com"))
    assert on(alias, qtype=HTTPS, place=interceptor(deny("bad.example.com"), *ALLOWED)).records == (alias,)


# -- anything ------------------------------------------------------------------------------------------------------
NAMES = st.sampled_from([NAME, "a.example.net", "b.example.net", "bad.example.net", "other.example.com", ""])
RECORDS = st.one_of(
    st.builds(cname, NAMES, NAMES, st.integers(0, 90)),
    st.builds(
        address, NAMES, st.sampled_from(["198.51.100.7", "10.0.0.1", "127.0.0.1", "2001:db8::1"]), st.integers(0, 90)
    ),
    st.builds(Record, NAMES, st.sampled_from([TXT, MX, HTTPS, DNAME]), st.integers(0, 90), st.binary(max_size=20)),
)


@given(st.lists(RECORDS, max_size=12), st.sampled_from([A, AAAA, CNAME, TXT, HTTPS]), st.sampled_from([0, 0, 0, 2, 3]))
def test_e8_whatever_the_records_only_the_chain_teaches(records: list[Record], qtype: int, rcode: int) -> None:
    judge = interceptor(*ALLOWED, deny("bad.example.net"))
    outcome = judge.on_answer(NAME, qtype, answer(*records, rcode=rcode))
    reach = {NAME}
    for _ in records:
        reach |= {cname_target(r.rdata) for r in records if r.rtype == CNAME and r.owner in reach}
    for packed, _ in outcome.teaches:
        assert rcode == NOERROR
        assert qtype in (A, AAAA)
        assert packed in (b"\xc6\x33\x64\x07", address(NAME, "2001:db8::1").rdata)
        assert any(r.rdata == packed and r.owner in reach and r.rtype == qtype for r in records)
    assert "bad.example.net" not in outcome.chain or not outcome.teaches
    assert all(record.owner in reach for record in outcome.records)
    assert outcome.ttl <= min((record.ttl for record in outcome.records), default=300)
