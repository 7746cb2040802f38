"""The round: everything one turn of the loop found at the resolvers' sockets, answered with one write to the kernel.

    upstream sockets ──collect──▶ interceptor.on_answer ──▶ leases.learn ──▶ ONE netlink batch ──ack──▶ replies

An address is in the kernel's set, acknowledged, before the answer that carries it leaves; a refused batch is SERVFAIL,
never an answer. While a ruleset is being loaded (`hold` … `release`) answers that would teach something wait, and are
decided again under the policy that then holds: an answer decided under an old policy teaches nothing.
"""

from __future__ import annotations

from bisect import bisect_right

from egress.dns import wire
from egress.dns.cache import ENTRY, RECORD
from egress.dns.interceptor import DENIED_TTL, LEARN, Interceptor, Outcome
from egress.dns.question import Waiter
from egress.dns.same import Same
from egress.dns.straight import ROOM, Plain
from egress.firewall.leases import Full
from policies.ordinary import EDGES4
from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from egress.dns.answer import Answer
    from egress.dns.packets import OneByOne, Packets
    from egress.dns.question import Question
    from egress.dns.upstream import Answered, Upstream
    from egress.firewall.leases import Grant, Leases
    from egress.loop import Loop
    from policies.ports import PortSet

PARKED = 2048  # answers that wait for a ruleset
PARKED_RECORDS = 16_384  # in all of them
COMPLAIN = 1.0  # seconds between reports: what a sandbox can cause, it can cause often
SERVFAIL = 2
NOT_READY, NO_REACHABLE_AUTHORITY, OTHER = 14, 22, 0  # EDE codes, RFC 8914


class Round:
    """What answers come to, under one policy after another."""

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
        self._same = Same()
        self._packets: dict[socket.socket, Packets | OneByOne] = {}  # which replies wait in until all are there
        self._held = False
        self._parked: list[tuple[Question, Answer | Plain]] = []
        self._parked_records = 0
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
        self._same.forget()

    def forget(self) -> None:
        """Drop every answer kept."""
        self.interceptor.cache.clear()
        self._same.forget()

    # -- answers -------------------------------------------------------------------------------------------------
    def round(self) -> None:
        """All that a turn of the loop found at the resolvers' sockets: one batch, then the replies."""
        upstream = self.upstream
        if upstream is not None:
            now = self._loop.now()
            finished = upstream.collect(now)
            self._answers(finished, now)
            if self.observe is not None:
                self.observe(finished, now)

    def _answers(self, finished: Iterable[Answered], now: float) -> None:
        interceptor, leases = self.interceptor, self.leases
        grants: list[Grant] = []
        written: list[tuple[Question, Plain]] = []  # ordinary ones, which wait for the kernel
        known: list[tuple[Question, Plain]] = []  # ordinary ones that teach nothing new: they need not wait
        results: list[tuple[Question, Outcome | Plain, bool]] = []
        enforcing = self._open is not None
        room = 0 if self._held or not enforcing else leases.capacity - len(leases)
        taught, verdict, learn = interceptor.taught.get, interceptor.verdict, leases.learn
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
                        known.append((question, answer))
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
                known.append((question, result))
            else:
                results.append((question, result, False))
        if known:
            self._reply_plain(known, now)
        failed = bool(grants) and not self._commit(grants, now)
        try:  # the answers first: who asked waits for them, and for what is written down about them nobody does
            if failed:
                results += [(question, plain, True) for question, plain in written]
            elif written:
                self._reply_plain(written, now)
            for question, result, writes in results:
                if writes and failed:
                    self._reply(question, Outcome(SERVFAIL, note="the kernel refused the address", ede=OTHER), now)
                elif isinstance(result, Plain):
                    self._reply_plain(((question, result),), now)
                else:
                    self._reply(question, result, now)
            for packets in self._packets.values():
                packets.flush()
        finally:
            if grants and not failed:
                leases.granted(grants, now)
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
            self._same.forget()
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
            number = len(teaches)
            octets = len(records)
            asked = 12 + len(question.body)
            room = asked + octets + ROOM
            for data, out, address, limit, shape in question.waiters:
                if shape is not None and room <= limit:
                    message = data[:2] + shape[2][number] + data[12:asked] + records + shape[3]
                else:
                    message = plain.serve(Waiter(data, out, address, limit).query, 0, limit)
                try:
                    out.sendto(message, address)
                except OSError:
                    pass  # as `_send`
            put(question.key, plain, ENTRY + RECORD * number + octets, now, now + (ttl or 1))  # as `keep`

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

    @staticmethod
    def _send(out: Any, message: bytes, address: Any) -> None:
        try:
            out.sendto(message, address)
        except OSError:
            pass  # a full buffer or a client that went away: UDP loses packets, clients ask again
