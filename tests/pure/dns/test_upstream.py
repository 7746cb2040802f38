"""Who may answer, and how much may be in flight: real sockets on loopback, a clock that the test moves."""

from __future__ import annotations

import errno
import random
import socket
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egress.dns import channels
from egress.dns.channels import AGE, POOL, RETIRED, STRAYS
from egress.dns.upstream import PENDING, WAITERS, WAITING
from tests.pure.dns.conftest import Theatre
from tests.pure.dns.resolvers import Asked, Stage, framed, read_stream, reply_to

if TYPE_CHECKING:
    from egress.dns.upstream import Server


# -- what is asked -------------------------------------------------------------------------------------------------
def test_e8_ids_and_ports_vary(theatre: Theatre) -> None:
    (resolver,) = theatre.resolvers(1)
    stage = theatre.stage(resolver)
    for n in range(400):
        stage.ask(f"n{n}.example.com")
    asked = resolver.take()
    assert len({each.source[1] for each in asked}) == POOL
    assert len({each.record.header.id for each in asked}) > 380
    ids = [each.record.header.id for each in asked]
    steps = {(b - a) % 65536 for a, b in pairwise(ids)}
    assert len(steps) > 350, "no counter"


def test_e9_nothing_of_the_clients_message_is_asked_but_name_and_type(theatre: Theatre) -> None:
    (resolver,) = theatre.resolvers(1)
    stage = theatre.stage(resolver)
    stage.ask("api.example.com", 28)
    record = resolver.one().record
    assert (str(record.q.qname), record.q.qtype, record.q.qclass) == ("api.example.com.", 28, 1)
    assert (record.header.rd, record.header.ad, record.header.cd) == (1, 0, 0)
    (opt,) = record.ar
    assert (opt.edns_do, opt.edns_len, opt.rdata) == (0, 1232, [])


def test_equal_questions_in_flight_are_one_and_everybody_hears_the_answer(theatre: Theatre) -> None:
    (resolver,) = theatre.resolvers(1)
    stage = theatre.stage(resolver)
    assert stage.ask(waiter="one")
    assert stage.ask(waiter="two")
    stage.ask("api.example.com", 28, waiter="another type")
    asked = resolver.take()
    assert len(asked) == 2
    resolver.answer(asked[0])
    assert stage.addresses() == ["198.51.100.7"]
    assert stage.results[0][0].waiters == ["one", "two"]
    stage.ask(waiter="three")
    assert len(resolver.take()) == 1, "an answered question is asked again"


# -- who may answer ------------------------------------------------------------------------------------------------
def forged(asked: Asked, **kind: bool) -> bytes:
    data = bytearray(reply_to(asked, "203.0.113.66"))
    if kind.get("id"):
        data[1] ^= 1
    if kind.get("case"):
        data[13] ^= 0x20
    if kind.get("name"):
        data[13] = ord("b")
    if kind.get("type"):
        data[12 + len("api.example.com") + 2 + 1] = 28
    if kind.get("two"):
        data[5] = 2
    if kind.get("query"):
        data[2] &= 0x7F
    if kind.get("short"):
        del data[12:]
    return bytes(data)


@pytest.mark.parametrize("kind", ["id", "case", "name", "type", "two", "query", "short"])
def test_e8_a_wrong_answer_is_ignored_and_counted_and_the_right_one_still_wins(theatre: Theatre, kind: str) -> None:
    (resolver,) = theatre.resolvers(1)
    stage = theatre.stage(resolver)
    stage.ask()
    asked = resolver.one()
    resolver.send(asked, forged(asked, **{kind: True}))
    if kind == "two":  # question and id are right: it is the server's, and nonsense
        assert stage.addresses() == ["-"]
        return
    assert stage.addresses() == []
    assert stage.upstream.stray_packets == 1
    resolver.answer(asked)
    assert stage.addresses() == ["198.51.100.7"]


def test_e8_from_another_port_or_address_nothing_is_heard(theatre: Theatre) -> None:
    (resolver,) = theatre.resolvers(1)
    stage = theatre.stage(resolver)
    stage.ask()
    asked = resolver.one()
    for source in (("127.0.0.1", 0), ("127.0.0.2", resolver.port)):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            stranger.bind(source)
            stranger.sendto(forged(asked), asked.source)
    assert stage.addresses() == []
    assert stage.upstream.stray_packets == 0
    resolver.answer(asked)
    assert stage.addresses() == ["198.51.100.7"]


def test_e8_an_answer_on_another_of_our_ports_is_not_taken(theatre: Theatre) -> None:
    (resolver,) = theatre.resolvers(1)
    stage = theatre.stage(resolver)
    stage.ask("one.example.com")
    one = resolver.one()
    stage.ask("two.example.com")
    two = resolver.one()
    assert one.source != two.source
    resolver.udp.sendto(reply_to(one), two.source)
    assert stage.addresses() == []
    assert stage.upstream.stray_packets == 1


