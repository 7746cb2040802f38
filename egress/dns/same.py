"""Questions that are answered by their octets alone: the same ones, behind another id, came lately. Pure."""

from __future__ import annotations

SAME = 4096  # queries whose bytes are remembered with their reply
SAME_OCTETS = 2 * 1024 * 1024  # of these queries and replies
SAME_QUERY = 400  # octets: longer ones differ each time, by their padding and cookies


class Same:
    """Bounded in number and octets; when it is full, all of it goes."""

    __slots__ = ("get", "known", "octets")

    def __init__(self) -> None:
        self.known: dict[bytes, tuple[float, bytes]] = {}  # query to (until when, reply), both without their ids
        self.get = self.known.get
        self.octets = 0

    def keep(self, data: bytes, reply: bytes, until: float) -> None:
        """The same bytes behind another id may be answered the same way until then."""
        if len(data) > SAME_QUERY:
            return
        if len(self.known) >= SAME or self.octets > SAME_OCTETS:
            self.forget()
        self.octets += len(data) + len(reply)
        self.known[data[2:]] = (until, reply[2:])

    def forget(self) -> None:
        """All of it."""
        self.known.clear()
        self.octets = 0
