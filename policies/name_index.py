"""Name rules, compiled: one settled outcome per target.

Which targets match a name follows from the most specific of them: the name itself where a rule names it, else the
longest `*.suffix` that holds it, else `"*"`. All wider ones are known beforehand. So there are no more outcomes than
targets, each settled once, and deciding a name is one dictionary probe for the name and one for each suffix of it.
"""

from __future__ import annotations

from policies.firstmatch import UNDECIDED, Entry, Outcome, PortSpace, settle
from policies.model import Action, Decision
from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from policies.model import Rule


class Node:
    """A target with its own rules, what they come to together with those of wider targets, and the decisions made.

    `outcome` includes the default as a last entry; `link` has neither the default nor `"*"`.
    """

    __slots__ = ("decision", "link", "link_decision", "outcome", "own", "parent")

    def __init__(self, space: PortSpace, parent: Node | None, own: tuple[Entry, ...]) -> None:
        self.parent = parent
        self.own = own
        self.outcome: Outcome = space.settle(parent.outcome.entries if parent else (), own)
        self.link: Outcome | None = None
        self.decision: Decision | None = None
        self.link_decision: Decision | None = None


class NameIndex:
    """Name rules compiled; `rules` is the whole ordered list, `default` the entry that stands behind all rules."""

    def __init__(self, rules: Sequence[Rule], space: PortSpace, default: Entry | None) -> None:
        exact: dict[str, list[Entry]] = {}
        suffix: dict[str, list[Entry]] = {}
        anything: list[Entry] = []
        deny = Action.DENY
        for index, rule in enumerate(rules):
            if rule.network is not None:
                continue
            entry = Entry._make((index, rule.action is deny, space.rule_mask(rule)))
            if rule.kind == "name":
                exact.setdefault(rule.target, []).append(entry)
            elif rule.kind == "suffix":
                suffix.setdefault(rule.target[2:], []).append(entry)
            elif rule.kind == "any":
                anything.append(entry)
        self.root = Node(space, None, (default,) if default else ())
        self.any = Node(space, self.root, tuple(anything))
        self._suffix: dict[str, Node] = {}
        self._exact: dict[str, Node] = {}
        for name in sorted(suffix, key=lambda name: name.count(".")):  # wider ones first: they are parents
            self._suffix[name] = Node(space, self._widest_below(name), tuple(suffix[name]))
        for name, own in exact.items():
            self._exact[name] = Node(space, self._widest_below(name), tuple(own))

    def _widest_below(self, name: str) -> Node:
        """The longest suffix target that holds the name as something below it, or the node of `"*"`."""
        suffixes = self._suffix
        if suffixes:
            dot = name.find(".")
            while dot >= 0:
                name = name[dot + 1 :]
                node = suffixes.get(name)
                if node is not None:
                    return node
                dot = name.find(".")
        return self.any

    def find(self, name: str) -> Node:
        """The node of the most specific target that matches; the DNS root has none but the default."""
        node = self._exact.get(name)
        if node is not None:
            return node
        return self._widest_below(name) if name else self.root

    @property
    def exact_names(self) -> Container[str]:
        """Names with a node of their own."""
        return self._exact

    def below(self, parent: str) -> Node:
        """The node of every name of one label and `parent` that has none of its own."""
        return self._widest_below("?." + parent)

    def link(self, node: Node) -> Outcome:
        """The outcome for a link of a CNAME chain: rules for names and suffixes only."""
        if node.link is None:
            if node is self.any or node is self.root or node.parent is None:
                node.link = UNDECIDED
            else:
                node.link = settle(self.link(node.parent).entries, node.own)
        return node.link

    def nodes(self) -> Iterator[Node]:
        """Every node in a fixed order: the root, `"*"`, suffixes, names."""
        yield self.root
        yield self.any
        yield from self._suffix.values()
        yield from self._exact.values()
