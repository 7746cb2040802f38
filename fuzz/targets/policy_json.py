"""A policy as JSON: the one error, or a policy that survives its own document and decides as a plain reading does.

An input that begins with 0xff, as no JSON does, is not read as text: its octets choose the rules of a policy.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fuzz.targets.policies import SAMPLES, VOCABULARY, holds
from policies.parser import PolicyError, parse_policy

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST = 600
WORDS = (
    *VOCABULARY, b'{"', b'":', b'"}', b'","', b"[]", b'{"egress":[{"action":"allow","target":"', b'"}]}',
    b'"ports":[',
)  # fmt: skip
LABELS = ("a", "b", "a.b", "c.a", "b.c.a")
NETWORKS = (
    "0.0.0.0/0", "128.0.0.0/1", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.3", "169.254.0.0/16", "169.254.169.254",
    "127.0.0.1", "100.64.0.0/10", "192.0.2.0/24", "192.0.2.7", "::/0", "2001:db8::/32", "2001:db8::7", "64:ff9b::/96",
    "2002::/16", "64:ff9b::a01:203", "2002:a01:203::/48", "fe80::/10", "fd00:ec2::254", "fd00::/8", "::ffff:10.1.2.3",
)  # fmt: skip
PORTS = (25, 443, 853, "80-90", "85-443", "1-65535", "1-852", "854-65535", 65535, 53)
_DEEP = b"[" * 500


def seeds() -> Iterator[bytes]:
    """Policies of every kind, and what nearly is one."""
    for sample in SAMPLES:
        yield json.dumps(sample).encode()
        yield json.dumps(sample, ensure_ascii=False, indent=1).encode()
    yield b" \n"
    yield b"null"
    yield b'{"defaultAction": "allow", "defaultAction": "deny"}'
    yield _DEEP
    for number in range(8):
        yield b"\xff" + bytes((number * 37 + octet * (number * 2 + 11)) % 256 for octet in range(40))


def check(data: bytes) -> None:
    """The contract of `parse_policy`."""
    try:
        policy = parse_policy(json.dumps(built(data[1:])) if data[:1] == b"\xff" else data)
    except PolicyError as error:
        said(error)
        return
    holds(policy)


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


def said(error: PolicyError) -> None:
    """One line that can be printed anywhere, and says where."""
    assert error.path
    assert error.message
    assert str(error).isprintable(), repr(str(error))
    assert len(str(error)) < 1000
