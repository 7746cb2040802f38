"""Asking the resolvers: who is asked, from which port, with which id, and what happens when nobody answers.

Every server has a pool of connected UDP sockets, each on a port of the kernel's random choosing, opened as they are
needed and replaced after a while; a question takes a random socket and a random id, 32 bits together (RFC 5452).
Equal questions in flight are one. A question that takes too long is hedged: sent again to the next server, or to the
same one when it is alone, and the first good answer wins. What comes truncated is asked again over TCP.

    asked ──hedge──▶ hedged ──1 s──▶ again ──time-out──▶ failed
       └────────────────┴───────────────┴──good answer──▶ done
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any, NamedTuple

from egress.dns.answer import parse_answer
from egress.dns.wire import WireError, ask

if TYPE_CHECKING:
    from collections.abc import Callable

    from egress.dns.answer import Answer
    from egress.loop import Loop

POOL = 32  # sockets a server, each another random port
USES = 1024  # questions after which a socket is replaced
AGE = 60.0  # seconds after which it is
STRAYS = 16  # packets that answer nothing we asked, after which it is: somebody is guessing
PENDING = 4096  # distinct questions in flight
WAITERS = 64  # clients that wait for one question
TICK = 0.02  # seconds between looks at what is late
HEDGE_LEAST, HEDGE_MOST = 0.05, 0.5  # seconds
AGAIN = 1.0  # seconds
DOWN_AFTER = 3  # time-outs in a row
SERVFAIL, REFUSED = 2, 5


class Server(NamedTuple):
    """One resolver: packed address and port."""

    packed: bytes
    port: int

    def __str__(self) -> str:
        if len(self.packed) == 4:
            return f"{socket.inet_ntop(socket.AF_INET, self.packed)}:{self.port}"
        return f"[{socket.inet_ntop(socket.AF_INET6, self.packed)}]:{self.port}"


class Ports(NamedTuple):
    """How sockets to a server are opened: connected UDP, and connecting TCP. Both non-blocking, both exempted."""

    udp: Callable[[Server], socket.socket]
    tcp: Callable[[Server], socket.socket]


class Question:
    """One question in flight and everybody who waits for it."""

    __slots__ = ("asked", "body", "name", "places", "qtype", "server", "stage", "tcp", "tried", "waiters")

    def __init__(self, name: str, qtype: int, now: float) -> None:
        self.name = name
        self.qtype = qtype
        self.asked = now
        self.waiters: list[Any] = []
        self.places: list[tuple[_Channel, int]] = []
        self.body = b""  # our question section, byte for byte
        self.server = 0
        self.stage = 0
        self.tried = 0  # bit mask of servers
        self.tcp: _Stream | None = None


class _Health:
    __slots__ = ("answered", "failures", "srtt")

    def __init__(self) -> None:
        self.srtt = 0.1  # seconds, smoothed
        self.failures = 0
        self.answered = 0

    @property
    def down(self) -> bool:
        return self.failures >= DOWN_AFTER


class _Channel:
    """A connected UDP socket and the ids that are out on it."""

    __slots__ = ("born", "fd", "ids", "retired", "server", "sock", "strays", "uses")

    def __init__(self, sock: socket.socket, server: int, now: float) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.server = server
        self.ids: dict[int, Question] = {}
        self.uses = 0
        self.strays = 0
        self.born = now
        self.retired = False


class _Entropy:
    """16-bit numbers of the kernel's randomness, read a page at a time."""

    __slots__ = ("_at", "_pool")

    def __init__(self) -> None:
        self._pool = b""
        self._at = 0

    def next(self) -> int:
        at = self._at
        pool = self._pool
        if at >= len(pool):
            pool = self._pool = os.urandom(4096)
            at = 0
        self._at = at + 2
        return pool[at] << 8 | pool[at + 1]


Answered = tuple[Question, "Answer | None"]  # None: nobody answered in time