def test_e8_a_port_that_is_guessed_at_is_given_up_and_the_question_goes_over_tcp(theatre: Theatre) -> None:
    (resolver,) = theatre.resolvers(1)
    stage = theatre.stage(resolver)
    stage.ask()
    asked = resolver.one()
    for n in range(STRAYS):
        resolver.send(asked, bytes([n, n]) + forged(asked)[2:] if asked.data[:2] != bytes([n, n]) else b"x" * 20)
        stage.clock.settle()
    (connection,) = resolver.connections()
    with connection:
        again = read_stream(connection)
        assert again.name == "api.example.com"
        connection.sendall(framed(reply_to(again)))
        assert stage.addresses() == ["198.51.100.7"]
    assert stage.open_sockets == 0, "the port is closed with its last question"


def test_e8_a_guessed_port_without_tcp_is_asked_again_from_another_port(theatre: Theatre) -> None:
    (resolver,) = theatre.resolvers(1)
    stage = theatre.stage(resolver)

    def no_tcp(kind: str, _: Server) -> None:
        if kind == "tcp":
            raise OSError(errno.ECONNREFUSED, "no TCP here")

    stage.refuse = no_tcp
    stage.ask()
    asked = resolver.one()
    for _ in range(STRAYS):
        resolver.send(asked, b"\0" * 20)
        stage.clock.settle()
    again = resolver.one()
    assert again.source != asked.source
    resolver.answer(again)
    assert stage.addresses() == ["198.51.100.7"]


def test_late_answers_are_no_guesses(theatre: Theatre) -> None:
    slow, quick = theatre.resolvers(2)
    stage = theatre.stage(slow, quick)
    late = []
    for n in range(3 * POOL):
        stage.ask(f"n{n}.example.com")
        late += slow.take()
        stage.clock.advance(0.6)
        for asked in quick.take():
            quick.answer(asked)
        stage.clock.settle()
    assert len(stage.addresses()) == 3 * POOL
    for asked in late:
        slow.answer(asked)
    stage.clock.settle()
    assert stage.upstream.stray_packets == 0
    assert len(stage.results) == 3 * POOL
    for asked in late:
        slow.answer(asked)  # but a second time nobody waits for
    stage.clock.settle()
    assert stage.upstream.stray_packets == len(late)


@settings(max_examples=60)
@given(
    st.lists(st.binary(max_size=60), max_size=8),
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 255)), max_size=3),
)
def test_e14_arbitrary_packets_change_nothing(packets: list[bytes], damage: list[tuple[int, int]]) -> None:
    theatre = Theatre()
    try:
        (resolver,) = theatre.resolvers(1)
        stage = theatre.stage(resolver)
        stage.ask()
        asked = resolver.one()
        harmed = bytearray(reply_to(asked, "203.0.113.66"))
        for place, change in damage:
            if place not in (0, 1) and place < len(harmed):
                harmed[place] ^= change
        for packet in [*packets, *(asked.data[:2] + packet for packet in packets)]:
            resolver.send(asked, packet)
            stage.clock.settle()
        assert stage.results == []
        resolver.send(asked, bytes(harmed))
        stage.clock.settle()
        resolver.answer(asked)
        stage.clock.settle()
        assert len(stage.results) == 1
    finally:
        theatre.close()


# -- how much may be in flight -------------------------------------------------------------------------------------
def test_e14_no_more_than_pending_questions_are_in_flight_and_the_oldest_makes_room(theatre: Theatre) -> None:
    """A flood that nobody answers would keep out who is answered at once; given up, a question is SERVFAIL."""
    (resolver,) = theatre.resolvers(1)
    stage = theatre.stage(resolver)
    assert all(stage.ask(f"n{n}.example.com") for n in range(PENDING + 50))
    stage.clock.settle()
    assert len(stage.upstream) == PENDING
    assert stage.addresses() == ["-"] * 50
    assert [question.name for question, _ in stage.results[:2]] == ["n0.example.com", "n1.example.com"]
    assert stage.ask(f"n{PENDING}.example.com"), "to join one costs no room"
    assert len(stage.upstream) == PENDING
    stage.clock.advance(6)
    assert stage.addresses() == ["-"] * (PENDING + 50)
    assert stage.ask("fresh.example.com")


def test_e14_waiters_are_bounded_for_each_question_and_for_all(theatre: Theatre) -> None:
    (resolver,) = theatre.resolvers(1)
    stage = theatre.stage(resolver)
    assert [stage.ask() for _ in range(WAITERS + 5)] == [True] * WAITERS + [False] * 5
    for n in range(200 * WAITERS):
        stage.ask(f"n{n % 200}.example.com")
        assert stage.upstream.waiting <= WAITING
    assert stage.ask("fresh.example.com")
    assert stage.upstream.waiting <= WAITING
    stage.clock.advance(6)
    assert stage.upstream.waiting == 0


