"""The relay's own work: octets in both directions, both kinds of end, bounds, and what it makes of its worker."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import threading
from pathlib import Path

import pytest

from egress.sni import connection, messages
from egress.sni import relay as relay_module
from egress.sni.messages import Message
from egress.sni.post import SOCKETS
from tests.pure.sni.hellos import hello
from tests.real.sni.conftest import ORIGINAL, RESET, Ground, ending, soon

GET = b"GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n"


# -- octets ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("port", [80, 443])
def test_many_octets_arrive_as_they_were_sent(ground: Ground, port: int) -> None:
    ground.port = port
    client, server = ground.pair(hello() if port == 443 else b"")
    sent = os.urandom(1 << 20) * 24
    if port == 443:
        server.sendall(b"\x15\3\3\0\2\1\x70")  # the server's first word, which no second hello follows
        assert client.recv(7, socket.MSG_WAITALL) == b"\x15\3\3\0\2\1\x70"
    for source, sink in ((client, server), (server, client)):
        thread = threading.Thread(target=lambda source=source: source.sendall(sent))
        thread.start()
        digest, count = hashlib.sha256(), 0
        while count < len(sent):
            data = sink.recv(1 << 20)
            assert data
            digest.update(data)
            count += len(data)
        thread.join()
        assert digest.digest() == hashlib.sha256(sent).digest()


def test_both_directions_at_once(ground: Ground) -> None:
    client, server = ground.pair()
    sent = os.urandom(1 << 20) * 8
    found: dict[str, int] = {}

    def take(name: str, sock: socket.socket) -> None:
        count = 0
        while count < len(sent):
            count += len(sock.recv(1 << 20))
        found[name] = count

    threads = [threading.Thread(target=sock.sendall, args=(sent,)) for sock in (client, server)]
    threads += [threading.Thread(target=take, args=pair) for pair in (("up", server), ("down", client))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == {"up": len(sent), "down": len(sent)}


@pytest.mark.parametrize("downwards", [True, False])
def test_who_does_not_read_holds_up_who_sends(ground: Ground, downwards: bool) -> None:
    """Back-pressure: what is under way is the sockets' buffers and a pipe, and the process does not grow."""
    client, server = ground.pair()
    source, sink = (server, client) if downwards else (client, server)
    source.setblocking(False)
    chunk, count = bytes(1 << 18), 0

    def full() -> bool:
        nonlocal count
        try:
            count += source.send(chunk)
        except BlockingIOError:
            return True
        return False

    def stuck() -> bool:
        """Nothing more is taken for a while, however often it is tried."""
        before = count
        soon(full, 1)
        return not soon(lambda: not full(), 0.5) and count == before

    assert soon(stuck, 30)
    assert count < 64 << 20
    got = 0
    sink.settimeout(10)
    source.close()
    while data := sink.recv(1 << 20):
        got += len(data)
    assert got == count


def test_idle_connections_hold_no_pipe(ground: Ground) -> None:
    before = pipes_open()
    pairs = [ground.pair() for _ in range(40)]
    for client, server in pairs:
        server.sendall(b"x" * 1000)
        assert client.recv(1000, socket.MSG_WAITALL) == b"x" * 1000
    assert ground.on_loop(lambda: len(ground.relay.pipes._spare)) <= 2
    assert pipes_open() - before < 40


def pipes_open() -> int:
    """How many ends of pipes this process has, of others' too."""
    return sum("/pipe:" in os.path.realpath(one) for one in Path("/proc/self/fd").iterdir())


# -- ends --------------------------------------------------------------------------------------------------------------
def test_a_half_closed_client_gets_its_answer(ground: Ground) -> None:
    client, server = ground.pair(GET)
    client.shutdown(socket.SHUT_WR)
    assert server.recv(10) == b""
    server.sendall(b"answer")
    server.close()
    assert client.recv(6, socket.MSG_WAITALL) == b"answer"
    assert client.recv(1) == b""
    assert ground.calm()


