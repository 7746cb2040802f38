"""PATCH and DELETE bodies, rule files and lists of targets. The first octet of an input says which."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from fuzz.targets.policies import SAMPLES, VOCABULARY, comes_back
from fuzz.targets.policy_json import said
from policies.edit import delete, patch
from policies.model import Action, NetworkPolicy
from policies.parser import (
    PolicyError,
    parse_delete,
    parse_patch,
    parse_policy,
    parse_rule_file,
    parse_target_list,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST = 500
WORDS = (*VOCABULARY, b'[{"action":"allow","target":"', b'"}]', b'["', b'"]', b"\n", b" # ", b",", b'{"target":"')
POLICIES = tuple(parse_policy(json.dumps(sample)) for sample in SAMPLES)


def seeds() -> Iterator[bytes]:
    """One of each, and the rules of the samples."""
    for sample in SAMPLES:
        rules = sample.get("egress", [])
        yield b"\0" + json.dumps(rules).encode()
        yield b"\1" + json.dumps([rule["target"] for rule in rules]).encode()
        yield b"\2" + "\n".join(rule["target"] for rule in rules).encode()
        yield b"\3" + ",".join(rule["target"] for rule in rules).encode()
    yield b'\1[{"target": "10.0.0.0/8", "ports": ["1-1023"]}, "*"]'
    yield b"\2# comment\r\n\r\n  *.example.com # and why\n10.0.0.1\n"


def check(data: bytes) -> None:
    """Accepted edits do what they say to every sample; everything else is the one error."""
    kind, body = data[:1], data[1:]
    try:
        if kind == b"\0":
            patched(body)
        elif kind == b"\1":
            deleted(body)
        elif kind == b"\2":
            rules = parse_rule_file(body, Action.DENY, "deny.always")
            assert all(rule.action is Action.DENY and rule.origin.startswith("deny.always:") for rule in rules)
            comes_back(patch(NetworkPolicy(), rules))
        else:
            rules = parse_target_list(body.decode("latin-1"), Action.ALLOW, "ALLOW")
            comes_back(patch(NetworkPolicy(), rules))
    except PolicyError as error:
        said(error)


def patched(body: bytes) -> None:
    """The new rules stand in front, once each; what is not replaced stays in its order."""
    rules = parse_patch(body)
    assert rules
    for policy in POLICIES[:4]:
        after = patch(policy, rules)
        keys = [rule.key for rule in after.egress]
        assert set(keys) == {rule.key for rule in (*rules, *policy.egress)}
        assert keys[0] == rules[0].key
        assert [rule.origin for rule in after.egress] == [f"egress[{number}]" for number in range(len(keys))]
        assert patch(after, rules) == after, "the same patch again changes nothing"
    comes_back(patch(POLICIES[3], rules))


def deleted(body: bytes) -> None:
    """What is named is gone, and nothing else."""
    selectors = parse_delete(body)
    assert selectors
    for policy in POLICIES:
        after, count = delete(policy, selectors)
        assert count == len(policy.egress) - len(after.egress)
        for rule in policy.egress:
            named = any(
                selector.target == rule.target
                and (selector.whole or (selector.ports, selector.protocol) == (rule.ports, rule.protocol))
                for selector in selectors
            )
            assert named != any(rule.key == other.key for other in after.egress)
