"""Asking the resolvers: what is in flight, what comes back, and what happens when nobody answers.

A question goes to the first server that is well (`resolvers`), on a random port with a random id (`channels`). Equal
questions in flight are one. A question that takes too long is hedged: sent again to the next server, or to the same one
when it is alone, and the first good answer wins; a server that answers with an error, with nonsense or with ICMP is
passed over at once. What comes truncated, and what is out on a port that somebody guesses at, is asked again over TCP
(`stream`).

    asked ──hedge──▶ hedged ──1 s──▶ again ──time-out──▶ failed
       └────────────────┴───────────────┴──good answer──▶ done

Everything is bounded: PENDING questions, WAITING clients, and through these, POOL and STREAMS (`stream`) the sockets.
"""

from __future__ import annotations

import socket

from egress.dns.answer import parse_answer
from egress.dns.channels import POOL, STRAYS, Channel
from egress.dns.question import HEAD, NS, OPT, PROBING, Question, new_question, section
from egress.dns.resolvers import DOWN_AFTER, Resolvers
from egress.dns.straight import Plain, read_answer
from egress.dns.stream import Streams
from egress.dns.wire import WireError
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
TICK = 0.02  # seconds between looks at what is late
HEDGE_LEAST, HEDGE_MOST = 0.05, 0.5  # seconds
AGAIN = 1.0  # seconds
PROBE = 2.0  # seconds in which a server that was down has to answer
NOERROR, NXDOMAIN = 0, 3


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


Answered = tuple[Question, "Answer | Plain | None"]  # None: nobody answered in time


class Upstream:
    """All resolvers. `on_ready` is called, by itself at the end of a turn, when there is something to `collect`."""

    def __init__(
        self, loop: Loop, servers: tuple[Server, ...], ports: Ports, timeout: float, on_ready: Callable[[], None]
    ) -> None:
        self.servers = servers
        self.stray_packets = 0  # wrong id, question, case: not what was asked
        self._loop = loop
        self._timeout = timeout
        self._on_ready = on_ready
        self._ready = Gather(on_ready)
        self._resolvers = asked = Resolvers(
            loop, len(servers), lambda index: ports.udp(servers[index]), self._ready, self._abandon
        )
        self.health, self._all, self._entropy, self._pools = asked.health, asked.all, asked.entropy, asked.pools
        self._first = self._pools[0].channels
        self._flying: dict[tuple[str, int], Question] = {}
        self._joined = 0  # clients that wait for a question, but for each one's first
        self._most = PENDING  # questions that may be in flight
        self._probes: dict[Question, None] = {}
        self._finished: list[Answered] = []
        self._woken = False
        self._ticking = False
        self._streams = Streams(loop, lambda index: ports.tcp(servers[index]), self._entropy, self._streamed)

    def __len__(self) -> int:
        return len(self._flying)

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
        if not body:
            body = section(name, qtype)
        # As a rule the first server is well and its sockets are all there: what `Resolvers.send_to` comes to then. The
        # question leaves first. What is written down about it has time: nobody else hears an answer meanwhile.
        drawn, channels = self._entropy.drawn, self._first
        if drawn and len(channels) == POOL and self.health[0].failures < DOWN_AFTER:
            ident, number = drawn.pop()
            channel = channels[number % POOL]
            ids = channel.ids
            if ident not in ids:
                try:
                    channel.send(ident + HEAD + body + OPT)
                    sent = True
                except OSError as error:
                    sent = self._resolvers.lost(channel, error)
                if sent:
                    question = ids[ident] = flying[key] = new_question(key, [waiter], now, body, judged, ports)
                    question.tried = 1
                    question.simple = True
                    question.places = ((channel, ident),)
                    if not self._ticking:
                        self._tick_later(now)
                    return True
        question = flying[key] = new_question(key, [waiter], now, body, judged, ports)
        if not self._ticking:
            self._tick_later(now)
        if self.health[0].failures >= DOWN_AFTER:
            self._resolvers.send(question, now)
        elif not self._resolvers.send_to(question, 0, now):
            self._resolvers.send_elsewhere(question, 0, now)
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
            probe = new_question((name, NS), [], now, section(name, NS))
            probe.stage = PROBING
            self._probes[probe] = None
            self._resolvers.send_to(probe, index, now)
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
            self._streams.ask(question, server)
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
            self._resolvers.send(question, now)
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
            self._streams.ask(question, channel.server)

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
                self._resolvers.send(question, now)
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
            self._streams.give_up(question)

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
            self._resolvers.send(question, now)
        late.extend(probe for probe in self._probes if now - probe.asked >= PROBE)
        for question in late:
            silent = question.tried & ~question.failed
            for index in range(len(self.servers)):
                if silent >> index & 1:
                    self.health[index].failures += 1
            self._report(question, None)

    # -- TCP -----------------------------------------------------------------------------------------------------
    def _streamed(self, question: Question, server: int, answer: Answer | None) -> None:
        if answer is None:
            self._no_stream(question, server)
            return
        self.health[server].failures = 0
        if answer.rcode in (NOERROR, NXDOMAIN):
            self._report(question, answer)
        else:
            self._failed(question, server, answer, self._loop.now())

    def _no_stream(self, question: Question, server: int) -> None:
        """No answer over TCP. Where UDP would have done but for somebody's guesses, UDP it is, from another port."""
        now = self._loop.now()
        if question.truncated:
            self._failed(question, server, None, now)
        elif not self._resolvers.send_to(question, server, now):
            self._resolvers.send_elsewhere(question, server, now)
