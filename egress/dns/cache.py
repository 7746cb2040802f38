"""Answers kept for as long as their TTL says, positive and negative (RFC 2308). Pure; time is an argument.

The firewall needs no say here: a lease outlives the TTL it came with by at least a minute, so an answer that is still
cached is still open. Where that ends early (a policy change, an evicted lease) the owner drops the entries.

Two generations: what is put goes into the younger one. When that has half of the room, it becomes the older one, and
what was the older one is gone. To find the oldest entry each time would cost more than everything else here.
"""

from __future__ import annotations

from policies.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from egress.dns.straight import Plain
    from egress.dns.wire import Query, Template

    Kept = tuple[Template | Plain, float, float]  # the reply, when it came, until when it may be served

CAPACITY = 8192  # entries
OCTETS = 3 * 1024 * 1024  # of memory for all of them, about
LARGEST = 16 * 1024  # of one: what is larger is asked again
ENTRY, RECORD = 600, 160  # octets that an entry and a record of it take besides their data


class Entry(NamedTuple):
    """An answer, and the CLOCK_MONOTONIC seconds from which and to which it may be served."""

    template: Template | Plain
    born: float
    until: float

    def serve(self, query: Query, now: float, limit: int) -> bytes:
        """The reply to `query`, its TTLs aged."""
        return self.template.serve(query, int(now - self.born), limit)


def weight(template: Template | Plain) -> int:
    """What an entry of it counts as, in octets."""
    return ENTRY + RECORD * len(template.offsets) + len(template.records)


class Cache:
    """(name, type) -> answer, bounded in number and memory; the older half makes room."""

    def __init__(self, capacity: int = CAPACITY, octets: int = OCTETS) -> None:
        self.young: dict[tuple[str, int], Kept] = {}  # beside `get` for who only asks whether there may be an entry:
        self.old: dict[tuple[str, int], Kept] = {}  # ended ones are there too
        self._half = self._free = octets // 2  # of the younger generation
        self._least = -(-self._half // max(capacity // 2, 1))  # that an entry counts as, so that there are not too many
        self._largest = min(LARGEST, self._half)

    def __len__(self) -> int:
        return len(self.young) + len(self.old)

    def get(self, name: str, qtype: int, now: float) -> Entry | None:
        key = (name, qtype)
        kept = self.young.get(key) or self.old.get(key)
        if kept is None:
            return None
        if kept[2] <= now:
            self.young.pop(key, None)
            self.old.pop(key, None)
            return None
        return Entry(*kept)

    def put(self, key: tuple[str, int], template: Template | Plain, octets: int, now: float, until: float) -> None:
        """Keep what has the `weight` of so many octets."""
        young, old = self.young, self.old
        if key in old:
            del old[key]
        if octets > self._largest:
            young.pop(key, None)
            return
        if octets < self._least:
            octets = self._least
        free = self._free - octets  # what is replaced counts until its generation goes
        if free < 0:
            young.pop(key, None)
            self.old = young
            young = self.young = {}
            free = self._half - octets
        self._free = free
        young[key] = (template, now, until)

    def forget(self, names: set[str]) -> None:
        """Drop every entry of these names."""
        for entries in (self.young, self.old):
            for key in [key for key in entries if key[0] in names]:
                del entries[key]

    def clear(self) -> None:
        self.young = {}
        self.old = {}
        self._free = self._half
