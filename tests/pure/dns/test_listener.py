"""DNS over TCP: framing, and clients that are slow, many, deaf or gone."""

from __future__ import annotations

import errno
import socket
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from egress.dns.listener import (
    AWAITING,
    CONNECTIONS,
    IDLE,
    MINE,
    PAUSE,
    QUESTION,
    SHARE,
    SWEEP,
    TcpListener,
)
from tests.pure.dns.house import House
from tests.pure.dns.plays import NOERROR, NXDOMAIN, SERVFAIL, Reply, ask_bytes, read
from tests.pure.dns.resolvers import Clock, framed, reply_to

if TYPE_CHECKING:
    from collections.abc import Iterator

    from egress.dns.listener import TcpClient


@pytest.fixture
def house() -> Iterator[House]:
    built = House()
    yield built
    built.close()


@pytest.fixture
def dial(house: House) -> Iterator[Dialler]:
    dialler = Dialler(house)
    yield dialler
    dialler.close()


class Dialler:
    """Opens connections and closes them with the test."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.made: list[socket.socket] = []

    def __call__(self) -> socket.socket:
        sock = socket.create_connection(self.house.gate.getsockname())
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(20)
        self.made.append(sock)
        self.house.clock.settle()
        return sock

    def close(self) -> None:
        for sock in self.made:
            sock.close()


def heard(sock: socket.socket) -> Reply:
    length = int.from_bytes(sock.recv(2, socket.MSG_WAITALL), "big")
    return read(sock.recv(length, socket.MSG_WAITALL))


def hung_up(sock: socket.socket) -> bool:
    sock.settimeout(0)
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    finally:
        sock.settimeout(20)


# -- framing -------------------------------------------------------------------------------------------------------
def test_questions_over_tcp_are_answered_however_they_are_cut(house: House, dial: Dialler) -> None:
    client = dial()
    stream = framed(ask_bytes("bad.example.com", ident=1)) + framed(ask_bytes("BAD.example.com", ident=2))
    for start in range(0, len(stream), 3):
        client.sendall(stream[start : start + 3])
        house.clock.settle()
    first, second = heard(client), heard(client)
    assert (first.id, first.rcode) == (1, NXDOMAIN)
    assert (second.id, second.question) == (2, "BAD.example.com.")


def test_a_large_answer_goes_over_tcp_whole(house: House, dial: Dialler) -> None:
    house.client.send(ask_bytes(ident=1))
    client = dial()
    client.sendall(framed(ask_bytes(ident=2, edns=None)))
    house.clock.settle()
    asked = house.resolver.one()
    house.resolver.send(asked, reply_to(asked, tc=1))
    house.clock.settle()
    (connection,) = house.resolver.connections()
    with connection:
        message = asked.record.reply(aa=0)
        import dnslib

        for n in range(200):
            message.add_answer(dnslib.RR(asked.record.q.qname, 1, rdata=dnslib.A(f"198.51.100.{n}"), ttl=60))
        data = connection.recv(4096)
        connection.sendall(framed(data[2:4] + bytes(message.pack())[2:]))
        house.clock.settle()
    whole = heard(client)
    assert (whole.id, len(whole.records), whole.truncated) == (2, 200, False)
    cut = house.one()
    assert (cut.id, len(cut.records), cut.truncated) == (1, 0, True)
    assert len(house.written()) == 200


@pytest.mark.parametrize("length", [0, 1, 11, QUESTION + 1, 65535])
def test_a_frame_that_holds_no_question_ends_the_connection(house: House, dial: Dialler, length: int) -> None:
    client = dial()
    client.sendall(length.to_bytes(2, "big") + b"x" * 8)
    house.clock.settle()
    assert hung_up(client)
    assert not house.tcp.clients


def test_a_bad_question_gets_its_error_and_an_answer_gets_nothing(house: House, dial: Dialler) -> None:
    client = dial()
    client.sendall(framed(b"\0\1\0\0" + b"\0" * 8))
    house.clock.settle()
    assert client.recv(2 + 12) == b"\0\x0c" + b"\0\1\x80\1" + b"\0" * 8, "FORMERR"
    client.sendall(framed(b"\0\1\x80\0" + b"\0" * 8))
    house.clock.settle()
    assert hung_up(client), "silence, and the connection with it"


# -- clients that go -----------------------------------------------------------------------------------------------
def test_a_client_that_closed_its_side_still_hears_its_answers(house: House, dial: Dialler) -> None:
    client = dial()
    client.sendall(framed(ask_bytes(ident=1)) + framed(ask_bytes("two.example.com", ident=2)))
    client.shutdown(socket.SHUT_WR)
    house.clock.settle()
    for asked in house.resolver.take():
        house.resolver.answer(asked)
        house.clock.settle()
    assert {heard(client).id, heard(client).id} == {1, 2}
    assert hung_up(client)
    assert not house.tcp.clients


def test_a_client_that_leaves_before_its_answer_harms_nobody(house: House, dial: Dialler) -> None:
    gone, other = dial(), dial()
    gone.sendall(framed(ask_bytes(ident=1)))
    house.clock.settle()
    other.sendall(framed(ask_bytes(ident=2)))
    house.clock.settle()
    gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    gone.close()
    house.clock.settle()
    newcomer = dial()  # may get the descriptor of the one that went
    house.resolver.answer(house.resolver.one())
    house.clock.settle()
    assert heard(other).id == 2
    assert not hung_up(newcomer)
    newcomer.settimeout(0)
    with pytest.raises(BlockingIOError):
        newcomer.recv(1)


def test_e14_a_client_that_never_reads_is_cut_off(house: House, dial: Dialler) -> None:
    client = dial()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(0)
    stream = framed(ask_bytes("bad.example.com")) * 200
    sent = 0
    for _ in range(40_000):
        try:
            sent += client.send(stream[sent % len(stream) :])
        except (BlockingIOError, ConnectionError):
            pass
        house.clock.turn()
        if not house.tcp.clients:
            break
    assert not house.tcp.clients
    assert sent > len(stream)


# -- clients that wait ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("start", [b"", b"\0", b"\0\x20", framed(ask_bytes())[:-1]])
def test_e14_an_idle_or_half_asked_connection_ends(house: House, dial: Dialler, start: bytes) -> None:
    client = dial()
    client.sendall(start)
    house.clock.advance(IDLE - 1)
    assert not hung_up(client)
    house.clock.advance(1 + SWEEP)
    assert hung_up(client)
    house.clock.advance(SWEEP)
    assert house.clock.idle


def test_a_client_that_drips_is_idle_all_the_same(house: House, dial: Dialler) -> None:
    client = dial()
    for octet in framed(ask_bytes("bad.example.com"))[:14]:
        if hung_up(client):
            break
        client.sendall(bytes([octet]))
        house.clock.advance(1)
    assert not house.tcp.clients


def test_a_client_that_waits_for_a_slow_resolver_is_not_idle(house: House, dial: Dialler) -> None:
    house.stage.upstream._timeout = 60.0
    client = dial()
    client.sendall(framed(ask_bytes()))
    house.clock.advance(30)
    assert not hung_up(client)
    house.clock.advance(31)
    assert heard(client).rcode == SERVFAIL
    house.clock.advance(IDLE + SWEEP)
    assert hung_up(client)
    assert AWAITING > 120


def test_e14_a_thousand_connections_keep_nobody_out(house: House, dial: Dialler) -> None:
    first = dial()
    first.sendall(framed(ask_bytes("api.example.com")))
    house.clock.settle()
    for _ in range(1000):
        dial()
        house.clock.time += 0.001
    assert len(house.tcp.clients) <= CONNECTIONS
    client = dial()
    client.sendall(framed(ask_bytes("bad.example.com")))
    house.clock.settle()
    assert heard(client).rcode == NXDOMAIN
    house.resolver.answer(house.resolver.one())
    house.clock.settle()
    assert heard(first).rcode == NOERROR, "who waits for an answer goes last"


def test_e14_a_thousand_that_ask_and_wait_keep_nobody_out(house: House, dial: Dialler) -> None:
    for n in range(300):
        dial().sendall(framed(ask_bytes(f"n{n}.example.com")))
        house.clock.settle()
        house.clock.time += 0.001
    client = dial()
    client.sendall(framed(ask_bytes("bad.example.com")))
    house.clock.settle()
    assert heard(client).rcode == NXDOMAIN


# -- descriptors ---------------------------------------------------------------------------------------------------
class Exhausted:
    """A listening socket of a process without descriptors."""

    def __init__(self) -> None:
        self.asked = 0
        self.error = errno.EMFILE

    def fileno(self) -> int:
        return 1_000_000

    def accept(self) -> tuple[socket.socket, object]:
        self.asked += 1
        raise OSError(self.error, "no")


def test_without_descriptors_accepting_pauses_instead_of_spinning() -> None:
    clock, door = Clock(), Exhausted()
    handled: list[tuple[bytes, TcpClient]] = []
    listener = TcpListener(clock, door, lambda data, client: handled.append((data, client)))  # type: ignore[arg-type]
    clock.readers[door.fileno()]()
    assert (door.asked, clock.readers) == (1, {})
    clock.time += PAUSE
    clock.turn()
    assert door.fileno() in clock.readers
    clock.readers[door.fileno()]()
    listener.close()
    clock.time += PAUSE
    clock.turn()
    assert clock.readers == {}, "closed is closed"


def test_without_descriptors_an_idle_connection_makes_room(house: House, dial: Dialler) -> None:
    client = dial()
    house.tcp._sock = Exhausted()  # type: ignore[assignment]
    house.tcp._accept()
    assert hung_up(client)
    house.tcp._sock = house.gate


def test_a_connection_aborted_before_it_was_accepted_is_skipped(house: House) -> None:
    door = Exhausted()
    door.error = errno.ECONNABORTED
    house.tcp._sock = door  # type: ignore[assignment]
    house.tcp._accept()
    assert 1 < door.asked <= 16
    house.tcp._sock = house.gate


# -- how much at once ------------------------------------------------------------------------------------------------
def test_e14_connections_full_of_questions_hold_up_nobody(house: House, dial: Dialler) -> None:
    """What is handed on in a turn is bounded, in all and for each; who asks one question waits a few turns for it."""
    handed: list[int] = []
    idents: list[bytes] = []
    handle = house.tcp.handle

    def count(message: bytes, client: TcpClient) -> None:
        handed.append(house.clock.turns)
        idents.append(message[:2])
        handle(message, client)

    house.tcp.handle = count
    each = 100
    greedy, honest = [dial() for _ in range(40)], dial()
    for number, client in enumerate(greedy):
        client.sendall(b"".join(framed(ask_bytes("bad.example.com", ident=number)) for _ in range(each)))
    for _ in range(3):
        house.clock.turn()
    assert SHARE < len(handed) < 40 * each, "the control: there is more than one turn's worth"
    honest.sendall(framed(ask_bytes("bad.example.com", ident=7777)))
    asked = house.clock.turns
    while b"\x1e\x61" not in idents:
        assert house.clock.turn()
    assert house.clock.turns - asked <= 41 * MINE / SHARE + 2, "each of the others had one go before it at most"
    house.clock.settle()
    assert heard(honest).id == 7777
    assert len(handed) == 40 * each + 1, "and all of it was handed on"
    turns = Counter(handed)
    assert max(turns.values()) <= SHARE
    for number, client in enumerate(greedy):
        assert [heard(client).id for _ in range(each)] == [number] * each


def test_questions_that_wait_for_their_turn_keep_their_order(house: House, dial: Dialler) -> None:
    client = dial()
    client.sendall(b"".join(framed(ask_bytes("bad.example.com", ident=number)) for number in range(3 * MINE)))
    house.clock.settle()
    assert [heard(client).id for _ in range(3 * MINE)] == list(range(3 * MINE))
    client.sendall(b"".join(framed(ask_bytes("bad.example.com", ident=number)) for number in range(3 * MINE)))
    client.shutdown(socket.SHUT_WR)
    house.clock.settle()
    assert [heard(client).id for _ in range(3 * MINE)] == list(range(3 * MINE)), "a closed half costs none of them"


def test_who_leaves_while_its_questions_wait_is_forgotten(house: House, dial: Dialler) -> None:
    client = dial()
    client.sendall(b"".join(framed(ask_bytes("bad.example.com", ident=number)) for number in range(3 * MINE)))
    house.clock.turn()
    (one,) = house.tcp.clients
    assert one.queued
    one.close()
    house.clock.settle()
    assert not house.tcp.clients
    assert not house.tcp._queue