def test_a_half_closed_server_is_heard_out(ground: Ground) -> None:
    client, server = ground.pair()
    server.shutdown(socket.SHUT_WR)
    assert client.recv(10) == b""
    client.sendall(b"more")
    assert server.recv(4, socket.MSG_WAITALL) == b"more"
    client.close()
    assert server.recv(1) == b""
    assert ground.calm()


@pytest.mark.parametrize("from_client", [True, False])
def test_a_reset_is_passed_on(ground: Ground, from_client: bool) -> None:
    client, server = ground.pair()
    one, other = (client, server) if from_client else (server, client)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    one.close()
    assert ending(other) == "reset"
    assert ground.calm()


def test_a_reset_behind_a_half_close_is_noticed(ground: Ground) -> None:
    """Nobody reads there any more: only asking the kernel tells."""
    client, server = ground.pair(GET)
    client.shutdown(socket.SHUT_WR)
    assert server.recv(10) == b""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    client.close()
    assert ground.calm()
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        server.sendall(b"x" * (1 << 24))


def test_a_server_that_refuses_refuses_the_client(ground: Ground) -> None:
    with socket.socket() as deaf:  # it does not listen, and nobody else gets its port meanwhile
        deaf.bind(("127.0.0.1", 0))
        ground.worker.server = deaf.getsockname()
        client = ground.client()
        client.sendall(GET)
        assert ending(client) == "reset"
    assert not ground.worker.said(messages.REFUSED), "the network's word, not the guard's"
    assert ground.calm()


def test_a_client_that_leaves_without_a_word_is_nothing_to_tell(ground: Ground) -> None:
    client = ground.client()
    client.close()
    assert ground.calm()
    assert not ground.worker.said(messages.REFUSED)


# -- the worker --------------------------------------------------------------------------------------------------------
def test_a_verdict_that_does_not_come_in_time_is_none(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "PATIENCE", 3.0)  # enough to say a name in
    ground.worker.silent = True
    client = ground.client()
    client.sendall(GET)
    assert ending(client) == "reset"
    assert soon(lambda: [one.texts[1] for one in ground.worker.said(messages.REFUSED)] == ["no verdict came in time"])


def test_a_verdict_that_comes_too_late_opens_nothing(ground: Ground) -> None:
    ground.worker.silent = True
    client = ground.client()
    client.sendall(GET)
    assert soon(lambda: len(ground.worker.said(messages.ASK)) == 1)
    ground.out_of_patience()
    assert ending(client) == "reset"
    ground.worker.answer(ground.worker.said(messages.ASK)[0])
    assert ground.calm()
    ground.origin.settimeout(0.3)
    with pytest.raises(TimeoutError):
        ground.origin.accept()


def test_a_verdict_is_remembered_until_something_changes(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "REMEMBERED", 60.0)
    for _ in range(3):
        ground.pair()
    assert len(ground.worker.said(messages.ASK)) == 1
    ground.worker.channel.send(Message(messages.RECHECK, 0).encode())
    assert soon(lambda: not ground.on_loop(lambda: ground.relay._allowed))
    ground.worker.denied = {"api.example.com"}
    client = ground.client()
    client.sendall(GET)
    assert ending(client) == "reset"
    assert len(ground.worker.said(messages.ASK)) == 2


# -- sockets -----------------------------------------------------------------------------------------------------------
def test_sockets_are_used_again(ground: Ground) -> None:
    assert ground.stocked()
    for number in range(3 * SOCKETS):
        client, server = ground.pair(GET)
        server.sendall(b"answer %d" % number)
        assert client.recv(64) == b"answer %d" % number
        client.close()
        assert server.recv(1) == b""
        server.close()
        assert ground.calm()
    assert len(ground.worker.said(messages.NEED)) == 1


