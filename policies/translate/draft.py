"""A policy in the making: rules with the place they came from, and everything that could not be said.

Order is settled at the end: denials first, then allowances. Every system here is either a list of allowances, or lets
denials win; one that lets allowances win (E2B) puts them in front.
"""

from __future__ import annotations

from policies.model import Action, NetworkPolicy, PolicyError, Rule, numbered
from policies.name import Target, TargetError, parse_target, show
from policies.ports import LAST_PORT, Ranges, merge
from policies.translate.blocks import Block, exclude, overlap
from policies.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ALL_PORTS: Ranges = ((1, LAST_PORT),)
DNS: Ranges = ((53, 53),)
_LONGEST_COMMENT = 200

AROUND = (
    "10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.0.0.0/24", "192.168.0.0/16", "198.18.0.0/15",
    "64:ff9b:1::/48", "100::/64", "2001::/32", "2001:2::/48", "::/96", "fc00::/7", "fec0::/10",
)  # fmt: skip
"""Addresses of the network around a sandbox, which "the internet" does not mean: the INTERNAL ones of `special`."""


class Remark(NamedTuple):
    """Something to be told, with its place in the source: a JSON path, or `line 7`."""

    place: str
    words: str

    def __str__(self) -> str:
        return f"{self.place}: {self.words}"


class Options(NamedTuple):
    """What a caller may ask for. `names` choose among several policies in one file."""

    wider: bool = False
    names: tuple[str, ...] = ()
    github_meta: str = ""  # the answer of GitHub's meta API, for `devcontainer`


class Translation(NamedTuple):
    """A policy, what it lacks (`gaps`), where it is wider than its source as was asked for, and how it was read."""

    policy: NetworkPolicy
    gaps: tuple[Remark, ...] = ()
    widened: tuple[Remark, ...] = ()
    notes: tuple[Remark, ...] = ()


class Reach(NamedTuple):
    """Ports of TCP and of UDP; `whole` for every protocol there is, echo requests among them."""

    tcp: Ranges = ()
    udp: Ranges = ()
    whole: bool = False

    def rules(self) -> tuple[tuple[Ranges, str], ...]:
        """As ports and protocol of rules. All ports of a protocol are written as none: port 853 then stays closed."""
        if self.whole:
            return (((), ""),)
        if self.tcp == self.udp and self.tcp and self.tcp != ALL_PORTS:
            return ((self.tcp, ""),)
        found = (("tcp", self.tcp), ("udp", self.udp))
        return tuple((() if ranges == ALL_PORTS else ranges, name) for name, ranges in found if ranges)

    def holds(self, port: int) -> bool:
        return self.whole or any(first <= port <= last for first, last in (*self.tcp, *self.udp))

    def names(self, port: int) -> bool:
        """Is the port open because somebody wrote it, and not as one of all."""
        return any(
            first <= port <= last for ranges in (self.tcp, self.udp) if ranges != ALL_PORTS for first, last in ranges
        )

    def without_dns(self) -> Reach:
        """Nothing where port 53 is all there is: it goes to the guard's resolver, so a rule for it opens nothing."""
        return Reach() if not self.whole and set(self.tcp + self.udp) <= set(DNS) else self

    def __bool__(self) -> bool:
        return bool(self.whole or self.tcp or self.udp)


WHOLE = Reach(whole=True)


def reach(entries: Iterable[tuple[str, int, int]]) -> Reach:
    """The union of (protocol, first, last)."""
    tcp: list[tuple[int, int]] = []
    udp: list[tuple[int, int]] = []
    for protocol, first, last in entries:
        (tcp if protocol == "tcp" else udp).append((first, last))
    return Reach(merge(tcp), merge(udp))


