"""The HTTP server under clients that do what clients should not do."""

from __future__ import annotations

import contextlib
import errno
import functools
import re
import socket
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import h11
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from egress.control import connection as limits
from egress.control.api import BODY_BYTES
from egress.control.server import CONNECTIONS, SHARE
from tests.real.control.conftest import TOKEN, Client

if TYPE_CHECKING:
    from tests.real.control.conftest import Control

AUTH = f"OPENSANDBOX-EGRESS-AUTH: {TOKEN}\r\n".encode()
GET = b"GET /policy HTTP/1.1\r\nHost: x\r\n" + AUTH + b"\r\n"


class Held:
    """Changes of the policy are `asked` for, and wait until they are let go."""

    def __init__(self, control: Control) -> None:
        self.asked = threading.Event()
        self._control = control
        self._change = control.service.change
        self._waiting: list[tuple[Any, Any]] = []
        control.service.change = self._hold  # type: ignore[method-assign]

    def _hold(self, edit: Any, done: Any) -> None:
        self._waiting.append((edit, done))
        self.asked.set()

    def let_go(self) -> None:
        for change in self._waiting:
            self._control.on_loop(functools.partial(self._change, *change))


def read_to_end(sock: socket.socket) -> bytes:
    data = b""
    while True:
        try:
            part = sock.recv(65536)
        except ConnectionResetError:
            return data
        if not part:
            return data
        data += part


def statuses(data: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"^HTTP/1\.1 (\d{3}) ", data, re.MULTILINE)]


def test_keep_alive(control: Control) -> None:
    with control.connect() as sock:
        for _ in range(5):
            sock.sendall(GET)
            data = sock.recv(65536)
            assert statuses(data) == [200]
            assert b"connection: close" not in data.lower()


def test_connection_close_and_http_1_0(control: Control) -> None:
    for request in (GET.replace(b"Host: x", b"Host: x\r\nConnection: close"), GET.replace(b"1.1", b"1.0")):
        with control.connect() as sock:
            sock.sendall(request)
            assert statuses(read_to_end(sock)) == [200]


def test_pipelining(control: Control) -> None:
    with control.connect() as sock:
        sock.sendall(GET * 100)
        sock.shutdown(socket.SHUT_WR)
        assert statuses(read_to_end(sock)) == [200] * 100


def test_a_pipelined_change_is_in_force_for_the_request_behind_it(control: Control) -> None:
    control.service.delay = 0.1
    body = b'{"defaultAction":"allow"}'
    post = b"POST /policy HTTP/1.1\r\nHost: x\r\n" + AUTH + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with control.connect() as sock:
        sock.sendall(post + GET)
        sock.shutdown(socket.SHUT_WR)
        data = read_to_end(sock)
    assert statuses(data) == [200, 200]
    assert data.count(b'"mode":"allow_all"') == 2


def test_one_byte_at_a_time(control: Control) -> None:
    with control.connect() as sock:
        for index in range(len(GET)):
            sock.sendall(GET[index : index + 1])
        assert statuses(sock.recv(65536)) == [200]


def test_chunked_bodies(control: Control) -> None:
    body = b'{"defaultAction":"allow"}'
    with control.connect() as sock:
        sock.sendall(b"POST /policy HTTP/1.1\r\nHost: x\r\n" + AUTH + b"Transfer-Encoding: chunked\r\n\r\n")
        sock.sendall(b"".join(b"1;ext=x\r\n%c\r\n" % byte for byte in body) + b"0\r\nTrailer: x\r\n\r\n")
        assert statuses(sock.recv(65536)) == [200]
    assert control.service.policy.mode == "allow_all"