def test_what_is_still_under_way_is_not_given_up_for_a_socket(ground: Ground) -> None:
    """The server ends first and reads slowly: the client's last octets lie in the relay's socket when both are done."""
    sent = os.urandom(1 << 20) * 2
    for _ in range(3):
        client, server = ground.pair()
        server.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""
        thread = threading.Thread(target=lambda client=client: (client.sendall(sent), client.close()))
        thread.start()
        digest = hashlib.sha256()
        while data := server.recv(4096):
            digest.update(data)
        thread.join()
        assert digest.digest() == hashlib.sha256(sent).digest()


def test_who_finds_no_socket_waits_for_one(ground: Ground) -> None:
    assert ground.stocked()
    ground.worker.mean = True
    held = [ground.pair() for _ in range(SOCKETS)]
    client = ground.client()
    client.sendall(GET)
    assert soon(lambda: ground.on_loop(lambda: len(ground.relay._starved)) == 1)
    ground.worker.supply()
    server = ground.server()
    assert server.recv(len(GET), socket.MSG_WAITALL) == GET
    assert len(held) == SOCKETS


def test_who_finds_no_socket_at_all_is_refused(ground: Ground) -> None:
    assert ground.stocked()
    ground.worker.mean = True
    for _ in range(SOCKETS):
        ground.pair()
    client = ground.client()
    client.sendall(GET)
    assert soon(lambda: ground.on_loop(lambda: len(ground.relay._starved)) == 1)
    ground.worker.channel.send(Message(messages.SPARE, 0, port=socket.AF_INET).encode())
    assert ending(client) == "reset"


def test_a_new_worker_is_asked_what_the_old_one_was(ground: Ground) -> None:
    ground.worker.silent = True
    client = ground.client()
    client.sendall(GET)
    assert soon(lambda: len(ground.worker.said(messages.ASK)) == 1)
    ground.worker.silent = False
    ground.worker.channel.send(Message(messages.RECHECK, 1).encode())
    server = ground.server()
    assert server.recv(len(GET), socket.MSG_WAITALL) == GET


def test_after_a_change_each_connection_is_asked_about_and_some_are_cut(ground: Ground) -> None:
    pairs = {}
    for name in (b"one.example.com", b"two.example.com"):
        pairs[name] = ground.pair(GET.replace(b"api.example.com", name))
    ground.worker.cut = {"two.example.com"}
    ground.worker.channel.send(Message(messages.RECHECK, 0).encode())
    assert ending(pairs[b"two.example.com"][0]) == "reset"
    assert ending(pairs[b"two.example.com"][1]) == "reset"
    client, server = pairs[b"one.example.com"]
    server.sendall(b"still")
    assert client.recv(5, socket.MSG_WAITALL) == b"still"
    asked = {message.texts for message in ground.worker.said(messages.CHECK)}
    assert asked == {("one.example.com", "link"), ("two.example.com", "link")}


def test_a_worker_that_is_stopped_gets_everything_when_it_goes_on(ground: Ground) -> None:
    """More messages than the channel holds: none that counts is lost."""
    pairs = [ground.pair() for _ in range(20)]
    for _ in range(60):
        ground.worker.channel.send(Message(messages.RECHECK, 0).encode())
    assert soon(lambda: len(ground.worker.said(messages.CHECK)) == 60 * len(pairs))


# -- bounds ------------------------------------------------------------------------------------------------------------
def test_beyond_the_most_connections_new_ones_are_refused_and_old_ones_served(ground: Ground) -> None:
    ground.on_loop(lambda: setattr(ground.relay, "_most", 3))
    pairs = [ground.pair() for _ in range(3)]
    with contextlib.suppress(ConnectionResetError):  # it may come before connect() has returned
        assert ending(ground.client()) == "reset"
    assert soon(lambda: [one.texts[1] for one in ground.worker.said(messages.REFUSED)] == ["too many connections"])
    for client, server in pairs:
        server.sendall(b"x")
        assert client.recv(1) == b"x"
    pairs[0][0].close()
    pairs[0][1].close()
    assert soon(lambda: len(ground.relay._connections) == 2)
    assert ground.pair()


