"""A question's way: what is acknowledged before what leaves, and who gets which reply."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import dnslib
import pytest

from egress.dns.interceptor import BLOCKED
from egress.dns.round import NOT_READY
from egress.dns.same import SAME
from tests.pure.dns.house import RULES, House
from tests.pure.dns.plays import (
    NOERROR,
    NXDOMAIN,
    SERVFAIL,
    A,
    allow,
    ask_bytes,
    deny,
    read,
)  # fmt: skip
from tests.pure.dns.resolvers import Asked, reply_to

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from egress.firewall.leases import Grant


@pytest.fixture
def house() -> Iterator[House]:
    built = House()
    yield built
    built.close()


# -- a query's way -------------------------------------------------------------------------------------------------
def test_e11_the_address_is_written_before_the_answer_leaves(house: House) -> None:
    house.ask()
    house.resolver.answer(house.resolver.one())
    seen: list[int] = []
    before = house._open

    def watch(grants: Sequence[Grant]) -> None:
        before(grants)
        try:
            house.client.recv(4096, socket.MSG_PEEK)
            seen.append(1)
        except BlockingIOError:
            seen.append(0)

    house.service._open = watch
    reply = house.one()
    assert seen == [0]
    assert (reply.rcode, [record[3] for record in reply.records]) == (NOERROR, ["198.51.100.7"])
    assert [kind for kind, _ in house.events] == ["write", "remember"]
    assert house.leases.opens(bytes((198, 51, 100, 7)), "tcp", 443)


def test_all_answers_of_a_round_are_one_batch(house: House) -> None:
    for n in range(20):
        house.client.send(ask_bytes(f"n{n}.example.com", ident=n))
    house.clock.settle()
    for n, asked in enumerate(house.resolver.take()):
        house.resolver.answer(asked, f"198.51.100.{n}")
    assert len(house.replies()) == 20
    assert [(kind, len(what)) for kind, what in house.events] == [("write", 20), ("remember", 20)]


def test_a_fresh_lease_needs_no_write(house: House) -> None:
    house.resolve("one.example.com")
    house.events.clear()
    assert house.resolve("two.example.com").rcode == NOERROR
    assert house.events == [("remember", ["two.example.com"])]


def test_a_refused_write_is_servfail_and_nothing_is_remembered(house: House) -> None:
    house.fault = OSError("no buffer space")
    reply = house.resolve()
    assert (reply.rcode, reply.records) == (SERVFAIL, ())
    assert reply.ede is not None
    assert len(house.leases) == 0
    assert "no buffer space" in house.reports[0]
    house.fault = None
    house.events.clear()
    assert house.resolve().rcode == NOERROR, "asked anew, not from the cache"
    assert house.written() == ["198.51.100.7"]


def test_what_the_kernel_took_is_known_though_the_reply_fails(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replies leave before it is written down what they taught."""

    def fail(*_: object) -> None:
        raise RuntimeError("no")

    house.ask()
    asked = house.resolver.one()
    monkeypatch.setattr(house.service, "_reply_plain", fail)
    house.resolver.answer(asked)
    with pytest.raises(RuntimeError):
        house.clock.settle()
    assert house.written() == ["198.51.100.7"]
    assert house.leases.holds(socket.inet_aton("198.51.100.7"))


def test_a_refused_write_does_not_touch_answers_that_needed_none(house: House) -> None:
    house.resolve("one.example.com")
    house.ask("two.example.com", ident=2)
    house.ask("new.example.com", ident=3)
    house.ask("text.example.com", 16, ident=4)
    house.fault = OSError("no")
    for asked in house.resolver.take():
        house.resolver.answer(asked, "198.51.100.9" if asked.name.startswith("new") else "198.51.100.7")
    assert {reply.id: reply.rcode for reply in house.replies()} == {2: NOERROR, 3: SERVFAIL, 4: NOERROR}
    assert house.leases.opens(bytes((198, 51, 100, 7)), "tcp", 443)


def test_provenance_that_cannot_be_written_down_does_not_cost_the_answer(house: House) -> None:
    def full(_: object) -> None:
        raise OSError("no room")

    house.service._remember = full
    assert house.resolve().rcode == NOERROR
    assert house.reports


def test_names_only_passes_answers_and_opens_nothing() -> None:
    house = House(*RULES, names_only=True)
    assert house.resolve().rcode == NOERROR
    assert house.resolve("x.example.com", "127.0.0.1").ede is not None
    assert house.events == []
    house.close()


# -- who gets which reply ------------------------------------------------------------------------------------------
def test_clients_of_one_question_each_get_their_own_reply(house: House) -> None:
    others = [house._udp() for _ in range(3)]
    for sock in others:
        sock.connect(house.door.getsockname())
    others[0].send(ask_bytes("API.example.com", ident=1, edns=None))
    others[1].send(ask_bytes("api.EXAMPLE.com", ident=2, edns=4096))
    others[2].send(ask_bytes("api.example.com", ident=3, edns=600))
    house.clock.settle()
    asked = house.resolver.one()
    house.resolver.send(asked, reply_to(asked, records=1))
    house.clock.settle()
    first, second, third = (read(sock.recv(4096)) for sock in others)
    assert (first.id, first.question, first.edns) == (1, "API.example.com.", False)
    assert (second.id, second.question, second.edns) == (2, "api.EXAMPLE.com.", True)
    assert (third.id, third.question, third.edns) == (3, "api.example.com.", True)
    for reply in (first, second, third):
        assert [record[3] for record in reply.records] == ["198.51.100.7"]
    for sock in others:
        sock.close()


