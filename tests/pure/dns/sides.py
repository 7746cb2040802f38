"""A service without anything behind it, into which a query can be put the straight way or the careful one."""

from __future__ import annotations

from typing import Any

from egress.dns import wire
from egress.dns.interceptor import Interceptor
from egress.dns.question import Waiter
from egress.dns.service import UDP_LIMIT, Service
from egress.dns.straight import MOST, Plain, Shape
from egress.firewall.leases import Leases
from tests.pure.dns.plays import allow, deny, policy

RULES = (
    deny("bad.example.com"), allow("web.example.com", ports=[443]), allow("*.example.com"), allow("*.a.example.org"),
    allow("example.net"), allow("*.arpa"), allow("*.net"), deny("*.deep.example.com"), allow("*.x.deep.example.com"),
)  # fmt: skip
POLICY = policy(*RULES)


class Clock:
    """A loop on which nothing ever happens."""

    turns = 0

    def now(self) -> float:
        return 1000.0


class Noted:
    """Stands in for the resolvers: what is asked is written down."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def ask(
        self, name: str, qtype: int, waiter: Waiter, _now: float, body: bytes, judged: object, ports: object
    ) -> bool:
        waiter = Waiter(*waiter)
        read = waiter.query
        self.asked.append((name, qtype, body, ports, waiter.limit, read))
        assert body == wire.ask(0, name, qtype)[12:-11]
        if waiter.shape is not None:
            shape = Shape(*waiter.shape)
            assert shape.limit == waiter.limit
            for count in (1, MOST):
                plain = Plain(bytes(16 * count), ((b"", 0),) * count, 0, ())
                straight = waiter.data[:2] + shape.heads[count] + waiter.data[12 : 12 + len(body)] + plain.records
                assert straight + shape.opt == plain.serve(read, 0, 65535)
        return True


class Door:
    """A client socket with one packet in it."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.waiting: list[bytes] = []

    def recvfrom(self, _size: int) -> tuple[bytes, str]:
        if not self.waiting:
            raise BlockingIOError
        return self.waiting.pop(), "client"

    def sendto(self, data: bytes, _address: str) -> None:
        self.sent.append(data)


class Side:
    """A service without anything behind it."""

    def __init__(self) -> None:
        self.denials: list[Any] = []
        judge = Interceptor(POLICY, 1, self.denials.append)
        self.service = Service(Clock(), judge, Leases(), lambda _: None, lambda _: None, str)  # type: ignore[arg-type]
        self.noted = Noted()
        self.service.upstream = self.noted  # type: ignore[assignment]
        self.door = Door()

    def straight(self, data: bytes) -> tuple[Any, ...]:
        self.door.waiting.append(data)
        self.service._drain(self.door)  # type: ignore[arg-type]
        return self.taken()

    def careful(self, data: bytes) -> tuple[Any, ...]:
        self.service._query(data, self.door, "client", UDP_LIMIT, 1000.0)
        return self.taken()

    def taken(self) -> tuple[Any, ...]:
        found = (self.noted.asked, self.door.sent, list(self.denials))
        self.noted.asked, self.door.sent = [], []
        self.denials.clear()
        return found
