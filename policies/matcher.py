"""A policy compiled for deciding names and addresses.

The order of authority is: the operator's denials, the operator's allowances, the policy's rules, its default. All of
them become one numbered list; first match by port decides, for names and for addresses apart. Addresses that a name
teaches are opened on the name's ports, after the explicit denials of addresses have been heard.
"""

from __future__ import annotations

from enum import Enum

from policies.address import unmap
from policies.address_plan import AddressIndex, AddressRange
from policies.firstmatch import Entry, Outcome, PortSpace
from policies.model import Action, Decision
from policies.name_index import NameIndex
from policies.ports import DOT_PORT, ECHO_NAMES, NOTHING
from policies.special import AddressClass, classify
from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from policies.model import NetworkPolicy, Rule
    from policies.name_index import Node
    from policies.ports import PortSet

_MOST_CLASSES_BEYOND_NAMES = 64
_MOST_COMBINATIONS = 20_000
_REMEMBERED = 1024


class Teach(Enum):
    """What becomes of an address in the answer for an allowed name."""

    LEARN = "learn"
    """An ordinary address: it is opened on the name's ports."""
    KEEP = "keep"
    """One that names don't teach; an address rule opens it on some port, so it stays in the answer, no more."""
    STRIP = "strip"
    """One that names don't teach and no rule opens: taken out of the answer."""


_LEARN, _ORDINARY = Teach.LEARN, AddressClass.ORDINARY  # an enum's member costs more than a global


