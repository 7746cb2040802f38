"""The round: what a change of policy does to answers on their way, and what happens where there is no room."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dnslib
import pytest

from egress.dns import round as round_module
from egress.dns.interceptor import BLOCKED
from egress.dns.question import Waiter, new_question
from egress.dns.round import NOT_READY, PARKED
from policies.ports import PortSet
from tests.pure.dns.house import RULES, House
from tests.pure.dns.plays import (
    NOERROR,
    NXDOMAIN,
    SERVFAIL,
    A,
    address,
    allow,
    answer,
    ask_bytes,
    deny,
)  # fmt: skip
from tests.pure.dns.resolvers import reply_to

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def house() -> Iterator[House]:
    built = House()
    yield built
    built.close()


# -- a policy's way ------------------------------------------------------------------------------------------------
def test_e11_an_answer_that_arrives_while_a_policy_loads_waits_and_obeys_the_new_one(house: House) -> None:
    house.ask()
    house.service.hold()
    house.resolver.answer(house.resolver.one())
    assert house.replies() == []
    assert house.events == []
    house.change(deny("api.example.com"), allow("*"))
    house.service.release()
    reply = house.one()
    assert (reply.rcode, reply.ede is not None and reply.ede[0]) == (NXDOMAIN, BLOCKED)
    assert house.events == []
    assert len(house.leases) == 0


def test_e11_the_ports_learned_after_a_load_are_the_new_ones(house: House) -> None:
    house.ask()
    house.service.hold()
    house.resolver.answer(house.resolver.one())
    house.clock.settle()
    house.change(allow("api.example.com", ports=[443], protocol="tcp"))
    house.service.release()
    assert house.one().rcode == NOERROR
    assert house.events[0] == ("write", [("198.51.100.7", PortSet(((443, 443),), (), False))])


def test_e11_a_policy_that_was_refused_lets_the_answer_go_under_the_old_one(house: House) -> None:
    house.ask()
    house.service.hold()
    house.resolver.answer(house.resolver.one())
    assert house.replies() == []
    house.service.release()
    assert house.one().rcode == NOERROR
    assert house.written() == ["198.51.100.7"]


def test_e11_a_question_asked_under_the_old_policy_is_answered_under_the_new(house: House) -> None:
    house.ask()
    house.change(deny("*"))
    house.resolver.answer(house.resolver.one())
    assert house.one().rcode == NXDOMAIN
    assert house.events == []


def test_e11_what_was_cached_is_decided_again(house: House) -> None:
    house.resolve()
    house.ask()
    assert house.one().rcode == NOERROR
    house.ask()  # the same bytes: answered without being parsed
    assert house.one().rcode == NOERROR
    house.change(deny("*"))
    house.ask()
    assert house.one().rcode == NXDOMAIN
    house.change(*RULES)
    house.ask()
    assert len(house.resolver.take()) == 1, "another policy starts with an empty cache"


def test_a_client_may_be_answered_from_the_cache_while_a_policy_loads(house: House) -> None:
    house.resolve()
    house.service.hold()
    house.ask()
    assert house.one().rcode == NOERROR


def test_e14_what_waits_for_a_policy_is_bounded(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_module, "PARKED", 5)
    house.service.hold()
    for n in range(8):
        house.client.send(ask_bytes(f"n{n}.example.com"))
    house.clock.settle()
    for asked in house.resolver.take():
        house.resolver.answer(asked)
    replies = house.replies()
    assert [(reply.rcode, reply.ede is not None and reply.ede[0]) for reply in replies] == [(SERVFAIL, NOT_READY)] * 3
    house.service.release()
    assert [reply.rcode for reply in house.replies()] == [NOERROR] * 5
    monkeypatch.setattr(round_module, "PARKED_RECORDS", 50)
    house.service.hold()
    for n in range(4):
        house.client.send(ask_bytes(f"large{n}.example.com"))
    house.clock.settle()
    for asked in house.resolver.take():
        house.resolver.send(asked, reply_to(asked, records=30))
    assert [reply.rcode for reply in house.replies()] == [SERVFAIL] * 2
    assert PARKED <= 2048


# -- full ----------------------------------------------------------------------------------------------------------
def fill(house: House, count: int) -> None:
    for n in range(count):
        assert house.resolve(f"n{n}.example.com", f"203.0.113.{n}").rcode == NOERROR


def test_without_room_for_another_address_it_is_servfail_and_said() -> None:
    house = House(*RULES, capacity=3)
    fill(house, 3)
    reply = house.resolve("one.more.example.com", "198.51.100.7")
    assert (reply.rcode, reply.records) == (SERVFAIL, ())
    assert reply.ede is not None
    assert "no room" in reply.ede[1]
    assert "no room" in house.reports[0]
    assert "198.51.100.7" not in house.written()
    assert len(house.leases) == 3
    house.close()


def test_a_name_that_pushes_out_its_own_address_forgets_its_cached_answers() -> None:
    house = House(*RULES, capacity=2)
    fill(house, 1)
    house.resolve("moves.example.com", "198.51.100.1")
    house.ask("moves.example.com")
    assert house.one().records[0][3] == "198.51.100.1"
    house.clock.advance(299)
    house.clock.time += 2  # past the TTL, within the lease
    assert house.resolve("moves.example.com", "198.51.100.2").rcode == NOERROR
    house.ask("moves.example.com")
    assert house.one().records[0][3] == "198.51.100.2"
    assert house.resolver.take() == []
    house.close()


def test_an_answer_larger_than_the_room_is_servfail_and_leaves_no_half() -> None:
    house = House(*RULES, capacity=4)
    fill(house, 2)
    house.ask()
    asked = house.resolver.one()
    reply = asked.record.reply(aa=0)
    for n in range(4):
        reply.add_answer(dnslib.RR(asked.record.q.qname, A, rdata=dnslib.A(f"198.51.100.{n}"), ttl=300))
    house.resolver.send(asked, bytes(reply.pack()))
    assert house.one().rcode == SERVFAIL
    assert not any(address.startswith("198.51.100.") for address in house.written())
    assert len(house.leases) == 2
    house.close()


@pytest.mark.parametrize("greedy_first", [True, False])
def test_an_answer_without_room_does_not_take_another_answer_of_its_round_along(*, greedy_first: bool) -> None:
    house = House(*RULES, capacity=3)
    fill(house, 2)
    house.events.clear()
    answers = []
    for name, addresses in (("good", ["198.51.100.7"]), ("greedy", [f"198.51.100.{n}" for n in (7, 8, 9)])):
        asking = f"{name}.example.com"
        question = new_question(
            (asking, A), [Waiter(ask_bytes(asking), house.door, house.client.getsockname(), 1232)], 0.0
        )
        records = [address(question.name, text, 900 if name == "greedy" else 300) for text in addresses]
        answers.append((question, answer(*records)))
    house.service._answers(reversed(answers) if greedy_first else answers, house.clock.now())
    assert {reply.question: reply.rcode for reply in house.replies()} == {
        "good.example.com.": NOERROR, "greedy.example.com.": SERVFAIL,
    }  # fmt: skip
    assert house.written() == ["198.51.100.7"]
    assert house.leases.opens(bytes((198, 51, 100, 7)), "tcp", 443)
    assert len(house.leases) == 3
    house.close()
