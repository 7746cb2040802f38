"""E10 where it meets questions: both paths pay, a refusal is a denial that names rule and budget, nobody pays twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from egress.dns.budget import Budget, Limits
from egress.dns.interceptor import Interceptor
from tests.pure.dns.house import House
from tests.pure.dns.plays import AAAA, BLOCKED, NXDOMAIN, A, allow, answered_with, policy

if TYPE_CHECKING:
    from collections.abc import Iterator


class Budgeted(House):
    """A house with a budget; its rules are `RULES` of the house."""

    def __init__(self, limits: Limits, *rules: dict[str, Any]) -> None:
        self.budget = Budget(limits, ("svc.cluster.local",))
        super().__init__(*rules)

    def judge(self, *rules: dict[str, Any], default: str = "deny") -> Interceptor:
        return Interceptor(policy(*rules, default=default), 1, self.denials.append, self.budget)

    def asked(self, name: str, qtype: int = A) -> bool:
        """Ask, and let the resolver answer; False where it was not asked and the client was denied."""
        before = len(self.denials)
        self.ask(name, qtype)
        seen = self.resolver.take()
        if not seen:
            reply = self.one()
            assert (reply.rcode, reply.ede and reply.ede[0]) == (NXDOMAIN, BLOCKED)
            assert len(self.denials) == before + 1, "told once, whichever path it went"
            return False
        (packet,) = seen
        assert packet.name.lower() == name
        self.resolver.send(packet, answered_with(packet.data, addresses=("198.51.100.7",) if qtype == A else ()))
        assert self.one().rcode == 0
        return True


@pytest.fixture
def house() -> Iterator[Budgeted]:
    made = Budgeted(Limits(200, 0, 0))
    yield made
    made.close()


def test_both_paths_pay_into_one_account_and_once(house: Budgeted) -> None:
    assert house.asked(f"{'a' * 49}.example.com")  # the careful one, which knows the parent from here on
    assert house.service.interceptor.ways
    assert house.asked(f"{'b' * 49}.example.com")  # straight
    assert house.asked(f"{'b' * 49}.example.com", AAAA)  # known
    assert house.asked(f"{'c' * 49}.{'a' * 49}.example.com")  # deeper: careful again
    assert house.asked(f"{'d' * 48}.example.com")
    assert not house.asked("e.example.com")
    assert house.asked(f"{'d' * 48}.example.com", AAAA), "what is known goes on"


def test_a_refusal_names_rule_and_budget(house: Budgeted) -> None:
    assert house.asked(f"{'a' * 60}.{'b' * 60}.{'c' * 60}.example.com")
    name = f"{'d' * 60}.example.com"
    assert not house.asked(name)
    house.ask(name)
    ede = house.one().ede
    assert ede is not None
    said = "over its budget: 200 bytes of new names a day below example.com"
    assert ede[1] == f'{name}: rule egress[1] "allow *.example.com", {said}'
    denial = house.denials[-1]
    assert (denial.name, denial.rule, denial.budget, denial.expansion) == (name, "egress[1]", "example.com", False)
    assert denial.reason == said


def test_cached_names_are_free_and_a_new_policy_does_not_forget(house: Budgeted) -> None:
    assert house.asked("api.example.com")
    for _ in range(5):
        house.ask("api.example.com")
    assert [reply.rcode for reply in house.replies()] == [0] * 5
    assert house.asked(f"{'x' * 60}.{'b' * 60}.{'c' * 60}.example.com")
    house.change(allow("*.example.com", ports=[443]))
    assert not house.asked(f"{'y' * 60}.example.com")
    house.change(allow("*.example.com"), allow(f"{'y' * 60}.example.com"))
    assert house.asked(f"{'y' * 60}.example.com"), "a name of its own rule has no budget"


def test_a_search_domain_in_front_of_the_look_up_costs_nothing(house: Budgeted) -> None:
    house.change(allow("*.example.com"), allow("*.cluster.local"))
    for number in range(9):
        name = f"{'a' * 20}{number}.example.com"
        assert house.asked(f"{name}.svc.cluster.local")
        assert house.asked(name)
    assert not house.asked(f"{'b' * 20}.example.com")
    assert house.asked("redis.svc.cluster.local")


def test_a_ttl_of_zero_does_not_pass_every_question_on() -> None:
    house = Budgeted(Limits(0, 0, 0))
    try:
        passed = 0
        for _ in range(20):
            house.ask("api.example.com")
            for packet in house.resolver.take():
                passed += 1
                house.resolver.send(packet, answered_with(packet.data, ttl=0))
            reply = house.one()
            assert [record[2] for record in reply.records] == [0]
        assert passed == 1
        house.clock.advance(1.0)
        house.ask("api.example.com")
        assert len(house.resolver.take()) == 1
    finally:
        house.close()


def test_without_a_budget_nothing_is_counted() -> None:
    house = Budgeted(Limits(octets=0))
    try:
        for number in range(50):
            assert house.asked(f"{number:060}.example.com")
            assert house.asked(f"{number:060}.example.com", AAAA)
    finally:
        house.close()
