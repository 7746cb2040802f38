"""Answers kept for as long as their TTL says, positive and negative (RFC 2308). Pure; time is an argument.

The firewall needs no say here: a lease outlives the TTL it came with by at least a minute, so an answer that is still
cached is still open. Where that ends early (a policy change, an evicted lease) the owner drops the entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from egress.dns.wire import Query, Template

CAPACITY = 8192  # entries; about 600 bytes each


class Entry(NamedTuple):
    template: Template
    born: float  # CLOCK_MONOTONIC seconds
    until: float

    def serve(self, query: Query, now: float, limit: int) -> bytes:
        """The reply to `query`, its TTLs aged."""
        return self.template.serve(query, int(now - self.born), limit)


class Cache:
    """(name, type) -> Entry, bounded; the oldest entry makes room."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._entries: dict[tuple[str, int], Entry] = {}
        self._capacity = capacity

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, name: str, qtype: int, now: float) -> Entry | None:
        entry = self._entries.get((name, qtype))
        if entry is None:
            return None
        if entry.until <= now:
            del self._entries[name, qtype]
            return None
        return entry

    def put(self, name: str, qtype: int, entry: Entry) -> None:
        entries = self._entries
        entries.pop((name, qtype), None)
        if len(entries) >= self._capacity:
            del entries[next(iter(entries))]
        entries[name, qtype] = entry

    def forget(self, names: set[str]) -> None:
        """Drop every entry of these names."""
        for key in [key for key in self._entries if key[0] in names]:
            del self._entries[key]

    def clear(self) -> None:
        self._entries.clear()
