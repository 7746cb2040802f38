"""PATCH and DELETE: what is the same rule, which of two stays, what goes."""

from __future__ import annotations

import json
from typing import Any

from policies.edit import delete, patch
from policies.model import NetworkPolicy
from policies.parser import parse_delete, parse_patch, parse_policy


def _policy(*rules: dict[str, Any]) -> NetworkPolicy:
    return parse_policy(json.dumps({"egress": rules}))


def _rules(policy: NetworkPolicy) -> list[dict[str, Any]]:
    document: Any = policy.to_document()["egress"]
    return [dict(rule) for rule in document]


def _allow(target: str, **members: Any) -> dict[str, Any]:
    return {"action": "allow", "target": target, **members}


def _deny(target: str, **members: Any) -> dict[str, Any]:
    return {"action": "deny", "target": target, **members}


def _patched(policy: NetworkPolicy, *rules: dict[str, Any]) -> NetworkPolicy:
    return patch(policy, parse_patch(json.dumps(rules)))


def test_patch_rules_come_first_in_their_order() -> None:
    patched = _patched(_policy(_allow("a.example"), _allow("b.example")), _deny("*.c.example"), _allow("d.example"))
    assert [rule["target"] for rule in _rules(patched)] == ["*.c.example", "d.example", "a.example", "b.example"]
    assert [rule.origin for rule in patched.egress] == ["egress[0]", "egress[1]", "egress[2]", "egress[3]"]


def test_the_first_in_the_patch_wins_and_replaces() -> None:
    policy = _policy(_allow("a.example"), _allow("b.example"), _allow("A.example."))
    patched = _patched(policy, _deny("a.example."), _allow("A.EXAMPLE"))
    assert _rules(patched) == [_deny("a.example"), _allow("b.example")]


def test_the_same_rule_is_meant_not_spelt() -> None:
    policy = _policy(
        _allow("192.0.2.1/32"),
        _allow("2001:db8:0::1"),
        _allow("10.9.9.9/8"),
        _allow("a.example", ports=["443-443", 443], protocol="tcp"),
        _allow("b.example", ports=[80, 81, 82]),
        _allow("::ffff:198.51.100.1"),
    )
    patched = _patched(
        policy,
        _deny("192.0.2.1"),
        _deny("2001:db8::1/128"),
        _deny("10.0.0.0/8"),
        _deny("A.example", ports=["443"], protocol="TCP"),
        _deny("b.example", ports=["80-82"]),
        _deny("198.51.100.1"),
    )
    assert len(patched.egress) == 6
    assert {rule.action.value for rule in patched.egress} == {"deny"}


def test_other_ports_are_another_rule() -> None:
    policy = _policy(_allow("a.example", ports=[443]), _allow("a.example", protocol="tcp"), _allow("*.a.example"))
    assert len(_patched(policy, _deny("a.example")).egress) == 4
    assert len(_patched(policy, _deny("a.example", ports=[443], protocol="tcp")).egress) == 4
    assert len(_patched(policy, _deny("a.example", ports=[443])).egress) == 3


def test_a_comment_makes_no_other_rule() -> None:
    policy = _policy(_allow("a.example", comment="old"))
    assert _rules(_patched(policy, _allow("a.example", comment="new"))) == [_allow("a.example", comment="new")]


def test_the_default_stays() -> None:
    policy = parse_policy('{"defaultAction": "allow"}')
    assert _patched(policy, _deny("a.example")).default is policy.default


def test_doubled_rules_stay_where_nobody_touches_them() -> None:
    policy = _policy(_allow("a.example"), _allow("a.example"))
    assert len(policy.egress) == 2
    assert len(_patched(policy, _allow("b.example")).egress) == 3


def test_a_text_deletes_every_rule_of_its_target() -> None:
    policy = _policy(_allow("a.example"), _deny("a.example", ports=[25]), _allow("*.a.example"), _allow("b.example"))
    rest, removed = delete(policy, parse_delete('["A.example."]'))
    assert removed == 2
    assert _rules(rest) == [_allow("*.a.example"), _allow("b.example")]
    assert [rule.origin for rule in rest.egress] == ["egress[0]", "egress[1]"]


def test_an_object_deletes_one_rule() -> None:
    policy = _policy(
        _allow("a.example"), _deny("a.example", ports=[25]), _deny("a.example", ports=[25], protocol="tcp")
    )
    rest, removed = delete(policy, parse_delete('[{"target": "a.example", "ports": ["25-25"]}]'))
    assert removed == 1
    assert [rule.protocol for rule in rest.egress] == ["", "tcp"]
    rest, removed = delete(policy, parse_delete('[{"target": "a.example"}]'))
    assert removed == 1
    assert [rule.ports for rule in rest.egress] == [((25, 25),), ((25, 25),)]


def test_addresses_are_deleted_by_meaning() -> None:
    policy = _policy(_allow("192.0.2.1"), _allow("10.0.0.0/8"), _allow("2001:db8::1"))
    rest, removed = delete(policy, parse_delete('["192.0.2.1/32", "10.1.2.3/8", "2001:DB8:0:0:0::1"]'))
    assert (rest, removed) == (NetworkPolicy(), 3)


def test_nothing_found_is_the_same_policy() -> None:
    policy = _policy(_allow("*.a.example"))
    assert delete(policy, parse_delete('["a.example", "*", {"target": "*.a.example", "ports": [1]}]')) == (policy, 0)
