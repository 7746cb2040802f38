"""Replacing a standing ruleset without a gap.

Deleting a table and making it again is one transaction, yet not one instant: for some microseconds the old base chains
are still hooked, already empty, and drop by policy. So where the base chains are the same as before they are kept: the
table's rules are flushed, its sets emptied, what the new text does not name is deleted, and the new text is read into
what stands. Packets then see the old rules or the new ones. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from egress.firewall.tables import TABLE

if TYPE_CHECKING:
    from collections.abc import Iterable

WHOLE = f"table inet {TABLE}\ndelete table inet {TABLE}\n"
"""How every text that replaces the table begins."""


class Inventory(NamedTuple):
    """What stands in our inet table."""

    base: frozenset[str]  # chains with a hook
    chains: frozenset[str]  # chains without one
    sets: frozenset[str]
    maps: frozenset[str]


def gently(text: str, standing: Inventory) -> str | None:
    """`text` for the standing table, or None when its base chains are others."""
    if not text.startswith(WHOLE):
        return None
    body = text[len(WHOLE) :].split("\n}\n", 1)[0]
    base: set[str] = set()
    chains: set[str] = set()
    sets: set[str] = set()
    maps: set[str] = set()
    lines = body.split("\n")
    for number, line in enumerate(lines):
        words = line.split()
        if len(words) == 3 and words[2] == "{":
            if words[0] == "chain":
                hooked = number + 1 < len(lines) and lines[number + 1].lstrip().startswith("type ")
                (base if hooked else chains).add(words[1])
            elif words[0] == "set":
                sets.add(words[1])
            elif words[0] == "map":
                maps.add(words[1])
    if base != standing.base:
        return None
    prelude = [f"flush table inet {TABLE}"]
    prelude += [f"flush set inet {TABLE} {name}" for name in sorted(standing.sets)]
    prelude += [f"flush map inet {TABLE} {name}" for name in sorted(standing.maps)]
    prelude += _gone("chain", standing.chains - chains)
    prelude += _gone("set", standing.sets - sets)
    prelude += _gone("map", standing.maps - maps)
    return "\n".join(prelude) + "\n" + text[len(WHOLE) :]


def _gone(kind: str, names: Iterable[str]) -> list[str]:
    return [f"delete {kind} inet {TABLE} {name}" for name in sorted(names)]
