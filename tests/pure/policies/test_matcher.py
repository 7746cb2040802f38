"""Decisions: the lines of the policy language one by one, and their reasons."""

from __future__ import annotations

import json
from typing import Any

import pytest

from policies.address import parse_address
from policies.matcher import CompiledPolicy, Teach, compile_policy
from policies.model import Action
from policies.parser import parse_policy, parse_rule_file, parse_target_list
from policies.ports import EVERYTHING, FULL, NOTHING, PortSet

ALLOWED, DENIED = Action.ALLOW, Action.DENY


def _compile(*rules: str, default: str = "deny") -> CompiledPolicy:
    """Rules as `action target [protocol/]ports comment`, e.g. `deny *.example.com tcp/25,80-90`."""
    egress = []
    for text in rules:
        action, target, *rest = text.split(" ", 2)
        rule: dict[str, Any] = {"action": action, "target": target}
        if rest:
            protocol, _, ports = rest[0].rpartition("/")
            if ports:
                rule["ports"] = ports.split(",")
            rule["protocol"] = protocol or None
        egress.append(rule)
    return compile_policy(parse_policy(json.dumps({"defaultAction": default, "egress": egress})))


def _address(compiled: CompiledPolicy, text: str, port: int | None = 443, protocol: str = "tcp") -> bool:
    return compiled.decide_address(parse_address(text), protocol, port).action is ALLOWED


def _teach(compiled: CompiledPolicy, text: str) -> Teach:
    return compiled.teach(parse_address(text))


def _tcp_udp(*ranges: tuple[int, int]) -> PortSet:
    return PortSet(ranges, ranges, False)


def test_first_match_decides_by_name() -> None:
    compiled = _compile("deny bad.example.com", "allow *.example.com", "deny x.example.com")
    assert compiled.decide_name("bad.example.com").action is DENIED
    assert compiled.decide_name("x.example.com").action is ALLOWED
    assert compiled.decide_name("y.x.example.com").ports == EVERYTHING
    assert compiled.decide_name("example.com").action is DENIED, "a suffix isn't the bare name"
    assert compiled.decide_name("badexample.com").action is DENIED
    assert compiled.decide_name("com").action is DENIED


def test_first_match_decides_by_name_and_port() -> None:
    compiled = _compile("deny *.example.com 25", "allow *.example.com")
    decision = compiled.decide_name("a.example.com")
    assert decision.action is ALLOWED
    assert decision.ports == EVERYTHING.minus(_tcp_udp((25, 25)))
    assert decision.rule is not None
    assert decision.rule.origin == "egress[1]"
    closed = compiled.decide_name_port("a.example.com", "tcp", 25)
    assert (closed.action, closed.reason) == (DENIED, 'rule egress[0] "deny *.example.com port 25"')
    assert compiled.decide_name_port("a.example.com", "tcp", 26).action is ALLOWED


def test_ports_add_up_over_rules() -> None:
    compiled = _compile("allow a.example.com tcp/443", "allow *.example.com 80", "allow * udp/443")
    assert compiled.decide_name("a.example.com").ports == PortSet(((80, 80), (443, 443)), ((80, 80), (443, 443)), False)


def test_denying_a_port_under_default_allow() -> None:
    compiled = _compile("deny a.example.com 25", default="allow")
    decision = compiled.decide_name("a.example.com")
    assert (decision.action, decision.reason) == (ALLOWED, "default allow")
    assert not decision.ports.contains("tcp", 25)
    assert decision.ports.contains("tcp", 26)
    assert compiled.decide_name("b.example.com").ports == EVERYTHING


