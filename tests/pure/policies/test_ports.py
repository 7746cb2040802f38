"""Port sets as sets: the operations against Python's own on the numbers themselves."""

from __future__ import annotations

import itertools

import hypothesis.strategies as st
import pytest
from hypothesis import given

from policies.firstmatch import PortSpace
from policies.model import Action, Rule
from policies.ports import EVERYTHING, FULL, NOTHING, PortSet, covered, merge

RANGES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=6).map(
    lambda pairs: merge([(first, first + width) for first, width in pairs])
)
SETS = st.builds(PortSet, RANGES, RANGES, st.booleans())


def _numbers(ports: PortSet) -> set[tuple[str, int]]:
    numbers = {("tcp", port) for first, last in ports.tcp for port in range(first, last + 1)}
    numbers |= {("udp", port) for first, last in ports.udp for port in range(first, last + 1)}
    return numbers | ({("echo", 0)} if ports.echo else set())


@given(SETS, SETS)
def test_operations(left: PortSet, right: PortSet) -> None:
    assert _numbers(left.union(right)) == _numbers(left) | _numbers(right)
    assert _numbers(left.minus(right)) == _numbers(left) - _numbers(right)
    assert _numbers(left.intersect(right)) == _numbers(left) & _numbers(right)
    assert bool(left) == bool(_numbers(left))
    assert left.union(right) == right.union(left), "equal sets are equal values"
    assert left.minus(right).union(left.intersect(right)) == left
    for port in range(60):
        assert left.contains("tcp", port) == (("tcp", port) in _numbers(left))


@given(SETS)
def test_ranges_are_canonical(ports: PortSet) -> None:
    for ranges in (ports.tcp, ports.udp):
        assert all(left[1] + 1 < right[0] for left, right in itertools.pairwise(ranges))


@given(st.lists(st.tuples(RANGES, st.sampled_from(["", "tcp", "udp"]), st.sampled_from(Action)), max_size=5))
def test_masks_lose_nothing(rules: list[tuple[tuple[tuple[int, int], ...], str, Action]]) -> None:
    made = [
        Rule(action, "*", "any", ports=tuple(r for r in ranges if r[0]), protocol=protocol)
        for ranges, protocol, action in rules
    ]
    space = PortSpace(made)
    total = NOTHING
    mask = 0
    for rule in made:
        assert space.ports(space.rule_mask(rule)) == rule.covers()
        total = total.union(rule.covers())
        mask |= space.rule_mask(rule)
    assert space.ports(mask) == total
    for protocol in ("tcp", "udp", "echo"):
        for port in (0, 1, 5, 852, 853, 854, 65535):
            assert bool(mask & space.bits(protocol, port)) == total.contains(protocol, port)
    assert space.bits("tcp", 65536) == space.bits("sctp", 80) == 0


def test_what_rules_cover() -> None:
    assert covered(True, (), "") == EVERYTHING
    assert covered(False, (), "") == FULL
    assert covered(True, ((443, 443),), "") == PortSet(((443, 443),), ((443, 443),), False)
    assert covered(True, (), "tcp") == PortSet(EVERYTHING.tcp, (), False)
    assert covered(False, (), "udp") == PortSet((), FULL.udp, False)
    assert covered(True, ((853, 853),), "tcp").contains("tcp", 853)
    assert covered(False, ((1, 65535),), "tcp") == PortSet(FULL.tcp, (), False), "port 0 hides behind no denial"
    assert not covered(True, ((1, 65535),), "tcp").contains("tcp", 0)
    for port in (0, 853):
        assert FULL.contains("tcp", port)
        assert not EVERYTHING.contains("tcp", port)
        assert not EVERYTHING.contains("udp", port)


@pytest.mark.parametrize(
    ("ports", "text"),
    [
        (NOTHING, "nothing"),
        (PortSet(((80, 80), (8000, 8100)), (), False), "tcp 80, 8000-8100"),
        (PortSet(((80, 80),), ((80, 80),), True), "tcp+udp 80; echo"),
        (PortSet((), (), True), "echo"),
        (PortSet(((80, 80),), ((53, 53),), False), "tcp 80; udp 53"),
    ],
)
def test_text(ports: PortSet, text: str) -> None:
    assert str(ports) == text
