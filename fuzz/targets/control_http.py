"""The control API over TCP: octets in pieces, as the sandbox may send them.

However they are cut, the same answers and the same policy come of them; without the token nothing changes. The first
octet of an input says how they are cut.
"""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from egress.control.api import Api
from egress.control.connection import Connection
from egress.control.server import Server
from policies.model import NetworkPolicy
from tests.pure.control.fake_service import FakeService

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOKEN = b"t0ken"
LONGEST = 700
AUTH = b"\r\nopensandbox-egress-auth: " + TOKEN
WORDS = (
    b"GET /policy HTTP/1.1\r\nHost: x", b"POST /policy HTTP/1.1\r\nHost: x", b"PATCH ", b"DELETE ", b"PUT ", b"HEAD ",
    b"GET /healthz HTTP/1.1\r\nHost: x", b"/metrics", AUTH, b"\r\nContent-Length: 2",
    b"\r\nTransfer-Encoding: chunked", b"\r\nExpect: 100-continue", b"\r\nConnection: close",
    b"\r\nContent-Encoding: gzip", b"\r\n\r\n", b"0\r\n\r\n", b"2\r\n{}\r\n", b'["a.example"]',
    b'[{"action":"allow","target":"a.example"}]', b"http://x", b" HTTP/1.0\r\n", b"\r\n ", b"OPTIONS * ",
)  # fmt: skip
POLICY = b'{"egress":[{"action":"allow","target":"a.example"}]}'
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: (\d+)\r\n")
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def seeds() -> Iterator[bytes]:
    """Every method with and without the token, pipelined, in chunks, and refused before the body."""
    for step in (b"\1", b"\5"):
        yield step + request(b"POST", POLICY, AUTH) + request(b"GET", b"", AUTH)
        yield step + request(b"PATCH", b'[{"action":"deny","target":"10.0.0.0/8"}]', AUTH)
        yield step + request(b"POST", POLICY, AUTH) + request(b"DELETE", b'["a.example"]', AUTH)
        yield step + request(b"POST", POLICY) + request(b"GET")
        yield step + request(b"POST", b"", AUTH + b"\r\nTransfer-Encoding: chunked") + b"2\r\n{}\r\n0\r\n\r\n"
        yield step + request(b"POST", b"{}", AUTH + b"\r\nExpect: 100-continue")
    yield b"\1GET /healthz HTTP/1.0\r\n\r\n"
    yield b"\1GET /metrics HTTP/1.1\r\nHost: x\r\n\r\nHEAD /nowhere HTTP/1.1\r\nHost: x\r\n\r\n"
    yield b"\2POST http://x/policy?a HTTP/1.1\r\nHost: x" + AUTH + b"\r\nContent-Length: 5000000\r\n\r\n"
    yield b"\3" + request(b"PUT", b"[" * 40, AUTH)


def request(method: bytes, body: bytes = b"", more: bytes = b"") -> bytes:
    length = b"\r\nContent-Length: %d" % len(body) if body else b""
    return method + b" /policy HTTP/1.1\r\nHost: x" + more + length + b"\r\n\r\n" + body


class Turns:
    """A loop that has nothing to wait for: what is called soon is called next, what is called later never."""

    def __init__(self) -> None:
        self.soon: deque[Callable[[], None]] = deque()
        self.reader: Callable[[], None] | None = None
        self.writer: Callable[[], None] | None = None
        self.turns = 0

    def now(self) -> float:
        return 0.0

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def call_later(self, _seconds: float, _callback: Callable[[], None]) -> None:
        pass

    def add_reader(self, _fd: int, callback: Callable[[], None]) -> None:
        self.reader = callback

    def remove_reader(self, _fd: int) -> None:
        self.reader = None

    def add_writer(self, _fd: int, callback: Callable[[], None]) -> None:
        self.writer = callback

    def remove_writer(self, _fd: int) -> None:
        self.writer = None

    def run_in_thread(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - as the loop does it
            caught: Exception = error
            self.call_soon(lambda: done(None, caught))
        else:
            self.call_soon(lambda: done(result, None))

    def run(self) -> None:
        """Until nothing is left to do."""
        while True:
            self.turns += 1
            if self.soon:
                self.soon.popleft()()
            elif self.writer is not None:
                self.writer()
            elif self.reader is not None:
                self.reader()
            else:
                return


class Pieces:
    """A client's socket: its octets come in pieces, and it takes as many at a time."""

    def __init__(self, data: bytes, step: int) -> None:
        self.data, self.step = data, step
        self.sent = b""
        self.full = False
        self.closed = False

    def fileno(self) -> int:
        return 3

    def recv(self, _size: int) -> bytes:
        piece, self.data = self.data[: self.step], self.data[self.step :]
        return piece

    def send(self, data: bytes) -> int:
        self.full = not self.full
        if not self.full and self.step < 4096:
            raise BlockingIOError
        self.sent += data[: self.step]
        return min(len(data), self.step)

    def shutdown(self, _how: int) -> None:
        pass

    def close(self) -> None:
        self.closed = True


class Door:
    """What a connection knows of the listening socket it came by."""

    local = False

    def __init__(self, server: Server) -> None:
        self.server = server
        self.connections: dict[Any, None] = {}


class Outcome(NamedTuple):
    """What came of it all."""

    replies: list[int]
    policy: NetworkPolicy
    applied: int


def check(data: bytes) -> None:
    """In pieces and at once."""
    if not data:
        return
    stream = data[1:]
    step = len(stream) // (data[0] % 8 + 1) + 1 if data[0] else 1
    whole = served(stream, 4096)
    assert whole == served(stream, step), "the answers depend on how the octets were cut"
    if TOKEN not in stream:
        assert whole.applied == 0, "changed without the token"
        assert whole.policy == NetworkPolicy()
    assert whole.applied <= whole.replies.count(200)


def served(stream: bytes, step: int) -> Outcome:
    turns: Any = Turns()
    service = FakeService(turns)
    errors: list[BaseException] = []
    server = Server(turns, Api(turns, service, TOKEN.decode(), 64), errors.append)
    sock: Any = Pieces(stream, step)
    door: Any = Door(server)
    connection = Connection(door, sock)
    turns.run()
    assert not errors
    assert sock.closed, f"its last octet was read, and the connection is still there: {connection.phase}"
    assert server.buffered == 0, "octets that nobody gives back"
    return Outcome(statuses(sock.sent), service.policy, service.applied)


def statuses(sent: bytes) -> list[int]:
    """The final answers, each whole: what a client reads that counts octets."""
    sent = sent.replace(_CONTINUE, b"")
    found, at = [], 0
    while at < len(sent):
        end = sent.index(b"\r\n\r\n", at)
        assert sent.startswith(b"HTTP/1.1 ", at), sent[at : at + 200]
        found.append(int(sent[at + 9 : at + 12]))
        (length,) = _LENGTH.findall(sent, at, end + 2)
        at = end + 4
        if at < len(sent) and not sent.startswith(b"HTTP/1.1 ", at):  # else an answer to HEAD
            at += int(length)
    assert at == len(sent), "an answer cut short"
    return found