def tables(stage: Stage) -> dict[str, int]:
    """The size of everything that an upstream keeps."""
    up = stage.upstream
    channels_ = [channel for pool in up._pools for channel in (*pool.channels, *pool._retired)]
    return {
        "flying": len(up._flying),
        "probes": len(up._probes),
        "ready": len(up._ready),
        "finished": len(up._finished),
        "queued": len(up._streams.queued),
        "streams": up._streams.open,
        "joined": up._joined,
        "ids": sum(len(channel.ids) for channel in channels_),
        "timers": len(stage.clock._timers),
    }


@pytest.mark.parametrize("fate", ["answered", "failed", "refused", "nonsense"])
def test_e14_nothing_grows_over_ten_thousand_questions(theatre: Theatre, fate: str) -> None:
    (resolver,) = theatre.resolvers(1)
    stage = theatre.stage(resolver)
    for batch in range(20):
        for n in range(500):
            assert stage.ask(f"n{batch}-{n}.example.com")
        for asked in resolver.take():
            if fate == "answered":
                resolver.answer(asked)
            elif fate == "refused":
                resolver.answer(asked, rcode=5)
            elif fate == "nonsense":
                resolver.send(asked, reply_to(asked)[:-1])
        stage.clock.advance(6 if fate == "failed" else 0.1)
        resolver.take()
    assert len(stage.results) == 10_000
    assert stage.open_sockets <= POOL + RETIRED
    assert set(tables(stage).values()) == {0}
    assert stage.clock.idle
    assert set(stage.clock.readers) == {sock.fileno() for sock in stage.sockets if sock.fileno() >= 0}


def test_sockets_are_replaced_after_a_while_and_after_many_questions(
    theatre: Theatre, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "USES", 3)
    (resolver,) = theatre.resolvers(1)
    stage = theatre.stage(resolver)

    def ask(count: int) -> set[int]:
        ports = set()
        for _ in range(count):
            stage.ask(f"n{random.random()}.example.com")
            asked = resolver.one()
            ports.add(asked.source[1])
            resolver.answer(asked)
            stage.clock.settle()
        return ports

    first = ask(POOL)
    assert len(first) == POOL
    ask(20 * POOL)
    assert len(stage.sockets) > 5 * POOL
    assert stage.open_sockets == POOL
    before = len(stage.sockets)
    stage.clock.advance(AGE + 1)
    ask(8)
    assert len(stage.sockets) > before
    assert stage.open_sockets == 8, "the old ones are gone"


def test_e14_retired_sockets_are_bounded_though_their_questions_never_end(theatre: Theatre) -> None:
    (resolver,) = theatre.resolvers(1)
    stage = theatre.stage(resolver, timeout=120.0)
    for n in range(6 * POOL):
        stage.ask(f"n{n}.example.com")
        stage.clock.advance(AGE / POOL)
    assert stage.open_sockets <= POOL + RETIRED


def test_without_descriptors_the_open_sockets_serve(theatre: Theatre) -> None:
    (resolver,) = theatre.resolvers(1)
    stage = theatre.stage(resolver)
    stage.ask("one.example.com")
    resolver.answer(resolver.one())

    def full(_kind: str, _server: Server) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    stage.refuse = full
    assert stage.ask("two.example.com")
    resolver.answer(resolver.one())
    assert stage.addresses() == ["198.51.100.7"] * 2


def test_close_closes_every_socket_and_ends_every_timer(theatre: Theatre) -> None:
    (resolver,) = theatre.resolvers(1)
    stage = theatre.stage(resolver)
    for n in range(100):
        stage.ask(f"n{n}.example.com")
    for asked in resolver.take()[:10]:
        resolver.answer(asked, tc=1)
    stage.clock.settle()
    assert stage.open_sockets == POOL + 10
    stage.upstream.close()
    stage.clock.advance(10)
    assert stage.open_sockets == 0
    assert not stage.clock.readers
    assert not stage.clock.writers
    assert stage.clock.idle
    assert stage.results == []


def test_an_upstream_that_was_dialled_again_uses_the_new_address(theatre: Theatre) -> None:
    """An interface went and came: the kernel refuses to send from the old address."""
    (resolver,) = theatre.resolvers(1)
    stage = theatre.stage(resolver)
    for n in range(POOL):
        stage.ask(f"n{n}.example.com")
    for asked in resolver.take():
        resolver.answer(asked)
    stage.clock.settle()
    for sock in stage.sockets:
        sock.shutdown(socket.SHUT_WR)  # EPIPE: as good as EINVAL, ENETUNREACH, EADDRNOTAVAIL
    assert stage.ask("after.example.com")
    resolver.answer(resolver.one())
    stage.clock.settle()
    assert len(stage.results) == POOL + 1