def test_what_waits_for_verdicts_is_bounded(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "UNJUDGED", 20_000)
    half = b"GET /" + b"x" * 7000
    clients = [ground.client() for _ in range(4)]
    for client in clients:
        client.sendall(half)
    assert soon(lambda: len(ground.worker.said(messages.REFUSED)) == 2)
    assert ground.on_loop(lambda: ground.relay._unjudged) <= 20_000
    for client in clients:
        client.close()
    assert ground.calm()
    assert ground.on_loop(lambda: ground.relay._unjudged) == 0


def test_the_worker_has_few_questions_at_a_time(ground: Ground) -> None:
    ground.worker.silent = True
    clients = [ground.client() for _ in range(relay_module.ASKED_AT_ONCE + 20)]
    for client in clients:
        client.sendall(GET)
    assert soon(lambda: len(ground.worker.said(messages.ASK)) >= relay_module.ASKED_AT_ONCE)
    assert soon(lambda: ground.on_loop(lambda: len(ground.relay._waiting)) == 20)
    assert ground.on_loop(lambda: ground.relay._asked) <= relay_module.ASKED_AT_ONCE
    ground.out_of_patience()
    assert {ending(client) for client in clients} == {"reset"}, "and who waits has a clock too"


def test_a_flood_of_refusals_is_counted_and_told_in_part(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "TOLD", 5)
    for _ in range(60):
        client = ground.client()
        client.sendall(b"SSH-2.0-x\r\n")
        assert ending(client) == "reset"

    def told() -> int:
        client = ground.client()
        client.sendall(b"SSH-2.0-x\r\n")
        assert ending(client) == "reset"
        return sum(message.number for message in ground.worker.said(messages.REFUSED))

    assert soon(lambda: told() >= 60, 20)
    assert len(ground.worker.said(messages.REFUSED)) < 60


def test_who_was_not_redirected_is_refused(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "_original", lambda _: None)

    with contextlib.suppress(ConnectionResetError):
        assert ending(ground.client()) == "reset"
    told = "a connection to the name guard itself"
    assert soon(lambda: [one.texts[1] for one in ground.worker.said(messages.REFUSED)] == [told])


def test_the_original_address_of_a_plain_connection_is_none() -> None:
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.create_server((host, 0), family=family) as listener:
            address = listener.getsockname()
            with socket.create_connection(address[:2]), listener.accept()[0] as client:
                assert ORIGINAL(client) is None


def test_a_second_hello_is_read_behind_a_retry_request(ground: Ground) -> None:
    retry = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
    word = b"\x16\3\3\0\x2c\2\0\0\x28\3\3" + retry + b"\0\x13\1\0\0\0"
    ground.port = 443
    for name, passes in ((b"api.example.com", True), (b"bpi.example.com", False)):
        client, server = ground.pair(hello())
        server.sendall(word)
        assert client.recv(len(word), socket.MSG_WAITALL) == word
        client.sendall(b"\x14\3\3\0\1\1" + hello(name))
        if passes:
            assert server.recv(6 + len(hello(name)), socket.MSG_WAITALL) == b"\x14\3\3\0\1\1" + hello(name)
        else:
            assert ending(server) == "reset"
            assert ending(client) == "reset"


def test_early_data_waits_for_the_servers_first_word(ground: Ground) -> None:
    ground.port = 443
    first, early = hello(extensions=((42, b""),)), b"\x17\3\3\0\5early"
    client = ground.client()
    client.sendall(first + early)
    server = ground.server()
    assert server.recv(len(first), socket.MSG_WAITALL) == first
    server.setblocking(False)
    with pytest.raises(BlockingIOError):
        server.recv(1)
    server.setblocking(True)
    server.sendall(b"\x16\3\3\0\2\2\0" + bytes(40))
    assert server.recv(len(early), socket.MSG_WAITALL) == early


def test_states_have_an_order() -> None:
    """`_recheck` asks about everything behind ASKED."""
    assert connection.HELLO < connection.ASKED < connection.CONNECTING < connection.WORD < connection.RELAYED
