"""Warnings: that they come where they should, and that a rule said never to decide really never does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress.commands.regrets import regrets
from policies.address import parse_address
from policies.matcher import compile_policy
from policies.model import Action, NetworkPolicy, numbered
from policies.parser import parse_policy


def told(*rules: str, default: str = "deny", mode: str = "dns+nft") -> list[str]:
    policy = parse_policy(f'{{"defaultAction": "{default}", "egress": [{",".join(rules)}]}}')
    return [f"{regret.path} {regret.message}" for regret in regrets(policy, mode=mode)]


def rule(text: str, ports: str = "", protocol: str = "") -> str:
    action, target = text.split()
    more = (f', "ports": {ports}' if ports else "") + (f', "protocol": "{protocol}"' if protocol else "")
    return f'{{"action": "{action}", "target": "{target}"{more}}}'


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ((rule("allow *.example.com"), rule("deny a.example.com")), "$.egress[1] never decides anything"),
        ((rule("allow *.example.com"), rule("allow *.b.example.com")), "covers it already"),
        ((rule("allow a.example.com"), rule("allow a.example.com")), "is egress[0] again"),
        ((rule("allow a.example.com", "[443]"), rule("deny a.example.com")), "leaves tcp+udp 443 open"),
        ((rule("deny 10.0.0.0/8"), rule("allow 10.1.0.0/16")), "says otherwise"),
        ((rule("deny 0.0.0.0/0"), rule("allow 169.254.169.254")), "never decides"),
        ((rule("allow *"),), "any name is allowed"),
        ((rule("allow *.com"),), "top-level domain"),
        ((rule("allow 0.0.0.0/0"),), "does not open the metadata"),
        ((rule("allow ::/0"),), "does not open the metadata"),
        ((rule("allow 169.254.169.254"),), "opens a metadata service"),
        ((rule("allow 169.254.0.0/16"),), "169.254.169.254 among them"),
        ((rule("allow dns.example.com", "[853]"),), "opens port 853"),
        ((rule("allow a.example.com", '["1-1000"]'),), "has a range that opens port 853"),
        ((rule("allow 192.0.2.53", "[53]"),), "port 53 always goes"),
    ],
)
def test_told(rules: tuple[str, ...], words: str) -> None:
    found = told(*rules)
    assert len(found) == 1, found
    assert words in found[0]


@pytest.mark.parametrize(
    "rules",
    [
        (rule("deny a.example.com"), rule("allow *.example.com")),
        (rule("allow *.example.com"), rule("allow example.com")),
        (rule("allow a.example.com", "[443]", "tcp"), rule("allow a.example.com", "[443]", "udp")),
        (rule("allow a.example.com", "[443]"), rule("allow a.example.com", "[80]")),
        (rule("deny 10.0.0.1"), rule("allow 10.0.0.0/8")),
        (rule("deny a.example.com", "[25]"), rule("allow a.example.com")),
        (rule("deny *"),),
        (rule("deny 169.254.169.254"), rule("deny 0.0.0.0/0")),
    ],
)
def test_nothing_to_tell(rules: tuple[str, ...]) -> None:
    assert told(*rules) == []


def test_a_metadata_rule_behind_a_broad_one_is_alive() -> None:
    found = told(rule("allow 0.0.0.0/0"), rule("allow 169.254.169.254"))
    assert not any("never decides" in text for text in found)


def test_whole_policies() -> None:
    assert "no rule denies anything" in told(rule("allow a.example.com"), default="allow")[0]
    assert told(default="allow") == []
    assert "not enforced" in told(rule("allow 192.0.2.1"), mode="dns")[0]
    many = NetworkPolicy(egress=parse_policy(f'{{"egress": [{rule("deny 192.0.2.1")}]}}').egress * 3)
    assert any("more than the 2" in regret.message for regret in regrets(many, max_rules=2))


_TARGETS = st.sampled_from(
    ["*", "*.example.com", "example.com", "a.example.com", "b.a.example.com", "*.a.example.com", "0.0.0.0/0", "::/0",
     "10.0.0.0/8", "10.1.0.0/16", "10.1.2.3", "169.254.0.0/16", "169.254.169.254", "2001:db8::/32", "2001:db8::1"]
)  # fmt: skip
_RULES = st.builds(
    rule,
    st.builds("{} {}".format, st.sampled_from(["allow", "deny"]), _TARGETS),
    st.sampled_from(["", "", "[443]", "[853]", '["1-1000"]', '["400-65535"]']),
    st.sampled_from(["", "", "tcp", "udp"]),
)
_NAMES = ("example.com", "a.example.com", "b.a.example.com", "c.b.a.example.com", "x.example.com", "example.org")
_ADDRESSES = ("10.1.2.3", "10.1.2.4", "10.2.0.1", "192.0.2.1", "169.254.169.254", "169.254.1.1", "2001:db8::1",
              "2001:db8::2", "2001:db9::1", "fe80::1")  # fmt: skip


@given(st.lists(_RULES, min_size=2, max_size=6), st.sampled_from(["allow", "deny"]))
def test_a_rule_that_never_decides_can_go(rules: list[str], default: str) -> None:
    policy = parse_policy(f'{{"defaultAction": "{default}", "egress": [{",".join(rules)}]}}')
    for regret in regrets(policy):
        if "never decides" not in regret.message and "again" not in regret.message:
            continue
        index = int(regret.path[9:-1])
        without = policy._replace(egress=numbered([*policy.egress[:index], *policy.egress[index + 1 :]]))
        before, after = compile_policy(policy), compile_policy(without)
        for name in _NAMES:
            assert before.decide_name(name).ports == after.decide_name(name).ports
        for text in _ADDRESSES:
            packed = parse_address(text)
            assert before.decide_address(packed, "", None).ports == after.decide_address(packed, "", None).ports


@given(st.lists(_RULES, max_size=6))
def test_regrets_of_anything(rules: list[str]) -> None:
    policy = parse_policy(f'{{"egress": [{",".join(rules)}]}}')
    for regret in regrets(policy, mode="dns", max_rules=2):
        assert regret.message.isprintable()
        assert regret.path.startswith("$.")


def test_four_thousand_rules_are_no_matter() -> None:
    import time

    text = ",".join(
        rule(
            f"allow a{number}.b{number % 7}.example.com"
            if number % 2
            else f"deny 10.{number // 256}.{number % 256}.0/24"
        )
        for number in range(4096)
    )
    policy = parse_policy(f'{{"egress": [{text}]}}')
    started = time.process_time()
    assert regrets(policy, max_rules=4096) == ()
    assert time.process_time() - started < 3
    assert policy.egress[0].action is Action.DENY
