"""The table of sandboxes that every request is looked up in: in memory, pure. Providers write it, the gate reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple


class Sandbox(NamedTuple):
    """One sandbox as its provider knows it. Two equal values are the same incarnation: connections may be reused."""

    id: str
    """As routes name it; case counts."""
    host: str
    """Where it listens: a literal address (v4 or v6, no brackets) or a name that is resolved when first used."""
    ready: bool = True
    reason: str = ""
    """Why it is not ready, or can't be used, in words for the client."""
    token: str = ""
    """Its access token; not blank: access is needed (the annotation `opensandbox.io/secure-access-token`)."""
    ports: frozenset[int] | None = None
    """Which ports may be reached; None: any."""
    incarnation: str = ""
    """What tells this owner of the name and address from the next: a UID, a container's id, or ""."""
    upstream_host: str = ""
    """The Host that the application is shown; "": as the client sent it, or as the gateway's flag says."""
    port_map: tuple[tuple[int, str, int], ...] = ()
    """Where a port is published elsewhere: (port, host, port there); Docker."""
    namespace: str = ""
    """Where it lives, in Kubernetes; "": its provider knows no namespaces."""
    addresses: tuple[str, ...] = ()
    """Every literal address that it is known to have; a client may choose among these, never another."""


class Ambiguous(NamedTuple):
    """An id that more than one sandbox answers to; a request for it is refused with 502."""

    id: str
    where: tuple[str, ...]
    """The places, such as namespaces, for the message."""
    choices: tuple[Sandbox, ...] = ()
    """The sandboxes themselves, where the provider knows them apart."""


Entry = Sandbox | Ambiguous
Candidates = Callable[[str], tuple[str, ...]]
"""The names under which the sandbox of an id may be listed, in order of preference."""
Change = Callable[[str, Entry | None, Entry | None], None]
"""Called after a change with the id, what was there and what is there now."""


def sandboxes(entry: Entry | None) -> tuple[Sandbox, ...]:
    """The sandboxes that an entry stands for: what a watcher compares to learn which of them are gone."""
    if isinstance(entry, Sandbox):
        return (entry,)
    return () if entry is None else entry.choices


class Routes:
    """Id to sandbox. One thread; the readers see each change whole."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._watchers: list[Change] = []
        self.generation = 0
        """Grows with each change, so that whoever remembers a look-up knows when to forget it."""
        self.candidates: Candidates | None = None
        """Set by a provider whose sandboxes are listed under other names than the ids in routes."""

    def find(self, sandbox_id: str) -> Entry | None:
        """The sandbox of this id. Where there are candidates its own `id` is the name that was found."""
        if self.candidates is None:
            return self._entries.get(sandbox_id)
        for name in self.candidates(sandbox_id):
            entry = self._entries.get(name)
            if entry is not None:
                return entry
        return None

    def find_in(self, namespace: str, name: str) -> Sandbox | None:
        """The sandbox of exactly this name in a namespace; a provider without namespaces has each in all of them."""
        for sandbox in sandboxes(self._entries.get(name)):
            if sandbox.namespace in ("", namespace):
                return sandbox
        return None

    def __len__(self) -> int:
        return len(self._entries)

    def entries(self) -> list[Entry]:
        """All of them, by id."""
        return [self._entries[key] for key in sorted(self._entries)]

    def watch(self, change: Change) -> None:
        """Have `change` called after every change, in the order of subscription."""
        self._watchers.append(change)

    def put(self, entry: Entry) -> None:
        """Add an entry, or replace the one of its id; nothing happens where it is equal."""
        self._set(entry.id, entry)

    def drop(self, sandbox_id: str) -> None:
        """Forget an id; an unknown one is no error."""
        self._set(sandbox_id, None)

    def replace(self, entries: Iterable[Entry]) -> None:
        """Make the table hold exactly these: what is equal is left alone."""
        wanted = {entry.id: entry for entry in entries}
        for gone in [key for key in self._entries if key not in wanted]:
            self._set(gone, None)
        for key, entry in wanted.items():
            self._set(key, entry)

    def _set(self, key: str, entry: Entry | None) -> None:
        before = self._entries.get(key)
        if before == entry:
            return
        if entry is None:
            del self._entries[key]
        else:
            self._entries[key] = entry
        self.generation += 1
        for change in self._watchers:
            change(key, before, entry)
