"""Queries at the door: event in, outcome out. What is denied, answered at once, or asked."""

from __future__ import annotations

import pytest

from egress.dns import wire
from egress.dns.interceptor import DENIED_TTL, USEFUL, Ask, Denial, Interceptor
from egress.dns.wire import Query, Record
from tests.pure.dns.plays import (
    BLOCKED,
    CNAME,
    NOERROR,
    NXDOMAIN,
    SOA,
    A,
    Reply,
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

RULES = (deny("bad.example.com"), allow("*.example.com", comment="our own"))


def reply(outcome: bytes | Ask) -> Reply:
    assert isinstance(outcome, bytes)
    return read(outcome)


# -- denied names --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["bad.example.com", "BAD.Example.COM", "example.com", "example.org", "com", ""])
def test_a_denied_name_is_nxdomain_for_a_few_seconds_with_the_reason(name: str) -> None:
    told: list[Denial] = []
    got = reply(interceptor(*RULES, told=told).on_query(query(name), 0.0, 1232))
    assert (got.rcode, got.records) == (NXDOMAIN, ())
    ((owner, rtype, ttl),) = got.authority
    assert (rtype, ttl) == (SOA, DENIED_TTL)
    assert name.lower().endswith(owner)
    assert got.ede is not None
    assert got.ede[0] == BLOCKED
    assert name.lower() in got.ede[1]
    assert [(denial.name, denial.qtype) for denial in told] == [(name.lower(), A)]


def test_the_ede_names_the_name_the_rule_and_its_comment() -> None:
    told: list[Denial] = []
    place = interceptor(deny("bad.example.com", comment="leaks"), allow("*"), told=told)
    got = reply(place.on_query(query("bad.example.com"), 0.0, 1232))
    assert got.ede == (BLOCKED, 'bad.example.com: rule egress[0] "deny bad.example.com" (leaks)')
    assert told[0].rule == "egress[0]"
    assert reply(interceptor().on_query(query(), 0.0, 1232)).ede == (BLOCKED, "api.example.com: default deny")


def test_no_ede_for_a_client_that_sent_no_edns() -> None:
    got = reply(interceptor().on_query(query(edns=None), 0.0, 512))
    assert (got.rcode, got.edns, got.ede) == (NXDOMAIN, False, None)
    assert got.authority


def test_the_case_of_the_question_comes_back() -> None:
    assert reply(interceptor().on_query(query("aPi.eXample.Com"), 0.0, 1232)).question == "aPi.eXample.Com."


def test_a_name_denied_on_every_port_is_a_denied_name_and_on_some_is_not() -> None:
    some = interceptor(deny("api.example.com", ports=[25]), allow("*"))
    assert isinstance(some.on_query(query(), 0.0, 1232), Ask)
    every = interceptor(deny("api.example.com", ports=["1-65535"]), allow("*"))
    assert reply(every.on_query(query(), 0.0, 1232)).rcode == NXDOMAIN
    half = interceptor(deny("api.example.com", protocol="udp"), allow("*"))
    assert isinstance(half.on_query(query(), 0.0, 1232), Ask)


def test_a_wildcard_does_not_match_the_bare_name_and_any_does_not_match_the_root() -> None:
    assert reply(interceptor(allow("*.example.com")).on_query(query("example.com"), 0.0, 1232)).rcode == NXDOMAIN
    assert reply(interceptor(allow("*")).on_query(query(""), 0.0, 1232)).rcode == NXDOMAIN
    assert isinstance(interceptor(default="allow").on_query(query(""), 0.0, 1232), Ask)


@pytest.mark.parametrize("default", ["deny", "allow"])
@pytest.mark.parametrize(
    "labels", [b"\3a b\7example\3com\0", b"\3a.b\7example\3com\0", b"\1\xff\7example\3com\0", b"\1*\7example\3com\0",
               b"\4a\0bc\7example\3com\0", b"\1\\\7example\3com\0", b"\2\n\r\7example\3com\0"],
)  # fmt: skip
def test_e9_odd_octets_are_refused_under_wildcards_too(labels: bytes, default: str) -> None:
    data = b"\0\1\1\0\0\1\0\0\0\0\0\1" + labels + b"\0\1\0\1" + b"\0\0\x29\4\xd0\0\0\0\0\0\0"
    parsed = wire.parse_query(data)
    assert isinstance(parsed, Query)
    told: list[Denial] = []
    outcome = interceptor(allow("*"), allow("*.example.com"), default=default, told=told).on_query(parsed, 0.0, 1232)
    assert isinstance(outcome, bytes)  # dnslib does not read such names
    assert outcome[3] & 15 == NXDOMAIN
    assert b"letters, digits, hyphens and underscores" in outcome
    assert told[0].name.isprintable()
    assert len(told) == 1


@pytest.mark.parametrize(
    "name", ["-a.example.com", "a-.example.com", "_dmarc.example.com", "--.example.com", "1.example.com"]
)
def test_hyphens_at_the_ends_of_labels_and_underscores_are_no_reason_to_refuse(name: str) -> None:
    assert isinstance(interceptor(allow("*.example.com")).on_query(query(name), 0.0, 1232), Ask)


@pytest.mark.parametrize(
    "name", ["_dns.resolver.arpa", "_DNS.Resolver.ARPA", "use-application-dns.net", "Use-Application-DNS.net"]
)
@pytest.mark.parametrize("qtype", [A, 28, 64])
def test_canary_names_do_not_exist_whatever_the_rules(name: str, qtype: int) -> None:
    open_to_all = interceptor(allow(name.lower()), allow("*"), default="allow")
    assert reply(open_to_all.on_query(query(name, qtype), 0.0, 1232)).rcode == NXDOMAIN


@pytest.mark.parametrize(
    "name", ["not-use-application-dns.net", "use-application-dns.net.example.com", "xresolver.arpa"]
)
def test_names_that_look_like_a_canary_are_ordinary(name: str) -> None:
    assert isinstance(interceptor(default="allow").on_query(query(name), 0.0, 1232), Ask)


# -- types ---------------------------------------------------------------------------------------------------------
ASKED = {1, 28, 5, 2, 6, 12, 15, 16, 33, 64, 65, 257, 52, 44, 35}


def test_the_types_that_are_asked_are_those_of_the_contract() -> None:
    assert set(USEFUL) == ASKED


@pytest.mark.parametrize("qtype", sorted({*range(70), 99, 108, 109, *range(249, 260), 32768, 32769, 65280, 65535}))
def test_e9_only_useful_types_are_asked_all_others_are_nodata_with_the_reason(qtype: int) -> None:
    outcome = interceptor(*RULES).on_query(query(qtype=qtype), 0.0, 1232)
    if qtype in ASKED:
        assert outcome == Ask(query(qtype=qtype), interceptor(*RULES).policy.decide_name("api.example.com"))
        return
    got = reply(outcome)
    assert (got.rcode, got.records) == (NOERROR, ())
    assert got.authority[0][1:] == (SOA, DENIED_TTL)
    assert got.ede is not None
    assert got.ede[0] == BLOCKED
    assert "api.example.com" in got.ede[1]


def test_e9_a_denied_name_is_denied_in_every_type() -> None:
    for qtype in (1, 10, 16, 252, 255, 65280):
        assert reply(interceptor().on_query(query(qtype=qtype), 0.0, 1232)).rcode == NXDOMAIN


# -- search lists --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "expansion"),
    [
        ("api.example.com.default.svc.cluster.local", True),
        ("api.example.com.svc.cluster.local", True),
        ("api.example.com.corp", True),
        ("a.b.example.com.a.b.c.d.e", True),
        ("api.example.com.a.b.c.d.e.f", False),
        ("example.com.cluster.local", False),
        ("other.example.org.cluster.local", False),
        ("org", False),
        ("", False),
    ],
)
def test_search_list_expansions_of_allowed_names_are_told_apart(name: str, expansion: bool) -> None:
    told: list[Denial] = []
    assert reply(interceptor(*RULES, told=told).on_query(query(name), 0.0, 1232)).rcode == NXDOMAIN
    assert [denial.expansion for denial in told] == [expansion]