@pytest.mark.parametrize(
    "rules",
    [
        ("deny a.example.com", "allow *"),
        ("deny a.example.com tcp/", "deny a.example.com udp/", "allow *"),
        ("deny a.example.com 1-65535", "allow *"),
        ("deny a.example.com 1-852,854-65535", "allow *"),
        ("deny a.example.com 1-1000", "deny *.example.com 1001-65535", "allow *"),
    ],
)
@pytest.mark.parametrize("default", ["allow", "deny"])
def test_a_name_whose_every_port_is_denied_is_a_denied_name(rules: tuple[str, ...], default: str) -> None:
    compiled = _compile(*rules, default=default)
    decision = compiled.decide_name("a.example.com")
    assert (decision.action, decision.ports) == (DENIED, NOTHING)
    assert decision.rule is not None
    assert decision.rule.origin == "egress[0]"
    assert compiled.decide_name_port("a.example.com", "echo", None).action is DENIED
    assert compiled.decide_name("b.example.com").action is ALLOWED


def test_the_star_is_any_name_but_the_root() -> None:
    compiled = _compile("allow *")
    assert compiled.decide_name("com").action is ALLOWED
    assert compiled.decide_name("").action is DENIED
    assert not _address(compiled, "192.0.2.1"), "any name, not any address"
    assert _compile("deny *", default="allow").decide_name("").action is ALLOWED


def test_853_opens_only_by_name() -> None:
    assert not _compile("allow *").decide_name("a.example").ports.contains("tcp", 853)
    assert not _compile("allow * tcp/").decide_name("a.example").ports.contains("tcp", 853)
    assert not _compile(default="allow").decide_name("a.example").ports.contains("udp", 853)
    assert _compile("allow * 853").decide_name("a.example").ports == _tcp_udp((853, 853))
    assert _compile("allow * 800-900").decide_name("a.example").ports.contains("udp", 853)
    assert not _compile("deny a.example", "allow * 853").decide_name("a.example").ports
    compiled = _compile(
        "allow 0.0.0.0/0", "allow 192.0.2.0/24 tcp/853", "deny 198.51.100.0/24", "allow 198.51.100.1 853"
    )
    assert not _address(compiled, "8.8.8.8", 853)
    assert _address(compiled, "192.0.2.1", 853)
    assert not _address(compiled, "192.0.2.1", 853, "udp")
    assert not _address(compiled, "198.51.100.1", 853)
    reason = _compile(default="allow").decide_address(b"\x08\x08\x08\x08", "tcp", 853).reason
    assert reason == "port 853 opens only for a rule that names it"


def test_links_of_a_chain() -> None:
    compiled = _compile("deny *", "deny t.cdn.example 25", "allow ok.ads.example", "deny *.ads.example")
    assert compiled.chain_deny("free.example") is None, "neither the star nor the default counts"
    partial = compiled.chain_deny("t.cdn.example")
    assert partial is not None
    assert partial.ports == _tcp_udp((25, 25))
    assert partial.reason == 'rule egress[1] "deny t.cdn.example port 25"'
    whole = compiled.chain_deny("x.ads.example")
    assert whole is not None
    assert whole.ports == FULL
    rest = compiled.chain_deny("ok.ads.example")
    assert rest is not None
    assert not rest.ports.intersect(EVERYTHING), "allowed first, so only what an allowance leaves is denied"
    assert _compile(default="deny").chain_deny("") is None


def test_classes_hold_what_a_link_leaves() -> None:
    compiled = _compile("deny t.cdn.example 25", "allow a.example")
    link, name = compiled.chain_deny("t.cdn.example"), compiled.decide_name("a.example")
    assert link is not None
    rest = name.ports.minus(link.ports)
    assert set(compiled.port_classes()) == {EVERYTHING, rest}
    assert compiled.learnable(rest) == rest
    assert compiled.learnable(_tcp_udp((80, 80))) == NOTHING


def test_the_operator_comes_first() -> None:
    compiled = compile_policy(
        parse_policy('{"egress": [{"action": "allow", "target": "*"}, {"action": "deny", "target": "cache.example"}]}'),
        always_deny=parse_rule_file("bad.example\n10.0.0.1", Action.DENY, "deny.always"),
        always_allow=parse_target_list("bad.example,cache.example:443,10.0.0.0/8", Action.ALLOW, "ALWAYS_ALLOW"),
    )
    assert compiled.decide_name("bad.example").reason == 'rule deny.always:1 "deny bad.example"'
    assert compiled.decide_name("cache.example").action is ALLOWED
    assert compiled.decide_name_port("cache.example", "tcp", 443).reason == (
        'rule ALWAYS_ALLOW[1] "allow cache.example port 443"'
    )
    assert not _address(compiled, "10.0.0.1")
    assert _address(compiled, "10.0.0.2")
    assert compiled.rule_count == 7


