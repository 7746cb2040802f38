"""The shared counters: bursts, refill, what counts as one client, and that forked workers count together."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingress.admission.throttle import CLIENT, LOOKS, MISSING, RECENT, SANDBOX, Throttle

if TYPE_CHECKING:
    from collections.abc import Iterator

T = 1_800_000_000.0


@pytest.fixture
def throttle() -> Iterator[Throttle]:
    made = Throttle(key=b"k" * 32)
    yield made
    made.close()


def address(number: int) -> str:
    return f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"


def test_twenty_failures_and_then_one_look_a_second(throttle: Throttle) -> None:
    for _ in range(20):
        assert throttle.may_look("192.0.2.1", T)
        throttle.failed("192.0.2.1", T)
    assert not throttle.may_look("192.0.2.1", T)
    assert not throttle.may_look("192.0.2.1", T + 0.9)
    assert throttle.may_look("192.0.2.2", T), "somebody else"
    assert throttle.may_look("192.0.2.1", T + 1)
    throttle.failed("192.0.2.1", T + 1)
    assert not throttle.may_look("192.0.2.1", T + 1.5)
    assert throttle.may_look("192.0.2.1", T + 2)
    assert throttle.may_look("192.0.2.1", T + 60)


def test_being_right_costs_nothing(throttle: Throttle) -> None:
    for _ in range(1000):
        assert throttle.may_look("192.0.2.1", T)
        throttle.succeeded("192.0.2.1", "ns/box", T)


def test_a_client_that_polls_ten_times_a_second_goes_on(throttle: Throttle) -> None:
    for step in range(3000):
        now = T + step / 10
        assert throttle.may_miss("192.0.2.1", now)
        throttle.missed("192.0.2.1", now)
    assert throttle.may_look("192.0.2.1", T), "in a bucket of its own"


def test_two_hundred_404s_at_once_are_too_many(throttle: Throttle) -> None:
    allowed = 0
    for _ in range(200):
        if throttle.may_miss("192.0.2.1", T):
            allowed += 1
            throttle.missed("192.0.2.1", T)
    assert allowed == 120


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("192.0.2.1", "192.0.2.2", False),
    ],
)
def test_what_counts_as_one_client(throttle: Throttle, one: str, other: str, same: bool) -> None:
    for _ in range(20):
        throttle.failed(one, T)
    assert throttle.may_look(other, T) is not same


@given(st.text(max_size=40))
def test_any_client_has_counters(client: str) -> None:
    throttle = Throttle(key=b"k" * 32)
    throttle.failed(client, T)
    throttle.succeeded(client, "ns/box", T)
    assert throttle.may_look(client, T)
    assert throttle.knows(client, "ns/box", T)
    throttle.close()


def test_over_a_sandboxs_budget_few_signatures_are_looked_at(throttle: Throttle) -> None:
    for number in range(60):
        assert throttle.may_look_at_signature(address(number), "ns/box", T)
        throttle.failed_signature(address(number), "ns/box", T)
    looks = sum(throttle.may_look_at_signature(address(100 + number), "ns/box", T) for number in range(100))
    assert looks == LOOKS.burst
    assert throttle.may_look_at_signature("192.0.2.9", "ns/other", T), "another sandbox"
    assert not throttle.may_look_at_signature("192.0.2.9", "ns/box", T)
    throttle.succeeded("192.0.2.9", "ns/box", T)
    assert throttle.may_look_at_signature("192.0.2.9", "ns/box", T), "let in lately"
    assert throttle.may_look("192.0.2.77", T), "what a token needs"


def test_all_addresses_together_have_what_the_docstring_says(throttle: Throttle) -> None:
    """60 + 4 t looks in t seconds, whatever is tried: here 40 tries a second, each from an address of its own."""
    seconds, looks = 100, 0
    for step in range(seconds * 40):
        now = T + step / 40
        if throttle.may_look_at_signature(address(step), "ns/box", now):
            looks += 1
            throttle.failed_signature(address(step), "ns/box", now)
    assert looks <= SANDBOX.burst + LOOKS.burst + (SANDBOX.rate + LOOKS.rate) * seconds
    assert looks >= 60 + 3 * seconds - 10, "and the control: it is that many, not none"


def test_a_success_is_remembered_for_an_hour(throttle: Throttle) -> None:
    throttle.succeeded("192.0.2.1", "ns/box", T)
    assert throttle.knows("192.0.2.1", "ns/box", T + RECENT - 1)
    assert not throttle.knows("192.0.2.1", "ns/box", T + RECENT + 2)
    assert not throttle.knows("192.0.2.1", "ns/other", T)
    assert not throttle.knows("192.0.2.2", "ns/box", T)


def test_many_successes_push_out_old_ones_only(throttle: Throttle) -> None:
    for number in range(2000):
        throttle.succeeded(address(number), "ns/box", T + number / 100)
    assert sum(throttle.knows(address(number), "ns/box", T + 20) for number in range(2000)) > 1950


def test_an_attacker_with_many_addresses_fills_nobody_elses_bucket(throttle: Throttle) -> None:
    for number in range(4000):
        for _ in range(20):
            throttle.failed(address(number), T)
    others = [f"203.0.{number >> 8}.{number & 255}" for number in range(1000)]
    assert sum(not throttle.may_look(client, T) for client in others) < 50


def test_a_torn_or_absurd_cell_does_no_more_than_a_full_bucket(throttle: Throttle) -> None:
    size = 8 * (CLIENT.size + MISSING.size)
    for value in (float("nan"), float("inf"), 1e300, -1e300, T + 1e9):
        throttle._map[:size] = struct.pack("=d", value) * (size // 8)
        assert throttle.may_look("192.0.2.1", T)
        for _ in range(20):
            throttle.failed("192.0.2.1", T)
        assert not throttle.may_look("192.0.2.1", T), "the control: it counts again at once"
        assert throttle.may_look("192.0.2.1", T + 1)


def test_a_clock_that_goes_back_locks_nobody_out(throttle: Throttle) -> None:
    for _ in range(20):
        throttle.failed("192.0.2.1", T)
    assert not throttle.may_look("192.0.2.1", T - 3), "a little skew between workers is nothing"
    assert throttle.may_look("192.0.2.1", T - 86_400)


def test_a_link_is_good_once(throttle: Throttle) -> None:
    assert not throttle.spent(b"link")
    assert throttle.spend(b"link", int(T) + 60, T) is True
    assert throttle.spend(b"link", int(T) + 60, T) is False
    assert throttle.spent(b"link")
    assert throttle.spend(b"another", int(T) + 60, T) is True


def test_links_that_expired_make_room_and_live_ones_do_not(throttle: Throttle) -> None:
    names = [b"%d" % number for number in range(40_000)]
    full = sum(throttle.spend(name, int(T) + 60, T) is None for name in names)
    assert full > 0, "there is an end to it"
    assert all(throttle.spend(name, int(T) + 60, T) is not True for name in names), "none was forgotten before its time"
    assert throttle.spend(b"later", int(T) + 500, T + 61) is True


def test_forked_workers_count_together(throttle: Throttle) -> None:
    for _ in range(4):
        pid = os.fork()
        if not pid:
            for _ in range(5):
                throttle.failed("192.0.2.1", T)
            throttle.spend(b"link", int(T) + 60, T)
            throttle.succeeded("192.0.2.1", "ns/box", T)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    assert not throttle.may_look("192.0.2.1", T)
    assert throttle.spend(b"link", int(T) + 60, T) is False
    assert throttle.knows("192.0.2.1", "ns/box", T)


def test_of_workers_that_spend_a_link_at_once_one_wins(throttle: Throttle) -> None:
    for round_ in range(20):
        name = b"link %d" % round_
        start_r, start_w = os.pipe()
        workers = []
        for _ in range(4):
            pid = os.fork()
            if not pid:
                os.close(start_w)
                os.read(start_r, 1)  # until all are there
                won = None
                while won is None:
                    won = throttle.spend(name, int(T) + 60, T)
                os._exit(7 if won else 0)
            workers.append(pid)
        os.close(start_r)
        os.close(start_w)
        ends = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in workers]
        assert sorted(ends) == [0, 0, 0, 7]


def test_a_successor_goes_on_with_the_counters(throttle: Throttle) -> None:
    for _ in range(20):
        throttle.failed("192.0.2.1", T)
    throttle.spend(b"link", int(T) + 60, T)
    descriptor, key = throttle.handed()
    successor = Throttle(key, os.dup(descriptor))
    assert not successor.may_look("192.0.2.1", T)
    assert successor.spent(b"link")
    successor.close()
    stranger = Throttle(key, os.memfd_create("other"))
    assert stranger.may_look("192.0.2.1", T), "what has another shape is not taken over"
    stranger.close()


def test_each_start_hashes_in_its_own_way() -> None:
    one, other = Throttle(), Throttle()
    assert one._hash(b"client", b"x") != other._hash(b"client", b"x")
    one.close()
    other.close()
