"""What is known about a question in flight, and about a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from egress.dns.channels import Channel
    from egress.dns.stream import Stream

DOWN_AFTER = 3  # time-outs in a row
PROBING = 3  # the stage of probes; 0, 1 and 2 are asked, hedged and again


class Question:
    """One question in flight and everybody who waits for it; a probe has nobody."""

    __slots__ = (
        "asked", "body", "done", "failed", "name", "places", "qtype", "stage", "tcp", "tried", "truncated", "waiters",
    )  # fmt: skip

    def __init__(self, name: str, qtype: int, now: float) -> None:
        self.name = name
        self.qtype = qtype
        self.asked = now
        self.waiters: list[Any] = []
        self.places: list[tuple[Channel[Question], int]] = []
        self.body = b""  # our question section, byte for byte
        self.stage = 0
        self.tried = 0  # bit mask of servers
        self.failed = 0  # those of them that will not answer
        self.truncated = False
        self.tcp: Stream | None = None
        self.done = False


class Health:
    """How one server does."""

    __slots__ = ("failures", "srtt")

    def __init__(self) -> None:
        self.srtt = 0.1  # seconds, smoothed
        self.failures = 0  # in a row

    @property
    def down(self) -> bool:
        return self.failures >= DOWN_AFTER
