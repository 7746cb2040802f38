"""Address classes: what a policy treats apart, and what an allowed name may not lead to.

Three classes beside the ordinary one:

- SPECIAL: metadata services and link-local. Reached only through a rule that names the address or a prefix inside
  its block; broad prefixes and `defaultAction: allow` don't open them.
- NEVER: loopback, unspecified, multicast, reserved. A name doesn't teach them under any default.
- INTERNAL: private, shared, site-local and the like. A name doesn't teach them under default deny.

NAT64 (RFC 6052, well-known prefix) and 6to4 (RFC 3056) addresses have the class of the IPv4 address inside. So have
other forms that hold one, local NAT64, IPv4-translated, IPv4-compatible, Teredo and ISATAP, where it is the stricter.
The table is the IANA special-purpose registries' (RFC 6890), multicast, and what clouds use: all that is not globally
reachable, but for documentation (RFC 5737, RFC 3849, RFC 9637), where nobody is.
"""

from __future__ import annotations

from bisect import bisect_right
from enum import Enum

from policies.address import Network, parse_network, unmap
from policies.values import NamedTuple


class AddressClass(Enum):
    """What an address is to a policy."""

    ORDINARY = "ordinary"
    SPECIAL = "special"
    NEVER = "never taught"
    INTERNAL = "internal"


class Kind(NamedTuple):
    """A class with a word for people, such as `private` or `a metadata address`."""

    address_class: AddressClass
    label: str


ORDINARY = Kind(AddressClass.ORDINARY, "an ordinary address")

_TABLE = (
    (AddressClass.SPECIAL, "link-local", "169.254.0.0/16 fe80::/10"),
    (
        AddressClass.SPECIAL,
        "a metadata address",
        "100.100.100.200 168.63.129.16 192.0.0.192",
    ),
    (
        AddressClass.SPECIAL,
        "a metadata address",
        "fd00:ec2::/32 fd20:ce::254 fd00:42::42 fd00:c1::a9fe:a9fe fd00:a9fe:a9fe::1 fd00:100::100:200",
    ),
    (AddressClass.NEVER, "loopback", "127.0.0.0/8 ::1"),
    (AddressClass.NEVER, "unspecified", "0.0.0.0/8 ::"),
    (AddressClass.NEVER, "multicast", "224.0.0.0/4 ff00::/8"),
    (AddressClass.NEVER, "reserved", "240.0.0.0/4"),
    (AddressClass.INTERNAL, "private", "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16"),
    (AddressClass.INTERNAL, "shared (RFC 6598)", "100.64.0.0/10"),
    (AddressClass.INTERNAL, "a unique local address", "fc00::/7"),
    (AddressClass.INTERNAL, "site-local", "fec0::/10"),
    (AddressClass.INTERNAL, "for benchmarking", "198.18.0.0/15 2001:2::/48"),
    (AddressClass.INTERNAL, "for protocol assignments", "192.0.0.0/24 2001::/23"),
    # Of these the registry says that they are globally reachable: anycast services, AMT, AS112, ORCHIDv2, DRIP.
    (
        AddressClass.ORDINARY,
        "an ordinary address",
        "2001:1::1 2001:1::2 2001:1::3 2001:3::/32 2001:4:112::/48 2001:20::/28 2001:30::/28",
    ),
    (AddressClass.INTERNAL, "a 6to4 relay's", "192.88.99.0/24"),
    (AddressClass.INTERNAL, "discard-only", "100::/64"),
    (AddressClass.INTERNAL, "a dummy prefix's", "100:0:0:1::/64"),
    (AddressClass.INTERNAL, "a segment routing", "5f00::/16"),
    (AddressClass.INTERNAL, "a local NAT64 address", "64:ff9b:1::/48"),
    (AddressClass.INTERNAL, "Teredo", "2001::/32"),
    (AddressClass.INTERNAL, "IPv4-translated", "::ffff:0:0:0/96"),
    (AddressClass.INTERNAL, "IPv4-compatible", "::/96"),
)

_CLASSES: tuple[tuple[Network, Kind], ...] = tuple(
    (parse_network(text), Kind(address_class, label))
    for address_class, label, texts in _TABLE
    for text in texts.split()
)

NAT64 = parse_network("64:ff9b::/96")
SIXTOFOUR = parse_network("2002::/16")
MAPPED_PREFIX = Network(b"\0" * 10 + b"\xff\xff" + b"\0" * 4, 96)


def embedded(network: Network) -> tuple[Network, Network]:
    """An IPv4 prefix as the NAT64 and the 6to4 prefix that lead to it."""
    return (
        Network(NAT64.packed[:12] + network.packed, 96 + network.length),
        Network(SIXTOFOUR.packed[:2] + network.packed + b"\0" * 10, 16 + network.length),
    )