def test_address_rules_are_ordered() -> None:
    compiled = _compile("allow 10.1.0.0/16", "deny 10.0.0.0/8", "allow 10.2.0.0/16", "allow 192.0.2.0/24 tcp/443")
    assert _address(compiled, "10.1.2.3")
    assert not _address(compiled, "10.2.2.3")
    assert _address(compiled, "192.0.2.1", 443)
    assert not _address(compiled, "192.0.2.1", 443, "udp")
    assert not _address(compiled, "192.0.2.1", None, "echo")
    assert _address(compiled, "10.1.2.3", None, "icmp")
    assert _address(compiled, "::ffff:10.1.2.3")
    assert compiled.decide_address(bytes.fromhex("00000000000000000000ffff0a010203"), "tcp", 1).action is ALLOWED
    assert compiled.decide_address(parse_address("10.1.2.3"), "sctp", 80).action is DENIED
    assert compiled.decide_address(parse_address("10.1.2.3"), "", None).action is ALLOWED
    assert compiled.decide_address(parse_address("10.1.2.3"), "tcp", 70000).action is DENIED
    assert compiled.decide_address(parse_address("10.2.0.1"), "tcp", 1).reason == 'rule egress[1] "deny 10.0.0.0/8"'
    assert compiled.decide_address(parse_address("8.8.8.8"), "tcp", 1).reason == "default deny"


def test_reasons_carry_the_comment() -> None:
    document = '{"egress": [{"action": "deny", "target": "*.example.com", "comment": "no ads"}]}'
    assert compile_policy(parse_policy(document)).decide_name("a.example.com").reason == (
        'rule egress[0] "deny *.example.com" (no ads)'
    )


METADATA = [
    "169.254.169.254",
    "169.254.0.1",
    "fe80::1",
    "fd00:ec2::254",
    "fd20:ce::254",
    "fd00:42::42",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "64:ff9b::169.254.169.254",
    "2002:a9fe:a9fe::1",
    "64:ff9b::100.100.100.200",
]


@pytest.mark.parametrize("text", METADATA)
@pytest.mark.parametrize("default", ["allow", "deny"])
def test_broad_rules_do_not_open_metadata(text: str, default: str) -> None:
    broad = (
        "0.0.0.0/0",
        "::/0",
        "168.0.0.0/5",
        "100.64.0.0/10",
        "192.0.0.0/24",
        "fc00::/7",
        "fe00::/8",
        "64:ff9b::/96",
    )
    compiled = _compile(*(f"allow {target}" for target in broad), default=default)
    assert not _address(compiled, text)
    assert _teach(compiled, text) is Teach.STRIP
    assert "metadata or link-local" in compiled.decide_address(parse_address(text), "tcp", 80).reason
    assert _address(compiled, "2001:db8::1")
    assert _address(compiled, "100.64.0.1")


@pytest.mark.parametrize("text", METADATA)
def test_a_rule_that_names_it_opens_metadata_on_its_ports(text: str) -> None:
    compiled = _compile(f"allow {_canonical(text)} tcp/80", default="allow")
    assert _address(compiled, text, 80)
    assert not _address(compiled, text, 81)
    assert not _address(compiled, text, 80, "udp")
    assert _teach(compiled, text) is Teach.KEEP


def _canonical(text: str) -> str:
    """The address as canonical text, as a rule would hold it."""
    return parse_policy(json.dumps({"egress": [{"action": "allow", "target": text}]})).egress[0].target


