"""Every row of the special-purpose address registries, and every address by which a cloud tells its secrets.

Rows are IANA's registries of special-purpose addresses (RFC 6890, RFC 8190) with their RFCs, and of multicast. What an
allowed name may teach of each: nothing under any default (NEVER), something under default allow only (INTERNAL), or
anything (ORDINARY: what is globally reachable, and documentation, where nobody is).
"""

from __future__ import annotations

import ipaddress
import json
from bisect import bisect_right

import pytest

from policies.matcher import Teach, compile_policy
from policies.ordinary import EDGES4
from policies.parser import parse_policy
from policies.special import AddressClass, classify

NEVER, INTERNAL, ORDINARY = "never", "under default allow", "always"

REGISTRY = [
    ("0.0.0.0/8", "RFC 791", NEVER),
    ("0.0.0.0/32", "RFC 1122", NEVER),
    ("10.0.0.0/8", "RFC 1918", INTERNAL),
    ("100.64.0.0/10", "RFC 6598", INTERNAL),
    ("127.0.0.0/8", "RFC 1122", NEVER),
    ("169.254.0.0/16", "RFC 3927", NEVER),
    ("172.16.0.0/12", "RFC 1918", INTERNAL),
    ("192.0.0.0/24", "RFC 6890", INTERNAL),
    ("192.0.0.0/29", "RFC 7335", INTERNAL),
    ("192.0.0.8/32", "RFC 7600", INTERNAL),
    ("192.0.0.9/32", "RFC 7723", INTERNAL),  # reachable, but it is the network's own door: stricter than the registry
    ("192.0.0.10/32", "RFC 8155", INTERNAL),  # the same
    ("192.0.0.170/32", "RFC 8880", INTERNAL),
    ("192.0.0.171/32", "RFC 8880", INTERNAL),
    ("192.0.2.0/24", "RFC 5737", ORDINARY),
    ("192.31.196.0/24", "RFC 7535", ORDINARY),
    ("192.52.193.0/24", "RFC 7450", ORDINARY),
    ("192.88.99.0/24", "RFC 7526", INTERNAL),
    ("192.88.99.2/32", "RFC 6751", INTERNAL),
    ("192.168.0.0/16", "RFC 1918", INTERNAL),
    ("192.175.48.0/24", "RFC 7534", ORDINARY),
    ("198.18.0.0/15", "RFC 2544", INTERNAL),
    ("198.51.100.0/24", "RFC 5737", ORDINARY),
    ("203.0.113.0/24", "RFC 5737", ORDINARY),
    ("224.0.0.0/4", "RFC 1112", NEVER),
    ("240.0.0.0/4", "RFC 1112", NEVER),
    ("255.255.255.255/32", "RFC 8190", NEVER),
    ("::1/128", "RFC 4291", NEVER),
    ("::/128", "RFC 4291", NEVER),
    ("::/96", "RFC 4291", INTERNAL),  # not in the registry: compatible, deprecated
    ("::ffff:0:0:0/96", "RFC 2765", INTERNAL),  # not in the registry: translated, obsolete
    ("64:ff9b:1::/48", "RFC 8215", INTERNAL),
    ("100::/64", "RFC 6666", INTERNAL),
    ("100:0:0:1::/64", "RFC 9780", INTERNAL),
    ("2001::/23", "RFC 2928", INTERNAL),
    ("2001::/32", "RFC 4380", INTERNAL),
    ("2001:1::1/128", "RFC 7723", ORDINARY),
    ("2001:1::2/128", "RFC 8155", ORDINARY),
    ("2001:1::3/128", "RFC 9665", ORDINARY),
    ("2001:2::/48", "RFC 5180", INTERNAL),
    ("2001:3::/32", "RFC 7450", ORDINARY),
    ("2001:4:112::/48", "RFC 7535", ORDINARY),
    ("2001:10::/28", "RFC 4843", INTERNAL),
    ("2001:20::/28", "RFC 7343", ORDINARY),
    ("2001:30::/28", "RFC 9374", ORDINARY),
    ("2001:db8::/32", "RFC 3849", ORDINARY),
    ("2620:4f:8000::/48", "RFC 7534", ORDINARY),
    ("3fff::/20", "RFC 9637", ORDINARY),
    ("5f00::/16", "RFC 9602", INTERNAL),
    ("fc00::/7", "RFC 4193", INTERNAL),
    ("fe80::/10", "RFC 4291", NEVER),
    ("fec0::/10", "RFC 3879", INTERNAL),
    ("ff00::/8", "RFC 4291", NEVER),
]
"""Without ::ffff:0:0/96 (RFC 4291), 64:ff9b::/96 (RFC 6052) and 2002::/16 (RFC 3056), which are what is inside."""
HOLDING = {"64:ff9b:1::/48", "2001::/32", "::/96", "::ffff:0:0:0/96"}
"""Where addresses hold IPv4 ones, and are as those are if that is stricter."""
METADATA = [
    ("169.254.169.254", "AWS, Azure, Google, Oracle, OpenStack and most others"),
    ("169.254.170.2", "AWS ECS, credentials of a task"),
    ("169.254.170.23", "AWS EKS, credentials of a pod"),
    ("169.254.169.253", "AWS, resolver"),
    ("169.254.42.42", "Scaleway"),
    ("169.254.0.23", "Tencent"),
    ("100.100.100.200", "Alibaba"),
    ("168.63.129.16", "Azure, WireServer"),
    ("192.0.0.192", "Oracle, older"),
    ("fd00:ec2::254", "AWS"),
    ("fd00:ec2::23", "AWS EKS"),
    ("fd00:ec2::253", "AWS, resolver"),
    ("fd20:ce::254", "Google"),
    ("fd00:c1::a9fe:a9fe", "Oracle"),
    ("fd00:42::42", "Scaleway"),
    ("fd00:a9fe:a9fe::1", "Akamai"),
    ("fd00:100::100:200", "Alibaba"),
    ("fe80::a9fe:a9fe", "OpenStack"),
]
POLICIES = {
    default: compile_policy(parse_policy(json.dumps({"defaultAction": default, "egress": []}).encode()))
    for default in ("deny", "allow")
}
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def taught(address: Address) -> str:
    """When a name may teach it."""
    found = [policy.teach(address.packed) is Teach.LEARN for policy in POLICIES.values()]
    return {(False, False): NEVER, (False, True): INTERNAL, (True, True): ORDINARY}[found[0], found[1]]


