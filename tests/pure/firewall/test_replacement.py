"""The stages of a replacement, from the golden rulesets."""

from __future__ import annotations

import re

import pytest

from egress.firewall.replacement import stages
from egress.firewall.ruleset import lockdown, render
from egress.firewall.tables import Inventory
from tests.pure.firewall.specs import SITE, SPECS, STAMP

BASES = frozenset({"cleared", "raw_out", "raw_in", "output", "input", "forward", "stamp"})
LOCKED = Inventory(BASES, frozenset({"policy_lockdown", "neighbours", "refuse"}), frozenset(), frozenset())


def declared(text: str) -> set[str]:
    return set(re.findall(r"^\t(?:chain|set|map) (\w+) \{$", text, re.MULTILINE))


@pytest.mark.parametrize("name", sorted(SPECS))
def test_every_rule_survives_and_every_reference_has_its_target(name: str) -> None:
    text = render(*SPECS[name])
    steps = stages(text, "00c0ffee", LOCKED)
    table = text.split("\n}\n", 1)[0]
    rules = [line for line in table.splitlines() if line.startswith("\t\t")]
    staged = steps.prepare + steps.switch.split("\ntable inet sallyport {\n", 1)[1].split("\n}\n", 1)[0]
    for rule in rules:
        plain = staged.replace("_00c0ffee", "")
        assert rule in plain
    for target in re.findall(r"(?:goto |jump |@)(\w+)", staged):
        assert target in declared(staged), target


@pytest.mark.parametrize("name", sorted(SPECS))
def test_nothing_that_is_in_use_is_touched_before_the_switch(name: str) -> None:
    prepare = stages(render(*SPECS[name]), "00c0ffee", LOCKED).prepare
    assert "flush" not in prepare
    assert "delete" not in prepare
    assert "hook" not in prepare
    for fresh in declared(prepare):
        assert fresh.endswith("_00c0ffee") or fresh.startswith("learned") or fresh == "ports"


def test_what_was_there_before_goes() -> None:
    text = render(*SPECS["deny_all"])
    before = Inventory(
        BASES | {"intercept", "foreign"},
        frozenset({"policy_old", "mode_dns_nft", "refuse_1", "open_1", "class_1_0"}),
        frozenset({"own4_1", "learned4_0", "learned4_7"}),
        frozenset({"deny4_1"}),
    )
    steps = stages(text, "2", before)
    assert "delete chain inet sallyport policy_old\n" in steps.switch
    assert "delete chain inet sallyport foreign\n" in steps.switch
    assert "mode_dns_nft" not in steps.switch.split("table inet sallyport {")[0]
    assert steps.sweep.splitlines() == [
        "flush chain inet sallyport class_1_0",
        "flush chain inet sallyport open_1",
        "flush chain inet sallyport refuse_1",
        "delete map inet sallyport deny4_1",
        "delete chain inet sallyport class_1_0",
        "delete chain inet sallyport open_1",
        "delete chain inet sallyport refuse_1",
        "delete set inet sallyport learned4_7",
        "delete set inet sallyport own4_1",
    ]


def test_learned_addresses_come_with_the_switch() -> None:
    steps = stages(render(*SPECS["ports"]), "2", LOCKED)
    assert "198.51.100.10" not in steps.prepare
    assert "198.51.100.10 timeout 120000ms" in steps.switch
    assert steps.switch.index("flush set inet sallyport learned4_0\n") < steps.switch.index("198.51.100.10")


def test_the_lockdown_has_the_same_table() -> None:
    assert declared(lockdown(SITE, STAMP)) >= BASES - {"foreign"}
