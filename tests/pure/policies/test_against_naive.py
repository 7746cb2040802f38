"""The compiled policy against a plain reading of the same rules, on random policies."""

from __future__ import annotations

import ipaddress
import itertools
import json
from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from policies.address import unmap
from policies.matcher import CompiledPolicy, compile_policy
from policies.model import Action
from policies.parser import parse_policy
from tests.pure.policies import naive

LABELS = st.sampled_from(["a", "b", "c"])
NAMES = st.lists(LABELS, min_size=1, max_size=4).map(".".join)
NAME_TARGETS = st.one_of(st.just("*"), NAMES, NAMES.map(lambda name: f"*.{name}"))
NETWORKS = st.sampled_from(
    [
        "0.0.0.0/0",
        "128.0.0.0/1",
        "10.0.0.0/8",
        "10.1.0.0/16",
        "10.1.2.3",
        "127.0.0.0/8",
        "127.0.0.1",
        "169.0.0.0/8",
        "169.254.0.0/16",
        "169.254.169.254",
        "169.254.169.0/24",
        "168.63.129.16",
        "100.64.0.0/10",
        "100.100.100.200",
        "192.0.0.0/24",
        "192.0.0.192",
        "224.0.0.0/4",
        "255.255.255.255",
        "192.0.2.0/24",
        "192.0.2.7",
        "::/0",
        "::/96",
        "::1",
        "2000::/3",
        "2001:db8::/32",
        "2001:db8::7",
        "fe80::/10",
        "fe80::1",
        "fe00::/8",
        "fd00:ec2::/32",
        "fd00:ec2::254",
        "fd00::/8",
        "fd20:ce::254",
        "64:ff9b::/96",
        "64:ff9b::a01:203",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b::/32",
        "2002::/16",
        "2002:a01:203::/48",
        "2002:a9fe::/32",
        "2002:a9fe:a9fe::/48",
        "2001::/32",
        "ff00::/8",
        "64:ff9b:1::/48",
    ]
)
PORTS = st.lists(
    st.sampled_from([25, 53, 443, 853, "80-90", "85-443", "1-65535", "1-852", "854-65535", 65535]),
    min_size=1,
    max_size=3,
)


@st.composite
def rules(draw: st.DrawFn) -> dict[str, Any]:
    rule: dict[str, Any] = {
        "action": draw(st.sampled_from(["allow", "deny"])),
        "target": draw(st.one_of(NAME_TARGETS, NETWORKS)),
    }
    if draw(st.booleans()):
        rule["ports"] = draw(PORTS)
    if draw(st.integers(0, 3)) == 0:
        rule["protocol"] = draw(st.sampled_from(["tcp", "udp"]))
    return rule


POLICIES = st.fixed_dictionaries(
    {"defaultAction": st.sampled_from(["allow", "deny"]), "egress": st.lists(rules(), max_size=9)}
)
ADDRESSES = st.one_of(
    NETWORKS.map(lambda text: ipaddress.ip_network(text)[0]),
    NETWORKS.map(lambda text: ipaddress.ip_network(text)[-1]),
    NETWORKS.map(lambda text: ipaddress.ip_address((int(ipaddress.ip_network(text)[0]) + 1) % 2**32)),
    st.sampled_from(
        ["8.8.8.8", "2001:4860::1", "64:ff9b::808:808", "2002:808:808::1", "64:ff9b::7f00:1", "2002:e000:1::"]
    ).map(ipaddress.ip_address),
    st.ip_addresses(),
)
PROTOCOLS = ("tcp", "udp", "echo")


def _compile(document: dict[str, Any]) -> CompiledPolicy:
    return compile_policy(parse_policy(json.dumps(document)))


def _questions(document: dict[str, Any]) -> list[tuple[str, int]]:
    return [
        ("echo", 0),
        *((protocol, port) for protocol in ("tcp", "udp") for port in naive.interesting_ports(document)),
    ]


