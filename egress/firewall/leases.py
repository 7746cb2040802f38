"""Leases: which address is open until when, and which names taught it. Pure; time is an argument.

A lease lasts max(TTL, 60 s) + 60 s from the answer that taught the address, so that a client that keeps an answer
for its whole TTL can always connect. It is renewed while the address is in use: while a flow to it lives, or when a
new connection used it within ten minutes; at most until a day after the last answer.

    answer ──learn──▶ [leased] ──sweep: in use──▶ renewed
                         │ time up, nobody uses it ▶ gone (the kernel's element times out by itself)
                         │ time up, a flow still lives ▶ [lingering]: no new connection, but a policy change remembers
                         └ the policy no longer allows any of its names ▶ gone, flows cut

The kernel's set elements know only address and time. The names are kept here because a later policy has to decide
about every address again: an address survives a policy change when one of its names does.
"""

from __future__ import annotations

import heapq

from policies.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from policies.ports import PortSet

MINIMUM = 60.0  # seconds: shorter TTLs count as this
GRACE = 60.0  # seconds added to every lease
SLACK = 1.0  # seconds granted beyond that, so that a repeated answer needs no write for a while
USED_WITHIN = 600.0  # seconds: a connection this recent keeps a lease going
LONGEST = 24 * 3600.0  # seconds after its last answer in which a lease may be renewed
RENEWAL = 120.0  # seconds a renewal adds
RENEW_BEFORE = 30.0  # seconds before its end a lease is renewed
NAMES_PER_ADDRESS = 8  # a policy change asks about these; the address itself stays open whichever taught it
TEACHINGS = 12_288  # remembered reasons in all, some 300 octets each
ADDRESSES = 16_384


class Teaching(NamedTuple):
    """Why an address is open: a name, the names its CNAMEs led through, and what that opens."""

    name: str
    chain: tuple[str, ...]
    ports: PortSet
    until: float  # CLOCK_MONOTONIC seconds
    answered: float  # when a resolver last said so


class Grant(NamedTuple):
    """One element to write: `ports` names the set, `seconds` is its new time-out."""

    packed: bytes
    ports: PortSet
    seconds: float
    fresh: bool = False  # the kernel was told nothing of this address yet
    teaching: Teaching | None = None  # what it is for, where an answer is


class Full(Exception):
    """No room for another address."""


new_tuple = tuple.__new__  # a NamedTuple's own __new__ is a Python function, felt once an answer


class _Address:
    __slots__ = ("awaited", "names", "opened", "used")

    names: dict[str, Teaching]
    # What the kernel was told: sets and the ends of their elements. Nearly always one, and always the same few
    # values: to look through them costs a fifth of what it takes to hash one.
    opened: list[tuple[PortSet, float]]
    used: float
    awaited: float  # its time among the ends, not later than its first element's end; 0 when it isn't there

    def until(self, ports: PortSet) -> float:
        """When the element in this set ends; 0 where there is none."""
        for known, until in self.opened:
            if known is ports or known == ports:
                return until
        return 0.0

    def open(self, ports: PortSet, until: float) -> None:
        """The kernel was told so."""
        opened = self.opened
        for place, (known, _) in enumerate(opened):
            if known is ports or known == ports:
                opened[place] = (ports, until)
                return
        opened.append((ports, until))


def _unopened(names: dict[str, Teaching]) -> _Address:
    """A function, since calling an `__init__` costs as much as all of this."""
    address = _Address()
    address.names = names
    address.opened = []
    address.used = 0.0
    address.awaited = 0.0
    return address