def test_expect_100_continue(control: Control) -> None:
    head = b"POST /policy HTTP/1.1\r\nHost: x\r\n%sContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
    with control.connect() as sock:
        sock.sendall(head % AUTH)
        assert sock.recv(65536).startswith(b"HTTP/1.1 100 ")
        sock.sendall(b"{}")
        assert statuses(sock.recv(65536)) == [200]
    with control.connect() as sock:  # refused: the body is never asked for
        sock.sendall(head % b"")
        assert statuses(read_to_end(sock)) == [401]
    with control.connect() as sock:
        sock.sendall((head % AUTH).replace(b"100-continue", b"miracles"))
        assert statuses(read_to_end(sock)) == [417]


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"\x00\x01\x02\r\n\r\n", 400),
        (b"GET\r\n\r\n", 400),
        (b"GET /policy HTTP/2.0\r\nHost: x\r\n\r\n", 505),
        (b"GET /policy HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"GET /policy HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET /policy HTTP/1.1\r\nHost : a\r\n\r\n", 400),
        (b"POST /policy HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST /policy HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /policy HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n", 501),
        (b"POST /policy HTTP/1.1\r\nHost: a\r\n" + AUTH + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET /policy HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 20_000, 431),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),  # a TLS client
        (b"SSH-2.0-OpenSSH_9.2\r\n", 400),
    ],
)
def test_malformed_requests_get_an_error_and_the_door(control: Control, request_: bytes, status: int) -> None:
    with control.connect() as sock:
        sock.sendall(request_)
        sock.shutdown(socket.SHUT_WR)
        data = read_to_end(sock)
    assert statuses(data) == [status]
    assert b"connection: close" in data.lower()
    assert control.call("GET").status == 200


def test_e13_ten_megabytes(control: Control) -> None:
    control.call("POST", body={"defaultAction": "allow"})
    before = control.service.policy
    body = b'{"egress": [' + b" " * 10_000_000 + b"]}"
    for headers in ([("Content-Length", str(len(body)))], [("Transfer-Encoding", "chunked")]):
        with control.connect() as sock:
            client = Client(sock)
            request = h11.Request(
                method="POST", target="/policy", headers=[("Host", "x"), ("OPENSANDBOX-EGRESS-AUTH", TOKEN), *headers]
            )
            client.send(request, *[h11.Data(data=body[at : at + 65536]) for at in range(0, len(body), 65536)])
            answer = client.answer()
        assert answer.status == 413
        assert str(BODY_BYTES) in answer.json()["reason"]
    assert control.service.policy is before
    assert control.server.buffered == 0


def test_e13_a_thousand_idle_connections(control: Control) -> None:
    idle = []
    try:
        for _ in range(1000):
            idle.append(control.connect())
        assert control.call("GET", "/healthz", token=None).status == 200
        assert control.call("POST", body={"defaultAction": "allow"}).status == 200
        assert control.server.connections <= CONNECTIONS
        with control.connect(local=True) as sock:
            sock.sendall(GET)
            assert statuses(sock.recv(65536)) == [200]
    finally:
        for sock in idle:
            sock.close()


def test_e13_connections_full_of_requests_have_a_share_of_each_turn(control: Control) -> None:
    """A hundred of them, pipelined: nobody waits behind more than a few, and each gets all its answers."""
    turns: list[int] = []
    handle = control.api.handle

    def count(*arguments: Any) -> None:
        turns.append(control.loop.turns)
        handle(*arguments)

    control.api.handle = count  # type: ignore[assignment, method-assign]
    greedy = [control.connect() for _ in range(100)]
    try:
        for sock in greedy:
            sock.sendall(GET * 20)
        assert control.call("GET", "/healthz", token=None).status == 200
        for sock in greedy:
            heard = b""
            while len(statuses(heard)) < 20:
                heard += sock.recv(65536)
            assert set(statuses(heard)) == {200}
    finally:
        for sock in greedy:
            sock.close()
    assert len(turns) == 100 * 20 + 1
    assert max(Counter(turns).values()) <= SHARE


def test_e13_half_sent_requests_make_room_too(control: Control) -> None:
    held = []
    try:
        for number in range(CONNECTIONS * 2):
            sock = control.connect()
            sock.sendall(GET[:20] if number % 2 else GET[:-2] + b"Content-Length: 5\r\n\r\n1")
            held.append(sock)
        for _ in range(10):
            assert control.call("GET").status == 200
    finally:
        for sock in held:
            sock.close()