@given(POLICIES, st.one_of(NAMES, st.just("")))
def test_names(document: dict[str, Any], name: str) -> None:
    compiled = _compile(document)
    decision = compiled.decide_name(name)
    questions = _questions(document)
    open_ports = {question for question in questions if naive.by_name(document, name, *question)}
    if not any(protocol != "echo" for protocol, _ in open_ports):
        open_ports = set()
    assert {question for question in questions if decision.ports.contains(*question)} == open_ports
    assert (decision.action is Action.ALLOW) == bool(open_ports) == bool(decision.ports)
    for protocol, port in questions:
        single = compiled.decide_name_port(name, protocol, port)
        assert (single.action is Action.ALLOW) == ((protocol, port) in open_ports)
    if decision.rule is not None:
        assert decision.rule.action is decision.action
        assert naive.name_matches(decision.rule.target, name)


@given(POLICIES, NAMES)
def test_links(document: dict[str, Any], name: str) -> None:
    decision = _compile(document).chain_deny(name)
    questions = _questions(document)
    denied = {question for question in questions if naive.link_denied(document, name, *question)}
    found = {question for question in questions if decision and decision.ports.contains(*question)}
    assert found == denied
    assert decision is None or (decision.rule is not None and decision.rule.action is Action.DENY)


@given(POLICIES, ADDRESSES)
def test_addresses(document: dict[str, Any], address: naive.Address) -> None:
    compiled = _compile(document)
    packed = unmap(address.packed)
    if len(packed) == 4:
        address = ipaddress.IPv4Address(packed)
    for protocol, port in _questions(document):
        decision = compiled.decide_address(packed, protocol, port)
        expected = naive.by_address(document, address, protocol, port)
        assert (decision.action is Action.ALLOW) == expected, (protocol, port, decision)
        assert decision.ports.contains(protocol, port) == expected
        assert decision.rule is None or decision.rule.action is decision.action
    assert compiled.teach(packed).value == naive.teach(document, address)


@given(POLICIES, ADDRESSES)
def test_plan(document: dict[str, Any], address: naive.Address) -> None:
    compiled = _compile(document)
    plan = compiled.address_plan()
    for left, right in itertools.pairwise(plan):
        assert len(left.first) <= len(right.first)
        if len(left.first) == len(right.first):
            assert left.last < right.first
            touching = int.from_bytes(left.last, "big") + 1 == int.from_bytes(right.first, "big")
            assert not (touching and left[2:] == right[2:]), "equal neighbours are one range"
    for entry in plan:
        assert entry.first <= entry.last
        assert entry.deny or entry.allow
        assert not entry.deny.intersect(entry.allow)
    packed = unmap(address.packed)
    if len(packed) == 4:
        address = ipaddress.IPv4Address(packed)
    inside = [entry for entry in plan if len(entry.first) == len(packed) and entry.first <= packed <= entry.last]
    assert len(inside) <= 1
    for protocol, port in _questions(document):
        said = naive.by_address_rules(document, address, protocol, port)
        assert any(entry.allow.contains(protocol, port) for entry in inside) == (said == "allow")
        assert any(entry.deny.contains(protocol, port) for entry in inside) == (said == "deny")


@given(POLICIES, st.lists(NAMES, min_size=1, max_size=5))
def test_classes(document: dict[str, Any], names: list[str]) -> None:
    compiled = _compile(document)
    classes = compiled.port_classes()
    assert len(set(classes)) == len(classes)
    assert all(classes)
    assert classes == _compile(document).port_classes()
    for name in names:
        decision = compiled.decide_name(name)
        assert not decision.ports or decision.ports in classes
        link = compiled.chain_deny(names[0])
        rest = decision.ports.minus(link.ports) if link else decision.ports
        learnable = compiled.learnable(rest)
        assert not learnable.minus(rest), "never wider than allowed"
        assert not learnable or learnable in classes
