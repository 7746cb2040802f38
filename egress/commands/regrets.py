"""What is right in a policy and yet will be regretted: rules that never decide, doors wider than they look.

Nothing here is an error and nothing here decides; the compiled policy does that. Coverage is looked at rule by rule:
that several narrower rules together cover a wider one is not noticed. Each look costs a rule its labels or prefix
lengths, so 4,096 rules are no matter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from policies.address import clear, parse_network
from policies.matcher import compile_policy
from policies.model import Action
from policies.ports import DOT_PORT, EVERYTHING, NOTHING
from policies.special import SPECIAL_BLOCKS, classify

if TYPE_CHECKING:
    from collections.abc import Iterator

    from policies.address import Network
    from policies.model import NetworkPolicy, Rule
    from policies.ports import PortSet

DNS_PORT = 53


class Regret(NamedTuple):
    """A warning and its place, as a JSON path."""

    path: str
    message: str


def regrets(policy: NetworkPolicy, *, mode: str = "dns+nft", max_rules: int = 0) -> tuple[Regret, ...]:
    """Everything to warn about, in the order of the rules. `max_rules` is the sidecar's cap, 0 for none.

    Raises PolicyError for a policy that parses and cannot be compiled (see `policies.firstmatch`).
    """
    found = list(_whole(policy, max_rules))
    compile_policy(policy)
    openable = _openable(policy)
    seen = _Seen()
    for index, rule in enumerate(policy.egress):
        path = f"$.egress[{index}]"
        earlier = seen.before(rule)
        found += [Regret(path, text) for text in _overtaken(rule, _meant(rule, openable), earlier)]
        alive = _meant(rule, openable).minus(_decided(earlier))
        if alive:
            found += [Regret(path, text) for text in _wide(rule)]
        found += [Regret(path, text) for text in _ports(rule)]
        if mode == "dns" and (rule.network is not None or rule.ports or rule.protocol):
            what = "address rules" if rule.network is not None else "ports"
            found.append(Regret(path, f"mode dns filters no packets: {what} are kept and not enforced"))
        seen.add(rule)
    return tuple(sorted(found, key=lambda regret: _place(regret.path)))


def _place(path: str) -> int:
    return int(path[9:-1]) if path.startswith("$.egress[") else -1


def _whole(policy: NetworkPolicy, max_rules: int) -> Iterator[Regret]:
    if policy.default is Action.ALLOW and policy.egress and all(r.action is Action.ALLOW for r in policy.egress):
        yield Regret(
            "$.defaultAction",
            'everything is allowed by default and no rule denies anything; write "deny" if the rules are all that is '
            "to be open",
        )
    if max_rules and len(policy.egress) > max_rules:
        yield Regret(
            "$.egress",
            f"{len(policy.egress)} rules are more than the {max_rules} that the HTTP API takes "
            "(OPENSANDBOX_EGRESS_MAX_RULES)",
        )


# -- order -----------------------------------------------------------------------------------------------------------
class _Seen:
    """The rules so far, to be found by what they cover."""

    def __init__(self) -> None:
        self._names: dict[str, list[Rule]] = {}
        self._networks: dict[tuple[int, int, bytes], list[Rule]] = {}  # (octets, length, prefix)
        self._lengths: dict[int, set[int]] = {4: set(), 16: set()}

    def add(self, rule: Rule) -> None:
        network = rule.network
        if network is None:
            self._names.setdefault(rule.target, []).append(rule)
        else:
            size = len(network.packed)
            self._networks.setdefault((size, network.length, network.packed), []).append(rule)
            self._lengths[size].add(network.length)

    def before(self, rule: Rule) -> list[Rule]:
        """The rules added whose targets cover this one's, in order of appearance per target."""
        found: list[Rule] = []
        network = rule.network
        if network is None:
            for target in _wider(rule.target):
                found += self._names.get(target, ())
            return found
        size = len(network.packed)
        block = _special(network)
        for length in self._lengths[size]:
            if length > network.length:
                continue
            for other in self._networks.get((size, length, clear(network.packed, length)), ()):
                # Inside a special block, what a wider prefix allows does not count.
                if other.action is Action.DENY or block is None or length >= block.length:
                    found.append(other)
        return found


def _wider(target: str) -> Iterator[str]:
    """The targets that cover a name target, itself first."""
    yield target
    name = target.removeprefix("*.")
    while "." in name:
        name = name.partition(".")[2]
        yield f"*.{name}"
    if target != "*":
        yield "*"


