"""Which IPv4 addresses are ordinary, in one call: for those who have to ask about every answer."""

from __future__ import annotations

from policies.special import _KINDS4, _STARTS4, ORDINARY, AddressClass

# Where they begin and end, packed: of an address that `bisect_right` puts behind an odd number of these, the class is
# not ORDINARY.
EDGES4 = tuple(
    start.to_bytes(4, "big")
    for start, kind, before in zip(_STARTS4, _KINDS4, (ORDINARY, *_KINDS4), strict=False)
    if (kind.address_class is AddressClass.ORDINARY) is not (before.address_class is AddressClass.ORDINARY)
)
