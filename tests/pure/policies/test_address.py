"""Addresses and prefixes, held against the standard library's `ipaddress`."""

from __future__ import annotations

import ipaddress

import hypothesis.strategies as st
import pytest
from hypothesis import given

from policies.address import AddressError, Network, format_address, parse_address, parse_network, unmap

MANGLED = st.one_of(
    st.ip_addresses().map(str),
    st.ip_addresses(v=6).map(lambda address: address.exploded.upper()),
    st.text("0123456789abcdefABCDEF:.%/ g-", max_size=40),
    st.builds(
        lambda text, at, new: text[: at % (len(text) + 1)] + new + text[at % (len(text) + 1) :],
        st.ip_addresses().map(str),
        st.integers(0, 50),
        st.sampled_from(["", ":", "::", ".", "0", "f", "1.2.3.4", "\u0661", "%e"]),
    ),
)


def _expected(text: str) -> bytes | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return None if "%" in text else unmap(address.packed)


@given(MANGLED)
def test_parse_agrees_with_ipaddress(text: str) -> None:
    expected = _expected(text)
    if expected is None:
        with pytest.raises(AddressError):
            parse_address(text)
    else:
        assert parse_address(text) == expected


@given(st.ip_addresses())
def test_format_agrees_with_ipaddress(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        return
    assert format_address(address.packed) == str(address)


@given(st.lists(st.sampled_from([0, 0, 0, 1, 0xABCD, 0xFFFF]), min_size=8, max_size=8))
def test_format_of_runs_of_zeros(groups: list[int]) -> None:
    packed = b"".join(group.to_bytes(2, "big") for group in groups)
    if unmap(packed) == packed:
        assert format_address(packed) == str(ipaddress.IPv6Address(packed))


@given(st.ip_addresses(), st.integers(0, 130))
def test_networks_agree_with_ipaddress(address: ipaddress.IPv4Address | ipaddress.IPv6Address, length: int) -> None:
    text = f"{address}/{length}"
    mapped = isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None and length >= 96
    if length > address.max_prefixlen or mapped or (length == 0 and int(address)):
        with pytest.raises(AddressError):
            parse_network(text)
        return
    expected = ipaddress.ip_network(text, strict=False)
    network = parse_network(text)
    assert (network.packed, network.length) == (expected.network_address.packed, expected.prefixlen)
    assert (network.first, network.last) == (int(expected[0]), int(expected[-1]))
    assert str(network) == (str(expected) if length < address.max_prefixlen else str(expected[0]))


def test_mapped_addresses_are_the_ones_inside() -> None:
    assert parse_address("::ffff:192.0.2.1") == parse_address("::FFFF:c000:201") == bytes([192, 0, 2, 1])
    assert parse_network("::ffff:192.0.2.1") == Network(bytes([192, 0, 2, 1]), 32)
    assert format_address(bytes.fromhex("00000000000000000000ffffc0000201")) == "::ffff:192.0.2.1"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("10.0.0.5/0", 'write "0.0.0.0/0" or "10.0.0.5"'),
        ("2001:db8::/0", 'write "::/0" or "2001:db8::"'),
        ("::ffff:10.0.0.0/104", 'write the IPv4 one: "10.0.0.0/8"'),
        ("::ffff:0:0/96", '"0.0.0.0/0"'),
        ("::ffff:10.0.0.1/128", '"10.0.0.1"'),
        ("fe80::1%eth0", "zone ids"),
        ("fe80::%1/10", "zone ids"),
        ("010.0.0.1", 'write "10.0.0.1"'),
        ("10.0.0.00", 'write "10.0.0.0"'),
        ("256.0.0.1", "0 to 255"),
        ("0999.0.0.1", "0 to 255"),
        ("10.0.0.0/08", "/8"),
        ("10.0.0.0/33", "over 32"),
        ("2001:db8::/129", "over 128"),
        ("10.0.0.0/255.0.0.0", "prefix length"),
        ("10.0.0.0/", "prefix length"),
        ("10.0.0.0/-1", "prefix length"),
        ("10.0.0.0/+8", "prefix length"),
        ("10.0.0.0/8/8", "prefix length"),
        ("10.0.0.0/\u0668", "prefix length"),
        ("1::2::3", "IPv6"),
        ("10.0.0", "192.0.2.1"),
    ],
)
def test_refusals_say_what_to_write(text: str, words: str) -> None:
    with pytest.raises(AddressError) as caught:
        parse_network(text)
    assert words in str(caught.value)


def test_host_bits_are_cleared() -> None:
    assert str(parse_network("10.0.0.5/8")) == "10.0.0.0/8"
    assert str(parse_network("2001:DB8::5/32")) == "2001:db8::/32"
    assert str(parse_network("192.0.2.1/32")) == "192.0.2.1"
    assert parse_network("0.0.0.0/0").contains(bytes([255] * 4))
    assert not parse_network("0.0.0.0/0").contains(bytes(16))
