"""E10: data in the labels of an allowed wildcard is stopped early, and what people's programs ask for never is."""

from __future__ import annotations

import base64
import itertools
import random
import tracemalloc
import uuid
from typing import TYPE_CHECKING, NamedTuple

import pytest

from egress.dns import budget as limits
from egress.dns.budget import DAY, KNOWN, OCTETS, RATE, Budget, Limits
from policies.model import Action
from tests.pure.dns.plays import allow, policy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from policies.matcher import CompiledPolicy

HOUR = 3600.0
Asked = tuple[float, str]  # seconds from the start, name


class Told(NamedTuple):
    """What became of a sequence of questions."""

    passed: int
    octets: int  # in front of the zone, of the names that passed
    reasons: tuple[str, ...]  # of the refusals, in order


def play(
    asked: Iterable[Asked],
    rules: CompiledPolicy,
    given: Limits | None = None,
    search: tuple[str, ...] = (),
    budget: Budget | None = None,
) -> Told:
    """Every question as one that the cache cannot answer."""
    budget = budget or Budget(given or Limits(), search)
    passed = octets = 0
    reasons = []
    for seconds, name in asked:
        decision = rules.decide_name(name)
        assert decision.action is Action.ALLOW, name
        over = budget.admits(rules, name, decision, 1000.0 + seconds)
        if over is None:
            passed += 1
            octets += len(name)
        else:
            assert over.reason
            reasons.append(over.reason)
    return Told(passed, octets, tuple(reasons))


def rng(seed: object) -> random.Random:
    return random.Random(str(seed))


def word(dice: random.Random, low: int, high: int, letters: str = "abcdefghijklmnopqrstuvwxyz0123456789") -> str:
    return "".join(dice.choices(letters, k=dice.randint(low, high)))


def base32(dice: random.Random, octets: int) -> str:
    return base64.b32encode(dice.randbytes(octets)).decode().rstrip("=").lower()


WILDCARD = policy(allow("*.example.com"))
ANYTHING = policy(default="allow")
STAR = policy(allow("*"))
HOSTS = {
    "npm": ("registry.example.com", "www.example.org", "archives.example.net", "objects.example.net"),
    "pip": ("index.example.com", "files.example.org", "wheels.example.net"),
    "apt": ("deb.example.org", "security.example.org", "archive.example.com", "_http._tcp.deb.example.org"),
}


# -- what has to pass --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("tool", sorted(HOSTS))
def test_a_package_manager_never_meets_it(tool: str) -> None:
    """Installs all day, of two hundred packages each, everything looked up with both types and nothing cached."""
    rules = policy(*(allow(f"*.{host.partition('.')[2]}") for host in HOSTS[tool]))
    names = [name for name in HOSTS[tool] if rules.decide_name(name).action is Action.ALLOW]
    asked = [
        (install * HOUR + package * 0.05 + place * 0.01, name)
        for install in range(12)
        for package in range(200)
        for place, name in enumerate(names * 2)
    ]
    assert play(asked, rules).reasons == ()


def pages(count: int, dice: random.Random) -> Iterator[Asked]:
    """A browser: pages of thirty hosts, many of them for advertisements and with labels that look made up."""
    fixed = [f"{word(dice, 3, 9)}.{word(dice, 4, 10)}.com" for _ in range(120)]
    for page in range(count):
        at = page * 20.0
        site = f"{word(dice, 5, 14)}.com"
        hosts = [f"www.{site}", f"static.{site}", f"img{page % 4}.{site}"]
        hosts += [f"{word(dice, 8, 13)}.cloudfront.net" for _ in range(3)]
        hosts += [f"{word(dice, 32, 32, '0123456789abcdef')}.safeframe.googlesyndication.com"]
        hosts += [f"p4-{word(dice, 13, 13)}-{word(dice, 16, 16)}-if-v6exp3-v4.metric.gstatic.com"]
        hosts += [f"r{dice.randint(1, 20)}---sn-{word(dice, 8, 12)}.googlevideo.com"]
        hosts += dice.sample(fixed, 20)
        for place, host in enumerate(hosts):
            for qtype in range(3):  # A, AAAA, HTTPS
                yield at + place * 0.01 + qtype * 0.001, host


@pytest.mark.parametrize(
    "rules", [ANYTHING, STAR, policy(allow("*.com"), allow("*.net"))], ids=["allow", "star", "tld"]
)
def test_a_browser_never_meets_it(rules: CompiledPolicy) -> None:
    assert play(pages(60, rng("browser")), rules).reasons == ()
    assert play(pages(300, rng("a long day")), rules).reasons == ()