def test_a_rule_for_any_name_or_the_default_makes_no_expansions() -> None:
    for rules, default in (((deny("*.cluster.local"), allow("*")), "deny"), ((deny("*.cluster.local"),), "allow")):
        told: list[Denial] = []
        interceptor(*rules, default=default, told=told).on_query(query("evil.example.com.cluster.local"), 0.0, 1232)
        assert [denial.expansion for denial in told] == [False]


# -- the cache -----------------------------------------------------------------------------------------------------
def remembered(*records: Record, now: float = 100.0, rcode: int = 0, no: Record | None = None) -> Interceptor:
    place = interceptor(*RULES)
    outcome = place.on_answer("api.example.com", A, answer(*records, rcode=rcode, no=no))
    template = wire.render("api.example.com", outcome.records, rcode=outcome.rcode, authority=outcome.authority)
    place.remember("api.example.com", A, outcome, template, now)
    return place


def test_ttls_grow_old_in_the_cache_and_the_entry_ends_with_the_least() -> None:
    place = remembered(cname("api.example.com", "x.example.net", 90), address("x.example.net", "198.51.100.7", 30))
    for age, ttls in ((0.0, [90, 30]), (0.9, [90, 30]), (1.0, [89, 29]), (29.5, [61, 1])):
        got = reply(place.on_query(query(), 100.0 + age, 1232))
        assert [record[2] for record in got.records] == ttls
    assert isinstance(place.on_query(query(), 130.0, 1232), Ask)
    assert len(place.cache) == 0


