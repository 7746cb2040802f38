"""First match by port: what an ordered list of rules says about one target.

Names and addresses share one question: of the rules that match, taken in order, which ports are denied and which
are allowed. A policy cuts the port numbers into few stretches that all its rules treat alike, so a set of ports is
an integer with one bit per stretch and protocol, and settling a list of rules is a handful of operations on
integers whatever the ports are.

Rules of which each has ports of its own, on targets that all overlap, still multiply: two thousand such rules on
`*` and two thousand names come to four million cases. A policy that does is refused before it costs seconds and
hundreds of megabytes; no list of rules that somebody writes comes near the bound.
"""

from __future__ import annotations

from bisect import bisect_right

from policies.model import Action, PolicyError
from policies.ports import DOT_PORT, ECHO_NAMES, EVERYTHING, FULL, LAST_PORT, PortSet, Ranges
from policies.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from policies.model import Rule


_DENY = Action.DENY
_CASES = 400_000
_CASES_PER_RULE = 32


class PortSpace:
    """The stretches of ports that a policy tells apart; translates between port sets and integers."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._cases_left = _CASES + _CASES_PER_RULE * len(rules)
        cuts = {0, 1, DOT_PORT, DOT_PORT + 1}
        for ranges in {rule.ports for rule in rules}:
            for first, last in ranges:
                cuts.add(first)
                cuts.add(last + 1)
        cuts.discard(LAST_PORT + 1)
        self._starts = sorted(cuts)
        self._size = len(self._starts)
        self._index = {start: index for index, start in enumerate(self._starts)}
        self._index[LAST_PORT + 1] = self._size
        self._rules: dict[tuple[bool, Ranges, str], int] = {}
        self._sets: dict[int, PortSet] = {}
        self.everything = self._mask(EVERYTHING)
        self.full = self._mask(FULL)
        self.echo = 1 << (2 * self._size)
        self.tcp = (1 << self._size) - 1
        self.udp = self.tcp << self._size
        self.transport = self.tcp | self.udp

    def _mask(self, ports: PortSet) -> int:
        mask = (1 << (2 * self._size)) if ports.echo else 0
        for shift, ranges in ((0, ports.tcp), (self._size, ports.udp)):
            for first, last in ranges:
                low, high = self._index[first], self._index[last + 1]
                mask |= ((1 << (high - low)) - 1) << (low + shift)
        return mask

    def rule_mask(self, rule: Rule) -> int:
        """The ports that a rule speaks about."""
        key = (rule.action is _DENY, rule.ports, rule.protocol)  # an enum's member is dear to hash
        mask = self._rules.get(key)
        if mask is None:
            mask = self._rules[key] = self._mask(rule.covers())
        return mask

    def settle(self, inherited: tuple[Entry, ...], own: Sequence[Entry]) -> Outcome:
        """`settle`, counted: PolicyError once the policy comes to more cases than its rules can justify."""
        outcome = settle(inherited, own)
        runs = (outcome.deny ^ outcome.deny << 1).bit_count() + (outcome.allow ^ outcome.allow << 1).bit_count()
        self._cases_left -= len(inherited) + len(own) + runs
        if self._cases_left < 0:
            raise PolicyError(
                "$.egress",
                "too intricate: rules with ports of their own on targets that overlap multiply; "
                "give them the same ports, or name fewer targets",
            )
        return outcome

    def _runs(self, bits: int) -> Iterator[tuple[int, int]]:
        # As text: shifting an integer of n bits run by run would cost n for each run.
        digits = f"{bits:b}"[::-1] + "0"
        first = digits.find("1")
        while first >= 0:
            end = digits.find("0", first)
            yield self._starts[first], self._starts[end] - 1 if end < self._size else LAST_PORT
            first = digits.find("1", end)

    def ports(self, mask: int) -> PortSet:
        """The port set of an integer; remembered, and there are no more of them than targets in the policy."""
        known = self._sets.get(mask)
        if known is None:
            known = self._sets[mask] = PortSet(
                tuple(self._runs(mask & self.tcp)),
                tuple(self._runs((mask & self.udp) >> self._size)),
                bool(mask & self.echo),
            )
        return known

    def bits(self, protocol: str, port: int | None) -> int:
        """The bit of one port, or those of all of a protocol's ports; 0 for what no rule can open.

        An empty protocol without a port stands for every TCP and UDP port.
        """
        if protocol in ECHO_NAMES:
            return self.echo
        whole = {"tcp": self.tcp, "udp": self.udp, "": self.transport}.get(protocol, 0)
        if port is None:
            return whole
        if not 0 <= port <= LAST_PORT:
            return 0
        index = bisect_right(self._starts, port) - 1
        return whole & (1 << index | 1 << (index + self._size))


class Entry(NamedTuple):
    """A rule's part in an outcome: its place in the order, and the ports that it decides."""

    place: int
    denies: bool
    mask: int


class Outcome(NamedTuple):
    """What a list of rules comes to: the entries that decide anything, in order, and the ports they close and open."""

    entries: tuple[Entry, ...]
    deny: int
    allow: int


UNDECIDED = Outcome((), 0, 0)


def settle(inherited: tuple[Entry, ...], own: Sequence[Entry]) -> Outcome:
    """First match by port over both lists, each in order.

    Entries that decide nothing are left out; they would decide nothing under any longer list that contains this
    one, so the outcome's entries can stand for the list when a narrower target adds its own rules.
    """
    if not inherited and len(own) == 1 and own[0][2]:  # as nearly all targets have it
        _, denies, mask = own[0]
        return Outcome._make((tuple(own), mask, 0) if denies else (tuple(own), 0, mask))
    entries = [*inherited, *own]
    if inherited:
        entries.sort()
    deny = allow = 0
    undecided = -1
    kept: list[Entry] = []
    for entry in entries:
        place, denies, mask = entry
        new = mask & undecided
        if new:
            undecided ^= new
            kept.append(entry if new == mask else Entry._make((place, denies, new)))
            if denies:
                deny |= new
            else:
                allow |= new
    return Outcome._make((tuple(kept), deny, allow))