def test_a_browser_behind_one_wildcard_never_meets_it() -> None:
    """All of a page's hosts below one name, as within a company or behind a proxy's domain."""
    asked = [(seconds, f"{name.split('.')[0]}.example.com") for seconds, name in pages(200, rng("one zone"))]
    assert play(asked, WILDCARD).reasons == ()


def test_1500_short_names_in_two_seconds_pass() -> None:
    dice = rng("short")
    names = [f"{word(dice, 4, 24)}.example.com" for _ in range(1500)]
    asked = [(place / 750, name) for place, name in enumerate(names) for _ in range(3)]
    assert play(asked, WILDCARD).reasons == ()


@pytest.mark.parametrize("count", [100, 900])
def test_hundreds_of_buckets_named_by_forty_characters_pass(count: int) -> None:
    dice = rng(count)
    names = [f"logs-{uuid.UUID(int=dice.getrandbits(128))}.s3.example.com"[-63:] for _ in range(count)]
    asked = [(turn * HOUR + place * 0.1, name) for turn in range(12) for place, name in enumerate(names)]
    assert play(asked, WILDCARD).reasons == ()


def test_reverse_look_ups_pass() -> None:
    dice = rng("reverse")
    rules = policy(allow("*.in-addr.arpa"), allow("*.ip6.arpa"))
    four = [".".join(str(dice.randint(0, 255)) for _ in range(4)) + ".in-addr.arpa" for _ in range(1500)]
    prefix = ".".join(word(dice, 20, 20, "0123456789abcdef"))
    six = [".".join(word(dice, 12, 12, "0123456789abcdef")) + f".{prefix}.ip6.arpa" for _ in range(800)]
    assert play(((place * 0.2, name) for place, name in enumerate(four + six)), rules).reasons == ()
    assert play(((place * 0.2, name) for place, name in enumerate(four + six)), ANYTHING).reasons == ()


def test_services_of_a_cluster_and_names_that_are_asked_again_for_hours_pass() -> None:
    rules = policy(allow("*.cluster.local"), allow("*.example.com"))
    services = [f"service-{number}.team-{number % 7}.svc.cluster.local" for number in range(100)]
    asked = [(turn * 30.0, name) for turn in range(600) for name in services]
    assert play(asked, rules).reasons == ()


# -- search domains ----------------------------------------------------------------------------------------------------
SEARCH = ("team.svc.cluster.local", "svc.cluster.local", "cluster.local")


def expanded(names: Iterable[str]) -> list[Asked]:
    """As a stub resolver asks with `ndots:5`."""
    return [(place * 0.1, name + end) for place, name in enumerate(names) for end in (*(f".{s}" for s in SEARCH), "")]


def test_search_domains_cost_nothing_beside_the_look_up_that_was_meant() -> None:
    rules = policy(allow("*.example.com"), allow("*.cluster.local"))
    dice = rng("ndots")
    names = [f"{word(dice, 10, 30)}.example.com" for _ in range(1800)]
    assert sum(len(name) - len("example.com") for name in names) < OCTETS < 3 * sum(map(len, names))
    budget = Budget(Limits(), SEARCH)
    assert play(expanded(names), rules, budget=budget).reasons == ()
    services = [(500.0, f"redis-{number}.team.svc.cluster.local") for number in range(2000)]
    assert play(services, rules, budget=budget).reasons == ()  # untouched
    # The control: counted as they are written, the same names are four.
    assert "cluster.local" in play(expanded(names), rules).reasons[0]


def test_a_search_domain_is_no_way_around() -> None:
    rules = policy(allow("*.example.com"), allow("*.cluster.local"))
    dice = rng("around")
    data = [f"{base32(dice, 37)}.example.com" for _ in range(3000)]
    for end in (".cluster.local", ".svc.cluster.local"):
        told = play(((0.01 * place, name + end) for place, name in enumerate(data)), rules, search=SEARCH)
        assert told.passed < 900
        assert "below example.com" in told.reasons[0]
    # What is not a search domain of the operator's is none, however much it looks like one.
    inside = [(0.01 * place, f"{base32(dice, 37)}.example.com.x.example.com") for place in range(3000)]
    assert play(inside, rules, search=SEARCH).passed < 900


# -- what has to be stopped --------------------------------------------------------------------------------------------
def tunnel(count: int, labels: tuple[int, ...], every: float, zone: str = "t.example.com") -> Iterator[Asked]:
    dice = rng((count, labels, every))
    for number in range(count):
        yield number * every, ".".join(base32(dice, size)[:size] for size in labels) + f".{zone}"