class Leases:
    """All leases of one sandbox."""

    def __init__(self, capacity: int = ADDRESSES, names_per_address: int = NAMES_PER_ADDRESS) -> None:
        self.capacity = capacity
        self.names_per_address = names_per_address
        self._addresses: dict[bytes, _Address] = {}
        self._lingering: dict[bytes, _Address] = {}
        self._ends: list[tuple[float, bytes]] = []
        self.evicted_names: set[str] = set()
        self.unwritten: list[tuple[bytes, Teaching]] = []  # of which the kernel needs no word, but the next worker does
        self._taught = 0
        self._holders: set[str] | None = None  # once full: every name that is remembered for something, and some more

    def __len__(self) -> int:
        return len(self._addresses)

    def __contains__(self, packed: bytes) -> bool:
        return packed in self._addresses

    # -- learning ------------------------------------------------------------------------------------------------
    def learn(
        self, name: str, chain: tuple[str, ...], ports: PortSet, packed: bytes, ttl: int, now: float
    ) -> Grant | None:
        """An answer taught `packed`: None when the kernel's element already lasts long enough, else what to write.

        What comes back is a mere tuple: that is made in a quarter of the time that a Grant takes.

        Nothing counts before `granted` is told that the kernel took it. What needs no word to the kernel waits in
        `unwritten` until it is written down all the same: under another policy that name alone may hold the address
        open. Raises Full.
        """
        length = (ttl if ttl > MINIMUM else MINIMUM) + GRACE
        until = now + length
        addresses = self._addresses
        address = addresses.get(packed)
        if address is None:
            if len(addresses) >= self.capacity:
                self._make_room(name, now)
            if self._lingering:
                self._lingering.pop(packed, None)
            if self._taught < TEACHINGS and self._holders is None:  # as a rule
                self._taught += 1
                teaching = new_tuple(Teaching, (name, chain, ports, until, now))
                addresses[packed] = _unopened({name: teaching})
                return (packed, ports, length + SLACK, True, teaching)  # type: ignore[return-value]
            address = addresses[packed] = _unopened({})
        names = address.names
        lasts = until
        if name in names:
            lasts = max(until, names[name].until)
        elif self._holders is not None:
            self._make_place(names, name)
        elif names and (len(names) >= self.names_per_address or self._taught >= TEACHINGS):
            del names[next(iter(names))]
        else:
            self._taught += 1
        teaching = names[name] = new_tuple(Teaching, (name, chain, ports, lasts, now))
        opened = address.opened
        for known, end in opened:
            if known is ports and end >= until:
                self.unwritten.append((packed, teaching))
                return None
        if opened and address.until(ports) >= until:
            self.unwritten.append((packed, teaching))
            return None
        return (packed, ports, length + SLACK, not opened, teaching)  # type: ignore[return-value]

    def granted(self, grants: Iterable[Grant], now: float) -> None:
        """The kernel has acknowledged these elements."""
        addresses = self._addresses.get
        ends = self._ends
        for packed, ports, seconds, _, _ in grants:
            address = addresses(packed)
            if address is None:
                continue
            until = now + seconds
            if not address.opened and not address.awaited:  # a new one
                address.opened = [(ports, until)]
                address.awaited = until
                heapq.heappush(ends, (until, packed))
                continue
            address.open(ports, until)
            if not address.awaited:
                self._await(packed, address)

    def _await(self, packed: bytes, address: _Address) -> None:
        """Look at it again when its first element ends. Once each: an address renewed often must not fill the heap."""
        opened = address.opened
        address.awaited = opened[0][1] if len(opened) == 1 else min([until for _, until in opened])
        heapq.heappush(self._ends, (address.awaited, packed))

    def refused(self, grants: Iterable[Grant]) -> None:
        """The kernel refused the batch: forget addresses that were never opened."""
        for packed, _, _, _, _ in grants:
            address = self._addresses.get(packed)
            if address is not None and not address.opened:
                self._forget(packed)

    def restore(self, packed: bytes, teaching: Teaching) -> None:
        """Take over one remembered teaching (a worker's restart); it counts as opened once the ruleset carries it."""
        address = self._addresses.get(packed)
        if address is None:
            if len(self._addresses) >= self.capacity:
                return
            address = self._addresses[packed] = _unopened({})
        self._teach(address, teaching)

    def _teach(self, address: _Address, teaching: Teaching) -> None:
        """Remember why the address is open."""
        if teaching.name not in address.names:
            self._make_place(address.names, teaching.name)
        address.names[teaching.name] = teaching

    def _make_place(self, names: dict[str, Teaching], name: str) -> None:
        """For another reason why an address is open. That is bounded; it takes the place of the oldest."""
        if len(names) >= self.names_per_address or (names and self._taught >= TEACHINGS):
            del names[next(iter(names))]
        else:
            self._taught += 1
        if self._holders is not None:
            self._holders.add(name)

    def _forget(self, packed: bytes) -> _Address:
        address = self._addresses.pop(packed)
        self._taught -= len(address.names)
        return address

    def _make_room(self, name: str, now: float) -> None:
        """The asking name's own oldest lease goes first; nobody else's ever does. Raises Full."""
        self.expire(now)
        if len(self._addresses) < self.capacity:
            return
        holders = self._holders
        if holders is None or len(holders) > 2 * TEACHINGS:
            holders = self._holders = {name for address in self._addresses.values() for name in address.names}
        if name not in holders:
            raise Full  # at once: a flood of new names must not walk over everything each time
        for packed, address in self._addresses.items():
            if name in address.names and len(address.names) == 1:
                self.evicted_names.add(name)
                self._forget(packed)
                return
        raise Full

    # -- time ----------------------------------------------------------------------------------------------------
    def expire(self, now: float) -> int:
        """Drop what has ended; return how many addresses went."""
        ends = self._ends
        gone = 0
        while ends and ends[0][0] <= now:
            end, packed = heapq.heappop(ends)
            address = self._addresses.get(packed)
            if address is None or end != address.awaited:
                continue  # of an earlier lease
            address.opened = [(ports, until) for ports, until in address.opened if until > now]
            if address.opened:
                self._await(packed, address)
                continue
            self._forget(packed)
            gone += 1
            if now - address.used < 2 * RENEW_BEFORE:
                self._lingering[packed] = address
        return gone

    def used(self, active: Iterable[bytes], now: float) -> None:
        """Flows to these addresses live now."""
        lingering = self._lingering
        still: set[bytes] = set()
        for packed in active:
            address = self._addresses.get(packed)
            if address is not None:
                address.used = now
            elif packed in lingering:
                still.add(packed)
        for packed in [packed for packed in lingering if packed not in still]:
            del lingering[packed]

    def renewals(self, now: float) -> list[Grant]:
        """Elements of addresses in use that end soon."""
        grants = []
        ends = self._ends
        due = []
        while ends and ends[0][0] <= now + RENEW_BEFORE:
            due.append(heapq.heappop(ends))
        for end, packed in due:
            address = self._addresses.get(packed)
            if address is None or end != address.awaited:
                continue
            self._await(packed, address)
            if not address.used or now - address.used > USED_WITHIN:
                continue
            for name, teaching in list(address.names.items()):
                if now - teaching.answered < LONGEST and teaching.until <= now + RENEW_BEFORE + SLACK:
                    address.names[name] = teaching._replace(until=now + RENEWAL)
            for ports in {teaching.ports for teaching in address.names.values() if teaching.until > now}:
                if address.until(ports) <= now + RENEW_BEFORE:
                    grants.append(Grant(packed, ports, RENEWAL + SLACK))
        return grants

    def shift(self, seconds: float, now: float) -> list[Grant]:
        """The whole namespace stood still (a paused container): every lease that lived then goes on from there."""
        grants = []
        for packed, address in self._addresses.items():
            for name, teaching in address.names.items():
                address.names[name] = teaching._replace(
                    until=teaching.until + seconds, answered=teaching.answered + seconds
                )
            for ports, until in address.opened:
                left = until + seconds - now
                if left > 0:
                    grants.append(Grant(packed, ports, left))
        return grants

    # -- policy --------------------------------------------------------------------------------------------------
    def rebase(self, decide: Callable[[bytes, Teaching], PortSet | None], now: float) -> Leases:
        """The same leases under another policy: `decide` says what a teaching opens now (None or empty: nothing)."""
        after = Leases(self.capacity, self.names_per_address)
        for source in (self._addresses, self._lingering):
            for packed, address in source.items():
                names: dict[str, Teaching] = {}
                for name, teaching in address.names.items():
                    ports = decide(packed, teaching)
                    until = teaching.until if source is self._addresses else now + RENEWAL
                    if ports and until > now and packed not in after._addresses:
                        names[name] = teaching._replace(ports=ports, until=until)
                if names:
                    kept = after._addresses[packed] = _unopened({})
                    for teaching in names.values():
                        after._teach(kept, teaching)
                    kept.used = address.used
        return after

    def elements(self, now: float) -> dict[PortSet, list[tuple[bytes, int]]]:
        """What the kernel's sets have to hold: set -> (address, milliseconds left); marks all of it as opened."""
        sets: dict[PortSet, list[tuple[bytes, int]]] = {}
        self._ends = []
        for packed, address in self._addresses.items():
            address.opened = []
            for teaching in address.names.values():
                until = max(teaching.until + SLACK, address.until(teaching.ports))
                if until > now:
                    address.open(teaching.ports, until)
            address.awaited = 0.0
            if address.opened:
                self._await(packed, address)
            for ports, until in address.opened:
                sets.setdefault(ports, []).append((packed, max(1, int((until - now) * 1000))))
        return sets

    # -- reading -------------------------------------------------------------------------------------------------
    def opens(self, packed: bytes, protocol: str, port: int | None) -> bool:
        """Whether some name's lease opens `port` of this address."""
        address = self._addresses.get(packed)
        if address is None:
            return False
        # A copy: the helper thread asks, too, while the loop goes on learning.
        return any(ports.contains(protocol, port) for ports, _ in tuple(address.opened))

    def holds(self, packed: bytes) -> bool:
        """Whether the kernel was told of the address, on whatever ports."""
        address = self._addresses.get(packed)
        return address is not None and bool(address.opened)

    def named(self, packed: bytes) -> list[tuple[bytes, Teaching]]:
        """Everything that is remembered about an address."""
        address = self._addresses.get(packed)
        return [(packed, teaching) for teaching in address.names.values()] if address is not None else []

    def names_of(self, packed: bytes) -> tuple[str, ...]:
        address = self._addresses.get(packed) or self._lingering.get(packed)
        return tuple(address.names) if address is not None else ()

    def teachings(self) -> Iterator[tuple[bytes, Teaching]]:
        for packed, address in self._addresses.items():
            for teaching in address.names.values():
                yield packed, teaching
