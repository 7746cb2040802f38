"""What is dropped under a flood, and what is answered all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from egress.dns import shedding
from egress.dns.shedding import (
    CALM,
    FIRST_SHARE,
    FULL,
    KNOWN_SHARE,
    LOST,
    NEW_SHARE,
    PARENT_SHARE,
    PARENTS,
    PATIENCE,
    PORT_SHARE,
    PORT_WINDOWS,
    WINDOW,
    Shedding,
)
from tests.pure.dns.house import House
from tests.pure.dns.plays import NXDOMAIN, A, allow, ask_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

NOW = 1000.0
MOST = 1 << 20


def nobody(_name: str, _qtype: int) -> bool:
    return False


def flooded() -> Shedding:
    made = Shedding()
    assert not made.judge(3, FULL, MOST, 0, NOW)
    assert made.judge(3, FULL, MOST, LOST, NOW)
    return made


def admitted(shares: Shedding, names: list[str], ports: list[int], now: float = NOW) -> int:
    return sum(
        shares.admits(ask_bytes(name), port, now, nobody) for name, port in zip(names, ports, strict=True)
    )  # fmt: skip


# -- when ------------------------------------------------------------------------------------------------------------
def test_a_queue_that_stays_full_is_a_flood_and_one_that_empties_is_not() -> None:
    shares = Shedding()
    for step in range(20):
        assert not shares.judge(3, FULL if step % 2 else 0, MOST, 0, NOW + step * PATIENCE / 2)
    shares = Shedding()
    assert not shares.judge(3, FULL, MOST, 0, NOW)
    assert not shares.judge(3, FULL, MOST, 0, NOW + PATIENCE * 0.9)
    assert shares.judge(3, FULL, MOST, 0, NOW + PATIENCE * 1.1)
    assert shares.on
    assert not shares.judge(3, FULL, MOST, 0, NOW + PATIENCE * 1.2), "told once"


def test_a_burst_that_did_not_fit_is_none_and_one_that_goes_on_is() -> None:
    shares = Shedding()
    assert not shares.judge(3, FULL, MOST, 1000, NOW), "what was lost before counts for nothing"
    assert not shares.judge(3, FULL, MOST, 1000 + LOST - 1, NOW)
    assert not shares.judge(3, FULL, MOST, 1000 + 2 * LOST, NOW + 2 * PATIENCE), "it was empty meanwhile"
    assert shares.judge(3, FULL, MOST, 1000 + 3 * LOST, NOW + 2 * PATIENCE)


def test_small_buffers_count_by_their_size() -> None:
    shares = Shedding()
    assert not shares.judge(3, 60_000, 100_000, 0, NOW)
    assert not shares.judge(3, 60_000, 100_000, 0, NOW + PATIENCE / 2)
    assert shares.judge(3, 60_000, 100_000, 0, NOW + PATIENCE * 1.25)


def test_it_ends_when_nothing_was_dropped_for_a_while() -> None:
    shares = flooded()
    assert not shares.over(NOW + CALM - 1)
    admitted(shares, ["same.example.com"] * (PARENT_SHARE + 1), [5] * (PARENT_SHARE + 1), NOW + 3)
    assert shares.dropped == 1
    assert not shares.over(NOW + CALM)
    assert shares.over(NOW + 3 + CALM)
    assert not shares.on


# -- what ------------------------------------------------------------------------------------------------------------
def test_a_port_has_its_share_and_the_next_port_its_own() -> None:
    shares = flooded()
    now = NOW
    for number in range(PORT_SHARE):
        now = NOW + number * WINDOW * PORT_WINDOWS / 2 / PORT_SHARE
        assert shares.admits(ask_bytes(f"p{number}.z{number}.com"), 4000, now, lambda *_: True)
    assert not shares.admits(ask_bytes("api.example.com"), 4000, now, lambda *_: True)
    assert shares.admits(ask_bytes("api.example.com"), 4001, now, nobody)
    assert shares.admits(ask_bytes("api.example.com"), 4000, now + WINDOW * (PORT_WINDOWS + 1), nobody)


@pytest.mark.parametrize("below", ["example.com", "eXaMpLe.CoM"])
def test_names_below_one_parent_share_and_the_known_among_them_pass(below: str) -> None:
    shares = flooded()
    count = PARENT_SHARE + 50
    assert admitted(shares, [f"p{n}.example.com" for n in range(count)], list(range(count))) == PARENT_SHARE
    known = {("api.example.com", A)}
    assert shares.admits(ask_bytes(f"API.{below}"), 9000, NOW, lambda *key: key in known)
    assert not shares.admits(ask_bytes(f"api.{below}", 28), 9001, NOW, lambda *key: key in known)
    assert not shares.admits(ask_bytes(f"other.{below}"), 9002, NOW, nobody)
    assert shares.admits(ask_bytes("other.example.org"), 9003, NOW, nobody), "other parents have not had theirs"
    assert shares.admits(ask_bytes(f"other.{below}"), 9002, NOW + WINDOW, nobody), "a window later there is a new one"


def test_who_asks_from_a_new_port_is_preferred_when_all_new_names_share_is_spent() -> None:
    shares = flooded()
    ports = [1 + n % 1000 for n in range(10 * NEW_SHARE)]
    names = [f"p.z{n}.com" for n in range(10 * NEW_SHARE)]
    first = admitted(shares, names, ports)
    assert NEW_SHARE < first <= NEW_SHARE + FIRST_SHARE
    for window in range(1, 2 * PORT_WINDOWS, 7):
        now = NOW + window * WINDOW
        assert admitted(shares, names, ports, now) == NEW_SHARE, "its ports are remembered for as long as they ask"
        assert shares.admits(ask_bytes("new.example.org"), 50_000 + window, now, nobody)


def test_a_queue_that_goes_on_losing_makes_the_shares_smaller_until_it_does_not() -> None:
    shares = flooded()
    names = [f"p.z{n}.com" for n in range(NEW_SHARE)]

    def window(number: int, lost: int) -> int:
        shares.adapt(3, lost)
        return admitted(shares, names, [7] * NEW_SHARE, NOW + number * WINDOW)

    assert window(1, 0) == NEW_SHARE, "nothing was lost since"
    assert window(2, 20_000) <= NEW_SHARE / 2
    assert [window(3 + n, 30_000 + n) for n in range(40)][-1] > 0, "and never to nothing"
    assert window(43, 30_039) > 0
    assert [window(44 + n, 30_039) for n in range(60)][-1] == NEW_SHARE


def test_known_names_have_a_share_too() -> None:
    shares = flooded()
    count = PARENT_SHARE + KNOWN_SHARE + 100
    ports = [n % 60_000 for n in range(count)]
    passed = sum(shares.admits(ask_bytes("api.example.com"), port, NOW, lambda *_: True) for port in ports)
    assert passed == PARENT_SHARE + KNOWN_SHARE


def test_whatever_comes_is_counted_and_never_too_much() -> None:
    shares = flooded()
    for number in range(3 * PARENTS):
        for data in (b"", b"\0" * 12, b"\xff" * 300, ask_bytes(f"p.z{number}.com"), number.to_bytes(40, "little")):
            shares.admits(data, number % 65_536, NOW + number * WINDOW / 100, lambda *_: True)
    assert len(shares._parents) <= PARENTS


# -- in the service --------------------------------------------------------------------------------------------------
@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    monkeypatch.setattr(shedding, "PATIENCE", 0.0)  # the clock stands still while the queue is full
    made = House(allow("*.example.com"), allow("exact.example.net"))
    yield made
    made.close()


def test_e14_a_full_queue_is_emptied_and_what_is_known_is_answered(house: House) -> None:
    house.resolve("api.example.com")
    house.ask("api.example.com")
    house.replies()
    flood = 3000
    for number in range(flood):
        house.client.send(ask_bytes(f"n{number}.denied.example.org"))
    house.client.send(ask_bytes("api.example.com"))  # by now from a port that has asked a lot
    house.client.send(ask_bytes("exact.example.net"))
    replies = house.replies()
    assert "a flood of questions: what there is too much of is dropped" in house.reports
    denied = [reply for reply in replies if reply.rcode == NXDOMAIN]
    assert PARENT_SHARE <= len(denied) < flood / 2
    assert [reply.rcode for reply in replies if reply not in denied] == [0], "the one in the cache"
    house.resolver.answer(house.resolver.one())
    assert house.one().question == "exact.example.net."
    house.clock.advance(CALM + 1)
    house.ask("m.denied.example.org")
    assert house.one().rcode == NXDOMAIN
    assert any("is over" in report for report in house.reports)
    for number in range(50):
        house.ask(f"l{number}.denied.example.org")
    assert len(house.replies()) == 50, "all is as ever"


def test_e14_a_burst_of_an_honest_program_is_answered_whole(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: 1,500 short names at once, from one socket."""
    monkeypatch.setattr(shedding, "PATIENCE", 0.1)
    for number in range(1500):
        house.client.send(ask_bytes(f"n{number}.denied.example.org"))
    assert len(house.replies()) == 1500
    assert house.reports == []
