"""The answer to "may it?": what the compiled policy decides, and what interceptor and ruleset make of it.

The policy does not know that port 53 is always redirected, that some names never resolve, or that mode dns filters no
packets; a person who asks wants to hear what will happen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from policies.matcher import Teach
from policies.model import Action
from policies.ports import DOT_PORT, NOTHING
from policies.special import classify

if TYPE_CHECKING:
    from egress.commands.explain import Asked
    from policies.matcher import CompiledPolicy
    from policies.model import Decision, Rule
    from policies.ports import PortSet, Ranges

DNS_PORT = 53


class Verdict(NamedTuple):
    """What becomes of one target. `ports` is all that may be reached there."""

    asked: Asked
    allowed: bool
    rule: Rule | None
    reason: str
    ports: PortSet
    notes: tuple[str, ...]

    def document(self) -> dict[str, object]:
        """For programs; `name` or `address` is what was understood."""
        host = self.asked.host
        rule = self.rule
        return {
            "target": self.asked.text,
            "kind": "name" if isinstance(host, str) else "address",
            ("name" if isinstance(host, str) else "address"): _text(host),
            "port": self.asked.port,
            "protocol": self.asked.protocol or None,
            "decision": "allow" if self.allowed else "deny",
            "rule": {"origin": rule.origin, **rule.to_document()} if rule else None,
            "reason": self.reason,
            "ports": {"tcp": _listed(self.ports.tcp), "udp": _listed(self.ports.udp), "echo": self.ports.echo},
            "notes": list(self.notes),
        }


def _text(host: str | bytes) -> str:
    from policies.address import format_address

    return (host or ".") if isinstance(host, str) else format_address(host)


def _listed(ranges: Ranges) -> list[int | str]:
    return [first if first == last else f"{first}-{last}" for first, last in ranges]


def judge(compiled: CompiledPolicy, asked: Asked, mode: str) -> Verdict:
    """Decide about one target under one policy; `mode` is the sidecar's, dns or dns+nft."""
    if isinstance(asked.host, str):
        return _name(compiled, asked, asked.host, mode)
    return _address(compiled, asked, asked.host, mode)


# -- names -----------------------------------------------------------------------------------------------------------
def _name(compiled: CompiledPolicy, asked: Asked, name: str, mode: str) -> Verdict:
    from egress.dns.interceptor import HINTS

    for hint in HINTS:
        if name == hint or name.endswith("." + hint):
            reason = "this name asks for another resolver; it never resolves, whatever the rules"
            return Verdict(asked, False, None, reason, NOTHING, ())
    resolves = compiled.decide_name(name)
    if resolves.action is Action.DENY:
        hints = ("it does not resolve: NXDOMAIN", *_near(compiled, name))
        return Verdict(asked, False, resolves.rule, resolves.reason, NOTHING, hints)
    if mode == "dns":
        return _name_in_mode_dns(asked, resolves, _budget(compiled, name, resolves))
    decision = resolves
    if asked.port is not None or asked.protocol:
        decision = compiled.decide_name_port(name, asked.protocol, asked.port)
    if asked.port == DNS_PORT:
        return Verdict(asked, False, None, _PORT_53, resolves.ports, ())
    if decision.action is Action.DENY:
        refused = ("it resolves, and connections to this port are refused at once",)
        return Verdict(asked, False, decision.rule, decision.reason, resolves.ports, refused)
    notes = _half(asked, resolves.ports)
    notes.append(_stripped(compiled))
    if _by_rule(compiled):
        notes.append("an address that a rule denies stays closed, also where this name leads to it")
    notes += _budget(compiled, name, resolves)
    return Verdict(asked, True, decision.rule, decision.reason, resolves.ports, tuple(notes))


_PORT_53 = "port 53 always goes to the guard's own resolver, whatever the rules"


def _name_in_mode_dns(asked: Asked, resolves: Decision, budget: list[str]) -> Verdict:
    if asked.port in (DNS_PORT, DOT_PORT):
        return Verdict(asked, False, None, _CLOSED_IN_MODE_DNS, NOTHING, ())
    notes = ("mode dns: the name resolves, and no port of what it leads to is filtered but 53 and 853",)
    return Verdict(asked, True, resolves.rule, resolves.reason, resolves.ports, (*notes, *budget))


_CLOSED_IN_MODE_DNS = "mode dns closes ports 53 and 853 to everything but the guard's own resolver"


def _half(asked: Asked, ports: PortSet) -> list[str]:
    """A word where only one of the protocols is open and none was asked for."""
    if asked.protocol or asked.port is None:
        return []
    tcp, udp = ports.contains("tcp", asked.port), ports.contains("udp", asked.port)
    return [] if tcp == udp else [f"{'TCP' if tcp else 'UDP'} only"]