def embedded_block(first: int, last: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """The same for IPv4 addresses from `first` to `last`, in numbers."""
    return (
        (_NAT64_FIRST | first, _NAT64_FIRST | last),
        (_SIXTOFOUR_FIRST | first << 80, _SIXTOFOUR_FIRST | last << 80 | (1 << 80) - 1),
    )


_NAT64_FIRST, _SIXTOFOUR_FIRST = NAT64.first, SIXTOFOUR.first


def inside(packed: bytes) -> bytes | None:
    """The IPv4 address that a NAT64 or 6to4 address leads to, or None."""
    if len(packed) == 16:
        if packed.startswith(b"\x20\x02"):
            return packed[2:6]
        if packed.startswith(NAT64.packed[:12]):
            return packed[12:]
    return None


def _hidden(packed: bytes) -> tuple[bytes, ...]:
    """IPv4 addresses that another IPv6 form may lead to, wherever such a form would hold one: unicast ones, since
    zeros and ones are what stands where there is none."""
    if packed.startswith(_LOCAL_NAT64.packed[:6]):  # RFC 8215; RFC 6052 §2.2 for prefixes of 48, 56, 64 and 96 bits
        forms: tuple[bytes, ...]
        forms = (packed[6:8] + packed[9:11], packed[7:8] + packed[9:12], packed[9:13], packed[12:])
    elif packed.startswith(b"\x20\x01\0\0"):  # Teredo, RFC 4380 §4: server, and client with every bit turned
        forms = (packed[4:8], bytes(octet ^ 0xFF for octet in packed[12:]))
    elif packed[:12] in _BEFORE or packed[8:12] in _ISATAP:
        forms = (packed[12:],)
    else:
        return ()
    return tuple(form for form in forms if 0 < form[0] < 224)


_LOCAL_NAT64 = parse_network("64:ff9b:1::/48")
_BEFORE = tuple(parse_network(text).packed[:12] for text in ("::ffff:0:0:0/96", "::/96"))  # translated, compatible
_ISATAP = (b"\0\0\x5e\xfe", b"\2\0\x5e\xfe")  # RFC 5214 §6.1


def _forms(network: Network) -> tuple[Network, ...]:
    """The prefixes that lead to an IPv4 prefix, as far as prefixes can say it."""
    before = (_LOCAL_NAT64.packed[:12], *_BEFORE)
    return (*embedded(network), *(Network(prefix + network.packed, 96 + network.length) for prefix in before))


SPECIAL_BLOCKS: tuple[tuple[Network, Kind], ...] = tuple(
    (block, kind)
    for network, kind in _CLASSES
    if kind.address_class is AddressClass.SPECIAL
    for block in ((network, *_forms(network)) if len(network.packed) == 4 else (network,))
)
"""Every special block, IPv4 ones in their IPv6 forms too."""


def _flatten(bits: int) -> tuple[list[int], list[Kind]]:
    """Starts of ranges over one family and their kinds; of nested blocks the innermost counts, it is the stricter."""
    blocks = [
        (network.first, network.last, kind)
        for network, kind in sorted(_CLASSES, key=lambda block: -block[0].length)
        if len(network.packed) * 8 == bits
    ]
    edges = {0}.union(*({first, last + 1} for first, last, _ in blocks))
    starts = sorted(edges - {1 << bits})
    return starts, [
        next((kind for first, last, kind in blocks if first <= start <= last), ORDINARY) for start in starts
    ]


_STARTS4, _KINDS4 = _flatten(32)
_STARTS6, _KINDS6 = _flatten(128)


_STRICTNESS = {
    AddressClass.ORDINARY: 0,
    AddressClass.INTERNAL: 1,
    AddressClass.NEVER: 2,
    AddressClass.SPECIAL: 3,
}


def classify(packed: bytes) -> Kind:
    """The class of an address; mapped, NAT64 and 6to4 ones have that of the IPv4 address inside."""
    if len(packed) == 16:
        packed = unmap(packed)
        packed = inside(packed) or packed
    if len(packed) == 4:
        return _KINDS4[bisect_right(_STARTS4, int.from_bytes(packed, "big")) - 1]
    kind = _KINDS6[bisect_right(_STARTS6, int.from_bytes(packed, "big")) - 1]
    for hidden in _hidden(packed):
        found = _KINDS4[bisect_right(_STARTS4, int.from_bytes(hidden, "big")) - 1]
        if _STRICTNESS[found.address_class] > _STRICTNESS[kind.address_class]:
            kind = found
    return kind