def test_1500_names_of_180_octets_are_stopped_early() -> None:
    told = play(tunnel(1500, (60, 60, 60), 2 / 1500), WILDCARD)
    assert told.passed < 300
    assert told.reasons[0] == f"over its budget: {OCTETS} bytes of new names a day below example.com"
    off = play(tunnel(1500, (60, 60, 60), 2 / 1500), WILDCARD, Limits(octets=0))
    assert off.passed == 1500  # the control


@pytest.mark.parametrize(
    ("labels", "every", "hours"),
    [
        ((60, 60, 60), 0.1, 1),  # iodine, dnscat
        ((57, 57, 57), 60.0, 12),  # a slow drip
        ((63,), 1.0, 1),  # one long label each second
        ((30,), 10.0, 24),
        ((1,) * 60, 1.0, 1),  # as many levels as fit
        ((2, 1) * 30, 1.0, 1),
        ((8,), 0.5, 3),
    ],
    ids=["iodine", "drip", "long label", "slow", "levels", "mixed levels", "short labels"],
)
def test_tunnels_are_stopped(labels: tuple[int, ...], every: float, hours: float) -> None:
    count = int(hours * HOUR / every)
    told = play(tunnel(count, labels, every), WILDCARD)
    allowed = OCTETS * (1 + hours * HOUR / DAY)
    size = sum(labels) + len(labels)
    assert count * size > allowed * 1.1, "it would carry more"
    assert told.passed * size <= allowed * 1.15  # short last labels are known soon, and then they are free
    assert told.reasons


def test_labels_in_a_new_order_are_new() -> None:
    """Each label known by itself: an alphabet of sixteen, twenty letters a name."""
    dice = rng("order")
    asked = [
        (number * 0.1, ".".join(word(dice, 20, 20, "0123456789abcdef")) + ".example.com") for number in range(6000)
    ]
    told = play(asked, WILDCARD)
    assert told.passed * 40 < OCTETS * 1.1 + 16**3 * 6
    assert told.reasons


def test_names_spread_over_several_wildcards_are_stopped_together() -> None:
    zones = [f"zone{number}.example" for number in range(20)]
    rules = policy(*(allow(f"*.{zone}") for zone in zones))
    dice = rng("spread")
    asked = [(number * 0.02, f"{base32(dice, 37)[:60]}.{zones[number % 20]}") for number in range(20_000)]
    told = play(asked, rules)
    assert told.passed * 61 < OCTETS * limits.SHARES * 1.01
    assert "all rules together" in told.reasons[0]
    apart = play(asked, rules, Limits(total=0))
    assert apart.passed * 61 > OCTETS * 19  # the control
    assert all("all rules" not in reason for reason in apart.reasons)


@pytest.mark.parametrize("rules", [ANYTHING, STAR, policy(allow("*.net"))], ids=["allow", "star", "tld"])
def test_a_tunnel_to_one_zone_is_stopped_where_any_name_is_allowed(rules: CompiledPolicy) -> None:
    told = play(tunnel(1500, (60, 60, 60), 0.01, "t.evil.net"), rules)
    assert told.passed < 300
    assert "below evil.net" in told.reasons[0]


def test_the_order_of_known_names_is_held_to_a_rate() -> None:
    """A code book: 4,096 short names paid for once, and then their order says twelve bits a question."""
    dice = rng("book")
    book = ["".join(pair) + ".example.com" for pair in itertools.product("abcdefghijklmnop", repeat=3)]
    budget = Budget(Limits())
    assert play(enumerate(book), WILDCARD, budget=budget).reasons == ()
    told = play(((5000 + number / 2000, dice.choice(book)) for number in range(30_000)), WILDCARD, budget=budget)
    assert told.passed <= RATE * (limits.BURST + 30) + 1
    assert told.reasons[-1] == f"over its budget: {RATE} questions a second below example.com"
    free = play(((number / 2000, dice.choice(book)) for number in range(30_000)), WILDCARD, Limits(rate=0))
    assert free.passed == 30_000  # the control


# -- how it counts -----------------------------------------------------------------------------------------------------
def test_exact_names_have_no_budget() -> None:
    rules = policy(allow("api.example.com"), allow("*.example.com"))
    asked = [(0.0, "api.example.com")] * 20_000
    assert play(asked, rules, Limits(100, 100, 1)).reasons == ()
    behind = policy(allow("*.example.com"), allow("api.example.com"))  # where a wildcard is what allows it
    assert play(asked, behind, Limits(100, 100, 1)).reasons == ()


