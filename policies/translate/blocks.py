"""Prefixes with holes in them."""

from __future__ import annotations

from policies.address import Network
from policies.name import Target
from policies.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from policies.ports import Ranges


class Block(NamedTuple):
    """A prefix to be allowed but for the excepted ones, with ports and protocols as rules have them."""

    found: Target
    excepted: tuple[Target, ...]
    rules: tuple[tuple[Ranges, str], ...]
    comment: str
    why: str


def overlap(one: Target, other: Target) -> bool:
    """Do two prefixes share an address."""
    a, b = one.network, other.network
    if a is None or b is None or len(a.packed) != len(b.packed):
        return False
    return a.first <= b.last and b.first <= a.last


def exclude(found: Target, excepted: Sequence[Target]) -> list[Target]:
    """The fewest prefixes that cover `found` without the excepted ones, in order."""
    assert found.network is not None
    holes = [one.network for one in excepted if one.network is not None and overlap(found, one)]
    return [Target(str(left), "address", left) for left in _left(found.network, holes)]


def _left(whole: Network, holes: Sequence[Network]) -> list[Network]:
    mine = [hole for hole in holes if hole.first <= whole.last and whole.first <= hole.last]
    if not mine:
        return [whole]
    if any(hole.first <= whole.first and whole.last <= hole.last for hole in mine):
        return []
    size = len(whole.packed)
    length = whole.length + 1  # not the last: then a hole that overlaps covers all
    middle = (whole.first + (1 << (size * 8 - length))).to_bytes(size, "big")
    return _left(Network(whole.packed, length), mine) + _left(Network(middle, length), mine)
