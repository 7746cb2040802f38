"""The round: everything one turn of the loop found ready, answered with one write to the kernel.

    upstream sockets ──collect──▶ interceptor.on_answer ──▶ leases.learn ──▶ ONE netlink batch ──ack──▶ replies
    client sockets ──drain──▶ same bytes lately? ──▶ reply
                                ├─▶ ordinary, its parent decided, not cached, within its budget? ──▶ upstream.ask
                                └─▶ wire.parse_query ─▶ interceptor.on_query ─▶ reply, or upstream.ask

What is ordinary goes straight (`straight.py`); everything else, and whatever has changed meanwhile, the careful way.

An address is in the kernel's set, acknowledged, before the answer that carries it leaves; a refused batch is SERVFAIL,
never an answer. While a ruleset is being loaded (`hold` … `release`) answers that would teach something wait, and are
decided again under the policy that then holds: an answer decided under an old policy teaches nothing.
"""

from __future__ import annotations

from bisect import bisect_right

from egress.dns import wire
from egress.dns.interceptor import DENIED_TTL, LEARN, Ask, Interceptor, Outcome
from egress.dns.shedding import Shedding
from egress.dns.straight import ROOM, Plain
from egress.dns.wire import PLAIN
from egress.firewall.leases import Full
from policies.ordinary import EDGES4
from policies.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from egress.dns.answer import Answer
    from egress.dns.cache import Kept
    from egress.dns.packets import OneByOne, Packets
    from egress.dns.question import Question
    from egress.dns.straight import Shape
    from egress.dns.upstream import Answered, Upstream
    from egress.dns.wire import Query
    from egress.firewall.leases import Grant, Leases
    from egress.loop import Loop
    from policies.ports import PortSet

UDP_LIMIT = 1232  # octets of a UDP answer (DNS flag day 2020: no fragments)
TCP_LIMIT = 65535
SAME = 4096  # queries whose bytes are remembered with their reply
SAME_OCTETS = 2 * 1024 * 1024  # of these queries and replies
SAME_QUERY = 400  # octets: longer ones differ each time, by their padding and cookies
PARKED = 2048  # answers that wait for a ruleset
PARKED_RECORDS = 16_384  # in all of them
COMPLAIN = 1.0  # seconds between reports: what a sandbox can cause, it can cause often
SERVFAIL = 2
NOT_READY, NO_REACHABLE_AUTHORITY, OTHER = 14, 22, 0  # EDE codes, RFC 8914


class Waiter(NamedTuple):
    """A client that waits for an answer: where it goes, and how large it may be. On the straight path it is a mere
    tuple of the same: that is made in a quarter of the time."""

    data: bytes  # what it sent
    out: Any  # socket or TcpClient
    address: Any
    limit: int
    shape: Shape | None = None  # where what it sent is ordinary

    @property
    def query(self) -> Query:
        query = wire.parse_query(self.data)
        assert not isinstance(query, (bytes, type(None)))  # it was read before it waited
        return query