class CompiledPolicy:
    """What `compile_policy` returns. `rule_count` counts the operator's rules too."""

    def __init__(self, policy: NetworkPolicy, rules: tuple[Rule, ...]) -> None:
        self.policy = policy
        self.rule_count = len(rules)
        self._rules = rules
        self._space = space = PortSpace(rules)
        self._default_allow = policy.default is Action.ALLOW
        # Behind every rule, and behind the entry that closes special blocks.
        default = Entry(len(rules) + 1, False, space.everything) if self._default_allow else None
        self._names = NameIndex(rules, space, default)
        self._addresses = AddressIndex(rules, space)
        self._classes: tuple[PortSet, ...] | None = None
        self._learnable: dict[PortSet, PortSet] = {}

    @property
    def rules(self) -> tuple[Rule, ...]:
        """All rules in the order of their authority, the operator's first."""
        return self._rules

    # Names

    def decide_name(self, name: str) -> Decision:
        """The decision for a canonical name (lower case, A-labels, no trailing dot, `""` for the root).

        One dictionary probe for the name and one per suffix of it, whatever the number of rules. Denied if and only
        if `ports` is empty: no TCP and no UDP port is open.
        """
        node = self._names.find(name)
        return node.decision or self._name_decision(node)

    @property
    def exact_names(self) -> Container[str]:
        """Names that rules name; all others are decided by what is above them."""
        return self._names.exact_names

    def decide_below(self, parent: str) -> Decision:
        """The decision for every name of one label and `parent` that is none of `exact_names`."""
        node = self._names.below(parent)
        return node.decision or self._name_decision(node)

    def _name_decision(self, node: Node) -> Decision:
        outcome, space = node.outcome, self._space
        if outcome.allow & space.transport:
            rule = self._first_rule(outcome, denies=False)
            decision = Decision(Action.ALLOW, rule, _reason(rule, "default allow"), space.ports(outcome.allow))
        else:
            # The default has the last word on some port, unless denials cover all that could be open.
            closed = not space.everything & space.transport & ~outcome.deny
            rule = self._first_rule(outcome, denies=True) if closed else None
            decision = Decision(Action.DENY, rule, _reason(rule, "default deny"), NOTHING)
        node.decision = decision
        return decision

    def decide_name_port(self, name: str, protocol: str, port: int | None) -> Decision:
        """The decision for one port of what a name teaches; `protocol` is `"tcp"`, `"udp"` or `"echo"`."""
        outcome = self._names.find(name).outcome
        bits = self._space.bits(protocol, port)
        allowed = outcome.allow if outcome.allow & self._space.transport else 0
        return self._port_decision(outcome, allowed, bits, protocol, port)

    def chain_deny(self, name: str) -> Decision | None:
        """The explicit denial of a link of a CNAME chain, or None; `"*"` and the default don't count.

        `ports` of the result are the ports **denied** for whatever is learned through the link.
        """
        node = self._names.find(name)
        if node.link_decision is not None:
            return node.link_decision
        outcome = self._names.link(node)
        if not outcome.deny:
            return None
        rule = self._first_rule(outcome, denies=True)
        ports = self._space.ports(outcome.deny)
        node.link_decision = Decision(Action.DENY, rule, _reason(rule, "default deny"), ports)
        return node.link_decision

    def port_classes(self) -> tuple[PortSet, ...]:
        """Every distinct set of ports that addresses can be learned with, in a fixed order.

        First what `decide_name` can return (never more than targets + 2), then what is left of these behind a link
        that is denied on some ports, up to a bound.
        """
        if self._classes is None:
            space = self._space
            masks: dict[int, None] = {}
            partial: dict[int, None] = {}
            for node in self._names.nodes():
                if node.outcome.allow & space.transport:
                    masks[node.outcome.allow] = None
                denied = self._names.link(node).deny
                if space.everything & space.transport & ~denied:
                    partial[denied] = None
            partial.pop(0, None)
            most = len(masks) + _MOST_CLASSES_BEYOND_NAMES
            pending = list(masks) if partial and len(masks) * len(partial) <= _MOST_COMBINATIONS else []
            for mask in pending:
                for denied in partial:
                    rest = mask & ~denied
                    if rest & space.transport and rest not in masks and len(masks) < most:
                        masks[rest] = None
                        pending.append(rest)
            self._classes = tuple(space.ports(mask) for mask in masks)
        return self._classes

    def learnable(self, ports: PortSet) -> PortSet:
        """The port class to learn with where exactly `ports` may be opened: itself, or the widest one within.

        The two differ only where links of a chain took ports away in more ways than there are classes for. NOTHING
        where no class fits: the name is then to be treated as denied.
        """
        best = self._learnable.get(ports)
        if best is None:
            within = [known for known in self.port_classes() if not known.minus(ports)]
            best = max(within, key=_width, default=NOTHING)
            if len(self._learnable) >= _REMEMBERED:
                self._learnable.clear()
            self._learnable[ports] = best
        return best

    # Addresses

    def decide_address(self, packed: bytes, protocol: str, port: int | None) -> Decision:
        """The decision of rules, special blocks and default for an address; nothing that names taught counts.

        `protocol` is `"tcp"`, `"udp"`, `"echo"` or empty (any of them); without a port: is any open. `ports` of the
        result are all that may be reached at the address.
        """
        outcome = self._addresses.find(unmap(packed))
        allowed = outcome.allow
        if self._default_allow:
            allowed |= self._space.everything & ~outcome.deny
        bits = self._space.bits(protocol, port)
        if not protocol and port is None:
            bits |= self._space.echo
        return self._port_decision(outcome, allowed, bits, protocol, port)

    def _port_decision(self, outcome: Outcome, allowed: int, bits: int, protocol: str, port: int | None) -> Decision:
        """Allowed where any of the bits is; the reason names the first rule that decides one of them that way."""
        space = self._space
        ports = space.ports(allowed)
        action = Action.ALLOW if allowed & bits else Action.DENY
        if not bits:
            return Decision(action, None, "only TCP, UDP and echo requests are ever opened", ports)
        for place, denies, mask in outcome.entries:
            if mask & bits and denies is (action is Action.DENY):
                if place < len(self._rules):
                    rule = self._rules[place]
                    return Decision(action, rule, rule.name(), ports)
                if place == len(self._rules):
                    return Decision(action, None, _CLOSED, ports)
        if action is Action.ALLOW:
            return Decision(action, None, "default allow", ports)
        if port == DOT_PORT and protocol not in ECHO_NAMES:
            return Decision(action, None, "port 853 opens only for a rule that names it", ports)
        return Decision(action, None, "default deny", ports)

    def teach(self, packed: bytes) -> Teach:
        """What an allowed name may do with this address in its answer. O(log rules)."""
        address_class, _ = classify(packed)
        if address_class is _ORDINARY:
            return _LEARN
        packed = unmap(packed)
        if address_class is AddressClass.INTERNAL and self._default_allow:
            return Teach.LEARN
        return Teach.KEEP if self._addresses.find(packed).allow & self._space.transport else Teach.STRIP

    def address_plan(self) -> tuple[AddressRange, ...]:
        """Disjoint ranges in order, IPv4 first, with what rules and special blocks close and open in each."""
        return self._addresses.plan()

    def _first_rule(self, outcome: Outcome, *, denies: bool) -> Rule | None:
        for entry in outcome.entries:
            if entry.denies is denies and entry.place < len(self._rules):
                return self._rules[entry.place]
        return None


_CLOSED = "a metadata or link-local address, opened only by a rule that names it or a prefix inside its block"


def _reason(rule: Rule | None, default: str) -> str:
    return rule.name() if rule else default


def _width(ports: PortSet) -> int:
    return sum(last - first + 1 for ranges in (ports.tcp, ports.udp) for first, last in ranges)


def compile_policy(
    policy: NetworkPolicy, always_deny: Sequence[Rule] = (), always_allow: Sequence[Rule] = ()
) -> CompiledPolicy:
    """A policy behind the operator's rules, ready to decide. 4,096 rules take some thirty milliseconds.

    Raises PolicyError for a policy whose rules multiply (see `firstmatch`).
    """
    return CompiledPolicy(policy, (*always_deny, *always_allow, *policy.egress))