class Draft:
    """Collects what a translator finds."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._first: list[Rule] = []
        self._denials: list[Rule] = []
        self._names: list[Rule] = []
        self._blocks: list[Block] = []
        self._gaps: list[Remark] = []
        self._widened: list[Remark] = []
        self._notes: list[Remark] = []

    # -- rules ---------------------------------------------------------------------------------------------------
    def allow(self, text: str, ports: Reach, place: str, comment: str = "") -> None:
        """Allow a name, a wildcard of ours, an address or a prefix."""
        found = target(text, place)
        comment = comment or f"from {place}"
        if found.network is not None:
            self.allow_network(found, (), ports, comment)
            return
        for ranges, protocol in ports.rules():
            self._names.append(_rule(Action.ALLOW, found, ranges, protocol, comment))

    def allow_network(
        self, found: Target, excepted: Sequence[Target], ports: Reach, comment: str, why: str = "excepted"
    ) -> None:
        """Allow a prefix but for some prefixes in it; `why` these are not."""
        ports = ports.without_dns()
        if ports:
            self._blocks.append(Block(found, tuple(excepted), ports.rules(), comment, why))

    def allow_internet(self, ports: Reach, place: str, families: str = "46", comment: str = "") -> None:
        """Allow every address but those of the network around: the only thing that "outside" can mean here."""
        around = [target(text, place) for text in AROUND]
        for family, text in (("4", "0.0.0.0/0"), ("6", "::/0")):
            if family in families:
                mine = [one for one in around if (":" in one.text) is (family == "6")]
                self.allow_network(target(text, place), mine, ports, comment or f"from {place}", "not outside")

    def allow_asking(self, text: str, place: str, comment: str = "") -> None:
        """Let names be asked for, and open nothing: port 53 always goes to the guard's own resolver."""
        found = target(text, place)
        self._names.append(_rule(Action.ALLOW, found, DNS, "", comment or f"may be asked for: {place}"))

    def deny(self, text: str, ports: Reach, place: str, comment: str = "") -> None:
        """Deny; in front of every allowance."""
        found = target(text, place)
        for ranges, protocol in ports.rules():
            self._denials.append(_rule(Action.DENY, found, ranges, protocol, comment or f"from {place}"))

    def first(self, action: Action, text: str, ports: Reach, place: str, comment: str = "") -> None:
        """A rule in front of all others, in the order of the calls."""
        found = target(text, place)
        for ranges, protocol in ports.rules():
            self._first.append(_rule(action, found, ranges, protocol, comment or f"from {place}"))

    # -- what could not be said ----------------------------------------------------------------------------------
    def gap(self, place: str, words: str) -> None:
        """Something allowed there is not allowed here."""
        self._gaps.append(Remark(place, words))

    def only_wider(self, place: str, words: str) -> bool:
        """Our language has it only wider: True where that was asked for, else a gap."""
        if self.options.wider:
            self._widened.append(Remark(place, words))
            return True
        self.gap(place, f"left out: {words}; --wider takes it so")
        return False

    def undeniable(self, place: str, words: str) -> None:
        """A denial that cannot be said. Raises PolicyError unless the wider policy was asked for."""
        if not self.options.wider:
            raise PolicyError(place, f"{words}; without it the policy is wider than its source: --wider goes on")
        self._widened.append(Remark(place, f"denial left out: {words}"))

    def note(self, place: str, words: str) -> None:
        """How something was read."""
        self._notes.append(Remark(place, words))

    # -- the end -------------------------------------------------------------------------------------------------
    def finish(self, default: Action = Action.DENY) -> Translation:
        """The policy. The same rule twice is one."""
        denials, networks = self._settle(default)
        if networks and not self._names and not self._first and default is Action.DENY:
            self.note("$", "nothing lets names be asked for: what is allowed is reached by its address")
        rules: dict[tuple[object, ...], Rule] = {}
        # Those in front keep their order whatever repeats.
        for rule in (*self._first, *self._denials, *denials, *self._names, *networks):
            rules.setdefault((rule.action, *rule.key), rule)
        return Translation(
            NetworkPolicy(default, numbered(list(rules.values()))),
            tuple(dict.fromkeys(self._gaps)),
            tuple(dict.fromkeys(self._widened)),
            tuple(dict.fromkeys(self._notes)),
        )

    def _settle(self, default: Action) -> tuple[list[Rule], list[Rule]]:
        """Prefixes with exceptions: as denials in front where these close nothing that another rule opens, else as
        the prefixes that are left."""
        denials: list[Rule] = []
        rules: list[Rule] = []
        learning = any(rule.ports != DNS for rule in self._names)
        for block in self._blocks:
            left = [block.found]
            # A denial closes what names lead to as well, but names don't lead to the network around anyway.
            plain = not learning or all(any(_within(hole, one) for one in _AROUND) for hole in block.excepted)
            free = default is Action.DENY and plain
            if block.excepted and free and not any(self._in_the_way(block, other) for other in self._blocks):
                words = f"{block.why}, {block.comment}"
                denials += [_rule(Action.DENY, one, (), "", words) for one in block.excepted]
            elif block.excepted:
                left = exclude(block.found, block.excepted)
            for found in left:
                for ranges, protocol in block.rules:
                    rules.append(_rule(Action.ALLOW, found, ranges, protocol, block.comment))
        return denials, rules

    @staticmethod
    def _in_the_way(block: Block, other: Block) -> bool:
        """Would denying what `block` excepts take something from `other`."""
        return any(
            overlap(hole, other.found) and not any(_within(hole, also) for also in other.excepted)
            for hole in block.excepted
        )


def _within(inner: Target, outer: Target) -> bool:
    a, b = inner.network, outer.network
    return a is not None and b is not None and a.length >= b.length and b.contains(a.packed)


_AROUND = tuple(parse_target(text) for text in AROUND)


def target(text: str, place: str) -> Target:
    """Parse a target. Raises PolicyError."""
    try:
        return parse_target(text)
    except TargetError as error:
        raise PolicyError(place, f"{show(text)}: {error}") from None


def network(text: str, place: str) -> Target:
    """Parse an address or a prefix. Raises PolicyError."""
    found = target(text, place)
    if found.network is None:
        raise PolicyError(place, f"{show(text)} is no network; write one such as 192.0.2.0/24")
    return found


def _rule(action: Action, found: Target, ranges: Ranges, protocol: str, comment: str) -> Rule:
    printable = "".join(char if char.isprintable() else "?" for char in comment)
    if len(printable) > _LONGEST_COMMENT:
        printable = printable[: _LONGEST_COMMENT - 3] + "..."
    return Rule(action, found.text, found.kind, found.network, ranges, protocol, printable)