class Upstream:
    """All resolvers. `on_ready` is called (once a turn) when answers wait for `collect`."""

    def __init__(
        self, loop: Loop, servers: tuple[Server, ...], ports: Ports, timeout: float, on_ready: Callable[[], None]
    ) -> None:
        self.servers = servers
        self.health = [_Health() for _ in servers]
        self._loop = loop
        self._ports = ports
        self._timeout = timeout
        self._on_ready = on_ready
        self._pools: list[list[_Channel]] = [[] for _ in servers]
        self._flying: dict[tuple[str, int], Question] = {}
        self._stages: list[dict[Question, None]] = [{}, {}, {}]
        self._ready: list[_Channel] = []
        self._finished: list[Answered] = []
        self._entropy = _Entropy()
        self._ticking = False
        self.stray_packets = 0

    def __len__(self) -> int:
        return len(self._flying)

    # -- asking --------------------------------------------------------------------------------------------------
    def ask(self, name: str, qtype: int, waiter: Any, now: float) -> bool:
        """Put a question; False when too much is in flight. Answers come through `collect`."""
        key = (name, qtype)
        question = self._flying.get(key)
        if question is not None:
            if len(question.waiters) >= WAITERS:
                return False
            question.waiters.append(waiter)
            return True
        if len(self._flying) >= PENDING:
            return False
        question = Question(name, qtype, now)
        question.waiters.append(waiter)
        self._flying[key] = question
        self._stages[0][question] = None
        self._send(question, self._choose(0), now)
        if not self._ticking:
            self._ticking = True
            self._loop.call_later(TICK, self._tick)
        return True

    def probe(self, name: str) -> None:
        """Ask every server that is down for `name`'s NS; any answer brings it back."""
        now = self._loop.now()
        for index, health in enumerate(self.health):
            if health.down:
                probe = Question(name, 2, now - self._timeout + 2.0)
                probe.stage = 2
                self._stages[2][probe] = None
                self._send(probe, index, now)
                if not self._ticking:
                    self._ticking = True
                    self._loop.call_later(TICK, self._tick)

    def _choose(self, tried: int) -> int:
        """The first server in the operator's order that is well and untried, else the first untried, else the first."""
        health = self.health
        if not tried and not health[0].down:
            return 0
        fallback = -1
        for index, state in enumerate(health):
            if tried >> index & 1:
                continue
            if not state.down:
                return index
            if fallback < 0:
                fallback = index
        return max(fallback, 0)

    def _send(self, question: Question, server: int, now: float) -> None:
        question.server = server
        question.tried |= 1 << server
        for _ in range(2):
            try:
                channel = self._channel(server, now)
                ids = channel.ids
                ident = self._entropy.next()
                while ident in ids:
                    ident = self._entropy.next()
                message = ask(ident, question.name, question.qtype)
                if not question.body:
                    question.body = message[12 : message.index(0, 12) + 5]
                channel.sock.send(message)
            except OSError:
                self._retire_all(server)  # the address or the route is gone: fresh sockets, once
                continue
            ids[ident] = question
            question.places.append((channel, ident))
            channel.uses += 1
            return

    def _channel(self, server: int, now: float) -> _Channel:
        pool = self._pools[server]
        if len(pool) < POOL:
            channel = _Channel(self._ports.udp(self.servers[server]), server, now)
            self._loop.add_reader(channel.fd, lambda: self._note(channel))
            pool.append(channel)
            return channel
        channel = pool[self._entropy.next() % POOL]
        if channel.uses >= USES or now - channel.born > AGE:
            self._retire(channel)
            return self._channel(server, now)
        return channel

    def _retire(self, channel: _Channel) -> None:
        pool = self._pools[channel.server]
        if channel in pool:
            pool.remove(channel)
        channel.retired = True
        if not channel.ids:
            self._close(channel)

    def _retire_all(self, server: int) -> None:
        for channel in list(self._pools[server]):
            self._retire(channel)

    def _close(self, channel: _Channel) -> None:
        if channel.fd >= 0:
            self._loop.remove_reader(channel.fd)
            channel.sock.close()
            channel.fd = -1

    # -- answers -------------------------------------------------------------------------------------------------
    def _note(self, channel: _Channel) -> None:
        """Only note what is ready: one round reads from all sockets, so that one netlink batch serves them all."""
        if not self._ready and not self._finished:
            self._on_ready()
        self._ready.append(channel)

    def collect(self, now: float) -> list[Answered]:
        """One packet of each ready socket, checked; and whatever failed meanwhile."""
        finished = self._finished
        self._finished = []
        ready = self._ready
        self._ready = []
        for channel in ready:
            if channel.fd < 0:
                continue
            try:
                data = channel.sock.recv(4096)
            except BlockingIOError:
                continue
            except OSError:
                self._unreachable(channel, now)
                continue
            question = channel.ids.get(data[0] << 8 | data[1]) if len(data) > 12 else None
            if question is None:
                self._stray(channel)
                continue
            try:
                answer = parse_answer(data, question.body, question.name)
            except WireError:
                self._stray(channel)
                continue
            health = self.health[channel.server]
            health.failures = 0
            health.srtt += (now - question.asked - health.srtt) * 0.125 if not question.stage else 0.0
            if answer.truncated:
                self._over_tcp(question, channel.server)
            elif answer.rcode in (SERVFAIL, REFUSED) and self._another(question, now):
                pass
            else:
                self._finish(question)
                finished.append((question, answer))
        return finished

    def _another(self, question: Question, now: float) -> bool:
        """Where one server fails, the next one is asked at once."""
        if question.tried == (1 << len(self.servers)) - 1:
            return False
        self._send(question, self._choose(question.tried), now)
        return True

    def _stray(self, channel: _Channel) -> None:
        """Not an answer to anything we asked: late, or a guess. A port that is guessed at is given up."""
        self.stray_packets += 1
        channel.strays += 1
        if channel.strays >= STRAYS and not channel.retired:
            self._move(channel)

    def _move(self, channel: _Channel) -> None:
        self._retire(channel)
        for question in list(channel.ids.values()):
            self._over_tcp(question, channel.server)

    def _unreachable(self, channel: _Channel, now: float) -> None:
        """ICMP said so (ECONNREFUSED and the like): no need to wait for time-outs."""
        self.health[channel.server].failures += 1
        self._retire(channel)
        for question in list(channel.ids.values()):
            if question.tried != (1 << len(self.servers)) - 1:
                self._send(question, self._choose(question.tried), now)

    def _finish(self, question: Question) -> None:
        self._flying.pop((question.name, question.qtype), None)
        self._stages[question.stage].pop(question, None)
        for channel, ident in question.places:
            channel.ids.pop(ident, None)
            if channel.retired and not channel.ids:
                self._close(channel)
        question.places.clear()
        if question.tcp is not None:
            question.tcp.close()
            question.tcp = None

    # -- time ----------------------------------------------------------------------------------------------------
    def _tick(self) -> None:
        now = self._loop.now()
        asked, hedged, again = self._stages
        single = len(self.servers) == 1
        if asked:
            wait = AGAIN if single else min(max(3 * self.health[0].srtt, HEDGE_LEAST), HEDGE_MOST)
            self._advance(asked, hedged, 1, now, wait)
        if hedged:
            self._advance(hedged, again, 2, now, 2 * AGAIN)
        late: list[Question] = []
        for question in again:
            if now - question.asked < self._timeout:
                break
            late.append(question)
        if self._timeout <= 2 * AGAIN:  # shorter than the steps above
            for stage in (asked, hedged):
                late.extend(question for question in stage if now - question.asked >= self._timeout)
        for question in late:
            for index in range(len(self.servers)):
                if question.tried >> index & 1:
                    self.health[index].failures += 1
            self._fail(question)
        if any(self._stages):
            self._loop.call_later(TICK, self._tick)
        else:
            self._ticking = False

    def _advance(
        self, stage: dict[Question, None], following: dict[Question, None], number: int, now: float, wait: float
    ) -> None:
        late = []
        for question in stage:
            if now - question.asked < wait:
                break
            late.append(question)
        for question in late:
            del stage[question]
            question.stage = number
            following[question] = None
            self._send(question, self._choose(question.tried), now)

    def _fail(self, question: Question) -> None:
        self._finish(question)
        if question.waiters:
            if not self._ready and not self._finished:
                self._on_ready()
            self._finished.append((question, None))

    # -- TCP -----------------------------------------------------------------------------------------------------
    def _over_tcp(self, question: Question, server: int) -> None:
        if question.tcp is not None:
            return
        try:
            sock = self._ports.tcp(self.servers[server])
        except OSError:
            return  # the time-out, or another server's answer, ends it
        message = ask(self._entropy.next(), question.name, question.qtype)
        question.tcp = _Stream(self._loop, sock, message, lambda data: self._streamed(question, data))

    def _streamed(self, question: Question, data: bytes | None) -> None:
        if question.tcp is None:
            return
        ident = question.tcp.ident
        question.tcp.close()
        question.tcp = None
        if data is None or data[:2] != ident:
            return
        try:
            answer = parse_answer(data, question.body, question.name)
        except WireError:
            return
        if answer.truncated:
            return  # over TCP that is a lie: it teaches nothing
        self._finish(question)
        if not self._ready and not self._finished:
            self._on_ready()
        self._finished.append((question, answer))


