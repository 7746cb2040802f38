"""The policy language read plainly: walk the rules in order, one question at a time.

Written from the language's description with `ipaddress` and nothing of `policies`, slow and without cleverness, to
be compared with the compiled forms. Rules are documents as a user writes them.
"""

from __future__ import annotations

import functools
import ipaddress
from typing import Any

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

SPECIAL4 = ["169.254.0.0/16", "100.100.100.200", "168.63.129.16", "192.0.0.192"]
SPECIAL = [
    ipaddress.ip_network(text)
    for text in [
        *SPECIAL4,
        "fe80::/10",
        "fd00:ec2::/32",
        "fd20:ce::254",
        "fd00:42::42",
        "fd00:c1::a9fe:a9fe",
        "fd00:a9fe:a9fe::1",
        "fd00:100::100:200",
    ]
]
for _block in map(ipaddress.IPv4Network, SPECIAL4):
    _number, _length = int(_block.network_address), _block.prefixlen
    SPECIAL.append(ipaddress.IPv6Network((0x2002 << 112 | _number << 80, 16 + _length)))
    SPECIAL += [
        ipaddress.IPv6Network((int(ipaddress.IPv6Address(prefix)) | _number, 96 + _length))
        for prefix in ("64:ff9b::", "64:ff9b:1::", "::ffff:0:0:0", "::")
    ]
NEVER = [
    ipaddress.ip_network(text)
    for text in ["127.0.0.0/8", "::1", "0.0.0.0/8", "::", "224.0.0.0/4", "ff00::/8", "240.0.0.0/4", "255.255.255.255"]
] + SPECIAL
UNDER_DENY = [
    ipaddress.ip_network(text)
    for text in [
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "100.64.0.0/10",
        "fc00::/7",
        "fec0::/10",
        "198.18.0.0/15",
        "2001:2::/48",
        "192.0.0.0/24",
        "192.88.99.0/24",
        "100::/64",
        "100:0:0:1::/64",
        "5f00::/16",
        "64:ff9b:1::/48",
        "2001::/23",
        "::ffff:0:0:0/96",
        "::/96",
    ]
]
REACHABLE = [
    ipaddress.ip_network(text)
    for text in [
        "2001:1::1",
        "2001:1::2",
        "2001:1::3",
        "2001:3::/32",
        "2001:4:112::/48",
        "2001:20::/28",
        "2001:30::/28",
    ]
]


def ranges(rule: dict[str, Any]) -> list[tuple[int, int]]:
    """The rule's ports as inclusive ranges."""
    out = []
    for item in rule.get("ports", []):
        first, _, last = str(item).partition("-")
        out.append((int(first), int(last or first)))
    return out


def covers(rule: dict[str, Any], protocol: str, port: int) -> bool:
    """Does the rule speak about this port of this protocol (`"echo"` has no port)."""
    if rule.get("protocol") not in (None, protocol):
        return False
    if "ports" in rule:
        return protocol != "echo" and any(first <= port <= last for first, last in ranges(rule))
    return rule["action"] == "deny" or protocol == "echo" or port != 853


def address_rule(rule: dict[str, Any]) -> Network | None:
    """The network of an address rule."""
    return _network(rule["target"])


@functools.lru_cache(1024)  # the same few, asked thousands of times
def _network(target: str) -> Network | None:
    try:
        return ipaddress.ip_network(target)
    except ValueError:
        return None


def name_matches(target: str, name: str, *, link: bool = False) -> bool:
    """Does a name target match; for a link `"*"` doesn't count."""
    if target == "*":
        return name != "" and not link
    if target.startswith("*."):
        return name.endswith(target[1:]) and len(name) > len(target) - 1
    return name == target


def by_name(document: dict[str, Any], name: str, protocol: str, port: int) -> bool:
    """May what the name teaches be reached on this port."""
    for rule in document["egress"]:
        if address_rule(rule) is None and name_matches(rule["target"], name) and covers(rule, protocol, port):
            return bool(rule["action"] == "allow")
    return document["defaultAction"] == "allow" and port != 853


