"""Asking the resolvers: who is asked, with which id, and what happens when nobody answers.

A question goes to the first server that is well, on a random port with a random id (`channels`). Equal questions in
flight are one. A question that takes too long is hedged: sent again to the next server, or to the same one when it is
alone, and the first good answer wins; a server that answers with an error, with nonsense or with ICMP is passed over at
once. What comes truncated, and what is out on a port that somebody guesses at, is asked again over TCP (`stream`).

    asked ──hedge──▶ hedged ──1 s──▶ again ──time-out──▶ failed
       └────────────────┴───────────────┴──good answer──▶ done

Everything is bounded: PENDING questions, WAITING clients, and through these, POOL and STREAMS the sockets.
"""

from __future__ import annotations

import socket
from collections import deque

from egress.dns.answer import parse_answer
from egress.dns.channels import POOL, STRAYS, Channel, Entropy, Pool
from egress.dns.question import DOWN_AFTER, PROBING, Health, Question, new_question
from egress.dns.straight import Plain, read_answer
from egress.dns.stream import Stream
from egress.dns.wire import WireError, ask
from egress.loop import Gather
from policies.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from egress.dns.answer import Answer
    from egress.loop import Loop
    from policies.ports import PortSet

PENDING = 4096  # distinct questions in flight
WAITERS = 64  # clients that wait for one question
WAITING = 8192  # clients that wait for any
STREAMS = 64  # TCP connections; further questions wait for one to end
TICK = 0.02  # seconds between looks at what is late
HEDGE_LEAST, HEDGE_MOST = 0.05, 0.5  # seconds
AGAIN = 1.0  # seconds
PROBE = 2.0  # seconds in which a server that was down has to answer
NS = 2
NOERROR, NXDOMAIN = 0, 3
_ROOT = ask(0, "", NS)
_HEAD, _OPT = _ROOT[2:12], _ROOT[17:]  # what all our questions have in common, around the question section


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


def _section(name: str, qtype: int) -> bytes:
    return ask(0, name, qtype)[12 : -len(_OPT)]


Answered = tuple[Question, "Answer | Plain | None"]  # None: nobody answered in time


