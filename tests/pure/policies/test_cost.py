"""What compiling and deciding cost, counted in calls where it can be, and within generous bounds where it can't."""

from __future__ import annotations

import gc
import json
import sys
import time

import pytest

from policies.matcher import CompiledPolicy, compile_policy
from policies.model import Action, NetworkPolicy, PolicyError
from policies.parser import parse_policy, parse_rule_file


def _large(count: int) -> CompiledPolicy:
    rules = [
        {
            "action": "deny" if index % 3 else "allow",
            "target": [
                f"h{index}.example.com",
                f"*.s{index}.example.org",
                f"10.{index // 256}.{index % 256}.0/24",
                f"2001:db8:{index:x}::/48",
            ][index % 4],
            **({"ports": [443, f"{1000 + index}-{9000 + index}"], "protocol": "tcp"} if index % 5 == 0 else {}),
        }
        for index in range(count)
    ]
    return compile_policy(parse_policy(json.dumps({"egress": rules})))


def _calls(compiled: CompiledPolicy, name: str) -> int:
    """Calls, of Python and C functions, that one decision makes."""
    compiled.decide_name(name)
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    gc.collect()
    gc.disable()  # a collection has callbacks, hypothesis' among them, and finalizers: they would be counted
    sys.setprofile(count)
    try:
        compiled.decide_name(name)
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


@pytest.mark.parametrize("name", ["h4.example.com", "a.b.s1.example.org", "a.b.c.d.elsewhere.example", "x"])
def test_deciding_a_name_costs_the_same_with_any_number_of_rules(name: str) -> None:
    few, many = _calls(_large(10), name), _calls(_large(4096), name)
    assert few == many
    assert many <= 5 + 2 * name.count(".") + 2


def test_nothing_grows_with_the_names_asked() -> None:
    compiled = _large(40)
    names = [f"n{index}.s1.example.org" for index in range(1000)]
    decisions = {id(compiled.decide_name(name)) for name in names}
    assert len(decisions) == 1, "one decision per target, not per name"
    assert len(compiled.port_classes()) <= 42


def test_thousands_of_rules_compile_at_once() -> None:
    started = time.process_time()
    compiled = _large(4096)
    assert compiled.address_plan()
    assert compiled.port_classes()
    assert time.process_time() - started < 2, "some 0.1 s here; the bound is for a loaded machine"


@pytest.mark.parametrize("kind", ["names", "addresses", "nested"])
def test_rules_that_multiply_are_refused_in_time(kind: str) -> None:
    """Two thousand ports on what holds two thousand targets with ports of their own: four million cases."""
    if kind == "nested":
        wide = [f"2001:db8:ffff:ffff:ffff:ffff:ffff:ffff/{index % 128 + 1}" for index in range(4096)]
        narrow = []
    else:
        wide = ["*" if kind == "names" else "0.0.0.0/0"] * 2048
        narrow = [f"h{index}" if kind == "names" else f"10.0.{index // 256}.{index % 256}" for index in range(2048)]
    rules = [
        {"action": "deny", "target": target, "ports": [2 * index + 1]} for index, target in enumerate([*wide, *narrow])
    ]
    policy = parse_policy(json.dumps({"defaultAction": "allow", "egress": rules}))
    started = time.process_time()
    with pytest.raises(PolicyError, match="too intricate"):
        compile_policy(policy)
    assert time.process_time() - started < 6, "some half a second here"


def test_many_ports_alone_are_no_matter() -> None:
    rules = [{"action": "allow", "target": "*.example.com", "ports": [2 * index + 1]} for index in range(4096)]
    rules += [{"action": "allow", "target": f"10.{index}.0.0/16", "ports": [index + 1]} for index in range(250)]
    compiled = compile_policy(parse_policy(json.dumps({"egress": rules})))
    assert len(compiled.decide_name("a.example.com").ports.tcp) == 4096


def test_twenty_thousand_denied_prefixes() -> None:
    text = "\n".join(f"{11 + index // 4096}.{index // 16 % 256}.{index % 16 * 16}.0/21" for index in range(20_000))
    rules = parse_rule_file(text, Action.DENY, "deny.always")
    started = time.process_time()
    compiled = compile_policy(NetworkPolicy(Action.ALLOW), rules)
    assert len(compiled.address_plan()) > 100
    assert time.process_time() - started < 6, "some 0.3 s here"
