"""Addresses and ports as nftables text: disjoint ranges to verdicts, one chain for each distinct set of ports.

Prefixes that nest with ports that overlap don't fit one interval map (EEXIST), so a policy's address rules arrive
flattened into disjoint ranges, and a map leads from a range to the chain of its ports.
"""

from __future__ import annotations

import socket

from egress.firewall.intervals import following
from policies.address_plan import AddressRange
from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from policies.ports import PortSet

_ALL = ((0, 65535),)


def show(packed: bytes) -> str:
    """An address as nft reads it."""
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)


def version(packed: bytes) -> int:
    """4 or 6."""
    return 4 if len(packed) == 4 else 6


def span(first: bytes, last: bytes) -> str:
    """A range as an address, a prefix where it is one, or `first-last`."""
    if first == last:
        return show(first)
    low, high, bits = int.from_bytes(first, "big"), int.from_bytes(last, "big"), 8 * len(first)
    size = high - low + 1
    if size & (size - 1) == 0 and low % size == 0:
        return f"{show(first)}/{bits - size.bit_length() + 1}"
    return f"{show(first)}-{show(last)}"


def port_rules(ports: PortSet, verdict: str) -> list[str]:
    """Rules that give `verdict` to exactly these ports."""
    rules = []
    for protocol, ranges in (("tcp", ports.tcp), ("udp", ports.udp)):
        if ranges == _ALL:
            rules.append(f"meta l4proto {protocol} {verdict}")
        elif ranges:
            rules.append(f"{protocol} dport {_ranges(ranges)} {verdict}")
    if ports.echo:
        rules.append(f"icmp type echo-request {verdict}")
        rules.append(f"icmpv6 type echo-request {verdict}")
    return rules


def _ranges(ranges: Sequence[tuple[int, int]]) -> str:
    words = [str(first) if first == last else f"{first}-{last}" for first, last in ranges]
    return words[0] if len(words) == 1 else "{ " + ", ".join(words) + " }"


class Chains:
    """Names for the chains of distinct port sets, in the order of their first use."""

    def __init__(self, prefix: str, verdict: str) -> None:
        self._prefix = prefix
        self._verdict = verdict
        self._names: dict[PortSet, str] = {}

    def name(self, ports: PortSet) -> str:
        found = self._names.get(ports)
        if found is None:
            found = self._names[ports] = f"{self._prefix}_{len(self._names)}"
        return found

    def text(self) -> Iterable[str]:
        """The chains themselves."""
        for ports, name in self._names.items():
            yield from chain(name, port_rules(ports, self._verdict))


class AddressMap:
    """One verdict map for each family, from the ranges of a plan."""

    def __init__(self, plan: Sequence[AddressRange], side: str, chains: Chains, whole: str = "") -> None:
        """`side` is the field of the plan's ranges to map; `whole` is the verdict for a range whose every port is in
        it (it then needs no chain), empty where there is none."""
        self._entries: dict[int, list[tuple[bytes, bytes, str]]] = {4: [], 16: []}
        self._names = {size: f"{side}{4 if size == 4 else 6}" for size in (4, 16)}
        verdicts: dict[int, str] = {}  # by identity: most ranges share a few sets of ports, which are dear to hash
        field = AddressRange._fields.index(side)
        for part in plan:
            ports: PortSet = part[field]  # type: ignore[assignment]
            verdict = verdicts.get(id(ports))
            if verdict is None:
                complete = whole and ports.tcp == _ALL and ports.udp == _ALL and ports.echo
                verdict = whole if complete else f"jump {chains.name(ports)}" if ports else ""
                verdicts[id(ports)] = verdict
            if not verdict:
                continue
            first = part.first
            entries = self._entries[len(first)]
            if entries and entries[-1][2] == verdict and following(entries[-1][1]) == first:
                entries[-1] = (entries[-1][0], part.last, verdict)
            else:
                entries.append((first, part.last, verdict))

    def apart(self) -> dict[str, list[tuple[bytes, bytes, str]]]:
        """What the maps hold, by their names."""
        return {self._names[size]: entries for size, entries in self._entries.items() if entries}

    def text(self, *, empty: bool = False) -> Iterable[str]:
        """The maps themselves; nothing for a family without entries. `empty` leaves these out."""
        for size, family in ((4, "ipv4_addr"), (16, "ipv6_addr")):
            entries = self._entries[size]
            if entries:
                yield f"\tmap {self._names[size]} {{"
                yield f"\t\ttype {family} : verdict"
                yield "\t\tflags interval"
                if not empty:
                    yield "\t\telements = {"
                    yield ",\n".join([f"\t\t\t{span(first, last)} : {verdict}" for first, last, verdict in entries])
                    yield "\t\t}"
                yield "\t}"

    def rules(self) -> list[str]:
        """Look the destination up."""
        rules = []
        if self._entries[4]:
            rules.append(f"ip daddr vmap @{self._names[4]}")
        if self._entries[16]:
            rules.append(f"ip6 daddr vmap @{self._names[16]}")
        return rules


def chain(name: str, rules: Sequence[str], base: str = "") -> Iterable[str]:
    """A chain's lines; `base` is its type, hook, priority and policy."""
    yield f"\tchain {name} {{"
    if base:
        yield f"\t\t{base}"
    for rule in rules:
        yield f"\t\t{rule}"
    yield "\t}"
