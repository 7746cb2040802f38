"""Servers that fail, lie, are slow or silent: who is asked next, and when it ends."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from egress.dns.resolvers import DOWN_AFTER
from egress.dns.stream import STREAMS
from egress.dns.upstream import AGAIN, HEDGE_MOST
from tests.pure.dns.resolvers import Asked, Resolver, Stage, framed, read_stream, reply_to

if TYPE_CHECKING:
    import socket

    from egress.dns.upstream import Server
    from tests.pure.dns.conftest import Theatre

OTHER = "198.51.100.8"


# -- fail-over -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rcode", [1, 2, 4, 5, 9])
def test_a_server_that_answers_with_an_error_is_passed_over_at_once(theatre: Theatre, rcode: int) -> None:
    first, second = theatre.resolvers(2)
    stage = theatre.stage(first, second)
    stage.ask()
    first.answer(first.one(), rcode=rcode)
    assert stage.addresses() == []
    second.answer(second.one(), OTHER)
    assert stage.addresses() == [OTHER]


def test_nxdomain_is_an_answer(theatre: Theatre) -> None:
    first, second = theatre.resolvers(2)
    stage = theatre.stage(first, second)
    stage.ask()
    first.answer(first.one(), rcode=3)
    assert stage.addresses() == ["!3"]
    assert second.take() == []


def test_when_all_fail_the_error_is_the_answer_and_not_before(theatre: Theatre) -> None:
    servers = theatre.resolvers(3)
    stage = theatre.stage(*servers)
    stage.ask()
    for index, resolver in enumerate(servers):
        assert stage.addresses() == []
        resolver.answer(resolver.one(), rcode=2 if index else 5)
    assert stage.addresses() == ["!2"]


def test_an_error_does_not_end_what_another_server_may_still_answer(theatre: Theatre) -> None:
    first, second = theatre.resolvers(2)
    stage = theatre.stage(first, second)
    stage.ask()
    stage.clock.advance(HEDGE_MOST + 0.1)
    asked = second.one()
    first.answer(first.one(), rcode=2)
    assert stage.addresses() == []
    second.answer(asked, OTHER)
    assert stage.addresses() == [OTHER]


def test_nonsense_from_the_server_counts_as_its_failure(theatre: Theatre) -> None:
    first, second = theatre.resolvers(2)
    stage = theatre.stage(first, second)
    stage.ask()
    asked = first.one()
    first.send(asked, reply_to(asked)[:-2])
    assert stage.addresses() == []
    second.answer(second.one(), OTHER)
    assert stage.addresses() == [OTHER]


def test_icmp_passes_a_server_over_at_once(theatre: Theatre) -> None:
    first, second = theatre.resolvers(2)
    stage = theatre.stage(first, second)
    first.close()
    stage.ask()
    stage.clock.settle()
    second.answer(second.one(), OTHER)
    assert stage.addresses() == [OTHER]


@pytest.mark.parametrize("straight", [False, True])
def test_icmp_met_while_sending_passes_the_earlier_question_on_too(
    theatre: Theatre, monkeypatch: pytest.MonkeyPatch, *, straight: bool
) -> None:
    monkeypatch.setattr("egress.dns.channels.POOL", 1)
    if straight:
        monkeypatch.setattr("egress.dns.upstream.POOL", 1)  # all sockets are there: the ordinary question's way
    first, second = theatre.resolvers(2)
    stage = theatre.stage(first, second)
    first.close()
    stage.ask("one.example.com")
    stage.ask("two.example.com")  # the kernel tells this send about the other's ICMP
    stage.clock.settle()
    asked = second.take()
    assert {each.name for each in asked} == {"one.example.com", "two.example.com"}
    assert len(asked) == 2


def test_a_lonely_server_that_refuses_has_two_seconds_to_come_back(theatre: Theatre) -> None:
    (resolver,) = theatre.resolvers(1)
    stage = theatre.stage(resolver)
    resolver.udp.close()
    stage.ask()
    stage.clock.advance(1.5)
    assert stage.addresses() == []
    stage.clock.advance(0.6)
    assert stage.addresses() == ["-"], "and no longer: the time-out is for silence"


def test_servers_that_cannot_be_dialled_are_passed_over(theatre: Theatre) -> None:
    first, second = theatre.resolvers(2)
    stage = theatre.stage(first, second)

    def no_route(_kind: str, server: Server) -> None:
        if server == first.server:
            raise OSError(errno.ENETUNREACH, "no route")

    stage.refuse = no_route
    stage.ask()
    second.answer(second.one(), OTHER)
    assert stage.addresses() == [OTHER]


def test_no_server_can_be_dialled(theatre: Theatre) -> None:
    (resolver,) = theatre.resolvers(1)
    stage = theatre.stage(resolver, timeout=3.0)

    def no_route(_kind: str, _server: Server) -> None:
        raise OSError(errno.ENETUNREACH, "no route")

    stage.refuse = no_route
    assert stage.ask()
    stage.clock.advance(3.1)
    assert stage.addresses() == ["-"]


# -- time ----------------------------------------------------------------------------------------------------------
def test_a_slow_server_is_hedged_and_the_first_good_answer_wins(theatre: Theatre) -> None:
    first, second = theatre.resolvers(2)
    stage = theatre.stage(first, second)
    stage.ask()
    slow = first.one()
    stage.clock.advance(0.25)
    assert second.take() == []
    stage.clock.advance(0.2)  # three times the smoothed 0.1 s
    second.answer(second.one(), OTHER)
    assert stage.addresses() == [OTHER]
    first.answer(slow)
    assert stage.addresses() == [OTHER]
    assert stage.upstream.stray_packets == 0


def test_a_lonely_server_is_asked_again(theatre: Theatre) -> None:
    (resolver,) = theatre.resolvers(1)
    stage = theatre.stage(resolver)
    stage.ask()
    first = resolver.one()
    stage.clock.advance(AGAIN + 0.05)
    second = resolver.one()
    assert first.data[:2] != second.data[:2] or first.source != second.source
    stage.clock.advance(AGAIN)
    assert len(resolver.take()) == 1
    resolver.answer(first)
    assert stage.addresses() == ["198.51.100.7"], "the first one still counts"


@pytest.mark.parametrize("timeout", [1.0, 2.0, 3.0, 5.0, 30.0])
@pytest.mark.parametrize("count", [1, 2])
def test_silence_ends_with_the_time_out(theatre: Theatre, timeout: float, count: int) -> None:
    stage = theatre.stage(*theatre.resolvers(count), timeout=timeout)
    stage.ask()
    stage.clock.advance(timeout - 0.05)
    assert stage.addresses() == []
    stage.clock.advance(0.1)
    assert stage.addresses() == ["-"]
    assert stage.clock.idle


def silent(stage: Stage, resolver: Resolver, questions: int) -> None:
    for n in range(questions):
        stage.ask(f"silent{n}.example.com")
    stage.clock.advance(6)
    resolver.take()


def test_a_silent_server_is_passed_over_until_a_probe_is_answered(theatre: Theatre) -> None:
    first, second = theatre.resolvers(2)
    stage = theatre.stage(first, second)
    for n in range(DOWN_AFTER):
        stage.ask(f"n{n}.example.com")
        stage.clock.advance(5.5)
    first.take()
    second.take()
    assert [health.down for health in stage.upstream.health] == [True, True]
    stage.ask("tried.example.com")  # all are down: the first is tried all the same
    stage.clock.advance(0.6)
    assert len(first.take()) == 1
    second.answer(second.one())
    stage.clock.settle()
    assert [health.down for health in stage.upstream.health] == [True, False]
    stage.ask("next.example.com")
    assert first.take() == []
    second.answer(second.one())
    stage.upstream.probe("")
    probe = first.one()
    assert (probe.name, probe.record.q.qtype) == ("", 2)
    assert second.one().name == "", "the well are probed too: silence would count"
    results = len(stage.addresses())
    first.answer(probe, rcode=5)
    stage.clock.settle()
    assert [health.down for health in stage.upstream.health] == [False, False]
    assert len(stage.results) == results, "nobody hears of a probe"
    stage.ask("back.example.com")
    assert len(first.take()) == 1


def test_a_probe_that_nobody_answers_leaves_nothing_behind(theatre: Theatre) -> None:
    (resolver,) = theatre.resolvers(1)
    stage = theatre.stage(resolver)
    silent(stage, resolver, DOWN_AFTER)
    stage.results.clear()
    stage.upstream.probe("example.com")
    assert len(resolver.take()) == 1
    stage.clock.advance(2.1)
    assert stage.clock.idle
    assert stage.results == []
    assert stage.upstream.health[0].down


@pytest.mark.parametrize("asks_first", [True, False])
def test_a_probe_and_a_client_may_ask_the_same(theatre: Theatre, *, asks_first: bool) -> None:
    (resolver,) = theatre.resolvers(1)
    stage = theatre.stage(resolver)
    silent(stage, resolver, DOWN_AFTER)
    stage.results.clear()
    if asks_first:
        stage.ask("", 2)
    stage.upstream.probe("")
    if not asks_first:
        stage.ask("", 2)
    both = resolver.take()
    probe = both[1] if asks_first else both[0]
    client = both[0] if asks_first else both[1]
    resolver.answer(probe, rcode=3)
    stage.clock.settle()
    assert stage.results == []
    stage.ask("", 2, waiter="joins")
    assert resolver.take() == [], "the client's question is still the one in flight"
    resolver.answer(client, rcode=3)
    stage.clock.settle()
    assert [question.waiters for question, _ in stage.results] == [["client", "joins"]]


# -- TCP -----------------------------------------------------------------------------------------------------------
def truncated(stage: Stage, resolver: Resolver, name: str = "api.example.com") -> tuple[Asked, socket.socket]:
    """Ask, get TC, be connected to: the question over TCP and its connection."""
    stage.ask(name)
    resolver.answer(resolver.one(), tc=1)
    stage.clock.settle()
    (connection,) = resolver.connections()
    return read_stream(connection), connection


def test_a_truncated_answer_is_asked_again_over_tcp(theatre: Theatre) -> None:
    (resolver,) = theatre.resolvers(1)
    stage = theatre.stage(resolver)
    asked, connection = truncated(stage, resolver)
    with connection:
        message = framed(reply_to(asked, records=100))
        for start in range(0, len(message), 7):  # in small pieces
            connection.sendall(message[start : start + 7])
            stage.clock.settle()
    assert stage.addresses() == ["198.51.100.7"]
    answer = stage.results[0][1]
    assert answer is not None
    assert len(answer.answers) == 100
    assert stage.open_sockets == 1


def lie(asked: Asked, kind: str) -> bytes:
    good = reply_to(asked, "203.0.113.66")
    if kind == "id":
        return framed(bytes([good[0] ^ 1]) + good[1:])
    if kind == "question":
        return framed(good[:13] + b"b" + good[14:])
    if kind == "truncated":
        return framed(reply_to(asked, tc=1))
    if kind == "broken":
        return framed(good[:-1])
    if kind == "empty":
        return b"\0\0"
    if kind == "short":
        return framed(good)[:-3]
    return b""


@pytest.mark.parametrize("kind", ["id", "question", "truncated", "broken", "empty", "short", "closed"])
def test_e8_lies_over_tcp_teach_nothing_and_the_next_server_is_asked(theatre: Theatre, kind: str) -> None:
    first, second = theatre.resolvers(2)
    stage = theatre.stage(first, second)
    asked, connection = truncated(stage, first)
    connection.sendall(lie(asked, kind))
    connection.close()
    assert stage.addresses() == []
    second.answer(second.one(), OTHER)
    assert stage.addresses() == [OTHER]
    assert stage.upstream._streams.open == 0


def test_a_lonely_server_that_lies_over_tcp_is_the_end_of_it(theatre: Theatre) -> None:
    (resolver,) = theatre.resolvers(1)
    stage = theatre.stage(resolver)
    asked, connection = truncated(stage, resolver)
    connection.sendall(lie(asked, "truncated"))
    connection.close()
    assert stage.addresses() == ["-"]


def test_an_error_over_tcp_is_an_error(theatre: Theatre) -> None:
    (resolver,) = theatre.resolvers(1)
    stage = theatre.stage(resolver)
    asked, connection = truncated(stage, resolver)
    connection.sendall(framed(reply_to(asked, rcode=5)))
    assert stage.addresses() == ["!5"]
    connection.close()


def test_without_tcp_the_next_server_is_asked(theatre: Theatre) -> None:
    first, second = theatre.resolvers(2)
    first.tcp.close()
    stage = theatre.stage(first, second)
    stage.ask()
    first.answer(first.one(), tc=1)
    stage.clock.settle()
    second.answer(second.one(), OTHER)
    assert stage.addresses() == [OTHER]


def test_tcp_that_never_answers_ends_with_the_time_out(theatre: Theatre) -> None:
    (resolver,) = theatre.resolvers(1)
    stage = theatre.stage(resolver)
    _, connection = truncated(stage, resolver)
    with connection:
        stage.clock.advance(5.1)
        assert stage.addresses() == ["-"]
        connection.settimeout(20)
        assert connection.recv(1) == b"", "our side is closed"
    assert stage.upstream._streams.open == 0


def test_an_answer_over_udp_ends_the_connection(theatre: Theatre) -> None:
    first, second = theatre.resolvers(2)
    stage = theatre.stage(first, second)
    _, connection = truncated(stage, first)
    stage.clock.advance(0.6)
    second.answer(second.one(), OTHER)
    assert stage.addresses() == [OTHER]
    assert connection.recv(1) == b""
    connection.close()


def test_e14_streams_are_bounded_and_the_rest_waits_its_turn(theatre: Theatre) -> None:
    (resolver,) = theatre.resolvers(1)
    stage = theatre.stage(resolver, timeout=60.0)
    count = 3 * STREAMS
    for n in range(count):
        stage.ask(f"n{n}.example.com")
    for asked in resolver.take():
        resolver.answer(asked, tc=1)
    stage.clock.settle()
    open_at_once = []
    for _ in range(10):
        connections = resolver.connections()
        open_at_once.append(len(connections))
        for connection in connections:
            with connection:
                connection.sendall(framed(reply_to(read_stream(connection))))
                stage.clock.settle()
    assert max(open_at_once) <= STREAMS
    assert stage.addresses() == ["198.51.100.7"] * count
    assert (stage.upstream._streams.open, len(stage.upstream._streams.queued)) == (0, 0)


def test_e14_an_endless_stream_is_not_read_beyond_one_message(theatre: Theatre) -> None:
    (resolver,) = theatre.resolvers(1)
    stage = theatre.stage(resolver)
    _, connection = truncated(stage, resolver)
    with connection:
        connection.setblocking(False)
        sent = 0
        for _ in range(200):
            try:
                sent += connection.send(b"\xff\xff" + b"x" * 65535)
            except (BlockingIOError, ConnectionError):
                break
            stage.clock.settle()
    assert stage.addresses() == ["-"]
    assert sent < 4_000_000