class _Stream:
    """One question over one TCP connection (RFC 7766); `done` gets the message, or None when it broke."""

    __slots__ = ("_buffer", "_done", "_loop", "_out", "_sock", "ident")

    def __init__(self, loop: Loop, sock: socket.socket, message: bytes, done: Callable[[bytes | None], None]) -> None:
        self.ident = message[:2]
        self._loop = loop
        self._sock = sock
        self._out = len(message).to_bytes(2, "big") + message
        self._buffer = bytearray()
        self._done = done
        loop.add_writer(sock.fileno(), self._writable)
        loop.add_reader(sock.fileno(), self._readable)

    def _writable(self) -> None:
        try:
            sent = self._sock.send(self._out)
        except BlockingIOError:
            return
        except OSError:
            self._done(None)
            return
        self._out = self._out[sent:]
        if not self._out:
            self._loop.remove_writer(self._sock.fileno())

    def _readable(self) -> None:
        try:
            chunk = self._sock.recv(65537)
        except BlockingIOError:
            return
        except OSError:
            self._done(None)
            return
        self._buffer += chunk
        length = int.from_bytes(self._buffer[:2], "big") if len(self._buffer) >= 2 else 0
        if len(self._buffer) >= 2 and len(self._buffer) >= length + 2:
            self._done(bytes(self._buffer[2 : length + 2]))
        elif not chunk:
            self._done(None)

    def close(self) -> None:
        fd = self._sock.fileno()
        if fd >= 0:
            self._loop.remove_reader(fd)
            self._loop.remove_writer(fd)
            self._sock.close()