class Service:
    """DNS for one sandbox."""

    def __init__(
        self,
        loop: Loop,
        interceptor: Interceptor,
        leases: Leases,
        open_addresses: Callable[[Sequence[Grant]], None] | None,
        remember: Callable[[Sequence[Grant]], None],
        report: Callable[[str], None],
    ) -> None:
        self.interceptor = interceptor
        self.leases = leases
        self.upstream: Upstream | None = None
        self.observe: Callable[[list[Answered], float], None] | None = None  # hears of each round's finished questions
        self.resolved: Callable[[str, Sequence[bytes]], None] | None = None  # hears of answers in mode dns
        self.unresolved: Callable[[str, str], None] | None = None  # hears of each name that got no answer, and why
        self._loop = loop
        self._open = open_addresses  # raises when nothing was opened; None: names only, no packet is filtered
        self._remember = remember
        self._report = report
        self._same: dict[bytes, tuple[float, bytes]] = {}
        self._same_octets = 0
        self._shedding = Shedding()
        self._turn = 0  # the loop's, of the last drain
        self._held = False
        self._parked: list[tuple[Question, Answer | Plain]] = []
        self._parked_records = 0
        self._listening: list[socket.socket] = []
        self._packets: dict[socket.socket, Packets | OneByOne] = {}  # of those where packets kept coming
        self._complained = float("-inf")

    # -- policy --------------------------------------------------------------------------------------------------
    def hold(self) -> None:
        """A ruleset is being loaded: nothing is learned until `release`."""
        self._held = True

    def release(self) -> None:
        """The change is through, or refused; what waited is decided under the policy that holds now."""
        self._held = False
        if self._parked:
            parked = self._parked
            self._parked = []
            self._parked_records = 0
            self._answers(parked, self._loop.now())

    def swap(self, interceptor: Interceptor, leases: Leases) -> None:
        """Another policy holds from now on."""
        self.interceptor = interceptor
        self.leases = leases
        self._forget_same()

    def forget(self) -> None:
        """Drop every answer kept."""
        self.interceptor.cache.clear()
        self._forget_same()

    def _forget_same(self) -> None:
        self._same.clear()
        self._same_octets = 0

    def close(self) -> None:
        """Listen no more; the sockets stay their owner's. Who still waits is not answered."""
        for sock in self._listening:
            self._loop.remove_reader(sock.fileno())
        self._listening.clear()
        self._packets.clear()
        self._parked.clear()
        if self.upstream is not None:
            self.upstream.close()
            self.upstream = None

    # -- queries -------------------------------------------------------------------------------------------------
    def listen(self, sock: socket.socket) -> None:
        """Serve a bound, non-blocking UDP socket."""
        self._listening.append(sock)
        self._loop.add_reader(sock.fileno(), lambda: self._drain(sock))

    def _drain(self, sock: socket.socket) -> None:
        now = self._loop.now()
        if self._shedding.on:
            self._shed(sock, now)
            return
        turn = self._loop.turns
        again = turn - self._turn == 1
        self._turn = turn
        if not again:  # only where packets kept coming: looking for a second one costs as much as reading it
            try:
                data, address = sock.recvfrom(4096)
            except OSError:  # nothing there; or an error of an earlier reply, which is the client's loss
                return
            hit = self._same.get(data[2:])
            if hit is None or hit[0] <= now:
                self._queries(((data, address),), sock, now)
                return
            try:
                sock.sendto(data[:2] + hit[1], address)
            except OSError:
                pass
            return
        packets = self._packets.get(sock) or self._many(sock)
        others = packets.take(self._same.get, now)
        if others:
            self._queries(others, packets, now)
            packets.flush()
        if packets.taken == packets.most and self._shedding.look(sock, now):
            self._report("a flood of questions: what there is too much of is dropped")

    def _queries(self, queries: Iterable[tuple[bytes, Any]], out: Any, now: float) -> None:
        """What came over UDP to `out`, as (octets, address), and cannot be answered by its octets alone."""
        interceptor, upstream = self.interceptor, self.upstream
        ways, exact, named = interceptor.ways.get, interceptor.exact, interceptor.named.get
        young, old = interceptor.cache.young, interceptor.cache.old
        for data, address in queries:
            # The straight path, inline: a call would cost what it saves.
            try:
                at = data[12] + 13  # where the parent begins, if this octet counts a label
            except IndexError:
                at = 0
            way = ways(data[2:12] + data[at:].lower())
            if way is not None and upstream is not None:
                suffix, tail, last, ports, account, whole, shape = way
                label = data[13:at].lower()
                if 13 < at <= last and (label.isalnum() or not label.translate(None, PLAIN)):
                    name = label.decode() + suffix
                    qtype, limit, _, _ = shape
                    key = (name, qtype)
                    kept = young.get(key) or old.get(key)
                    if name in exact:
                        pass
                    elif kept is not None and kept[2] > now:
                        if self._serve(data, out, address, kept, shape, at + len(tail), now):
                            continue
                    elif account is None or account.admits(name, now, at - 12 if whole else 0):
                        waiter = (data, out, address, limit, shape)
                        body = data[12:13] + label + tail
                        if upstream.ask(name, qtype, waiter, now, body, interceptor, ports):
                            continue
            known = named(data[2:])
            if known is not None and upstream is not None:
                key, body, ports, shape = known
                kept = young.get(key) or old.get(key)
                if kept is not None and kept[2] > now:
                    if self._serve(data, out, address, kept, shape, 12 + len(body), now):
                        continue
                elif upstream.ask(*key, (data, out, address, shape[1], shape), now, body, interceptor, ports):
                    continue
            self._query(data, out, address, UDP_LIMIT, now)

    def _many(self, sock: socket.socket) -> Packets | OneByOne:
        from egress.dns.packets import packets_of  # not on the way to the first answer

        packets = self._packets[sock] = packets_of(sock)
        return packets

    def _serve(
        self, data: bytes, out: socket.socket, address: Any, kept: Kept, shape: Shape, asked: int, now: float
    ) -> bool:
        """Answer with what is in the cache for an allowed name, whose question ends at `asked`. Where that is not
        ordinary: False."""
        plain, born, until = kept
        if not isinstance(plain, Plain):
            return False
        age = int(now - born)
        records = plain.aged(age)
        _, limit, heads, opt = shape
        if asked + len(records) + ROOM > limit:
            return False
        message = data[:2] + heads[len(plain.teaches)] + data[12:asked] + records + opt
        self._keep_same(data, message, min(until, born + age + 1))  # until the TTL is one less
        self._send(out, message, address)
        return True

    def _keep_same(self, data: bytes, reply: bytes, until: float) -> None:
        """The same bytes behind another id may be answered the same way until then."""
        if len(data) > SAME_QUERY:
            return
        if len(self._same) >= SAME or self._same_octets > SAME_OCTETS:
            self._forget_same()
        self._same_octets += len(data) + len(reply)
        self._same[data[2:]] = (until, reply[2:])

    def _shed(self, sock: socket.socket, now: float) -> None:
        """Under a flood."""
        exact, cached = self.interceptor.exact, self.interceptor.cache

        def decide(data: bytes, address: Any) -> None:
            self._query(data, sock, address, UDP_LIMIT, now)

        def is_known(name: str, qtype: int) -> bool:
            return name in exact or (name, qtype) in cached.young or (name, qtype) in cached.old

        self._shedding.drain(sock, now, self._same.get, decide, is_known)
        if self._shedding.over(now):
            self._report(f"the flood of questions is over: {self._shedding.dropped} were dropped")

    def handle_stream(self, data: bytes, client: Any) -> None:
        """A question over TCP."""
        self._query(data, client, None, TCP_LIMIT, self._loop.now())

    def _query(self, data: bytes, out: Any, address: Any, limit: int, now: float) -> None:
        query = wire.parse_query(data)
        if query is None:
            if limit == TCP_LIMIT:
                out.close()  # silence, where something that waits for it would wait forever
            return
        if isinstance(query, bytes):
            self._send(out, query, address)
            return
        if limit == UDP_LIMIT and query.size < limit:
            limit = max(512, query.size)
        interceptor = self.interceptor
        decided = interceptor.on_query(query, now, limit)
        if isinstance(decided, Ask):
            upstream = self.upstream
            if upstream is None:
                self._send(out, wire.error(query, SERVFAIL, NOT_READY, "the guard is not ready"), address)
                return
            waiter = Waiter(data, out, address, limit)
            body = query.question
            body = body[:-4].lower() + body[-4:]  # octets that count labels lie below the letters
            ports = decided.decision.ports
            if limit != TCP_LIMIT:
                interceptor.learn_way(data, query, limit, ports, body)
            if not upstream.ask(query.name, query.qtype, waiter, now, body, interceptor, ports):
                self._send(out, wire.error(query, SERVFAIL, OTHER, "too many questions in flight"), address)
            return
        if limit != TCP_LIMIT and interceptor.same_until > now:
            self._keep_same(data, decided, interceptor.same_until)
        self._send(out, decided, address)

    @staticmethod
    def _send(out: Any, message: bytes, address: Any) -> None:
        try:
            out.sendto(message, address)
        except OSError:
            pass  # a full buffer or a client that went away: UDP loses packets, clients ask again

    # -- answers -------------------------------------------------------------------------------------------------
    def round(self) -> None:
        """All that a turn of the loop found at the resolvers' sockets: one batch, then the replies."""
        upstream = self.upstream
        if upstream is not None:
            now = self._loop.now()
            finished = upstream.collect(now)
            if self.observe is not None:
                self.observe(finished, now)
            self._answers(finished, now)

    def _answers(self, finished: Iterable[Answered], now: float) -> None:
        interceptor, leases = self.interceptor, self.leases
        grants: list[Grant] = []
        written: list[tuple[Question, Plain]] = []  # ordinary ones, which wait for the kernel
        results: list[tuple[Question, Outcome | Plain, bool]] = []
        enforcing = self._open is not None
        room = 0 if self._held or not enforcing else leases.capacity - len(leases)
        taught, verdict, learn, reply = interceptor.taught.get, interceptor.verdict, leases.learn, self._reply_plain
        for question, answer in finished:
            # The straight path: one ordinary address, which nobody has to be asked about and for which there is room.
            if room > 0 and type(answer) is Plain and question.judged is interceptor:
                addresses = answer[1]
                packed, ttl = addresses[0]
                if len(addresses) == 1 and (
                    (len(packed) == 4 and not bisect_right(EDGES4, packed) & 1)
                    or (taught(packed) or verdict(packed)) is LEARN
                ):
                    grant = learn(question.key[0], (), question.ports, packed, ttl, now)  # type: ignore[arg-type]
                    if grant is None:
                        reply(((question, answer),), now)
                    else:
                        room -= 1
                        grants.append(grant)
                        written.append((question, answer))
                    continue
            if answer is None:
                silent = Outcome(SERVFAIL, note="no resolver answered in time", ede=NO_REACHABLE_AUTHORITY)
                results.append((question, silent, False))
                continue
            name = question.name
            result = self._decide(question, answer)
            mine: list[Grant] | None = None
            if enforcing and result.teaches:
                if self._held:
                    self._park(question, answer)
                    continue
                if isinstance(result, Plain):
                    mine = self._learn(name, (), question.ports, result.teaches, now, grants)
                else:
                    mine = self._learn(name, result.chain, result.ports, result.teaches, now, grants)
                if mine is None:
                    note = f"{name}: {leases.capacity} addresses are open, no room"
                    result = Outcome(SERVFAIL, note=note, ede=OTHER)
                room = leases.capacity - len(leases)
            elif self.resolved is not None and result.teaches:
                self.resolved(name, [packed for packed, _ in result.teaches])
            if mine:
                grants += mine
                results.append((question, result, True))
            elif isinstance(result, Plain):
                reply(((question, result),), now)  # nothing of it is new: it need not wait
            else:
                results.append((question, result, False))
        failed = bool(grants) and not self._commit(grants, now)
        if failed:
            results += [(question, plain, True) for question, plain in written]
        else:
            reply(written, now)
        for question, result, writes in results:
            if writes and failed:
                self._reply(question, Outcome(SERVFAIL, note="the kernel refused the address", ede=OTHER), now)
            elif isinstance(result, Plain):
                reply(((question, result),), now)
            else:
                self._reply(question, result, now)
        for packets in self._packets.values():
            packets.flush()
        if leases.unwritten or (grants and not failed):
            try:
                self._remember(() if failed else grants)
            except Exception as error:  # noqa: BLE001 - only a restarted worker would miss it
                self._complain(f"learned addresses could not be written down: {error}", now)

    def _decide(self, question: Question, answer: Answer | Plain) -> Outcome | Plain:
        """What may be passed on: an ordinary answer itself, where the decision that the question was asked under still
        holds and all of its addresses may be taught."""
        interceptor = self.interceptor
        if isinstance(answer, Plain):
            if question.judged is interceptor and interceptor.teaches_all(answer.teaches):
                return answer
            answer = answer.answer(question.name, question.qtype)
        return interceptor.on_answer(question.name, question.qtype, answer)

    def _commit(self, grants: list[Grant], now: float) -> bool:
        """One batch; False when nothing of it was opened."""
        assert self._open is not None
        try:
            self._open(grants)
        except Exception as error:  # noqa: BLE001 - whatever the kernel or libnftables says, nothing was opened
            self.leases.refused(grants)
            self._complain(f"learned addresses were refused: {error}", now)
            return False
        self.leases.granted(grants, now)
        return True

    def _complain(self, text: str, now: float) -> None:
        if now - self._complained >= COMPLAIN:
            self._complained = now
            self._report(text)

    def _park(self, question: Question, answer: Answer | Plain) -> None:
        if len(self._parked) >= PARKED or self._parked_records >= PARKED_RECORDS:
            self._reply(question, Outcome(SERVFAIL, note="too much waits for the policy", ede=NOT_READY), 0.0)
            return
        self._parked.append((question, answer))
        self._parked_records += len(answer.teaches if isinstance(answer, Plain) else answer.answers)

    def _learn(
        self, name: str, chain: tuple[str, ...], ports: PortSet | None, teaches: Sequence[tuple[bytes, int]],
        now: float, others: list[Grant],
    ) -> list[Grant] | None:  # fmt: skip
        """The writes that an answer needs; None: there is no room for all of its addresses, and it needs none."""
        assert ports is not None  # what teaches was allowed
        leases = self.leases
        mine: list[Grant] = []
        full = False
        try:
            for packed, ttl in teaches:
                grant = leases.learn(name, chain, ports, packed, ttl, now)
                if grant is not None:
                    mine.append(grant)
        except Full:
            full = True
        if leases.evicted_names:  # their cached answers may hold the addresses that went
            self.interceptor.cache.forget(leases.evicted_names)
            leases.evicted_names.clear()
            self._forget_same()
            full = full or not all(packed in leases for packed, _ in teaches)  # it pushed out its own
        if not full:
            return mine
        kept = {packed for packed, *_ in others}  # what other answers of this round are about to open
        leases.refused([grant for grant in mine if grant[0] not in kept])
        self._complain(f"{name}: no room for another learned address ({leases.capacity} are open)", now)
        return None

    def _reply_plain(self, answered: Iterable[tuple[Question, Plain]], now: float) -> None:
        """As `_reply`, for ordinary answers."""
        put = self.interceptor.cache.put
        for question, plain in answered:
            records, teaches, ttl, _ = plain
            asked = 12 + len(question.body)
            room = asked + len(records) + ROOM
            for data, out, address, limit, shape in question.waiters:
                if shape is not None and room <= limit:
                    _, _, heads, opt = shape
                    message = data[:2] + heads[len(teaches)] + data[12:asked] + records + opt
                else:
                    message = plain.serve(Waiter(data, out, address, limit).query, 0, limit)
                try:
                    out.sendto(message, address)
                except OSError:
                    pass  # as `_send`
            name, qtype = question.key
            put(name, qtype, plain, now, now + (ttl or 1))  # as `keep`; nobody waits for it

    def _reply(self, question: Question, outcome: Outcome, now: float) -> None:
        waiters = [Waiter(*waiter) for waiter in question.waiters]
        if outcome.denied:
            for waiter in waiters:
                self._send(waiter.out, self.interceptor.deny_link(waiter.query, outcome), waiter.address)
            return
        if outcome.rcode == SERVFAIL:
            if self.unresolved is not None:
                self.unresolved(question.name, outcome.note)
            for waiter in waiters:
                self._send(waiter.out, wire.error(waiter.query, SERVFAIL, outcome.ede, outcome.note), waiter.address)
            return
        if outcome.ede is not None:
            for waiter in waiters:
                message = wire.nodata(waiter.query, DENIED_TTL, outcome.ede, outcome.note)
                self._send(waiter.out, message, waiter.address)
            return
        template = wire.render(question.name, outcome.records, rcode=outcome.rcode, authority=outcome.authority)
        self.interceptor.remember(question.name, question.qtype, outcome, template, now)
        for waiter in waiters:
            self._send(waiter.out, template.serve(waiter.query, 0, waiter.limit), waiter.address)
