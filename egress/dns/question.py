"""What is known about a question in flight, and about a server."""

from __future__ import annotations

from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
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

    def __init__(
        self, name: str, qtype: int, now: float, body: bytes = b"", judged: object = None, ports: PortSet | None = None
    ) -> None:
        self.name = name
        self.qtype = qtype
        self.asked = now
        self.body = body  # our question section, byte for byte
        self.judged = (
            judged  # who allowed it, and with which ports: what holds for the answer if nobody else judges now
        )
        self.ports = ports
        self.tried = 0  # bit mask of servers
        self.waiters: list[Any] = []
        self.places: list[tuple[Channel, bytes]] = []


class Health:
    """How one server does."""

    __slots__ = ("failures", "srtt")

    def __init__(self) -> None:
        self.srtt = 0.1  # seconds, smoothed
        self.failures = 0  # in a row

    @property
    def down(self) -> bool:
        return self.failures >= DOWN_AFTER
