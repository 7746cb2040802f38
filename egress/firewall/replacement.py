"""Replacing a standing ruleset without a gap, and without an instant in which a half of it holds.

One transaction is not one instant. Deleting a table and making it again leaves the old base chains hooked and empty
for some microseconds, and they drop; worse, interval sets are only built at the very end of a commit, when the new
rules are already in use, so that a lookup in between finds nothing: not the address that is denied either. So:

    prepare   what rules refer to, under names of this load: chains, sets, maps. Nothing uses them yet, and when the
              kernel returns they are complete.
    switch    the rules of the base chains, and the learned addresses (hash sets, whose elements come and go with the
              rules). The chains stand, their rules change in one instant.
    sweep     what only the old rules referred to. The last door lets the stamp of the old rules pass a moment longer:
              a packet that they let through may have to wait for a neighbour's address first.

Pure: text in, text out. The text is `ruleset.render`'s.
"""

from __future__ import annotations

import re

from egress.firewall.tables import TABLE, WHOLE, Inventory
from policies.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_OPEN = f"table inet {TABLE} {{\n"
_MARKERS = ("policy_", "mode_")
_REFERENCE = re.compile(r"(goto |jump |@)(\w+)")


class Stages(NamedTuple):
    """The three transactions of a replacement."""

    prepare: str
    switch: str
    sweep: str


class _Block(NamedTuple):
    kind: str  # "chain", "set", "map", "timeout"
    name: str
    lines: list[str]  # between the braces

    @property
    def base(self) -> bool:
        return self.kind == "chain" and bool(self.lines) and self.lines[0].lstrip().startswith("type ")

    @property
    def fixed(self) -> bool:
        """Keeps its name in every load."""
        kept = self.name.startswith(("learned", *_MARKERS)) or self.name == "ports"
        return kept or self.base or self.kind == "timeout"

    def text(self, name: str = "", lines: Sequence[str] | None = None) -> str:
        head = "ct timeout" if self.kind == "timeout" else self.kind
        body = "".join([f"{line}\n" for line in (self.lines if lines is None else lines)])
        return f"\t{head} {name or self.name} {{\n{body}\t}}\n"


def stages(text: str, tag: str, standing: Inventory) -> Stages:
    """`text` in three steps over what stands; `tag` is what makes this load's names its own."""
    body, rest = text[len(WHOLE) + len(_OPEN) :].split("\n}\n", 1)
    blocks = _blocks(body)
    renamed = {block.name: f"{block.name}_{tag}" for block in blocks if not block.fixed}

    def tagged(lines: Iterable[str]) -> list[str]:
        return [_REFERENCE.sub(lambda found: found[1] + renamed.get(found[2], found[2]), line) for line in lines]

    prepared, switched = [], []
    for block in blocks:
        marker = block.kind == "chain" and block.name.startswith(_MARKERS)
        if block.base or marker:
            switched.append(block.text(lines=tagged(block.lines)))
        elif block.kind == "set" and block.name.startswith("learned"):
            prepared.append(block.text(lines=[line for line in block.lines if "elements" not in line]))
            switched.append(block.text())
        else:
            prepared.append(block.text(renamed.get(block.name, block.name), tagged(block.lines)))
    names = {kind: {renamed.get(b.name, b.name) for b in blocks if b.kind == kind} for kind in ("chain", "set", "map")}
    base = {block.name for block in blocks if block.base}
    learned = [block.name for block in blocks if block.kind == "set" and block.name.startswith("learned")]
    before = [f"flush chain inet {TABLE} {name}" for name in sorted(standing.base)]
    before += [f"flush set inet {TABLE} {name}" for name in learned]
    old_markers = {name for name in standing.chains if name.startswith(_MARKERS)} - names["chain"]
    before += [f"delete chain inet {TABLE} {name}" for name in sorted((standing.base - base) | old_markers)]
    return Stages(
        _OPEN + "".join(prepared) + "}\n",
        "\n".join(before) + "\n" + _OPEN + "".join(switched) + "}\n" + rest,
        sweep(
            Inventory(
                frozenset(),
                frozenset(name for name in standing.chains if not name.startswith(_MARKERS)) - names["chain"],
                standing.sets - names["set"],
                standing.maps - names["map"],
            )
        ),
    )


def sweep(old: Inventory) -> str:
    """Take these away, references first."""
    lines = [f"flush chain inet {TABLE} {name}" for name in sorted(old.chains)]
    for kind, names in (("map", old.maps), ("chain", old.chains), ("set", old.sets)):
        lines += [f"delete {kind} inet {TABLE} {name}" for name in sorted(names)]
    return "".join([f"{line}\n" for line in lines])


def _blocks(body: str) -> list[_Block]:
    blocks: list[_Block] = []
    for line in body.split("\n"):
        if line.startswith("\t") and not line.startswith("\t\t") and line.endswith("{"):
            *kind, name, _ = line.split()
            blocks.append(_Block(kind[-1], name, []))
        elif line != "\t}":
            blocks[-1].lines.append(line)
    return blocks
