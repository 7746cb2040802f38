"""Leases as the contract states them, with time as an argument."""

from __future__ import annotations

import pytest

from egress.firewall.leases import GRACE, RENEWAL, SLACK, USED_WITHIN, Full, Leases, Teaching
from policies.ports import EVERYTHING, PortSet

A = bytes((198, 51, 100, 7))
B = bytes((198, 51, 100, 8))
WEB = PortSet(((443, 443),), (), False)


def open_for(leases: Leases, name: str, packed: bytes, ttl: int, now: float, ports: PortSet = EVERYTHING) -> float:
    """Learn and acknowledge; the seconds granted, 0 when nothing had to be written."""
    grant = leases.learn(name, (), ports, packed, ttl, now)
    if grant is None:
        return 0.0
    leases.granted([grant], now)
    return grant[2]


@pytest.mark.parametrize(("ttl", "least"), [(0, 120), (1, 120), (60, 120), (61, 121), (3600, 3660)])
def test_a_lease_is_the_ttl_at_least_a_minute_and_a_minute_more(ttl: int, least: int) -> None:
    granted = open_for(Leases(), "api.example.com", A, ttl, 1000.0)
    assert least <= granted <= least + SLACK


def test_a_repeated_answer_is_written_only_when_the_element_would_end_too_early() -> None:
    leases = Leases()
    open_for(leases, "api.example.com", A, 60, 1000.0)
    assert open_for(leases, "api.example.com", A, 60, 1000.0 + SLACK - 0.1) == 0.0
    assert open_for(leases, "api.example.com", A, 60, 1000.0 + SLACK + 0.1) > 0.0


def test_an_address_that_two_names_teach_lives_as_long_as_the_longer() -> None:
    leases = Leases()
    open_for(leases, "a.example.com", A, 600, 1000.0)
    open_for(leases, "b.example.com", A, 60, 1000.0)
    leases.expire(1000.0 + 60 + GRACE + SLACK + 1)
    assert leases.opens(A, "tcp", 443)
    leases.expire(1000.0 + 600 + GRACE + SLACK + 1)
    assert not leases.opens(A, "tcp", 443)


def test_two_names_with_other_ports_open_both() -> None:
    leases = Leases()
    open_for(leases, "a.example.com", A, 60, 1000.0, WEB)
    assert not leases.opens(A, "tcp", 80)
    open_for(leases, "b.example.com", A, 60, 1000.0)
    assert leases.opens(A, "tcp", 80)


def test_soak_an_address_of_which_the_kernel_was_not_told_yet_is_not_held() -> None:
    """Under default allow flows to addresses that are held are judged by what their names open; a flow that was judged
    while an answer was on its way to the kernel was cut, though everything was open."""
    leases = Leases()
    grant = leases.learn("a.example.com", (), EVERYTHING, A, 60, 1000.0)
    assert grant is not None
    assert A in leases
    assert not leases.holds(A)
    leases.granted([grant], 1000.0)
    assert leases.holds(A)
    leases.expire(1000.0 + 60 + GRACE + SLACK + 1)
    assert not leases.holds(A)


def test_soak_a_name_of_which_the_kernel_needs_no_word_is_handed_on_all_the_same() -> None:
    """Else the next worker knows only the first of two names, and under a policy that allows the second alone the
    address is closed."""
    leases = Leases()
    open_for(leases, "a.example.com", A, 600, 1000.0)
    assert leases.unwritten == []
    assert leases.learn("b.example.com", (), EVERYTHING, A, 60, 1000.0) is None
    assert [(packed, teaching.name) for packed, teaching in leases.unwritten] == [(A, "b.example.com")]


def test_nothing_counts_before_the_kernel_acknowledged_it() -> None:
    leases = Leases()
    grant = leases.learn("a.example.com", (), EVERYTHING, A, 60, 1000.0)
    assert grant is not None
    assert not leases.opens(A, "tcp", 443)
    leases.refused([grant])
    assert A not in leases


def test_full_refuses_others_and_lets_a_name_replace_its_own() -> None:
    leases = Leases(capacity=2)
    open_for(leases, "a.example.com", A, 60, 1000.0)
    open_for(leases, "b.example.com", B, 60, 1000.0)
    with pytest.raises(Full):
        leases.learn("c.example.com", (), EVERYTHING, bytes((198, 51, 100, 9)), 60, 1001.0)
    open_for(leases, "a.example.com", bytes((198, 51, 100, 10)), 60, 1001.0)
    assert A not in leases
    assert B in leases
    assert leases.evicted_names == {"a.example.com"}


def test_room_is_made_by_time() -> None:
    leases = Leases(capacity=1)
    open_for(leases, "a.example.com", A, 0, 1000.0)
    assert open_for(leases, "b.example.com", B, 0, 1000.0 + 130) > 0


def test_an_address_in_use_is_renewed_and_one_that_is_not_ends() -> None:
    leases = Leases()
    open_for(leases, "a.example.com", A, 0, 1000.0)
    open_for(leases, "b.example.com", B, 0, 1000.0)
    now = 1000.0
    while now < 1300.0:
        now += 5.0
        if now < 1250.0:
            leases.used([A], now)
        else:
            leases.used([], now)
        leases.granted(leases.renewals(now), now)
        leases.expire(now)
    assert A in leases
    assert B not in leases