def test_who_is_being_answered_is_not_thrown_out(control: Control) -> None:
    held = Held(control)
    body = b'{"defaultAction":"allow"}'
    with control.connect() as waiting:
        waiting.sendall(
            b"POST /policy HTTP/1.1\r\nHost: x\r\n" + AUTH + b"Content-Length: %d\r\n\r\n" % len(body) + body
        )
        assert held.asked.wait(20)
        crowd = [control.connect() for _ in range(CONNECTIONS + 50)]
        assert control.call("GET", "/healthz", token=None).status == 200  # behind the crowd
        held.let_go()
        assert statuses(waiting.recv(65536)) == [200]
    for sock in crowd:
        sock.close()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (GET[:30], [408]),
        (GET[:-2] + b"Content-Length: 10\r\n\r\n123", [408]),
        (b"", []),  # nothing said, nothing answered
    ],
)
def test_e13_slow_requests_time_out(
    control: Control, monkeypatch: pytest.MonkeyPatch, sent: bytes, status: list[int]
) -> None:
    # What is to be sent is sent in time, however late this thread is.
    for name in ("HEAD", "BODY") if sent else ("FIRST",):
        monkeypatch.setattr(limits, name, 0.3)
    with control.connect() as sock:
        sock.sendall(sent)
        started = time.monotonic()
        data = b""
        sock.settimeout(0.2)
        with contextlib.suppress(ConnectionError):  # it has hung up while something more was on its way
            while time.monotonic() - started < 20:
                with contextlib.suppress(TimeoutError):
                    part = sock.recv(65536)
                    if not part:
                        break
                    data += part
                if status == [408] and sent.endswith(b"123") and not data:
                    sock.sendall(b"4")  # a trickle does not extend the time
        assert time.monotonic() - started < 15
    assert statuses(data) == status
    assert control.call("GET").status == 200


def test_a_client_that_does_not_read(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WRITE", 0.3)
    rules = [{"action": "allow", "target": f"n{number}.{'a' * 60}.example.com"} for number in range(4096)]
    assert control.call("POST", body={"egress": rules}).status == 200
    with control.connect() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with contextlib.suppress(OSError):
            sock.sendall(GET * 200)
        assert control.call("GET", "/healthz").status == 200  # little enough to be taken in time by whoever is slow
        deadline = time.monotonic() + 20
        while control.server.connections and time.monotonic() < deadline:
            time.sleep(0.1)
        assert control.server.connections == 0


def test_a_client_that_leaves_before_its_answer(control: Control) -> None:
    held = Held(control)
    body = b'{"defaultAction":"allow"}'
    sock = control.connect()
    sock.sendall(b"POST /policy HTTP/1.1\r\nHost: x\r\n" + AUTH + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    assert held.asked.wait(20)
    sock.close()
    assert control.call("GET").json()["mode"] == "deny_all"
    held.let_go()
    deadline = time.monotonic() + 20
    while (mode := control.call("GET").json()["mode"]) != "allow_all" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert mode == "allow_all"


def test_not_bound_means_refused_until_ready() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        with socket.socket() as client:
            assert client.connect_ex(sock.getsockname()) == errno.ECONNREFUSED


PIECES = st.sampled_from(
    [
        GET, GET[:-2], AUTH, b"GET ", b"POST /policy HTTP/1.1\r\nHost: x\r\n", b"\r\n", b"\n", b"\r\n\r\n", b"{}",
        b"[]", b"Transfer-Encoding: chunked\r\n", b"Content-Length: 4\r\n", b"Content-Length: 99999999999999999999\r\n",
        b"Host: x\r\n", b"Expect: 100-continue\r\n", b"Connection: close\r\n", b"HTTP/1.1", b"\0", b"4\r\nnull\r\n",
        b"Connection: upgrade\r\nUpgrade: websocket\r\n",
        b"CONNECT x:1 HTTP/1.1\r\nHost: x:1\r\n\r\n",
        b"0\r\n\r\n", b"PUT http://\xff HTTP/1.1\r\n",
    ]
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(PIECES | st.binary(max_size=200), max_size=8))
def test_any_bytes_give_an_http_answer_or_a_closed_connection(control: Control, pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    with control.connect() as sock:
        try:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it has hung up already
        answer = read_to_end(sock)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 ")
    assert not any(status == 500 for status in statuses(answer))
    assert control.errors == []
    assert control.call("GET", "/healthz", token=None).body == b"ok"