def test_an_answer_too_large_for_one_client_is_truncated_for_that_client_only(house: House) -> None:
    for ident, size in ((1, None), (2, 1232), (3, 100), (4, 65535)):
        house.client.send(ask_bytes(ident=ident, edns=size))
    house.clock.settle()
    asked = house.resolver.one()
    reply = asked.record.reply(aa=0)
    for n in range(40):
        reply.add_answer(dnslib.RR(asked.record.q.qname, A, rdata=dnslib.A(f"198.51.100.{n}"), ttl=300))
    house.resolver.send(asked, bytes(reply.pack()))
    found = {reply.id: (reply.truncated, len(reply.records)) for reply in house.replies()}
    assert found == {1: (True, 0), 2: (False, 40), 3: (True, 0), 4: (False, 40)}
    house.ask(ident=5, edns=None)
    assert house.one().truncated, "from the cache too"


def test_a_denied_name_is_answered_at_once_and_never_asked(house: House) -> None:
    house.ask("bad.example.com")
    reply = house.one()
    assert (reply.rcode, reply.ede is not None and reply.ede[0]) == (NXDOMAIN, BLOCKED)
    assert house.resolver.take() == []
    assert [denial.name for denial in house.denials] == ["bad.example.com"]


def test_e7_an_address_that_may_not_be_taught_is_nodata_with_the_reason(house: House) -> None:
    reply = house.resolve(address="169.254.169.254")
    assert (reply.rcode, reply.records) == (NOERROR, ())
    assert reply.ede is not None
    assert reply.ede[0] == BLOCKED
    assert "169.254.169.254" in reply.ede[1]
    assert 0 < reply.authority[0][2] <= 5
    assert house.events == []


def test_e8_a_chain_to_a_denied_name_is_a_denied_name() -> None:
    house = House(deny("t.example.net"), allow("*.example.com"))
    house.ask()
    asked = house.resolver.one()
    reply = asked.record.reply(aa=0)
    reply.add_answer(dnslib.RR("api.example.com", 5, rdata=dnslib.CNAME("t.example.net"), ttl=60))
    reply.add_answer(dnslib.RR("t.example.net", A, rdata=dnslib.A("198.51.100.7"), ttl=60))
    house.resolver.send(asked, bytes(reply.pack()))
    got = house.one()
    assert (got.rcode, got.records) == (NXDOMAIN, ())
    assert got.ede is not None
    assert "leads to t.example.net" in got.ede[1]
    assert [(denial.name, denial.rule) for denial in house.denials] == [("api.example.com", "egress[0]")]
    assert house.events == []
    house.close()


def test_without_an_upstream_it_says_that_it_is_not_ready(house: House) -> None:
    house.service.upstream = None
    house.ask()
    reply = house.one()
    assert (reply.rcode, reply.ede is not None and reply.ede[0]) == (SERVFAIL, NOT_READY)
    house.ask("bad.example.com")
    assert house.one().rcode == NXDOMAIN


def test_silence_of_the_resolver_is_servfail(house: House) -> None:
    house.ask()
    house.clock.advance(5.1)
    reply = house.one()
    assert (reply.rcode, reply.ede is not None) == (SERVFAIL, True)
    house.ask(edns=None)
    house.clock.advance(5.1)
    reply = house.one()
    assert (reply.rcode, reply.ede, reply.edns) == (SERVFAIL, None, False)


@pytest.mark.parametrize(
    "data", [b"", b"\0", b"\0" * 11, b"\0\1\x80\0\0\1\0\0\0\0\0\0\0\0\1\0\1", b"\0\1" + b"\xff" * 600]
)
def test_e14_bad_packets_hurt_nobody(house: House, data: bytes) -> None:
    house.client.send(data)
    house.clock.settle()
    try:
        house.client.recv(4096)
    except BlockingIOError:
        pass
    assert house.resolve().rcode == NOERROR


# -- what is kept ----------------------------------------------------------------------------------------------------
def test_e14_what_is_kept_for_repetition_is_bounded(house: House) -> None:
    house.resolve()
    for n in range(SAME + 100):
        house.client.send(ask_bytes(ident=n % 65536, edns=1232 + n))
        if n % 500 == 0:
            house.replies()
    house.replies()
    assert len(house.service._same.known) <= SAME
    data = bytearray(ask_bytes())
    data[-2:] = (2004).to_bytes(2, "big")
    before = len(house.service._same.known)
    house.client.send(bytes(data) + b"\0\x0c\x07\xd0" + b"\0" * 2000)
    house.clock.settle()
    assert house.one().rcode == NOERROR
    assert len(house.service._same.known) == before


def test_close_leaves_nothing_registered(house: House) -> None:
    house.ask()
    house.service.close()
    house.tcp.close()
    assert house.clock.readers == {}
    house.clock.advance(10)
    assert house.clock.idle
    assert isinstance(house.resolver.one(), Asked)