@pytest.mark.parametrize("age", [0.0, 0.25, 0.999, 1.0, 28.5, 29.999])
def test_the_same_bytes_may_be_repeated_until_a_ttl_changes(age: float) -> None:
    place = remembered(address("api.example.com", "198.51.100.7", 30))
    place.on_query(query(), 100.0 + age, 1232)
    assert 100.0 + age < place.same_until <= 130.0
    before = reply(place.on_query(query(), place.same_until - 1e-6, 1232))
    assert before == reply(place.on_query(query(), 100.0 + age, 1232))


def test_denials_and_questions_are_never_repeated_unseen() -> None:
    place = remembered(address("api.example.com", "198.51.100.7", 30))
    for asked in (query("other.example.com"), query("example.org"), query(qtype=255)):
        place.on_query(query(), 100.0, 1232)
        place.on_query(asked, 100.0, 1232)
        assert place.same_until == 0.0


def test_negative_answers_are_cached_for_their_ttl_and_at_most_five_minutes() -> None:
    place = remembered(rcode=NXDOMAIN, no=soa("example.com", 40))
    got = reply(place.on_query(query(), 110.0, 1232))
    assert (got.rcode, got.records, got.authority) == (NXDOMAIN, (), (("example.com", SOA, 30),))
    assert isinstance(place.on_query(query(), 140.0, 1232), Ask)
    place = remembered(no=soa("example.com", 86_400))
    assert reply(place.on_query(query(), 399.0, 1232)).rcode == NOERROR
    assert isinstance(place.on_query(query(), 400.0, 1232), Ask)


def test_a_no_without_an_soa_and_a_ttl_of_zero_are_kept_for_a_second() -> None:
    """Else whoever serves the name could have every question of the sandbox passed on (E10)."""
    for place in (remembered(), remembered(rcode=NXDOMAIN), remembered(address("api.example.com", "198.51.100.7", 0))):
        got = reply(place.on_query(query(), 100.9, 1232))
        assert [record[2] for record in got.records] in ([], [0])
        assert isinstance(place.on_query(query(), 101.0, 1232), Ask)


def test_a_negative_answer_behind_a_cname_ends_with_the_cname() -> None:
    place = remembered(cname("api.example.com", "x.example.net", 5), no=soa("example.net", 60))
    got = reply(place.on_query(query(), 104.0, 1232))
    assert [record[:3] for record in got.records] == [("api.example.com", CNAME, 1)]
    assert isinstance(place.on_query(query(), 105.0, 1232), Ask)


def test_a_cached_answer_that_does_not_fit_is_truncated() -> None:
    many = [address("api.example.com", f"198.51.100.{n}") for n in range(60)]
    place = remembered(*many)
    got = reply(place.on_query(query(edns=None), 100.0, 512))
    assert (got.truncated, got.records) == (True, ())
    assert len(reply(place.on_query(query(), 100.0, 65535)).records) == 60