def link_denied(document: dict[str, Any], name: str, protocol: str, port: int) -> bool:
    """Is the link of a chain explicitly denied on this port."""
    for rule in document["egress"]:
        matches = address_rule(rule) is None and name_matches(rule["target"], name, link=True)
        if matches and covers(rule, protocol, port):
            return bool(rule["action"] == "deny")
    return False


_SIX_TO_FOUR, _NAT64 = ipaddress.IPv6Network("2002::/16"), ipaddress.IPv6Network("64:ff9b::/96")


def inner(address: Address) -> ipaddress.IPv4Address | None:
    """The address inside a NAT64 or 6to4 one."""
    if isinstance(address, ipaddress.IPv6Address):
        if address in _SIX_TO_FOUR:
            return ipaddress.IPv4Address(int(address) >> 80 & 0xFFFFFFFF)
        if address in _NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return None


def hidden(address: Address) -> list[ipaddress.IPv4Address]:
    """IPv4 addresses inside of the other forms that hold one."""
    number = int(address)

    def octets(*places: int) -> ipaddress.IPv4Address:
        return ipaddress.IPv4Address(bytes(address.packed[place] for place in places))

    if address.version == 4:
        return []
    forms = []
    if address in ipaddress.ip_network("64:ff9b:1::/48"):
        forms = [octets(6, 7, 9, 10), octets(7, 9, 10, 11), octets(9, 10, 11, 12), octets(12, 13, 14, 15)]
    elif address in ipaddress.ip_network("2001::/32"):
        forms = [octets(4, 5, 6, 7), ipaddress.IPv4Address(number & 0xFFFFFFFF ^ 0xFFFFFFFF)]
    elif (
        any(address in ipaddress.ip_network(prefix) for prefix in ("::/96", "::ffff:0:0:0/96"))
        or number >> 32 & 0xFDFFFFFF == 0x5EFE
    ):
        forms = [octets(12, 13, 14, 15)]
    return [form for form in forms if 0 < form.packed[0] < 224]


def _in(address: Address, networks: list[Network]) -> bool:
    return any(address.version == network.version and address in network for network in networks)


def by_address_rules(document: dict[str, Any], address: Address, protocol: str, port: int) -> str | None:
    """`"allow"`, `"deny"`, or None where rules and special blocks say nothing."""
    blocks = [network for network in SPECIAL if address.version == network.version and address in network]
    for rule in document["egress"]:
        network = address_rule(rule)
        if network is None or not covers(rule, protocol, port):
            continue
        hit = address.version == network.version and address in network
        embedded = inner(address)
        if rule["action"] == "deny" and embedded is not None and network.version == 4 and embedded in network:
            hit = True
        if rule["action"] == "allow" and blocks:
            hit = hit and any(
                block.prefixlen <= network.prefixlen and network.network_address in block for block in blocks
            )
        if hit:
            return str(rule["action"])
    return "deny" if blocks else None


def by_address(document: dict[str, Any], address: Address, protocol: str, port: int) -> bool:
    """May the address be reached on this port without a name."""
    said = by_address_rules(document, address, protocol, port)
    if said is None:
        return document["defaultAction"] == "allow" and (protocol == "echo" or 1 <= port != 853)
    return said == "allow"


def interesting_ports(document: dict[str, Any]) -> list[int]:
    """Ports at which any answer can change."""
    ports = {1, 852, 853, 854, 65535}
    for rule in document["egress"]:
        for first, last in ranges(rule):
            ports |= {first, max(1, first - 1), last, min(65535, last + 1)}
    return sorted(ports)


def teach(document: dict[str, Any], address: Address) -> str:
    """`"learn"`, `"keep"` or `"strip"`."""
    judged: Address = inner(address) or address
    all_of_it = [judged, *hidden(judged)]
    never = any(_in(one, NEVER) for one in all_of_it)
    internal = any(_in(one, UNDER_DENY) and not _in(one, REACHABLE) for one in all_of_it)
    under_deny = document["defaultAction"] == "deny" and internal
    if not never and not under_deny:
        return "learn"
    opened = any(
        by_address_rules(document, address, protocol, port) == "allow"
        for protocol in ("tcp", "udp")
        for port in interesting_ports(document)
    )
    return "keep" if opened else "strip"
