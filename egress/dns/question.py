"""What is known about a question in flight, and about who waits for it."""

from __future__ import annotations

from egress.dns import wire
from policies.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from egress.dns.channels import Channel
    from egress.dns.straight import Shape
    from egress.dns.stream import Stream
    from egress.dns.wire import Query
    from policies.ports import PortSet

PROBING = 3  # the stage of probes; 0, 1 and 2 are asked, hedged and again
NS = 2
_ROOT = wire.ask(0, "", NS)
HEAD, OPT = _ROOT[2:12], _ROOT[17:]  # what all our questions have in common, around the question section


def section(name: str, qtype: int) -> bytes:
    """The question section, in lower case."""
    return wire.ask(0, name, qtype)[12 : -len(OPT)]


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


class Question:
    """One question in flight and everybody who waits for it; a probe has nobody."""

    # Made for every question that the cache cannot answer, so what differs from these only later is set only then.
    stage = 0
    tried = 0  # bit mask of servers
    failed = 0  # of those that will not answer
    truncated = False
    tcp: Stream | None = None
    simple = False  # asked once, in one place, and nothing has become of it yet
    done = False
    places: Sequence[tuple[Channel, bytes]] = ()

    key: tuple[str, int]  # name and type
    asked: float  # CLOCK_MONOTONIC seconds
    body: bytes  # our question section, byte for byte
    judged: object  # who allowed it, and with which ports: what holds for the answer if nobody else judges now
    ports: PortSet | None
    waiters: list[Any]

    @property
    def name(self) -> str:
        return self.key[0]

    @property
    def qtype(self) -> int:
        return self.key[1]


def new_question(
    key: tuple[str, int], waiters: list[Any], now: float, body: bytes = b"", judged: object = None,
    ports: PortSet | None = None,
) -> Question:  # fmt: skip
    """A question that nobody was sent yet. A function, since calling an `__init__` costs as much as all of this."""
    question = Question()
    question.key = key
    question.asked = now
    question.body = body
    question.judged = judged
    question.ports = ports
    question.waiters = waiters
    return question
