"""A reactor whose clock the test moves, and resolvers that do what the test says; the sockets between them are real."""

from __future__ import annotations

import heapq
import select
import socket
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import dnslib

from egress.dns.straight import Plain
from egress.dns.upstream import Ports, Server, Upstream
from egress.loop import Gather, Timer

if TYPE_CHECKING:
    from collections.abc import Callable

    from egress.dns.answer import Answer
    from egress.dns.question import Question

LOCALHOST = b"\x7f\0\0\1"


class Clock:
    """Stands in for `egress.loop.Loop`: its readiness is the kernel's, its time the test's."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.turns = 0
        self.readers: dict[int, Callable[[], None]] = {}
        self.writers: dict[int, Callable[[], None]] = {}
        self._soon: deque[Callable[[], None]] = deque()
        self._timers: list[Timer] = []
        self._order = 0

    def now(self) -> float:
        return self.time

    def add_reader(self, fd: int, callback: Callable[[], None]) -> None:
        self.readers[fd] = callback

    def add_gathered(self, fd: int, gather: Gather, item: Any) -> None:
        def note() -> None:
            if not gather:
                self._soon.append(gather.call)
            gather.append(item)

        self.readers[fd] = note

    def remove_reader(self, fd: int) -> None:
        self.readers.pop(fd, None)

    def add_writer(self, fd: int, callback: Callable[[], None]) -> None:
        self.writers[fd] = callback

    def remove_writer(self, fd: int) -> None:
        self.writers.pop(fd, None)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._soon.append(callback)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        self._order += 1
        timer = Timer(self.time + seconds, self._order, callback)
        heapq.heappush(self._timers, timer)
        return timer

    def turn(self) -> bool:
        """Everything that is ready, then everything due; whether there was anything."""
        self.turns += 1
        poll = select.poll()
        for fd in {*self.readers, *self.writers}:
            poll.register(
                fd, (select.POLLIN if fd in self.readers else 0) | (select.POLLOUT if fd in self.writers else 0)
            )
        ready = poll.poll(0)
        for fd, mask in ready:
            if mask & ~select.POLLOUT and fd in self.readers:
                self.readers[fd]()
            if mask & ~select.POLLIN and fd in self.writers:
                self.writers[fd]()
        soon = len(self._soon)
        for _ in range(soon):
            self._soon.popleft()()
        due = 0
        while self._timers and self._timers[0].when <= self.time:
            callback = heapq.heappop(self._timers).callback
            if callback is not None:
                due += 1
                callback()
        return bool(ready or soon or due)

    def settle(self) -> None:
        """Until nothing more happens at this time."""
        for _ in range(2000):
            if not self.turn():
                return
        raise AssertionError("it never comes to rest")

    def advance(self, seconds: float) -> None:
        """Let time pass, with everything that is due on the way."""
        self.settle()
        end = self.time + seconds
        while self._timers and self._timers[0].when <= end:
            self.time = max(self.time, self._timers[0].when)
            self.settle()
        self.time = end
        self.settle()

    @property
    def idle(self) -> bool:
        return not self._soon and not any(timer.callback for timer in self._timers)


class Asked(NamedTuple):
    """A question as a resolver received it."""

    data: bytes
    source: Any
    record: dnslib.DNSRecord

    @property
    def name(self) -> str:
        return str(self.record.q.qname).rstrip(".")


class Resolver:
    """UDP and TCP on one port of 127.0.0.1; answers nothing by itself."""

    def __init__(self) -> None:
        for _ in range(50):
            self.tcp = socket.socket()
            self.tcp.bind(("127.0.0.1", 0))
            self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            try:
                self.udp.bind(self.tcp.getsockname())
                break
            except OSError:
                self.close()
        self.port: int = self.udp.getsockname()[1]
        self.udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        self.udp.setblocking(False)
        self.tcp.listen(128)
        self.tcp.setblocking(False)

    @property
    def server(self) -> Server:
        return Server(LOCALHOST, self.port)

    def take(self) -> list[Asked]:
        """Everything that was asked over UDP since the last time."""
        asked: list[Asked] = []
        while True:
            try:
                data, source = self.udp.recvfrom(4096)
            except BlockingIOError:
                return asked
            asked.append(Asked(data, source, dnslib.DNSRecord.parse(data)))

    def one(self) -> Asked:
        (asked,) = self.take()
        return asked

    def send(self, asked: Asked, message: bytes) -> None:
        self.udp.sendto(message, asked.source)

    def answer(self, asked: Asked, address: str = "198.51.100.7", **changes: Any) -> None:
        self.send(asked, reply_to(asked, address, **changes))

    def connections(self) -> list[socket.socket]:
        """Everybody who connected since the last time."""
        found: list[socket.socket] = []
        while True:
            try:
                sock, _ = self.tcp.accept()
            except BlockingIOError:
                return found
            sock.settimeout(20)
            found.append(sock)

    def close(self) -> None:
        self.udp.close()
        self.tcp.close()


def reply_to(asked: Asked, address: str = "198.51.100.7", *, rcode: int = 0, tc: int = 0, records: int = 1) -> bytes:
    reply = asked.record.reply(aa=0)
    reply.header.rcode = rcode
    reply.header.tc = tc
    if not rcode and not tc:
        for _ in range(records):
            reply.add_answer(dnslib.RR(asked.record.q.qname, 1, rdata=dnslib.A(address), ttl=300))
    return bytes(reply.pack())


def read_stream(sock: socket.socket) -> Asked:
    """One framed question of a TCP connection."""
    head = sock.recv(2, socket.MSG_WAITALL)
    data = sock.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)
    return Asked(data, sock, dnslib.DNSRecord.parse(data))


def framed(message: bytes) -> bytes:
    return len(message).to_bytes(2, "big") + message


class Stage:
    """An `Upstream` over real sockets, and what it handed out."""

    def __init__(self, *servers: Server, timeout: float = 5.0) -> None:
        self.clock = Clock()
        self.sockets: list[socket.socket] = []
        self.dialled: list[tuple[str, Server]] = []
        self.refuse: Callable[[str, Server], None] = lambda _kind, _server: None  # may raise OSError
        ports = Ports(lambda server: self._dial("udp", server), lambda server: self._dial("tcp", server))
        self.upstream = Upstream(self.clock, servers, ports, timeout, self._round)  # type: ignore[arg-type]
        self.results: list[tuple[Question, Answer | None]] = []
        self.rounds = 0

    def _dial(self, kind: str, server: Server) -> socket.socket:
        self.refuse(kind, server)
        self.dialled.append((kind, server))
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM)
        sock.setblocking(False)
        sock.connect_ex((socket.inet_ntoa(server.packed), server.port))
        self.sockets.append(sock)
        return sock

    def _round(self) -> None:
        self.rounds += 1
        for question, answer in self.upstream.collect(self.clock.now()):
            if isinstance(answer, Plain):
                answer = answer.answer(question.name, question.qtype)
            self.results.append((question, answer))

    def ask(self, name: str = "api.example.com", qtype: int = 1, waiter: Any = "client") -> bool:
        return self.upstream.ask(name, qtype, waiter, self.clock.now())

    def addresses(self) -> list[str]:
        """The first address of each result; "-" for nobody answered, "!n" for an answer with rcode n."""
        self.clock.settle()
        texts = []
        for _, answer in self.results:
            if answer is None:
                texts.append("-")
            elif answer.rcode:
                texts.append(f"!{answer.rcode}")
            else:
                texts.append(socket.inet_ntoa(answer.answers[0].rdata))
        return texts

    @property
    def open_sockets(self) -> int:
        return sum(sock.fileno() >= 0 for sock in self.sockets)

    def close(self) -> None:
        self.upstream.close()
        for sock in self.sockets:
            sock.close()
