"""The host's rules for the network that watched containers live on: what comes from a port that is not guarded yet goes
nowhere. They stand whoever runs or doesn't.

A bridge knows a frame's port and routing doesn't, so two tables work together:

    bridge  prerouting  a frame from a port in `open` is given a mark
    inet    prerouting  from our bridge: marked, the mark is taken off and it passes; else it is dropped
    bridge  forward     between two ports, one of them in `open`, nothing passes

Ports and not addresses, because a container has raw sockets until somebody takes them away, and could speak in the name
of a guarded one. Prerouting comes before `input` and `forward` alike; both versions of IP are one rule. A mark does not
survive the way out of a container, so nobody inside can bring it. What neighbour discovery needs on the link passes.
Kernels without nftables' own `meta ibrname` do.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from egress.firewall import FirewallError, nft
from egress.firewall.netlink import elements
from egress.netns import NETLINK_NETFILTER, Namespace

if TYPE_CHECKING:
    from collections.abc import Iterable

_MARK = 0x5A11_D0C2
_BRIDGE = 7  # NFPROTO_BRIDGE
_CHAINS = (("bridge", "gate"), ("bridge", "between"), ("inet", "gate"))
_NEIGHBOURS = "nd-router-solicit, nd-neighbor-solicit, nd-neighbor-advert"


def table_of(bridge: str) -> str:
    """The name of both tables."""
    return "sallyport_" + "".join(char if char.isalnum() else "_" for char in bridge)


def rules(bridge: str, ports: Iterable[int] = ()) -> str:
    """Both tables in one transaction, whatever stood there before."""
    table = table_of(bridge)
    numbers = ", ".join(str(port) for port in sorted(ports))
    held = f"\t\telements = {{ {numbers} }}\n" if numbers else ""
    return f"""\
table bridge {table}
delete table bridge {table}
table bridge {table} {{
	set open {{
		type iface_index
{held}	}}
	chain gate {{
		type filter hook prerouting priority -300; policy accept;
		iif @open meta mark set {_MARK:#x}
	}}
	chain between {{
		type filter hook forward priority -300; policy accept;
		iif @open drop
		oif @open drop
	}}
}}
table inet {table}
delete table inet {table}
table inet {table} {{
	chain gate {{
		type filter hook prerouting priority -310; policy accept;
		iifname != "{bridge}" accept
		meta mark {_MARK:#x} meta mark set 0 accept
		ip6 daddr {{ fe80::/10, ff02::/16 }} icmpv6 type {{ {_NEIGHBOURS} }} accept
		drop
	}}
}}
"""


def intact(bridge: str, listed: str) -> bool:
    """Whether the chains, as nft lists them, say what `rules` says. One that reads otherwise is only laid anew."""
    return listed.count("type filter hook") == len(_CHAINS) and _sense(listed) == _sense(rules(bridge))


def _sense(text: str) -> list[str]:
    lines = [line.strip().replace("0x00000000", "0") for line in text.splitlines()]
    return [line for line in lines if line.startswith(("iif", "oif", "meta mark", "ip6", "drop"))]


class Gate:
    """The gate of one bridge, in this process's network namespace. For one thread."""

    def __init__(self, bridge: str) -> None:
        self._bridge = bridge
        self._table = table_of(bridge)
        self._nft = nft.Nft()
        self._laid = ""
        self.ports: set[int] = set()  # that pass

    def lay(self) -> bool:
        """Make it stand, at once and closed; one that stands already is left as it is, with the ports that it lets pass
        (False). Raises FirewallError."""
        standing = self._standing()
        if standing and intact(self._bridge, standing):
            with Namespace().netlink(NETLINK_NETFILTER) as sock:
                self.ports = {_number(element.key) for element in elements(sock, self._table, "open", _BRIDGE)}
            self._laid = standing
            return False
        self._nft.run(rules(self._bridge))
        self.ports = set()
        self._laid = self._standing()
        return True

    def open(self, ports: Iterable[int]) -> None:
        """Let these pass from now on. Raises FirewallError."""
        fresh = set(ports)
        if fresh:
            self.ports |= fresh
            try:
                self._change("add", fresh)
            except FirewallError:
                self.ports -= fresh
                raise

    def close(self, ports: Iterable[int]) -> None:
        """Let these pass no more. Raises FirewallError; they are shut when the gate is mended, if not before."""
        gone = set(ports) & self.ports
        if gone:
            self.ports -= gone
            self._change("delete", gone)

    def _change(self, verb: str, ports: set[int]) -> None:
        """Change the set as `self.ports` has been; where it isn't as it was, all of the gate is laid anew."""
        try:
            self._nft.run(f"{verb} element bridge {self._table} open {{ {_listed(ports)} }}\n")
        except FirewallError:
            self._laid = ""  # for `mend` to tell, and to lay where this can't
            self._nft.run(rules(self._bridge, self.ports))

    def mend(self) -> bool:
        """Put it back where somebody took it away; True when that was so. Raises FirewallError."""
        standing = self._standing()
        if standing and standing == self._laid:
            return False
        self._nft.run(rules(self._bridge, self.ports))
        self._laid = self._standing()
        return True

    def _standing(self) -> str:
        """The chains as the kernel has them, "" where one is missing."""
        try:
            return "".join(self._nft.run(f"list chain {family} {self._table} {name}\n") for family, name in _CHAINS)
        except FirewallError:
            return ""


def _listed(ports: Iterable[int]) -> str:
    return ", ".join(str(port) for port in sorted(ports))


def _number(key: bytes) -> int:
    return int(struct.unpack("=I", key[:4])[0])