def _stripped(compiled: CompiledPolicy) -> str:
    if compiled.policy.default is Action.ALLOW:
        what = "loopback, multicast, reserved, link-local and metadata addresses"
    else:
        what = "private, loopback, multicast, reserved, link-local and metadata addresses"
    return f"{what} that it resolves to are taken out of the answer, unless an address rule opens them"


def _budget(compiled: CompiledPolicy, name: str, resolves: Decision) -> list[str]:
    """A word where a wildcard lets the sandbox choose the name."""
    rule = resolves.rule
    if rule is None or rule.kind != "suffix" or name in compiled.exact_names:
        return []
    from egress.dns.budget import OCTETS

    limit = f"up to {OCTETS} bytes of them a day, unless OPENSANDBOX_EGRESS_NAME_BUDGET says otherwise"
    return [f"names below {rule.target[2:]} that were never seen resolve {limit}"]


def _by_rule(compiled: CompiledPolicy) -> bool:
    return any(rule.network is not None and rule.action is Action.DENY for rule in compiled.policy.egress)


def _near(compiled: CompiledPolicy, name: str) -> list[str]:
    """A rule that the person may have thought would match."""
    for rule in compiled.policy.egress:
        if rule.action is Action.ALLOW and rule.kind == "suffix" and rule.target == f"*.{name}":
            return [f'{rule.origin} "{rule.describe()}" covers names below {name}, not {name} itself']
        if rule.action is Action.ALLOW and rule.kind == "name" and name.endswith(f".{rule.target}"):
            return [f'{rule.origin} "{rule.describe()}" covers {rule.target} alone; names below need *.{rule.target}']
    return []


# -- addresses -------------------------------------------------------------------------------------------------------
def _address(compiled: CompiledPolicy, asked: Asked, packed: bytes, mode: str) -> Verdict:
    if mode == "dns":
        if asked.port in (DNS_PORT, DOT_PORT):
            return Verdict(asked, False, None, _CLOSED_IN_MODE_DNS, NOTHING, ())
        decision = compiled.decide_address(packed, asked.protocol, asked.port)
        if decision.action is Action.ALLOW:
            return Verdict(asked, True, decision.rule, decision.reason, decision.ports, ())
        else_ = (f"in mode dns+nft it would be denied: {decision.reason}",)
        return Verdict(asked, True, None, "mode dns filters no packets to addresses", decision.ports, else_)
    decision = compiled.decide_address(packed, asked.protocol, asked.port)
    if asked.port == DNS_PORT:
        return Verdict(asked, False, None, _PORT_53, decision.ports, ())
    kind = classify(packed)
    notes = []
    if kind.label != "an ordinary address":
        notes.append(f"it is {kind.label}" if kind.label.startswith("a ") else f"it is a {kind.label} address")
    if decision.action is Action.ALLOW:
        notes += _half(asked, decision.ports)
        if compiled.policy.default is Action.ALLOW and decision.rule is None and _narrowing(compiled, asked):
            notes.append("a name with denied ports that leads to it closes these ports")
        return Verdict(asked, True, decision.rule, decision.reason, decision.ports, tuple(notes))
    notes.append(_taught(compiled, asked, packed, decision))
    return Verdict(asked, False, decision.rule, decision.reason, decision.ports, tuple(notes))


def _taught(compiled: CompiledPolicy, asked: Asked, packed: bytes, decision: Decision) -> str:
    """Whether a name may still open a denied address."""
    if decision.rule is not None:
        return "no name opens it: an address that a rule denies is never opened by an answer"
    if compiled.teach(packed) is not Teach.LEARN:
        return "no name opens it: such addresses are never learned from answers, only rules for the address open them"
    teachers = [ports for ports in compiled.port_classes() if _reaches(ports, asked)]
    if not teachers:
        return "no name opens it either: the policy allows no name on this port" if asked.port else "no name opens it"
    names = [
        rule.target
        for rule in compiled.policy.egress
        if rule.network is None and rule.action is Action.ALLOW and _reaches(rule.covers(), asked)
    ]
    shown = f" ({', '.join(dict.fromkeys(names[:3]))}{', ...' if len(names) > 3 else ''})" if names else ""
    return f"an allowed name that resolves to it{shown} opens it for as long as the answer is good"


def _reaches(ports: PortSet, asked: Asked) -> bool:
    protocols = (asked.protocol,) if asked.protocol else ("tcp", "udp")
    return any(ports.contains(protocol, asked.port) for protocol in protocols)


def _narrowing(compiled: CompiledPolicy, asked: Asked) -> bool:
    return any(not _reaches(ports, asked) for ports in compiled.port_classes()) and asked.port is not None
