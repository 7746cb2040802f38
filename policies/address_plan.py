"""Ordered address rules, flattened: disjoint ranges, each with the ports that are closed and opened there.

Prefixes nest or are disjoint, so one sweep over them in order of their first address, with a stack of the prefixes
that hold the current one, visits each once; what a prefix comes to is what its parent comes to, with its own rules
merged in by their place in the order.

Three things beside the rules take part:

- Every special block (metadata, link-local) is a prefix of its own. There the allowing rules of wider prefixes don't
  count, and after all rules everything is denied.
- An IPv4 denial holds, at its own place in the order, for the NAT64 and 6to4 forms of its addresses.
- Mapped addresses are judged as the IPv4 ones inside before they get here; `::ffff:0:0/96` as such, which only a
  forged packet carries, is closed.
"""

from __future__ import annotations

from bisect import bisect_right

from policies.firstmatch import UNDECIDED, Entry, Outcome, PortSpace
from policies.model import Action
from policies.special import MAPPED_PREFIX, SPECIAL_BLOCKS, embedded_block
from policies.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from policies.address import Network
    from policies.model import Rule
    from policies.ports import PortSet


class AddressRange(NamedTuple):
    """Addresses from `first` to `last` (packed, inclusive) with the ports closed and opened there by rules."""

    first: bytes
    last: bytes
    deny: PortSet
    allow: PortSet


class _Frame(NamedTuple):
    last: int
    outcome: Outcome
    own: tuple[Entry, ...]


Block = tuple[int, int]


class _Family:
    """The ranges of one address family."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.blocks: dict[Block, list[Entry]] = {}
        self.special: set[Block] = set()
        self.starts: list[int] = [0]
        self.outcomes: list[Outcome] = [UNDECIDED]

    def add(self, network: Network, entry: Entry) -> None:
        packed, length = network
        first = int.from_bytes(packed, "big")
        self.put((first, first | ((1 << (self.size * 8 - length)) - 1)), entry)

    def put(self, block: Block, entry: Entry) -> None:
        own = self.blocks.get(block)
        if own is None:
            self.blocks[block] = [entry]
        else:
            own.append(entry)

    def _emit(self, start: int, outcome: Outcome) -> None:
        if self.starts[-1] == start:
            self.outcomes[-1] = outcome
        else:
            self.starts.append(start)
            self.outcomes.append(outcome)

    def flatten(self, space: PortSpace) -> None:
        """Sweep over the prefixes, wider ones first where two start together. Done once; the prefixes are let go."""
        top = (1 << (self.size * 8)) - 1
        stack = [_Frame(top, UNDECIDED, ())]
        for block in sorted(self.blocks, key=lambda block: (block[0], -block[1])):
            first, last = block
            while stack[-1].last < first:
                closed = stack.pop()
                self._emit(closed.last + 1, stack[-1].outcome)
            own = tuple(self.blocks[block])
            inherited = stack[-1].outcome.entries
            if block in self.special:
                # Not the outcome's denials: one that a broad "allow" had overtaken counts again.
                inherited = tuple(sorted(entry for frame in stack for entry in frame.own if entry.denies))
            outcome = space.settle(inherited, own)
            self._emit(first, outcome)
            stack.append(_Frame._make((last, outcome, own)))
        while len(stack) > 1:
            closed = stack.pop()
            if closed.last < top:
                self._emit(closed.last + 1, stack[-1].outcome)
        self.blocks.clear()

    def ranges(self) -> Iterator[tuple[int, int, int, int]]:
        """First, last, denied, allowed; only where something is, neighbours that agree joined."""
        top = 1 << (self.size * 8)
        pending: tuple[int, int, int, int] | None = None
        for position, start in enumerate(self.starts):
            outcome = self.outcomes[position]
            end = (self.starts[position + 1] if position + 1 < len(self.starts) else top) - 1
            if pending and pending[2:] == outcome[1:]:
                pending = pending[0], end, outcome.deny, outcome.allow
                continue
            if pending and (pending[2] or pending[3]):
                yield pending
            pending = start, end, outcome.deny, outcome.allow
        if pending and (pending[2] or pending[3]):
            yield pending


class AddressIndex:
    """Address rules compiled; `rules` is the whole ordered list, of which only the address rules count here."""

    def __init__(self, rules: Sequence[Rule], space: PortSpace) -> None:
        self._space = space
        self._plan: tuple[AddressRange, ...] | None = None
        self._families = {4: _Family(4), 16: _Family(16)}
        four, six = self._families[4], self._families[16]
        deny = Action.DENY
        for index, rule in enumerate(rules):
            network = rule.network
            if network is None:
                continue
            denies = rule.action is deny
            entry = Entry._make((index, denies, space.rule_mask(rule)))
            packed, length = network
            if len(packed) == 16:
                six.add(network, entry)
                continue
            first = int.from_bytes(packed, "big")
            last = first | (1 << 32 - length) - 1
            four.put((first, last), entry)
            if denies:
                for block in embedded_block(first, last):
                    six.put(block, entry)
        # Numbered behind every rule: a rule inside the block comes first.
        closing = Entry(len(rules), True, space.full)
        for network in (*(block for block, _ in SPECIAL_BLOCKS), MAPPED_PREFIX):
            family = self._families[len(network.packed)]
            family.add(network, closing)
            family.special.add((network.first, network.last))
        four.flatten(space)
        six.flatten(space)

    def find(self, packed: bytes) -> Outcome:
        """What the rules and the special blocks come to at an address (not mapped). O(log rules)."""
        family = self._families[len(packed)]
        return family.outcomes[bisect_right(family.starts, int.from_bytes(packed, "big")) - 1]

    def plan(self) -> tuple[AddressRange, ...]:
        """Disjoint ranges in order, IPv4 first; what is in none of them is left to the default."""
        if self._plan is None:
            ports, make = self._space.ports, AddressRange._make
            self._plan = tuple(
                [
                    make((first.to_bytes(size, "big"), last.to_bytes(size, "big"), ports(deny), ports(allow)))
                    for size, family in self._families.items()
                    for first, last, deny, allow in family.ranges()
                ]
            )
        return self._plan
