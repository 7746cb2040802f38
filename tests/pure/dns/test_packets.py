"""Packets by the dozen: each to and from whom it should be, whichever calls the machine has."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest

from egress.dns import packets as many
from egress.dns.packets import MOST, ROOM, OneByOne, Packets, packets_of
from tests.pure.dns.house import House
from tests.pure.dns.plays import NOERROR, NXDOMAIN, ask_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Taker = Packets | OneByOne


@pytest.fixture(params=["v4", "v6"])
def sockets(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, list[socket.socket]]]:
    """A door and three clients."""
    family, host = (socket.AF_INET, "127.0.0.1") if request.param == "v4" else (socket.AF_INET6, "::1")
    made: list[socket.socket] = []
    try:
        for number in range(4):
            sock = socket.socket(family, socket.SOCK_DGRAM)
            made.append(sock)
            if number:
                sock.connect(made[0].getsockname())
                sock.settimeout(10)
            else:
                try:
                    sock.bind((host, 0))
                except OSError:
                    pytest.skip(f"no {host} here")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 21)
                sock.setblocking(False)
        yield made[0], made[1:]
    finally:
        for sock in made:
            sock.close()


@pytest.fixture(params=[Packets, OneByOne])
def kind(request: pytest.FixtureRequest) -> Callable[[socket.socket], Taker]:
    return request.param  # type: ignore[no-any-return]


def nothing(_octets: bytes) -> None:
    return None


def test_this_machine_has_the_calls(sockets: Any) -> None:
    assert isinstance(packets_of(sockets[0]), Packets)


def test_where_it_has_not_it_is_done_one_by_one(sockets: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "_fits", False)
    assert isinstance(packets_of(sockets[0]), OneByOne)


def test_each_reply_goes_to_who_asked(sockets: Any, kind: Any) -> None:
    door, clients = sockets
    taker = kind(door)
    assert taker.take(nothing, 0.0) == []
    for number in range(30):
        clients[number % 3].send(b"%02d asked" % number)
    found = taker.take(nothing, 0.0)
    assert [octets for octets, _ in found] == [b"%02d asked" % number for number in range(30)]
    assert taker.taken == 30
    for octets, address in reversed(found):
        taker.sendto(octets[:2] + b" answered", address)
    taker.flush()
    for place, client in enumerate(clients):
        assert [client.recv(100) for _ in range(10)] == [b"%02d answered" % n for n in range(27 + place, -1, -3)]
    taker.flush()  # nothing is left to be sent
    for client in clients:
        client.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.recv(100)


def test_what_is_known_is_answered_behind_the_id_it_came_with(sockets: Any, kind: Any) -> None:
    door, clients = sockets
    taker = kind(door)
    same = {b"known": (10.0, b"a longer reply"), b"over": (5.0, b"old")}
    for number, octets in enumerate((b"known", b"over", b"known", b"other", b"known", b"known")):
        clients[number % 3].send(bytes((0, number + 1)) + octets)
    assert [octets for octets, _ in taker.take(same.get, 5.0)] == [b"\0\2over", b"\0\4other"]
    assert [clients[0].recv(100), clients[1].recv(100), clients[2].recv(100), clients[2].recv(100)] == [
        b"\0\1a longer reply", b"\0\5a longer reply", b"\0\3a longer reply", b"\0\6a longer reply",
    ]  # fmt: skip


def test_any_size_is_taken_as_it_came(sockets: Any, kind: Any) -> None:
    door, clients = sockets
    taker = kind(door)
    sent = [b"", b"a", b"ab", b"abc", bytes(range(256)) * 16, b"short", b""]
    for octets in sent:
        clients[0].send(octets)
    assert [octets for octets, _ in taker.take(nothing, 0.0)] == sent
    clients[0].send(b"x" * (ROOM + 1))  # more than any question has; the rest of it is gone, as it always was
    assert [octets for octets, _ in taker.take(nothing, 0.0)] == [b"x" * ROOM]


def test_no_more_than_its_share_is_taken(sockets: Any, kind: Any) -> None:
    door, clients = sockets
    taker = kind(door)
    for number in range(MOST + 5):
        clients[0].send(b"%03d" % number)
    first = taker.take(nothing, 0.0)
    assert taker.taken == MOST
    second = taker.take(nothing, 0.0)
    assert (len(first), len(second), taker.taken) == (MOST, 5, 5)
    for octets, address in first + second:  # more than leave with one call
        taker.sendto(octets, address)
    taker.flush()
    assert [clients[0].recv(100) for _ in range(MOST + 5)] == [b"%03d" % number for number in range(MOST + 5)]


def test_a_reply_that_cannot_be_sent_holds_up_no_other(sockets: Any) -> None:
    door, clients = sockets
    taker = Packets(door)
    for number in range(6):
        clients[0].send(b"%d" % number)
    found = taker.take(nothing, 0.0)
    for number, (octets, address) in enumerate(found):
        bad = address[:2] + bytes(len(address) - 2)  # port 0, which nothing can be sent to
        taker.sendto(octets, bad if number in (0, 2, 3, 5) else address)
    taker.sendto(b"z" * (ROOM + 1), found[0][1])
    taker.flush()
    assert [clients[0].recv(100), clients[0].recv(100)] == [b"1", b"4"]


def test_questions_that_come_by_the_dozen_are_answered_as_ever() -> None:
    house = House()
    try:
        house.resolve("known.example.com", "198.51.100.1")
        asked = ["known.example.com", "other.example.org", "bad.example.com", *(f"n{n}.example.com" for n in range(20))]
        for _ in range(2):
            house.clock.turns = house.service._turn + 1  # packets keep coming
            for ident, name in enumerate(asked):
                house.client.send(ask_bytes(name, ident=ident))
            house.clock.settle()
        assert house.service._packets
        answered = house.replies()
        assert sorted(reply.id for reply in answered) == sorted([0, 1, 2] * 2)  # the rest waits for the resolver
        for question in house.resolver.take():
            house.resolver.answer(question, "198.51.100.7")
        answered += house.replies()
        assert len(answered) == 2 * len(asked)
        for reply in answered:
            name = asked[reply.id]
            assert reply.question == f"{name}."
            allowed = name not in ("other.example.org", "bad.example.com")
            assert reply.rcode == (NOERROR if allowed else NXDOMAIN)
            where = ["198.51.100.1"] if name == "known.example.com" else ["198.51.100.7"]
            assert [text for *_, text in reply.records] == (where if allowed else [])
    finally:
        house.close()
