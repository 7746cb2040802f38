"""DNS for one sandbox: what its clients ask. What the resolvers answer is the `round`'s, which this stands on.

    client sockets ──drain──▶ same bytes lately? ──▶ reply
                                ├─▶ ordinary, its parent decided, not cached, within its budget? ──▶ upstream.ask
                                └─▶ wire.parse_query ─▶ interceptor.on_query ─▶ reply, or upstream.ask

What is ordinary goes straight (`straight.py`); everything else, and whatever has changed meanwhile, the careful way.
"""

from __future__ import annotations

from egress.dns import wire
from egress.dns.interceptor import Ask
from egress.dns.question import Waiter
from egress.dns.round import NOT_READY, OTHER, SERVFAIL, Round
from egress.dns.shedding import Shedding
from egress.dns.straight import ROOM, Plain
from egress.dns.wire import PLAIN
from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from egress.dns.cache import Kept
    from egress.dns.interceptor import Interceptor
    from egress.dns.packets import OneByOne, Packets
    from egress.dns.straight import Shape
    from egress.firewall.leases import Grant, Leases
    from egress.loop import Loop

UDP_LIMIT = 1232  # octets of a UDP answer (DNS flag day 2020: no fragments)
TCP_LIMIT = 65535


class Service(Round):
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
        super().__init__(loop, interceptor, leases, open_addresses, remember, report)
        self._shedding = Shedding()
        self._turn = 0  # the loop's, of the last drain
        self._listening: list[socket.socket] = []

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
                suffix, tail, last, ports, account, whole, qtype, limit, shape = way
                label = data[13:at].lower()
                if 13 < at <= last and (label.isalnum() or not label.translate(None, PLAIN)):
                    name = label.decode() + suffix
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
        self._same.keep(data, message, min(until, born + age + 1))  # until the TTL is one less
        self._send(out, message, address)
        return True

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
            self._same.keep(data, decided, interceptor.same_until)
        self._send(out, decided, address)