def test_a_name_costs_what_is_in_front_of_its_longest_known_end() -> None:
    budget = Budget(Limits(30, 0, 0))
    assert play([(0, "aaaa.bbbb.example.com")], WILDCARD, budget=budget).passed == 1  # 10
    assert play([(0, "bbbb.example.com")] * 50, WILDCARD, budget=budget).passed == 50  # 0
    assert play([(0, "cccc.bbbb.example.com")], WILDCARD, budget=budget).passed == 1  # 5
    assert play([(0, "bbbb.aaaa.example.com")], WILDCARD, budget=budget).passed == 1  # 10
    assert play([(0, "dddd.example.com")], WILDCARD, budget=budget).passed == 1  # 5
    assert play([(0, "e.example.com")], WILDCARD, budget=budget).passed == 0
    assert play([(0, "cccc.bbbb.example.com"), (0, "aaaa.example.com")], WILDCARD, budget=budget).passed == 2


def test_who_is_over_budget_still_reaches_what_it_knows() -> None:
    budget = Budget(Limits())
    known = [(0.0, f"{name}.example.com") for name in ("api", "cdn", "www")]
    assert play(known, WILDCARD, budget=budget).reasons == ()
    assert play(tunnel(1500, (60, 60, 60), 0.01), WILDCARD, budget=budget).reasons
    assert play([(60.0, name) for _, name in known], WILDCARD, budget=budget).reasons == ()
    assert play([(60.0, ".".join(["n" * 60] * 3) + ".example.com")] * 9, WILDCARD, budget=budget).reasons


def test_it_recovers_with_time() -> None:
    budget = Budget(Limits())
    assert play(tunnel(1500, (60, 60, 60), 0.01), WILDCARD, budget=budget).reasons
    an_hour = play(((HOUR, f"new{number:05}.example.com") for number in range(5000)), WILDCARD, budget=budget)
    assert abs(an_hour.passed - OCTETS / 24 / 9) < 25
    a_day = play(((HOUR + DAY, f"old{number:05}.example.com") for number in range(9000)), WILDCARD, budget=budget)
    assert abs(a_day.passed - OCTETS / 9) < 2


def test_an_account_outlives_its_policy_and_belongs_to_the_zone() -> None:
    budget = Budget(Limits())
    assert play(tunnel(1500, (60, 60, 60), 0.01), WILDCARD, budget=budget).reasons
    other = policy(allow("*.example.com", ports=[443]), allow("*.example.net"))
    assert play(tunnel(10, (50, 60, 60), 0.01), other, budget=budget).passed == 0
    assert play(tunnel(10, (50, 60, 60), 0.01, "t.example.net"), other, budget=budget).reasons == ()


def test_refused_names_are_not_remembered_and_cost_nothing() -> None:
    budget = Budget(Limits(20, 0, 1))
    for _ in range(3):
        assert play([(0, f"{'x' * 30}.example.com")], WILDCARD, budget=budget).passed == 0
    assert play([(0, f"{'y' * 19}.example.com")], WILDCARD, budget=budget).passed == 1


def test_memory_is_bounded() -> None:
    budget = Budget(Limits(10**9, 10**9, 0))
    dice = rng("memory")
    names = [f"{number:x}.{word(dice, 2, 10)}.{word(dice, 2, 12)}.com" for number in range(20_000)]
    tracemalloc.start()
    try:
        play(((0, name) for name in names), ANYTHING, budget=budget)
        play(tunnel(1000, (1,) * 100, 0.01), WILDCARD, budget=budget)
        grown = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(budget.known) <= KNOWN + 128
    assert len(budget.before) <= KNOWN + 128
    assert grown < 4 * 1024 * 1024


def test_what_is_decided_for_a_parent_is_what_is_decided_for_its_names() -> None:
    rules = policy(allow("*.example.com"), allow("*.cluster.local"), allow("*.net"), allow("*"))
    budget = Budget(Limits(), SEARCH)
    for parent in ("example.com", "a.b.example.com", "cluster.local", "svc.cluster.local", "evil.net", "a.evil.org"):
        alike, account = budget.below(parent, rules.decide_below(parent))
        assert alike
        name = f"x.{parent}"
        assert account is budget.account(name, rules.decide_name(name))
    for parent in ("net", "org", "example.com.cluster.local", "a.svc.cluster.local"):
        assert budget.below(parent, rules.decide_below(parent)) == (False, None)
    assert Budget(Limits(octets=0)).below("net", rules.decide_below("net")) == (True, None)