def _special(network: Network) -> Network | None:
    """The special block that the whole prefix lies in."""
    for block, _ in SPECIAL_BLOCKS:
        if block.length <= network.length and block.contains(network.packed):
            return block
    return None


def _meant(rule: Rule, openable: PortSet) -> PortSet:
    """What a rule can decide: a denial of everything also covers port 853, where hardly any policy opens that."""
    return rule.covers().intersect(openable)


def _openable(policy: NetworkPolicy) -> PortSet:
    """Every port that is open without being named, and those that some rule opens by name."""
    openable = EVERYTHING
    for rule in policy.egress:
        if rule.action is Action.ALLOW and rule.ports:
            openable = openable.union(rule.covers())
    return openable


def _decided(rules: list[Rule]) -> PortSet:
    decided = NOTHING
    for rule in rules:
        decided = decided.union(rule.covers())
    return decided


def _overtaken(rule: Rule, meant: PortSet, earlier: list[Rule]) -> Iterator[str]:
    """Earlier rules that leave this one nothing, or let out what it denies."""
    if not earlier or not meant.intersect(_decided(earlier)):
        return
    earlier = sorted(earlier, key=_index)
    rest, names, opposite = meant, [], False
    for other in earlier:
        taken = rest.intersect(other.covers())
        if taken:
            rest = rest.minus(taken)
            names.append(other)
            opposite = opposite or other.action is not rule.action
    by = " and ".join(f'{other.origin} "{other.describe()}"' for other in names[:3])
    if not rest:
        if opposite:
            yield f"never decides anything: {by} comes first and says otherwise; put the narrower rule first"
        elif rule.key == names[0].key:
            yield f"is {names[0].origin} again; take one out"
        else:
            yield f"never decides anything: {by} covers it already"
    elif rule.action is Action.DENY:
        let_out = [other for other in names if other.action is Action.ALLOW]
        if let_out:
            first = let_out[0]
            open_ports = meant.intersect(first.covers())
            yield (
                f'leaves {open_ports} open, which {first.origin} "{first.describe()}" allows before it; '
                "put the denial first if that is not meant"
            )


def _index(rule: Rule) -> int:
    digits = rule.origin.removeprefix("egress[").removesuffix("]")
    return int(digits) if digits.isdecimal() else 0


# -- width -----------------------------------------------------------------------------------------------------------
def _wide(rule: Rule) -> Iterator[str]:
    if rule.action is Action.DENY:
        return
    if rule.kind == "any":
        yield "any name is allowed: whoever owns a domain can be told anything by asking for names below it"
    elif rule.kind == "suffix" and "." not in rule.target[2:]:
        yield f"every name below a top-level domain: anybody can register one under {rule.target[1:]}"
    network = rule.network
    if network is None:
        return
    block = _special(network)
    if block is not None:
        if network == _CLOUD_METADATA or classify(network.packed).label == "a metadata address":
            yield "opens a metadata service, which may hand out this machine's credentials"
        elif network.contains(_CLOUD_METADATA.packed):
            yield "opens link-local addresses, the metadata service 169.254.169.254 among them"
        return
    closed = [str(inner) for inner, _ in SPECIAL_BLOCKS if _inside(inner, network)]
    if closed:
        shown = ", ".join(closed[:3]) + (", ..." if len(closed) > 3 else "")
        yield f"does not open the metadata and link-local addresses in it ({shown}); those need rules that name them"


_CLOUD_METADATA = parse_network("169.254.169.254")


def _inside(inner: Network, outer: Network) -> bool:
    same = len(inner.packed) == len(outer.packed)
    return same and outer.length < inner.length and outer.contains(inner.packed)


def _ports(rule: Rule) -> Iterator[str]:
    if not rule.ports:
        return
    named = any(first == DOT_PORT == last for first, last in rule.ports)
    spanned = any(first <= DOT_PORT <= last for first, last in rule.ports)
    if rule.action is Action.ALLOW and spanned:
        how = "opens" if named else "has a range that opens"
        yield f"{how} port 853, encrypted DNS: names that are asked there are not seen by the guard"
    if any(first == DNS_PORT == last for first, last in rule.ports):
        yield "port 53 always goes to the guard's own resolver, whatever the rules: it cannot be opened or closed"
