"""What there is: names with their addresses and chains, policies about them, and places to knock at. All by chance."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any, NamedTuple

from soak.model import Probe

if TYPE_CHECKING:
    import random

    from lab.dns import DnsServer

TCP_PORTS = (22, 25, 80, 443, 853, 5000, 8000)
UDP_PORTS = (7, 123, 443, 853, 5000)
"""Where every address of the lab answers."""
ORDINARY = (
    *[f"198.51.100.{number}" for number in range(10, 22)],
    *[f"203.0.113.{number}" for number in (66, 67, 68)],
    *[f"2001:db8:100::{number:x}" for number in range(10, 18)],
)
SPECIAL = (
    "10.99.0.10", "10.99.7.10", "100.64.1.1", "198.18.0.5", "172.16.3.4", "fd99::10", "169.254.169.254",
    "100.100.100.200", "168.63.129.16", "fd00:ec2::254", "64:ff9b::a63:a", "2002:a63:a::1", "64:ff9b::a9fe:a9fe",
    "64:ff9b::c633:640a", "192.0.0.192",
)  # fmt: skip
LIES = ("198.51.100.250", "2001:db8:100::fa")
"""No name has these, and no rule speaks of them alone: what a lying resolver adds."""
STRANGER = "evil.example.net"
"""A name that is nowhere, for whoever claims one."""
NAMES = (
    "example.com", "api.example.com", "web.example.com", "a.web.example.com", "b.web.example.com",
    "x.a.web.example.com", "example.net", "cdn.example.net", "edge.cdn.example.net", "img.example.net",
    "svc.example.org", "db.svc.example.org", "one.test", "two.test", "deep.one.test", "meta.test", "inner.test",
    "_srv.example.org", "host-1.example.org", "alias.example.com", "alias.example.net", "long.alias.example.org",
    "part.example.com", "mid.example.net",
)  # fmt: skip
ALIASES = {
    "alias.example.com": "cdn.example.net",
    "alias.example.net": "mid.example.net",
    "mid.example.net": "img.example.net",
    "long.alias.example.org": "alias.example.net",
    "part.example.com": "svc.example.org",
}
SLEEPERS = tuple((f"sleep{number}.example.com", f"198.51.100.{200 + number}") for number in range(12))
"""Names whose addresses nobody uses, to see their leases end."""
EVERYWHERE = (*ORDINARY, *SPECIAL, *LIES, *(address for _, address in SLEEPERS))
"""Every address that is spoken to; with the name guard there is TLS on 443."""
NAME_TARGETS = (
    *NAMES, *(f"*.{name}" for name in NAMES[:15]), "*.com", "*.net", "*.org", "*.test", "*", "*", "*.example.com",
)  # fmt: skip
NETWORKS = (
    "198.51.100.0/24", "198.51.100.8/29", "198.51.100.12", "203.0.113.64/26", "203.0.113.66", "0.0.0.0/0",
    "128.0.0.0/1", "2001:db8::/32", "2001:db8:100::/120", "2001:db8:100::a", "::/0", "2000::/3", "10.0.0.0/8",
    "10.99.0.0/16", "10.99.0.10", "100.64.0.0/10", "100.100.100.200", "169.254.169.254", "169.254.0.0/16",
    "198.18.0.0/15", "fd00::/8", "fd99::10", "fd00:ec2::254", "64:ff9b::/96", "64:ff9b::a63:a", "2002::/16",
    "172.16.0.0/12", "168.63.129.16",
)  # fmt: skip
_PORTS = (22, 25, 80, 443, 853, 5000, 7, 123, "80-443", "1-1023", "400-900", "8000-9000", "1-65535", "854-65535")


class Name(NamedTuple):
    """One name of the zone."""

    name: str
    chain: tuple[str, ...]
    addresses: tuple[str, ...]
    ttl: int


class World:
    """One life's names; the same for the same chance."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.names: dict[str, Name] = {}
        for name in NAMES:
            if name in ALIASES:
                continue
            addresses = chance.sample(ORDINARY, chance.randint(1, 3))
            if chance.random() < 0.35:
                addresses.append(chance.choice(SPECIAL))
            self.names[name] = Name(name, (), tuple(addresses), chance.choice((1, 30, 90, 900, 3600)))
        self._bounded()
        for name in ALIASES:
            chain = [name]
            while chain[-1] in ALIASES:
                chain.append(ALIASES[chain[-1]])
            self.names[name] = self.names[chain[-1]]._replace(name=name, chain=tuple(chain[1:]))
        for name, address in SLEEPERS:
            self.names[name] = Name(name, (), (address,), 0)

    def _bounded(self) -> None:
        """The sidecar remembers eight names of an address; three lead there here, and their aliases."""
        holders: dict[str, int] = {}
        for name, entry in self.names.items():
            kept = tuple(address for address in entry.addresses if holders.get(address, 0) < 3)
            for address in kept:
                holders[address] = holders.get(address, 0) + 1
            self.names[name] = entry._replace(addresses=kept)

    def shared(self) -> dict[str, list[str]]:
        """Addresses that several names have."""
        found: dict[str, list[str]] = {}
        for entry in self.names.values():
            for address in entry.addresses:
                found.setdefault(address, []).append(entry.name)
        return {address: names for address, names in found.items() if len(names) > 1}

    def publish(self, dns: DnsServer) -> None:
        """Into the lab's zone."""
        for entry in self.names.values():
            if entry.chain:
                dns.cname(entry.name, entry.chain[0], ttl=entry.ttl)
            else:
                dns.txt(entry.name, "here")  # it exists, whatever addresses it has
                dns.a(entry.name, *entry.addresses, ttl=entry.ttl)

    # -- policies --------------------------------------------------------------------------------------------------
    def rule(self) -> dict[str, Any]:
        chance = self.chance
        target = chance.choice(NAME_TARGETS) if chance.random() < 0.6 else chance.choice(NETWORKS)
        rule: dict[str, Any] = {"action": chance.choice(("allow", "allow", "allow", "deny")), "target": target}
        if chance.random() < 0.4:
            rule["ports"] = chance.sample(_PORTS, chance.randint(1, 3))
        if chance.random() < 0.25:
            rule["protocol"] = chance.choice(("tcp", "udp"))
        return rule

    def rules(self, most: int) -> list[dict[str, Any]]:
        return [self.rule() for _ in range(self.chance.randint(1, most))]

    def policy(self) -> dict[str, Any]:
        default = "allow" if self.chance.random() < 0.25 else "deny"
        return {"defaultAction": default, "egress": self.rules(9)}

    # -- probes ----------------------------------------------------------------------------------------------------
    def probe(self, addresses: tuple[str, ...] = ()) -> Probe:
        """Somewhere; half of the time at one of these addresses."""
        chance = self.chance
        if addresses and chance.random() < 0.5:
            address = chance.choice(addresses)
        else:
            address = chance.choice((*ORDINARY, *ORDINARY, *SPECIAL, *LIES))
        protocol = chance.choice(("tcp", "tcp", "tcp", "udp", "udp", "echo"))
        return self.at(address, protocol)

    def at(self, address: str, protocol: str) -> Probe:
        if protocol == "echo":
            return Probe("echo", address, 0)
        return Probe(protocol, address, self.chance.choice(TCP_PORTS if protocol == "tcp" else UDP_PORTS))


def family(address: str) -> str:
    """The type of the record that leads there."""
    return "AAAA" if ipaddress.ip_address(address).version == 6 else "A"
