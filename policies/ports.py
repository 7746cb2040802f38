"""Sets of transport ports: what may be reached at an address.

A rule speaks of TCP ports, UDP ports and echo requests; every other protocol is never open, so these three are
all there is to know about an address. Values are tuples of inclusive ranges, sorted, disjoint and merged, so that
equal sets are equal values: the packet filter keeps one set of learned addresses for each distinct value.

Port 853 (DNS over TLS and QUIC) stands apart: a rule opens it only by naming it, while a denial without ports
covers it. Port 0 is never opened, yet a denial of every port covers it, so that no packet slips past one.
"""

from __future__ import annotations

from policies.values import NamedTuple

Ranges = tuple[tuple[int, int], ...]

DOT_PORT = 853
LAST_PORT = 65535


def merge(ranges: list[tuple[int, int]] | Ranges) -> Ranges:
    """Sorted, disjoint, inclusive ranges of the same ports; ranges that touch become one."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            if last > merged[-1][1]:
                merged[-1] = (merged[-1][0], last)
        else:
            merged.append((first, last))
    return tuple(merged)


def _minus(left: Ranges, right: Ranges) -> Ranges:
    rest: list[tuple[int, int]] = []
    position = 0
    for first, last in left:
        while position < len(right) and right[position][1] < first:
            position += 1
        walk = position
        while walk < len(right) and right[walk][0] <= last:
            if right[walk][0] > first:
                rest.append((first, right[walk][0] - 1))
            first = right[walk][1] + 1
            walk += 1
        if first <= last:
            rest.append((first, last))
    return tuple(rest)


class PortSet(NamedTuple):
    """TCP and UDP ports as sorted, disjoint, merged inclusive ranges, and whether ICMP(v6) echo requests belong."""

    tcp: Ranges
    udp: Ranges
    echo: bool

    def union(self, other: PortSet) -> PortSet:
        """What is in either."""
        return PortSet(merge(self.tcp + other.tcp), merge(self.udp + other.udp), self.echo or other.echo)

    def minus(self, other: PortSet) -> PortSet:
        """What is here and not in the other."""
        return PortSet(_minus(self.tcp, other.tcp), _minus(self.udp, other.udp), self.echo and not other.echo)

    def intersect(self, other: PortSet) -> PortSet:
        """What is in both."""
        return self.minus(self.minus(other))

    def contains(self, protocol: str, port: int | None = None) -> bool:
        """Is this port of `"tcp"` or `"udp"` here; or, for any other protocol name, the echo request.

        Without a port: is any port of the protocol here.
        """
        if protocol not in ("tcp", "udp"):
            return protocol in ECHO_NAMES and self.echo
        ranges = self.tcp if protocol == "tcp" else self.udp
        if port is None:
            return bool(ranges)
        return any(first <= port <= last for first, last in ranges)

    def __bool__(self) -> bool:
        return bool(self.tcp or self.udp or self.echo)

    def __str__(self) -> str:
        """For people: `tcp 80, 443; udp 443; echo`."""
        if not self:
            return "nothing"
        if self.tcp == self.udp and self.tcp:
            parts = ["tcp+udp " + format_ranges(self.tcp)]
        else:
            parts = [f"{name} {format_ranges(r)}" for name, r in (("tcp", self.tcp), ("udp", self.udp)) if r]
        return "; ".join([*parts, "echo"] if self.echo else parts)


ECHO_NAMES = ("echo", "icmp", "icmpv6")
_ALL: Ranges = ((0, LAST_PORT),)
_ORDINARY: Ranges = ((1, DOT_PORT - 1), (DOT_PORT + 1, LAST_PORT))

NOTHING = PortSet((), (), False)
EVERYTHING = PortSet(_ORDINARY, _ORDINARY, True)
"""What a rule without ports opens: all of TCP, UDP and echo, but port 853."""
FULL = PortSet(_ALL, _ALL, True)
"""What a denial without ports closes: 853 and port 0 too."""


def format_ranges(ranges: Ranges) -> str:
    """`80, 443, 8000-8100`."""
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def covered(allow: bool, ranges: Ranges, protocol: str) -> PortSet:
    """What a rule speaks about: `ranges` as written (empty: none given), protocol `"tcp"`, `"udp"` or `""`."""
    if not ranges:
        if not protocol:
            return EVERYTHING if allow else FULL
        ranges = _ORDINARY if allow else _ALL
    elif not allow and ranges[0][0] == 1:
        ranges = ((0, ranges[0][1]), *ranges[1:])
    return PortSet(ranges if protocol != "udp" else (), ranges if protocol != "tcp" else (), False)
