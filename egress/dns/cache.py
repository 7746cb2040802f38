"""Answers kept for as long as their TTL says, positive and negative (RFC 2308). Pure; time is an argument.

The firewall needs no say here: a lease outlives the TTL it came with by at least a minute, so an answer that is still
cached is still open. Where that ends early (a policy change, an evicted lease) the owner drops the entries.
"""

from __future__ import annotations

from collections import OrderedDict

from policies.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Container

    from egress.dns.straight import Plain
    from egress.dns.wire import Query, Template

CAPACITY = 8192  # entries
OCTETS = 3 * 1024 * 1024  # of memory for all of them, about
LARGEST = 16 * 1024  # of one: what is larger is asked again
ENTRY, RECORD = 600, 160  # octets that an entry and a record of it take besides their data


class Entry(NamedTuple):
    template: Template | Plain
    born: float  # CLOCK_MONOTONIC seconds
    until: float
    octets: int  # of memory, about

    def serve(self, query: Query, now: float, limit: int) -> bytes:
        """The reply to `query`, its TTLs aged."""
        return self.template.serve(query, int(now - self.born), limit)


class Cache:
    """(name, type) -> Entry, bounded in number and memory; the oldest entries make room."""

    def __init__(self, capacity: int = CAPACITY, octets: int = OCTETS) -> None:
        # Not a dict: that walks over every slot a deletion left before it finds its oldest entry, 4 µs a time.
        self._entries: OrderedDict[tuple[str, int], Entry] = OrderedDict()
        self.keys: Container[tuple[str, int]] = self._entries  # what there may be an entry for, ended ones too
        self._capacity = capacity
        self._free = self._octets = octets

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, name: str, qtype: int, now: float) -> Entry | None:
        entry = self._entries.get((name, qtype))
        if entry is None:
            return None
        if entry.until <= now:
            self._drop((name, qtype))
            return None
        return entry

    def put(self, name: str, qtype: int, entry: Entry) -> None:
        entries = self._entries
        key = (name, qtype)
        octets = entry.octets
        if key in entries:
            self._drop(key)
        if octets > LARGEST:
            return
        free = self._free - octets
        while entries and (len(entries) >= self._capacity or free < 0):
            free += entries.popitem(False)[1].octets
        entries[key] = entry
        self._free = free

    def _drop(self, key: tuple[str, int]) -> None:
        self._free += self._entries.pop(key).octets

    def forget(self, names: set[str]) -> None:
        """Drop every entry of these names."""
        for key in [key for key in self._entries if key[0] in names]:
            self._drop(key)

    def clear(self) -> None:
        self._entries.clear()
        self._free = self._octets