class Upstream:
    """All resolvers. `on_ready` is called, by itself at the end of a turn, when there is something to `collect`."""

    def __init__(
        self, loop: Loop, servers: tuple[Server, ...], ports: Ports, timeout: float, on_ready: Callable[[], None]
    ) -> None:
        self.servers = servers
        self.health = [Health() for _ in servers]
        self.stray_packets = 0  # wrong id, question, case: not what was asked
        self._loop = loop
        self._ports = ports
        self._timeout = timeout
        self._on_ready = on_ready
        self._all = (1 << len(servers)) - 1
        self._entropy = Entropy()
        self._ready = Gather(on_ready)
        self._pools: list[Pool] = []
        for index in range(len(servers)):
            self._pools.append(Pool(loop, index, self._dialler(index), self._ready, self._entropy))
        self._first = self._pools[0].channels
        self._flying: dict[tuple[str, int], Question] = {}
        self._joined = 0  # clients that wait for a question, but for each one's first
        self._most = PENDING  # questions that may be in flight
        self._probes: dict[Question, None] = {}
        self._finished: list[Answered] = []
        self._woken = False
        self._ticking = False
        self._streams = 0
        self._queued: deque[tuple[Question, int]] = deque()  # for a free stream

    def __len__(self) -> int:
        return len(self._flying)

    def _dialler(self, index: int) -> Callable[[], socket.socket]:
        return lambda: self._ports.udp(self.servers[index])

    # -- asking --------------------------------------------------------------------------------------------------
    def ask(
        self, name: str, qtype: int, waiter: Any, now: float, body: bytes = b"", judged: object = None,
        ports: PortSet | None = None,
    ) -> bool:  # fmt: skip
        """Put a question; False when too much is in flight. Answers come through `collect`.

        `body` is the question section in lower case, where somebody has it; `judged` and `ports` are kept with it.
        """
        key = (name, qtype)
        flying = self._flying
        if key in flying or len(flying) >= self._most:
            if self.waiting >= WAITING or (len(flying) >= PENDING and key not in flying):
                self._give_up_oldest()
            if key in flying:
                return self._join(flying[key], waiter)
        if not self._ticking:
            self._tick_later(now)
        if not body:
            body = _section(name, qtype)
        question = flying[key] = new_question(key, [waiter], now, body, judged, ports)
        # As a rule the first server is well and its sockets are all there: what `_send_to` comes to then.
        drawn, channels = self._entropy.drawn, self._first
        if drawn and len(channels) == POOL and self.health[0].failures < DOWN_AFTER:
            ident, number = drawn.pop()
            channel = channels[number % POOL]
            ids = channel.ids
            if ident not in ids:
                try:
                    channel.send(ident + _HEAD + body + _OPT)
                    sent = True
                except OSError as error:
                    sent = self._lost(channel, error)
                if sent:
                    ids[ident] = question
                    question.tried = 1
                    question.simple = True
                    question.places = [(channel, ident)]
                    return True
        if self.health[0].failures >= DOWN_AFTER:
            self._send(question, now)
        elif not self._send_to(question, 0, now):
            self._send_elsewhere(question, 0, now)
        return True

    def _join(self, question: Question, waiter: Any) -> bool:
        if len(question.waiters) >= WAITERS:
            return False
        question.waiters.append(waiter)
        self._more(1)
        return True

    def _more(self, joined: int) -> None:
        """So many more clients than questions wait."""
        self._joined += joined
        self._most = min(PENDING, WAITING - self._joined)

    @property
    def waiting(self) -> int:
        """Clients that wait for an answer."""
        return len(self._flying) + self._joined

    def _give_up_oldest(self) -> None:
        """Room for another question. Not the new one: who is answered at all is answered soon, and questions that
        nobody ever answers would keep everybody else out for as long as the time-out."""
        for question in self._flying.values():
            self._report(question, None)
            return

    def probe(self, name: str) -> None:
        """Ask every server for `name`'s NS: silence counts as a failure, any answer brings back who was down."""
        now = self._loop.now()
        for index in range(len(self.servers)):
            probe = new_question((name, NS), [], now, _section(name, NS))
            probe.stage = PROBING
            self._probes[probe] = None
            self._send_to(probe, index, now)
            probe.simple = False
            if not self._ticking:
                self._tick_later(now)

    def close(self) -> None:
        """Close every socket; nobody who waits is answered."""
        for question in [*self._flying.values(), *self._probes]:
            self._finish(question, None)
        for pool in self._pools:
            pool.close()
        self._ready.clear()
        self._finished.clear()

    def _choose(self, question: Question) -> int:
        """In the operator's order: untried servers before tried ones, before those that failed; the well ones first."""
        tried, failed, health = question.tried, question.failed, self.health
        return min(
            range(len(health)), key=lambda index: (tried >> index & 1, failed >> index & 1, health[index].down, index)
        )

    def _send(self, question: Question, now: float) -> None:
        """Ask whoever is next."""
        server = self._choose(question)
        if not self._send_to(question, server, now):
            self._send_elsewhere(question, server, now)

    def _send_elsewhere(self, question: Question, server: int, now: float) -> None:
        """`server` could not be asked: the next one that was not tried."""
        while True:
            question.failed |= 1 << server
            self.health[server].failures += 1
            if question.tried == self._all:
                return  # the clock tries again until the time is up
            server = self._choose(question)
            if self._send_to(question, server, now):
                return

    def _send_to(self, question: Question, server: int, now: float) -> bool:
        question.tried |= 1 << server
        pool = self._pools[server]
        try:
            channel, ident = pool.take(now)
            try:
                channel.send(ident + _HEAD + question.body + _OPT)
            except OSError as error:
                if not self._lost(channel, error):
                    channel, ident = pool.take(now)
                    channel.send(ident + _HEAD + question.body + _OPT)
        except OSError:
            return False
        channel.ids[ident] = question
        question.simple = not question.places  # out in one place only
        question.places = [*question.places, (channel, ident)]
        return True

    def _lost(self, channel: Channel, error: OSError) -> bool:
        """What could not be sent is lost as any packet may be; but for what another socket may help against."""
        if isinstance(error, (BlockingIOError, InterruptedError)):
            return True
        if isinstance(error, ConnectionError):  # ICMP, for an earlier question
            self._abandon(channel)
        else:  # the address or the route is gone
            self._pools[channel.server].retire_all()
        return False

    # -- answers -------------------------------------------------------------------------------------------------
    def _wake(self) -> None:
        self._woken = True
        self._loop.call_soon(self._on_ready)

    def collect(self, now: float) -> list[Answered]:
        """One packet of each ready socket, checked; and whatever failed or came over TCP meanwhile."""
        self._woken = False
        finished: list[Answered] = []
        ready = self._ready[:]
        self._ready.clear()
        flying = self._flying
        well = -1  # the server that was last heard of in this round
        for channel in ready:
            if channel.fd < 0:
                continue
            try:
                data = channel.receive(4096)
            except (BlockingIOError, InterruptedError):
                continue
            except OSError:
                self._refused(channel)
                continue
            ident = data[:2]
            question = channel.ids.pop(ident, None)
            if question is None:
                self._stray(channel, data)
                continue
            key = question.key
            plain = read_answer(data, question.body, key[1])
            if plain is None or not question.simple:
                channel.ids[ident] = question
                if len(data) <= 12:
                    self._stray(channel, data)
                    continue
                self._read(channel, question, data, now, finished)
                continue
            # As `_read` and `_finish` come to, for the one place where it was asked.
            if channel.server != well:
                well = channel.server
                health = self.health[well]
                health.failures = 0
                health.srtt += (now - question.asked - health.srtt) * 0.125
            question.done = True
            del flying[key]
            if len(question.waiters) > 1:
                self._more(1 - len(question.waiters))
            if channel.retired and not channel.ids:
                self._pools[channel.server].drop(channel)
            finished.append((question, plain))
        if self._finished:
            finished += self._finished
            self._finished = []
        return finished

    def _read(self, channel: Channel, question: Question, data: bytes, now: float, finished: list[Answered]) -> None:
        """A packet with the id of `question`, read carefully."""
        server = channel.server
        try:
            answer = parse_answer(data, question.body, question.name)
        except WireError:
            if data[2] & 0xF8 == 0x80 and data[12 : 12 + len(question.body)] == question.body:
                self._failed(question, server, None, now)  # it is the server's, and nonsense
            else:
                self._stray(channel, data)
            return
        health = self.health[server]
        health.failures = 0
        if question.stage:
            if question.stage == PROBING:
                self._finish(question, channel)
                return
        else:
            health.srtt += (now - question.asked - health.srtt) * 0.125
        if answer.truncated:
            question.truncated = True
            self._over_tcp(question, server)
        elif answer.rcode != NOERROR and answer.rcode != NXDOMAIN:
            self._failed(question, server, answer, now)
        else:
            self._finish(question, channel)
            finished.append((question, answer))

    def _failed(self, question: Question, server: int, answer: Answer | None, now: float) -> None:
        """`server` has no good answer: the next one is asked at once; when all have failed so, that is the answer."""
        if question.stage == PROBING:
            return
        question.failed |= 1 << server
        if question.tried != self._all:
            self._send(question, now)
        if question.failed == self._all:
            self._report(question, answer)

    def _report(self, question: Question, answer: Answer | None) -> None:
        self._finish(question, None)
        if question.waiters:
            self._finished.append((question, answer))
            if not self._woken:
                self._wake()

    def _stray(self, channel: Channel, data: bytes) -> None:
        """Not an answer to anything we asked. A port that is guessed at is given up; late answers are no guesses."""
        if len(data) > 12 and data[:2] in channel.late:
            channel.late.discard(data[:2])
            return
        self.stray_packets += 1
        channel.strays += 1
        if channel.strays < STRAYS or channel.retired:
            return
        exposed = list(channel.ids.values())
        self._pools[channel.server].retire(channel)
        for question in exposed:
            self._over_tcp(question, channel.server)

    def _refused(self, channel: Channel) -> None:
        """ICMP said so (ECONNREFUSED and the like): no need to wait for time-outs."""
        abandoned = list(channel.ids.values())
        self._pools[channel.server].retire(channel)
        self._elsewhere(abandoned, channel.server)

    def _abandon(self, channel: Channel) -> None:
        """As `_refused`, but not before what is going on has come to its end."""
        questions = list(channel.ids.values())
        self._pools[channel.server].retire(channel)
        self._loop.call_soon(lambda: self._elsewhere(questions, channel.server))

    def _elsewhere(self, questions: list[Question], server: int) -> None:
        now = self._loop.now()
        self.health[server].failures += 1
        for question in questions:
            if question.done:
                continue
            question.failed |= 1 << server
            if question.stage == PROBING:
                continue
            if question.tried != self._all:
                self._send(question, now)
            elif question.failed == self._all and question.stage == 2:
                self._report(question, None)  # before that it may be a resolver that is being restarted

    def _finish(self, question: Question, channel: Channel | None) -> None:
        """It is settled, by what came on `channel` where that is given."""
        question.done = True
        if self._flying.get(question.key) is question:  # a probe may ask what a client asks
            del self._flying[question.key]
        if len(question.waiters) > 1:
            self._more(1 - len(question.waiters))
        self._probes.pop(question, None)
        for place, ident in question.places:
            self._pools[place.server].release(place, ident, settled_here=place is channel)
        question.places = ()
        if question.tcp is not None:
            question.tcp.close()
            self._hung_up(question)

    # -- time ----------------------------------------------------------------------------------------------------
    def _tick_later(self, now: float) -> None:
        self._ticking = True
        self._loop.call_later(TICK, self._tick)
        for pool in self._pools:
            pool.age(now)

    def _tick(self) -> None:
        now = self._loop.now()
        try:
            self._look_at_the_clock(now)
        finally:
            self._ticking = False
            if self._flying or self._probes:
                self._tick_later(now)

    def _look_at_the_clock(self, now: float) -> None:
        alone = len(self.servers) == 1
        hedge = AGAIN if alone else min(max(3 * self.health[0].srtt, HEDGE_LEAST), HEDGE_MOST)
        waits = (hedge, 2 * AGAIN, self._timeout)  # by the stage that ends then
        late: list[Question] = []
        overdue: list[Question] = []
        for question in self._flying.values():  # the oldest first
            age = now - question.asked
            if age >= self._timeout:
                late.append(question)
            elif age >= waits[question.stage]:
                overdue.append(question)
            elif not question.stage:
                break
        for question in overdue:
            question.stage += 1
            question.simple = False
            self._send(question, now)
        late.extend(probe for probe in self._probes if now - probe.asked >= PROBE)
        for question in late:
            silent = question.tried & ~question.failed
            for index in range(len(self.servers)):
                if silent >> index & 1:
                    self.health[index].failures += 1
            self._report(question, None)

    # -- TCP -----------------------------------------------------------------------------------------------------
    def _over_tcp(self, question: Question, server: int) -> None:
        if question.tcp is not None or question.stage == PROBING:
            return
        if self._streams >= STREAMS:
            if len(self._queued) < PENDING:
                self._queued.append((question, server))
            return
        ident, _ = self._entropy.next()
        try:
            sock = self._ports.tcp(self.servers[server])
        except OSError:
            self._no_stream(question, server)
            return
        self._streams += 1
        question.simple = False
        message = ident + _HEAD + question.body + _OPT
        question.tcp = Stream(self._loop, sock, server, message, lambda data: self._streamed(question, ident, data))

    def _hung_up(self, question: Question) -> None:
        question.tcp = None
        self._streams -= 1
        while self._queued and self._streams < STREAMS:
            waiting, server = self._queued.popleft()
            if not waiting.done and waiting.tcp is None:
                self._over_tcp(waiting, server)

    def _streamed(self, question: Question, ident: bytes, data: bytes | None) -> None:
        assert question.tcp is not None
        server = question.tcp.server
        self._hung_up(question)
        if data is not None and data[:2] == ident:
            try:
                answer = parse_answer(data, question.body, question.name)
            except WireError:
                pass
            else:
                if not answer.truncated:  # over TCP that is a lie: it teaches nothing
                    self.health[server].failures = 0
                    if answer.rcode in (NOERROR, NXDOMAIN):
                        self._report(question, answer)
                    else:
                        self._failed(question, server, answer, self._loop.now())
                    return
        self._no_stream(question, server)

    def _no_stream(self, question: Question, server: int) -> None:
        """No answer over TCP. Where UDP would have done but for somebody's guesses, UDP it is, from another port."""
        now = self._loop.now()
        if question.truncated:
            self._failed(question, server, None, now)
        elif not self._send_to(question, server, now):
            self._send_elsewhere(question, server, now)
