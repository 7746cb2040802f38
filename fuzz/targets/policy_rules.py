"""Policies whose rules an input's octets choose, so that all of them are some: they decide as a plain reading does.

The first octet is the default, and each six after it a rule.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fuzz.targets.policies import holds
from policies.parser import parse_policy

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST = 40
WORDS: tuple[bytes, ...] = ()
LABELS = ("a", "b", "a.b", "c.a", "b.c.a")
NETWORKS = (
    "0.0.0.0/0", "128.0.0.0/1", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.3", "169.254.0.0/16", "169.254.169.254",
    "127.0.0.1", "100.64.0.0/10", "192.0.2.0/24", "192.0.2.7", "::/0", "2001:db8::/32", "2001:db8::7", "64:ff9b::/96",
    "2002::/16", "64:ff9b::a01:203", "2002:a01:203::/48", "fe80::/10", "fd00:ec2::254", "fd00::/8", "::ffff:10.1.2.3",
)  # fmt: skip
PORTS = (25, 443, 853, "80-90", "85-443", "1-65535", "1-852", "854-65535", 65535, 53)


def seeds() -> Iterator[bytes]:
    """Eight policies of six rules."""
    for number in range(8):
        yield bytes((number * 37 + octet * (number * 2 + 11)) % 256 for octet in range(37))


def check(data: bytes) -> None:
    """All of them are policies."""
    holds(parse_policy(json.dumps(built(data))))


def built(data: bytes) -> dict[str, Any]:
    """A policy of the rules that these octets choose, six each."""
    rules = []
    for at in range(1, len(data) - 5, 6):
        action, kind, one, other, ports, protocol = data[at : at + 6]
        rule: dict[str, Any] = {"action": ("allow", "deny")[action & 1]}
        if kind < 100:
            rule["target"] = ("", "*.")[kind & 1] + ".".join((LABELS[one % 5], LABELS[other % 5])[kind >> 1 & 1 :])
        elif kind < 120:
            rule["target"] = "*"
        else:
            rule["target"] = NETWORKS[one % len(NETWORKS)]
        if ports & 3:
            rule["ports"] = [PORTS[(ports >> 2) % len(PORTS)], PORTS[other % len(PORTS)]][: ports & 1 or 2]
        if protocol < 60:
            rule["protocol"] = ("tcp", "udp")[protocol & 1]
        rules.append(rule)
    return {"defaultAction": ("deny", "allow")[data[0] & 1] if data else "deny", "egress": rules[:6]}
