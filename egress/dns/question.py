"""What is known about a question in flight, and about a server."""

from __future__ import annotations

from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from egress.dns.channels import Channel
    from egress.dns.stream import Stream
    from policies.ports import PortSet

DOWN_AFTER = 3  # time-outs in a row
PROBING = 3  # the stage of probes; 0, 1 and 2 are asked, hedged and again


class Question:
    """One question in flight and everybody who waits for it; a probe has nobody."""

    # Made for every question that the cache cannot answer, so what differs from these only later is set only then.
    stage = 0
    failed = 0  # bit mask of the servers that will not answer
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
    tried: int  # bit mask of servers
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
    question.tried = 0
    question.waiters = waiters
    return question


class Health:
    """How one server does."""

    __slots__ = ("failures", "srtt")

    def __init__(self) -> None:
        self.srtt = 0.1  # seconds, smoothed
        self.failures = 0  # in a row

    @property
    def down(self) -> bool:
        return self.failures >= DOWN_AFTER
