"""The values of the policy language: rules, policies, decisions.

Everything here is parsed and canonical: names in lower case as A-labels, addresses as packed networks, ports as
merged ranges. Nothing is normalised again further on. Named tuples rather than dataclasses, because the sidecar
imports this before its first answer.
"""

from __future__ import annotations

from enum import Enum

from policies.ports import PortSet, Ranges, covered, format_ranges
from policies.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from policies.address import Network


class PolicyError(ValueError):
    """A document that isn't a policy. `path` is a JSON path (`$.egress[2].target`) or a place in a rule file."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path
        self.message = message


class Action(Enum):
    """What a rule, or the default, says."""

    ALLOW = "allow"
    DENY = "deny"


class Rule(NamedTuple):
    """One rule. `kind` is `"name"`, `"suffix"` (`*.target`), `"any"` (`*`) or `"address"` (then `network` is set).

    `target` is the canonical text as it is shown (`*.example.com`, `10.0.0.0/8`). `ports` are merged inclusive
    ranges, empty where the rule names none; `protocol` is `"tcp"`, `"udp"` or empty. `origin` says where the rule
    stands, e.g. `egress[3]` or `deny.always:12`.
    """

    action: Action
    target: str
    kind: str
    network: Network | None = None
    ports: Ranges = ()
    protocol: str = ""
    comment: str = ""
    origin: str = ""

    @property
    def key(self) -> tuple[str, Ranges, str]:
        """Equal for rules that are the same in the sense of PATCH and DELETE: target, ports and protocol by meaning."""
        return self.target, self.ports, self.protocol

    def covers(self) -> PortSet:
        """The ports that the rule speaks about."""
        return covered(self.action is Action.ALLOW, self.ports, self.protocol)

    def describe(self) -> str:
        """`deny *.example.com tcp 25`, the rule in one line without its place."""
        text = f"{self.action.value} {self.target}"
        if self.protocol:
            text += f" {self.protocol}"
        if self.ports:
            text += f" {format_ranges(self.ports)}" if self.protocol else f" port {format_ranges(self.ports)}"
        return text

    def name(self) -> str:
        """How decisions and reports speak of the rule: `rule egress[3] "deny *.example.com" (no mail)`."""
        text = f'rule {self.origin} "{self.describe()}"' if self.origin else f'rule "{self.describe()}"'
        return f"{text} ({self.comment})" if self.comment else text

    def to_document(self) -> dict[str, object]:
        """The rule as JSON; the members of our extensions only where they are used."""
        document: dict[str, object] = {"action": self.action.value, "target": self.target}
        if self.ports:
            ports: list[int | str] = []
            for first, last in self.ports:
                if last - first < 2:
                    ports.extend(range(first, last + 1))
                else:
                    ports.append(f"{first}-{last}")
            document["ports"] = ports
        if self.protocol:
            document["protocol"] = self.protocol
        if self.comment:
            document["comment"] = self.comment
        return document


class NetworkPolicy(NamedTuple):
    """A parsed policy: what happens where no rule matches, and the rules in order."""

    default: Action = Action.DENY
    egress: tuple[Rule, ...] = ()

    @property
    def mode(self) -> str:
        """`"allow_all"` or `"deny_all"` without rules, else `"enforcing"`."""
        return "enforcing" if self.egress else f"{self.default.value}_all"

    def to_document(self) -> dict[str, object]:
        """The policy as JSON in the shape of the wire contract; `egress` is always a list."""
        return {"defaultAction": self.default.value, "egress": [rule.to_document() for rule in self.egress]}


class Decision(NamedTuple):
    """What is to happen and why.

    `rule` is None where the default or an address class decided. `reason` is one plain fragment, safe to print.
    `ports` is what may be reached; for a denied link of a CNAME chain, what may not.
    """

    action: Action
    rule: Rule | None
    reason: str
    ports: PortSet


def numbered(rules: tuple[Rule, ...] | list[Rule]) -> tuple[Rule, ...]:
    """The rules with their places in a policy written in, `egress[0]` onwards."""
    return tuple(
        rule if rule.origin == f"egress[{index}]" else rule._replace(origin=f"egress[{index}]")
        for index, rule in enumerate(rules)
    )
