"""The name guard's process: takes redirected connections, hears which name they are for, and relays them.

It has no capability. The worker judges the names, and makes the sockets that go on, with the mark that the ruleset asks
for: whoever takes this process over, with what hostile code and hostile servers have sent it, reaches what names have
opened, and nothing else. Beside the worker and not in it,
because gigabytes that pass here must not make an answer wait (docs/sni.md).

Killed, its connections end, new ones wait in the listener's queue until the next process takes them, and nothing is
let through meanwhile.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
from collections import deque

from egress.loop import Loop
from egress.sni import messages
from egress.sni.connection import ASKED, RELAYED, STARVED, Connection
from egress.sni.lane import Pipes
from egress.sni.messages import Message
from egress.sni.post import Post
from egress.sni.spares import Spares, accept
from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from socket import SocketType

CONNECTIONS = 1024  # at a time
DESCRIPTORS = 6  # that one may need
PATIENCE = 1.5  # seconds for a client to say its name, and for the verdict
UNJUDGED = 8 << 20  # octets that may wait for verdicts in all
ASKED_AT_ONCE = 32  # questions that the worker has at a time
TOLD = 200  # refusals told in a second; more are counted
BACKLOG = 512
REMEMBERED = 2.0  # seconds for which a name that was allowed somewhere is not asked about again
_MEMORIES = 1024
_TICK = 0.1  # seconds between looks at the clock
_SWEEP = 2.0  # seconds between looks at connections that are closed in one direction
_LOOPBACK6 = bytes(15) + b"\1"
_ORIGINAL_DST = 80  # SO_ORIGINAL_DST, IP6T_SO_ORIGINAL_DST: linux/netfilter_ipv4.h, linux/netfilter_ipv6/ip6_tables.h


class Relay:
    """All connections of one sandbox."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        channel: socket.socket,
        *,
        passes_encrypted: bool,
        report: Callable[[BaseException], None],
    ) -> None:
        self.loop = Loop(report)
        self.pipes = Pipes()
        self.passes_encrypted = passes_encrypted
        self._connections: dict[int, Connection] = {}
        self._number = int.from_bytes(os.urandom(7), "big")  # so that what was meant for a process before is not ours
        self._waiting: deque[Connection] = deque()  # for the worker to have time
        self._asked = 0
        self._unjudged = 0
        self._allowed: dict[tuple[bytes, int, str], tuple[float, tuple[str, ...]]] = {}  # until when, and CHECK's texts
        self.spares = Spares(self._need)
        self._starved: list[Connection] = []  # that wait for a socket
        self._times: deque[tuple[float, Connection]] = deque()  # by when their name has to be judged
        self._told = (0.0, 0)  # since when how many refusals were told
        self._untold = 0
        self._most = min(CONNECTIONS, max(1, (_descriptors() - 64) // DESCRIPTORS))
        self._post = Post(self.loop, channel, self._hear)
        for listener in listeners:
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # what is accepted inherits it
            listener.listen(BACKLOG)
            self._listen(listener.fileno(), int(listener.family))
            self.spares.ask(int(listener.family))
        self.loop.call_later(_SWEEP, self._sweep)

    def run(self) -> int:
        self.loop.run()
        return 0

    # -- coming in -------------------------------------------------------------------------------------------------
    def _listen(self, listener: int, family: int) -> None:
        self.loop.add_reader(listener, lambda: self._accept(listener, family))

    def _accept(self, listener: int, family: int) -> None:
        try:
            client = accept(listener, family)
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:  # no descriptor, no memory: others may be done in a moment
            self.loop.remove_reader(listener)
            self.loop.call_later(_TICK, lambda: self._listen(listener, family))
            return
        wanted = _original(client)
        self._number += 1
        packed, port = wanted or (b"", 0)
        one = Connection(self, self._number, client, packed, port)
        self._connections[one.number] = one
        if wanted is None:
            one.refuse("a connection to the name guard itself")
        elif len(self._connections) > self._most:
            one.refuse("too many connections")
        else:
            if not self._times:
                self.loop.call_later(_TICK, self._tick)
            self._times.append((self.loop.now() + PATIENCE, one))
            one.begin()

    def _tick(self) -> None:
        now, times = self.loop.now(), self._times
        while times and (times[0][0] <= now or times[0][1].state > STARVED):
            _, one = times.popleft()
            one.too_late()
        if times:
            self.loop.call_later(_TICK, self._tick)

    def _sweep(self) -> None:
        self.loop.call_later(_SWEEP, self._sweep)
        for one in [one for one in self._connections.values() if one.half_dead()]:
            one.close(reset=True)

    # -- verdicts --------------------------------------------------------------------------------------------------
    def room(self, octets: int) -> bool:
        """Count octets that wait for a verdict; whether there is room for them."""
        self._unjudged += octets
        return self._unjudged <= UNJUDGED

    def judged(self, one: Connection) -> None:
        """Nothing of it waits for a verdict any more."""
        self._unjudged -= one.unjudged
        one.unjudged = 0

    def ask(self, one: Connection) -> None:
        """Its name is known: is it allowed there?"""
        known = self._allowed.get((one.packed, one.port, one.name))
        if known is not None and known[0] > self.loop.now():
            one.allowed(known[1])
        elif self._asked >= ASKED_AT_ONCE:
            self._waiting.append(one)
        else:
            self._asked += 1
            self._post.send(Message(messages.ASK, one.number, one.packed, one.port, (one.name,)))

    def _answered(self) -> None:
        self._asked = max(0, self._asked - 1)
        while self._waiting and self._asked < ASKED_AT_ONCE:
            one = self._waiting.popleft()
            if one.state == ASKED:
                self.ask(one)

    def _hear(self, message: Message, came: list[SocketType]) -> None:
        kind = message.kind
        if kind == messages.SPARE and message.port in self.spares.some:
            self._supply(message.port, came)
            return
        for sock in came:
            sock.close()
        one = self._connections.get(message.number)
        if kind == messages.RECHECK:
            self._recheck(new_worker=bool(message.number))
        elif kind == messages.CUT and one is not None:
            one.close(reset=True)
        elif kind in (messages.ALLOWED, messages.DENIED):
            self._answered()
            if one is None or one.state != ASKED:
                return
            if kind == messages.DENIED:
                one.close(reset=True)  # the worker tells why
                return
            if len(self._allowed) >= _MEMORIES:
                self._allowed.clear()
            self._allowed[(one.packed, one.port, one.name)] = self.loop.now() + REMEMBERED, message.texts
            one.allowed(message.texts)

    def _recheck(self, *, new_worker: bool) -> None:
        """What was allowed may be so no more. Of what is asked at the moment a new worker may know nothing."""
        self._allowed.clear()
        if new_worker:
            self._asked = 0
            self.spares.renew()
        for one in list(self._connections.values()):
            if one.state == ASKED and new_worker and one not in self._waiting:
                self.ask(one)
            elif one.state > ASKED:
                self._post.send(one.check())
        if new_worker:
            self._asked += 1
            self._answered()

    # -- sockets ---------------------------------------------------------------------------------------------------
    def spare(self, one: Connection) -> SocketType | None:
        """One that is not connected yet; None: there is none, and `one` gets it as soon as there is."""
        found = self.spares.take(one.family)
        if found is None:
            self._starved.append(one)
        return found

    def _need(self, family: int) -> None:
        self._post.send(Message(messages.NEED, 0, port=family))

    def _supply(self, family: int, came: list[SocketType]) -> None:
        self.spares.supply(family, came)
        starved, self._starved = self._starved, []
        for one in starved:
            if one.state != STARVED:
                continue
            if came or one.family != family:
                one.connect()
            else:
                one.close(reset=True)  # the worker tells why

    # -- going out -------------------------------------------------------------------------------------------------
    def forget(self, one: Connection) -> None:
        self._connections.pop(one.number, None)

    def refused(self, packed: bytes, port: int, name: str, reason: str) -> None:
        """Tell the worker, who logs it; a flood is counted."""
        since, told = self._told
        now = self.loop.now()
        if now - since >= 1.0:
            since, told = now, 0
        self._told = since, told + 1
        if told >= TOLD:
            self._untold += 1
            return
        count, self._untold = self._untold + 1, 0
        self._post.send(Message(messages.REFUSED, count, packed, port, (name, reason)), spare=True)

    @property
    def relayed(self) -> int:
        """How many connections are being relayed."""
        return sum(one.state == RELAYED for one in self._connections.values())


def _original(client: SocketType) -> tuple[bytes, int] | None:
    """Where a redirected client wanted to; None for one that was not redirected, but came to our port itself."""
    try:
        if client.family == socket.AF_INET:
            data = client.getsockopt(socket.IPPROTO_IP, _ORIGINAL_DST, 16)
            packed = data[4:8]
        else:
            data = client.getsockopt(socket.IPPROTO_IPV6, _ORIGINAL_DST, 28)
            packed = data[8:24]
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTCONN, errno.EINVAL, errno.ENOPROTOOPT):
            raise
        return None
    if packed[0] == 127 or packed == _LOOPBACK6:
        return None
    return packed, int.from_bytes(data[2:4], "big")


def _descriptors() -> int:
    """As many as we may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS * DESCRIPTORS + 64
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else soft