def test_use_within_ten_minutes_keeps_a_lease_and_no_longer() -> None:
    leases = Leases()
    open_for(leases, "a.example.com", A, 0, 1000.0)
    leases.used([A], 1010.0)
    ended = None
    now = 1010.0
    while ended is None:
        now += 5.0
        leases.granted(leases.renewals(now), now)
        leases.expire(now)
        ended = now if A not in leases else None
    assert 1010.0 + USED_WITHIN <= ended <= 1010.0 + USED_WITHIN + RENEWAL + SLACK + 10


def test_nothing_is_renewed_a_day_after_the_last_answer() -> None:
    leases = Leases()
    open_for(leases, "a.example.com", A, 0, 1000.0)
    now = 1000.0
    while A in leases:
        now += 20.0
        leases.used([A], now)
        leases.granted(leases.renewals(now), now)
        leases.expire(now)
        assert now < 1000.0 + 25 * 3600
    assert now > 1000.0 + 23.9 * 3600


def test_another_policy_keeps_an_address_when_one_of_its_names_stays() -> None:
    leases = Leases()
    open_for(leases, "a.example.com", A, 60, 1000.0)
    open_for(leases, "b.example.com", A, 60, 1000.0)
    open_for(leases, "b.example.com", B, 60, 1000.0)
    after = leases.rebase(lambda _, teaching: EVERYTHING if teaching.name == "a.example.com" else None, 1001.0)
    assert set(after.elements(1001.0)) == {EVERYTHING}
    assert A in after
    assert B not in after
    assert A in leases
    assert B in leases, "the old leases stand until the kernel has taken the new ruleset"


def test_a_lingering_address_comes_back_when_a_policy_changes_while_its_flow_lives() -> None:
    leases = Leases()
    leases.restore(A, Teaching("a.example.com", (), EVERYTHING, 1001.0, 900.0))
    leases.elements(1000.0)
    leases.used([A], 1000.0)
    leases.expire(1010.0)
    assert not leases.opens(A, "tcp", 443)
    leases.used([A], 1011.0)
    assert A in leases.rebase(lambda *_: EVERYTHING, 1012.0)
    leases.used([], 1013.0)
    assert A not in leases.rebase(lambda *_: EVERYTHING, 1014.0)


def test_a_pause_moves_every_lease_by_its_length() -> None:
    leases = Leases()
    open_for(leases, "a.example.com", A, 60, 1000.0)
    grants = leases.shift(3600.0, 1010.0 + 3600.0)
    assert [(grant.packed, round(grant.seconds)) for grant in grants] == [(A, 111)]


def test_names_per_address_are_bounded_and_the_address_stays_open() -> None:
    leases = Leases()
    for number in range(1000):
        open_for(leases, f"n{number}.example.com", A, 60, 1000.0)
    assert len(leases.names_of(A)) <= 8
    assert leases.opens(A, "tcp", 443)


def test_what_is_remembered_is_bounded_and_counted_back() -> None:
    leases = Leases(capacity=64)
    for number in range(5000):
        open_for(leases, f"n{number}.example.com", bytes((198, 51, 100, number % 64)), 0, 1000.0)
    assert sum(1 for _ in leases.teachings()) == 64 * 8
    leases.expire(2000.0)
    assert len(leases) == 0
    assert leases._taught == 0


def test_a_full_table_refuses_new_names_without_walking_over_it() -> None:
    leases = Leases(capacity=2)
    open_for(leases, "a.example.com", A, 60, 1000.0)
    open_for(leases, "b.example.com", B, 60, 1000.0)

    class Untouchable(dict[bytes, object]):
        def items(self) -> object:  # type: ignore[override]
            raise AssertionError("walked over every address")

        values = items  # type: ignore[assignment]

    with pytest.raises(Full):
        leases.learn("first.example.com", (), EVERYTHING, bytes((198, 51, 100, 9)), 60, 1001.0)
    leases._addresses = Untouchable(leases._addresses)  # type: ignore[assignment]
    for number in range(100):
        with pytest.raises(Full):
            leases.learn(f"new{number}.example.com", (), EVERYTHING, bytes((198, 51, 100, 9)), 60, 1001.0)


def test_a_name_that_was_taught_while_the_table_was_full_may_replace_its_own() -> None:
    leases = Leases(capacity=2)
    open_for(leases, "a.example.com", A, 60, 1000.0)
    open_for(leases, "b.example.com", B, 60, 1000.0)
    with pytest.raises(Full):
        leases.learn("late.example.com", (), EVERYTHING, bytes((198, 51, 100, 9)), 60, 1001.0)
    open_for(leases, "b.example.com", bytes((198, 51, 100, 10)), 60, 1001.0)
    leases.expire(1000.0 + 60 + GRACE + SLACK + 0.5)
    open_for(leases, "late.example.com", B, 60, 1121.7)
    leases.learn("late.example.com", (), EVERYTHING, A, 60, 1121.7)
    assert A in leases
    assert B not in leases


def test_an_address_that_is_renewed_all_the_time_is_awaited_once() -> None:
    leases = Leases()
    now = 1000.0
    for _ in range(5000):
        now += SLACK + 0.1
        open_for(leases, "a.example.com", A, 0, now)
        leases.granted(leases.renewals(now), now)
    assert len(leases._ends) == 1
    leases.expire(now + 60 + GRACE - 1)
    assert A in leases
    leases.expire(now + 60 + GRACE + SLACK + 1)
    assert A not in leases


def test_what_was_awaited_for_an_earlier_lease_is_dropped() -> None:
    leases = Leases(capacity=2)
    for number in range(500):
        open_for(leases, "a.example.com", bytes((198, 51, 100, number % 5)), 0, 1000.0 + number)
    assert len(leases) == 2
    leases.renewals(1800.0)
    assert len(leases._ends) <= 2