def test_prefixes_inside_the_block_open_it_and_order_still_counts() -> None:
    assert _address(_compile("allow 169.254.0.0/16"), "169.254.169.254")
    assert _address(_compile("allow fe80::/64"), "fe80::1")
    assert not _address(_compile("allow 169.254.169.254"), "64:ff9b::169.254.169.254"), "a v4 allow is for v4"
    # The broad allowance doesn't count there, so the broad denial behind it does.
    assert not _address(_compile("allow 0.0.0.0/0", "deny 0.0.0.0/0", "allow 169.254.169.254"), "169.254.169.254")
    assert _address(_compile("allow 0.0.0.0/0", "allow 169.254.169.254", "deny 0.0.0.0/0"), "169.254.169.254")


def test_denials_reach_into_nat64_and_6to4() -> None:
    compiled = _compile("deny 192.0.2.0/24", "allow ::/0", "deny 198.51.100.0/24", "allow 203.0.113.0/24")
    for form in ("64:ff9b::192.0.2.1", "2002:c000:201::1"):
        assert not _address(compiled, form)
    for form in ("64:ff9b::198.51.100.1", "2002:c633:6401::1", "64:ff9b::203.0.113.1"):
        assert _address(compiled, form), "the allowance stands before the denial"
    assert not _address(_compile("allow 203.0.113.0/24"), "64:ff9b::203.0.113.1"), "a v4 allow is for v4"


NEVER = [
    "127.0.0.1",
    "127.9.9.9",
    "::1",
    "0.0.0.0",
    "0.1.2.3",
    "::",
    "224.0.0.1",
    "239.1.1.1",
    "ff02::1",
    "240.0.0.1",
    "255.255.255.255",
]
INTERNAL = [
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.0.1",
    "100.64.0.1",
    "fc00::1",
    "fd12::1",
    "fec0::1",
    "198.18.0.1",
    "198.19.255.255",
    "2001:2::1",
    "192.0.0.1",
    "100::1",
    "64:ff9b:1::1",
    "2001::1",
    "::2",
    "::10.0.0.1",
    "64:ff9b::a00:1",
    "2002:a00:1::1",
    "2002:c0a8:1::",
]
ORDINARY = [
    "8.8.8.8",
    "192.0.2.1",
    "198.51.100.1",
    "203.0.113.1",
    "2001:db8::1",
    "2606::1",
    "172.32.0.1",
    "11.0.0.1",
    "100.128.0.1",
    "198.20.0.1",
    "192.0.1.1",
    "2001:1::1",
    "2001:3::1",
    "64:ff9b::8.8.8.8",
    "2002:808:808::1",
    "168.63.129.17",
    "3fff::1",
]


@pytest.mark.parametrize("default", ["allow", "deny"])
def test_what_a_name_teaches(default: str) -> None:
    compiled = _compile("allow *", "deny 192.0.2.0/24", "deny 10.0.0.0/8", default=default)
    for text in ORDINARY:
        assert _teach(compiled, text) is Teach.LEARN, text
    for text in NEVER:
        assert _teach(compiled, text) is Teach.STRIP, text
    for text in INTERNAL:
        assert _teach(compiled, text) is (Teach.LEARN if default == "allow" else Teach.STRIP), text
    assert compiled.teach(bytes.fromhex("00000000000000000000ffff7f000001")) is Teach.STRIP


def test_address_rules_keep_special_addresses_in_the_answer() -> None:
    compiled = _compile("allow 10.0.0.0/8 tcp/443", "deny 127.0.0.1", "allow 127.0.0.0/8", "allow ::/0")
    assert _teach(compiled, "10.0.0.1") is Teach.KEEP
    assert _teach(compiled, "127.0.0.1") is Teach.STRIP
    assert _teach(compiled, "127.0.0.2") is Teach.KEEP
    assert _teach(compiled, "192.168.0.1") is Teach.STRIP
    assert _teach(compiled, "64:ff9b::c0a8:1") is Teach.KEEP
    assert _teach(_compile("allow 10.0.0.0/8"), "64:ff9b::a00:1") is Teach.STRIP
