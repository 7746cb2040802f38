"""What every accepted policy must hold, whatever it was read from; for the three targets of the policy language."""

from __future__ import annotations

import ipaddress
import json
from typing import TYPE_CHECKING, Any

from policies.address import unmap
from policies.matcher import compile_policy
from policies.model import Action
from policies.parser import parse_policy
from tests.pure.policies import naive

if TYPE_CHECKING:
    from policies.model import NetworkPolicy

VOCABULARY = (
    b"defaultAction", b"egress", b"action", b"target", b"ports", b"protocol", b"comment", b"allow", b"deny", b"tcp",
    b"udp", b"null", b"true", b"443", b"8000-8100", b"65535", b"*.example.com", b"api.example.com", b"*",
    b"10.0.0.0/8", b"::ffff:10.0.0.1", b"2001:db8::/32", b"64:ff9b::/96", b"0.0.0.0/0", b"169.254.169.254", b"::/0",
    b"xn--", b"NaN", b"\xc3\x9f", b"\xe2\x80\x8b", b"\\u0000", b"\xef\xbb\xbf",
)  # fmt: skip
SAMPLES: tuple[dict[str, Any], ...] = (
    {},
    {"defaultAction": "allow", "egress": []},
    {"egress": [{"action": "allow", "target": "api.example.com", "ports": [443, "8000-8100"], "protocol": "tcp"}]},
    {"egress": [{"action": "deny", "target": "*.b.example"}, {"action": "allow", "target": "*", "comment": "rest"}]},
    {"defaultAction": "allow", "egress": [{"action": "deny", "target": "10.0.0.0/8", "ports": ["1-1023"]}]},
    {"egress": [{"action": "allow", "target": "2001:db8::/32"}, {"action": "deny", "target": "64:ff9b::/96"}]},
    {
        "egress": [
            {"action": "allow", "target": "169.254.169.254", "ports": [80]},
            {"action": "deny", "target": "0.0.0.0/0"},
        ]
    },
    {"egress": [{"action": "ALLOW", "target": " B\u00fccher.example. ", "ports": ["853"], "protocol": "UDP"}]},
)
_RULES, _PORTS = 8, 4  # of a policy that is held against the plain reading: it is slow


def holds(policy: NetworkPolicy) -> None:
    """It comes back from its document unchanged, and decides as the plain reading does."""
    document = comes_back(policy)
    if len(policy.egress) <= _RULES:
        decides(policy, document)


def comes_back(policy: NetworkPolicy) -> dict[str, Any]:
    """Its document, which is the same policy again, as JSON and as YAML."""
    document = policy.to_document()
    text = json.dumps(document)
    assert parse_policy(text) == policy
    assert parse_policy(text, yaml=True) == policy
    assert parse_policy(text.encode()).to_document() == document
    return document


def decides(policy: NetworkPolicy, document: dict[str, Any]) -> None:
    """As `tests/pure/policies/naive.py` does, at names and addresses that its rules speak of and one beside each."""
    compiled = compile_policy(policy)
    ports = naive.interesting_ports(document)
    chosen = ports[:: max(1, len(ports) // _PORTS)]
    questions = [("echo", 0), *((protocol, port) for protocol in ("tcp", "udp") for port in chosen)]
    names, addresses = {"other.example"}, {ipaddress.ip_address("192.0.2.1").packed}
    for rule in policy.egress[:2]:
        if rule.network is None:
            name = rule.target.removeprefix("*").removeprefix(".")
            names |= {name, f"x.{name}".rstrip(".")}
        else:
            network = ipaddress.ip_network(rule.target)
            beyond = (int(network[-1]) + 1) % (1 << network.max_prefixlen)
            addresses |= {network[0].packed, network[-1].packed, beyond.to_bytes(network.max_prefixlen // 8, "big")}
    for name in sorted(names)[:3]:
        opened = {question for question in questions if naive.by_name(document, name, *question)}
        decision = compiled.decide_name(name)
        if decision.action is Action.ALLOW:
            assert {question for question in questions if decision.ports.contains(*question)} == opened, name
        else:
            assert not any(protocol != "echo" for protocol, _ in opened), name
        for protocol, port in questions:
            link = compiled.chain_deny(name)
            denied = bool(link and link.ports.contains(protocol, port))
            assert denied == naive.link_denied(document, name, protocol, port), (name, protocol, port)
    for packed in sorted(addresses)[-3:]:
        packed = unmap(packed)
        address = ipaddress.ip_address(packed)
        for protocol, port in questions:
            allowed = compiled.decide_address(packed, protocol, port).action is Action.ALLOW
            assert allowed == naive.by_address(document, address, protocol, port), (address, protocol, port)
        assert compiled.teach(packed).value == naive.teach(document, address), address