def of_row(row: str) -> str:
    return next(kind for prefix, _, kind in REGISTRY if prefix == row)


def innermost(address: Address) -> str | None:
    rows = [ipaddress.ip_network(row) for row, _, _ in REGISTRY]
    around = [row for row in rows if row.version == address.version and address in row]
    return str(max(around, key=lambda row: row.prefixlen)) if around else None


@pytest.mark.parametrize(("row", "rfc", "kind"), REGISTRY, ids=[f"{row} {rfc}" for row, rfc, _ in REGISTRY])
def test_e7_every_row_of_the_registries(row: str, rfc: str, kind: str) -> None:
    """Its first and last address, one in the middle, and its neighbours, which belong to the row around them."""
    assert rfc.startswith("RFC")
    network = ipaddress.ip_network(row)
    first, last = int(network.network_address), int(network.broadcast_address)
    here = type(network.network_address)
    for number in {first, last, (first + last) // 2}:
        if innermost(here(number)) == row:
            assert taught(here(number)) in kinds(row), here(number)
    for number in (first - 1, last + 1):
        if 0 <= number < 1 << network.max_prefixlen and str(here(number)) not in dict(METADATA):
            assert taught(here(number)) in kinds(innermost(here(number))), here(number)


def kinds(row: str | None) -> set[str]:
    """What an address of this innermost row may be; None: of no row."""
    return {ORDINARY} if row is None else {of_row(row)} | ({NEVER} if row in HOLDING else set())


@pytest.mark.parametrize(("text", "whose"), METADATA, ids=[text for text, _ in METADATA])
def test_e7_metadata_is_never_taught_and_opens_for_no_broad_rule(text: str, whose: str) -> None:
    assert whose
    address = ipaddress.ip_address(text)
    assert taught(address) == NEVER
    rules = [{"action": "allow", "target": broad} for broad in ("0.0.0.0/0", "::/0")]
    compiled = compile_policy(parse_policy(json.dumps({"defaultAction": "allow", "egress": rules}).encode()))
    for form in (address, *(form for form in forms(text) if not isatap(form) and not teredo(form))):
        assert compiled.decide_address(form.packed, "tcp", 80).action.value == "deny", form
    ordinary = ipaddress.ip_address("198.51.100.7").packed
    assert compiled.decide_address(ordinary, "tcp", 80).action.value == "allow", "the control"


def forms(text: str) -> list[ipaddress.IPv6Address]:
    """Every IPv6 form of an IPv4 address that this project knows of; none of an IPv6 one."""
    address = ipaddress.ip_address(text)
    if address.version == 6:
        return []
    number = int(address)
    a, b, c, d = address.packed
    return [
        ipaddress.IPv6Address(f"::ffff:{text}"),  # mapped, RFC 4291 §2.5.5.2
        ipaddress.IPv6Address(f"64:ff9b::{text}"),  # NAT64, RFC 6052
        ipaddress.IPv6Address(f"64:ff9b:1::{text}"),  # local NAT64, RFC 8215
        ipaddress.IPv6Address(0x2002 << 112 | number << 80 | 1),  # 6to4, RFC 3056
        ipaddress.IPv6Address(f"::{text}"),  # compatible, RFC 4291 §2.5.5.1
        ipaddress.IPv6Address(f"::ffff:0:{text}"),  # translated (SIIT), RFC 2765 §2.1
        ipaddress.IPv6Address(f"2606:4700::200:5efe:{a:x}{b:02x}:{c:x}{d:02x}"),  # ISATAP, RFC 5214
        ipaddress.IPv6Address(f"2606:4700::5efe:{a:x}{b:02x}:{c:x}{d:02x}"),
        ipaddress.IPv6Address(0x20010000 << 96 | 0x41424344 << 64 | number ^ 0xFFFFFFFF),  # Teredo's client, RFC 4380
        ipaddress.IPv6Address(0x20010000 << 96 | number << 64 | 0x01020304),  # and its server
    ]


def isatap(address: ipaddress.IPv6Address) -> bool:
    return int(address) >> 32 & 0xFDFFFFFF == 0x5EFE


def teredo(address: ipaddress.IPv6Address) -> bool:
    return address in ipaddress.ip_network("2001::/32")


@pytest.mark.parametrize("text", ["127.0.0.1", "10.0.0.1", "192.168.1.1", "100.64.0.1", "8.8.8.8",
                                  *(text for text, _ in METADATA if ":" not in text)])  # fmt: skip
def test_e7_a_form_of_an_address_is_never_more_than_the_address(text: str) -> None:
    order = [ORDINARY, INTERNAL, NEVER]
    plain = taught(ipaddress.ip_address(text))
    for form in forms(text):
        assert order.index(taught(form)) >= order.index(plain), form


@pytest.mark.parametrize("length", [48, 56, 64, 96])
def test_e7_every_layout_of_local_nat64(length: int) -> None:
    """RFC 6052 §2.2: the octet of bits 64 to 71 is left out."""

    def at(text: str) -> ipaddress.IPv6Address:
        packed = bytearray(ipaddress.IPv6Address("64:ff9b:1::").packed)
        places = [place for place in range(length // 8, 16) if place != 8][:4]
        for place, octet in zip(places, ipaddress.ip_address(text).packed, strict=True):
            packed[place] = octet
        return ipaddress.IPv6Address(bytes(packed))

    assert taught(at("169.254.169.254")) == NEVER
    assert taught(at("127.0.0.1")) == NEVER
    assert taught(at("198.51.100.7")) == INTERNAL


def test_forms_of_ordinary_addresses_stay_what_they_were() -> None:
    assert taught(ipaddress.ip_address("64:ff9b::808:808")) == ORDINARY
    assert taught(ipaddress.ip_address("2002:808:808::1")) == ORDINARY
    assert taught(ipaddress.ip_address("2606:4700::5efe:808:808")) == ORDINARY
    assert classify(ipaddress.ip_address("::2").packed).address_class is AddressClass.INTERNAL


def test_the_edges_of_what_is_ordinary_are_where_the_classes_say() -> None:
    """Just before, at and behind every edge of every row, and one of each 65,536."""
    near = {
        edge + step
        for text in (*(text for text, *_ in REGISTRY), "100.100.100.200", "168.63.129.16", "192.0.0.192")
        if ":" not in text
        for network in (ipaddress.ip_network(text),)
        for edge in (int(network[0]), int(network[-1]))
        for step in (-1, 0, 1)
    }
    for number in sorted(number for number in near if 0 <= number < 1 << 32):
        packed = number.to_bytes(4, "big")
        ordinary = classify(packed).address_class is AddressClass.ORDINARY
        assert (bisect_right(EDGES4, packed) % 2 == 0) is ordinary, ipaddress.ip_address(packed)
    for front in range(1 << 16):
        packed = front.to_bytes(2, "big") + b"\1\2"
        ordinary = classify(packed).address_class is AddressClass.ORDINARY
        assert (bisect_right(EDGES4, packed) % 2 == 0) is ordinary, ipaddress.ip_address(packed)
