"""The ruleset's text. After a change on purpose, run this with SALLYPORT_GOLDEN=write, and read the diff."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress.firewall.addressmap import port_rules, show, span
from egress.firewall.ruleset import lockdown, render
from policies.ports import EVERYTHING, FULL, NOTHING, PortSet
from tests.pure.firewall.specs import SITE, SPECS, STAMP

GOLDEN = Path(__file__).parent / "golden"
TEXTS = {name: render(spec, site) for name, (spec, site) in SPECS.items()} | {"lockdown": lockdown(SITE, STAMP)}


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_golden(name: str) -> None:
    path = GOLDEN / f"{name}.nft"
    if os.environ.get("SALLYPORT_GOLDEN") == "write":
        path.write_text(TEXTS[name])
    assert TEXTS[name] == path.read_text()


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.glob("*.nft")} == set(TEXTS)


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_only_our_own_tables_are_named(name: str) -> None:
    for line in TEXTS[name].splitlines():
        if not line.startswith(("\t", "}")):
            words = line.replace("{", "").split()
            assert words[-1] in ("sallyport", "sallyport_cut") or words[:2] == ["flush", "chain"], line
            assert "ruleset" not in words, line
            assert any(word in words for word in ("sallyport", "sallyport_cut")), line


def test_every_base_chain_that_drops_ends_in_a_verdict() -> None:
    """A chain's policy is not yet set in the instant of a replacement."""
    for text in TEXTS.values():
        for block in text.split("\n\t}"):
            if "policy drop;" in block:
                assert block.splitlines()[-1].split()[-1] in ("drop", "refuse"), block


def test_secrets_are_all_different_places() -> None:
    """The exemption opens, the stamp approves, the flow mark remembers: none stands where another should."""
    text = TEXTS["deny_all"]
    assert text.count("0xdeadbeef") == text.count("0xdeadbeef meta priority cafe:babe") + text.count("socket mark")
    assert "ct mark set 0x12345679 accept" in text
    assert "meta mark set 0x80000001 meta priority set 9000:1" in text


def test_the_relays_packets_are_told_one_by_one() -> None:
    """Its connection mark opens nothing without the mark and priority of its sockets."""
    text = TEXTS["names_of_connections"]
    ours, theirs = "meta mark 0xfeedface meta priority c0ff:ee01", "ct mark 0x52345679"
    output = text.split("chain output {")[1].split("\n\t}")[0].splitlines()
    at = next(place for place, line in enumerate(output) if f"{ours} jump relayed" in line)
    assert f"{theirs} goto refuse" in output[at + 1]
    assert "ct direction original ct mark 0x12345679 accept" in output[at + 2]
    assert f"{theirs} accept" in text.split("chain relayed {")[1].split("\n\t}")[0]
    assert text.count(f"{theirs} accept") == 1
    for name in ("class_0", "class_1"):
        block = text.split(f"chain {name} {{")[1].split("\n\t}")[0]
        assert "tcp dport" not in block or "443" not in block.replace("1-442", "").replace("444-", "")


def test_ports() -> None:
    assert port_rules(NOTHING, "accept") == []
    assert port_rules(FULL, "drop") == [
        "meta l4proto tcp drop",
        "meta l4proto udp drop",
        "icmp type echo-request drop",
        "icmpv6 type echo-request drop",
    ]
    assert port_rules(EVERYTHING, "accept")[0] == "tcp dport { 1-852, 854-65535 } accept"
    assert port_rules(PortSet(((443, 443),), (), False), "accept") == ["tcp dport 443 accept"]


ADDRESSES = st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16))


@given(ADDRESSES, st.integers(0, 2**32))
def test_a_span_means_its_range(first: bytes, more: int) -> None:
    size = len(first)
    last = min(int.from_bytes(first) + more, 2 ** (8 * size) - 1).to_bytes(size)
    text = span(first, last)
    if "/" in text:
        network = ipaddress.ip_network(text)
        assert (network[0].packed, network[-1].packed) == (first, last)
    elif "-" in text:
        low, high = text.split("-")
        assert (ipaddress.ip_address(low).packed, ipaddress.ip_address(high).packed) == (first, last)
    else:
        assert first == last == ipaddress.ip_address(text).packed


@given(ADDRESSES)
def test_an_address_is_shown_as_it_is_read(packed: bytes) -> None:
    assert ipaddress.ip_address(show(packed)).packed == packed
