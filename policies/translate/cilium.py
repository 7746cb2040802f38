"""CiliumNetworkPolicy and CiliumClusterwideNetworkPolicy (cilium.io/v2): egress and egressDeny.

Two things are allowed apart in Cilium: asking for a name (`toPorts` with port 53, `rules.dns`) and reaching what a name
led to (`toFQDNs`). Ours does both with one rule, so a name of toFQDNs is translated as far as it may be asked for.
In a pattern `*` stands for characters of one label, `**.` in front for any labels: only the latter is our wildcard.
"""

from __future__ import annotations

import re

from policies.model import Action, PolicyError
from policies.name import show
from policies.translate.blocks import exclude
from policies.translate.draft import WHOLE, Draft, Options, Reach, Translation, network, reach, target
from policies.translate.kubernetes import excepts
from policies.translate.manifests import chosen, label
from policies.translate.tree import Node, port
from policies.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from policies.name import Target

KINDS = ("CiliumNetworkPolicy", "CiliumClusterwideNetworkPolicy")
_SPEC = (
    "endpointSelector", "nodeSelector", "ingress", "ingressDeny", "egress", "egressDeny", "labels", "description",
    "enableDefaultDeny", "log",
)  # fmt: skip
_PEERS = ("toEndpoints", "toCIDR", "toCIDRSet", "toEntities", "toFQDNs", "toServices", "toGroups", "toNodes")
_RULE = (*_PEERS, "toPorts", "icmps", "authentication", "toRequires")
_WORLD = {"world": "46", "world-ipv4": "4", "world-ipv6": "6", "all": "46"}
_INNER_ENTITIES = (
    "host", "remote-node", "kube-apiserver", "ingress", "cluster", "init", "health", "unmanaged", "none",
)  # fmt: skip
_CHARACTERS = re.compile(r"(?a)[-a-zA-Z0-9_.*]+")


class Pattern(NamedTuple):
    """A name or pattern: `ours` as a target of ours, None where we have only `wider`."""

    text: str
    place: str
    ours: str | None
    wider: str

    def matches(self, name: str) -> bool:
        """Does a plain name match."""
        return expression(self.text).fullmatch(name) is not None


class Named(NamedTuple):
    """A name of toFQDNs with its ports."""

    pattern: Pattern
    ports: Reach
    policy: str


class _Reading:
    """What several policies come to, before names and questions are put together."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.asked: list[tuple[Pattern, str]] = []
        self.named: list[Named] = []


def translate(text: str, options: Options) -> Translation:
    """Translate the policies of a manifest that speak of egress. Raises PolicyError."""
    draft = Draft(options)
    reading = _Reading(draft)
    default = Action.ALLOW
    for policy in chosen(text, KINDS, options, draft, _speaks):
        for spec in _specs(policy):
            members = spec.known(_SPEC, "a spec")
            if ("egress" in members or "egressDeny" in members) and not _open(members.get("enableDefaultDeny")):
                default = Action.DENY
            for rule in members["egressDeny"].items("rules") if "egressDeny" in members else ():
                _denial(draft, rule, label(policy))
            for rule in members["egress"].items("rules") if "egress" in members else ():
                _allowance(reading, rule, label(policy))
    _names(reading)
    return draft.finish(default)


def expression(pattern: str) -> re.Pattern[str]:
    """A matchPattern as a regular expression."""
    text = pattern.lower().removesuffix(".")
    if text == "*":
        return re.compile(r"(?:[-a-z0-9_]+(?:\.[-a-z0-9_]+)*)?")
    head = ""
    if text.startswith("**."):
        head, text = r"(?:[-a-z0-9_]+\.)+", text[3:]
    return re.compile(head + r"[-a-z0-9_]*".join(re.escape(part) for part in text.split("*")))


def _specs(policy: Node) -> list[Node]:
    members = policy.members()
    specs = [members["spec"]] if "spec" in members else []
    specs += members["specs"].items("specs") if "specs" in members else []
    if not specs:
        raise PolicyError(f"{policy.path}.spec", "is not there")
    return specs


def _speaks(policy: Node) -> bool:
    return any("egress" in members or "egressDeny" in members for members in map(Node.members, _specs(policy)))


def _open(node: Node | None) -> bool:
    """Does the policy say itself that what it does not name goes on."""
    if node is None:
        return False
    members = node.known(("egress", "ingress"))
    return "egress" in members and not members["egress"].flag()


# -- egress --------------------------------------------------------------------------------------------------------
def _allowance(reading: _Reading, rule: Node, name: str) -> None:
    draft = reading.draft
    members = _understood(draft, rule, _RULE)
    if members is None or not members:
        return  # `{}` allows nothing
    if "toRequires" in members or "authentication" in members:
        draft.gap(rule.path, "left out: it asks for more than an address (toRequires, authentication)")
        return
    if "icmps" in members:
        draft.gap(members["icmps"].path, "left out: ICMP types are not ours to choose")
        if "toPorts" not in members:
            return
    peers = [key for key in _PEERS if key in members]
    for ports, questions in _port_rules(draft, members.get("toPorts")):
        if questions or ports.names(53) or (ports.holds(53) and not peers):
            reading.asked += [(pattern, name) for pattern in questions or (_any(rule.path),)]
        _to(reading, rule, members, peers, ports, name)


def _to(reading: _Reading, rule: Node, members: dict[str, Node], peers: list[str], ports: Reach, name: str) -> None:
    draft = reading.draft
    if not peers:
        for text in ("0.0.0.0/0", "::/0"):
            draft.allow_network(network(text, rule.path), (), ports, f"{name}: {rule.path}, to anywhere")
    for key in peers:
        for item in members[key].items():
            if key == "toFQDNs":
                reading.named.append(Named(_fqdn(item), ports, name))
            elif key in ("toCIDR", "toCIDRSet"):
                found = _cidr(item, plain=key == "toCIDR")
                if found is None:
                    draft.gap(item.path, "left out: a group of networks that stands in another object")
                    continue
                whole, excepted = found
                draft.allow_network(whole, excepted, ports, f"{name}: {item.path}")
                _note_cluster(draft, item.path)
            elif key == "toEntities":
                _entity(draft, item, ports, name)
            elif ports.without_dns():
                draft.gap(item.path, f"left out: {key} chooses what is in the cluster, whose addresses no file knows")


def _entity(draft: Draft, item: Node, ports: Reach, name: str) -> None:
    entity = item.text("an entity such as world")
    if entity in _WORLD:
        draft.allow_internet(ports, item.path, _WORLD[entity], f"{name}: {item.path}, {entity}")
        if entity == "all":
            draft.gap(item.path, "the cluster and the host are left out: no file knows their addresses")
    elif entity not in _INNER_ENTITIES:
        raise PolicyError(item.path, f"unknown entity {show(entity)}")
    elif entity != "none" and ports.without_dns():
        draft.gap(item.path, f"left out: {entity} is in the cluster, its addresses are in no file")


def _note_cluster(draft: Draft, place: str) -> None:
    draft.note(
        place, "in Cilium networks leave out the cluster's own pods and nodes; deny their networks if they lie in it"
    )


# -- egressDeny ------------------------------------------------------------------------------------------------------
def _denial(draft: Draft, rule: Node, name: str) -> None:
    members = rule.members("a rule")
    for key, node in members.items():
        if key not in (*_PEERS, "toPorts"):
            draft.undeniable(node.path, f"{key} cannot be denied")
            return
    if not members:
        return
    ports = _denied_ports(draft, members.get("toPorts"))
    peers = [key for key in _PEERS if key in members]
    for text in ("0.0.0.0/0", "::/0") if not peers else ():
        draft.deny(text, ports, rule.path, f"{name}: {rule.path}, to anywhere")
    for key in peers:
        for item in members[key].items():
            for text in _denied(draft, key, item):
                draft.deny(text, ports, item.path, f"{name}: {item.path}")


def _denied_ports(draft: Draft, node: Node | None) -> Reach:
    """All of toPorts; a list without ports is every port."""
    items = node.items() if node is not None else []
    known: list[tuple[str, int, int]] = []
    for item in items:
        ports = item.members().get("ports")
        entries = ports.items() if ports is not None else []
        if not entries:
            return WHOLE
        for entry in entries:
            found = _port(entry)
            if found is None:
                draft.undeniable(entry.path, "a named port's number stands with the pods")
            known += found or ()
    return reach(known) if items else WHOLE


def _denied(draft: Draft, key: str, item: Node) -> list[str]:
    """What a denied peer comes to; a superset will do."""
    if key in ("toCIDR", "toCIDRSet"):
        found = _cidr(item, plain=key == "toCIDR")
        if found is not None:
            whole, excepted = found
            return [one.text for one in exclude(whole, excepted)]
    elif key == "toEntities":
        families = _WORLD.get(item.text("an entity"))
        if families is not None:
            return [text for family, text in (("4", "0.0.0.0/0"), ("6", "::/0")) if family in families]
    draft.undeniable(item.path, f"{key}: what it chooses is in no file")
    return []


# -- parts -----------------------------------------------------------------------------------------------------------
def _understood(draft: Draft, node: Node, keys: tuple[str, ...]) -> dict[str, Node] | None:
    """Members of an allowance, None where one is unknown: it may restrict what the others open."""
    members = node.members("a rule")
    for key, member in members.items():
        if key not in keys:
            draft.gap(member.path, f"left out: {show(key)} is not known here, and may restrict the rest")
            return None
    return members


def _cidr(item: Node, *, plain: bool) -> tuple[Target, list[Target]] | None:
    if plain:
        return network(item.text("a network"), item.path), []
    members = item.known(("cidr", "except", "cidrGroupRef", "cidrGroupSelector"), "a network with exceptions")
    if "cidr" not in members:
        return None
    whole = network(members["cidr"].text("a network"), members["cidr"].path)
    return whole, excepts(members.get("except"), whole)


def _port_rules(draft: Draft, node: Node | None) -> list[tuple[Reach, list[Pattern]]]:
    """Each part of toPorts as ports and, for DNS, what may be asked for; none where nothing of it can be said."""
    if node is None:
        return [(WHOLE, [])]
    found: list[tuple[Reach, list[Pattern]]] = []
    for item in node.items():
        members = _understood(draft, item, ("ports", "rules"))
        if members is None:
            continue
        entries: list[tuple[str, int, int]] = []
        ports = members["ports"].items() if "ports" in members else []
        for entry in ports:
            known = _port(entry)
            if known is None:
                draft.gap(entry.path, "left out: a named port's number stands with the pods")
            elif not known:
                draft.gap(entry.path, "left out: neither TCP nor UDP")
            entries += known or ()
        rules = members["rules"].members() if "rules" in members else {}
        others = [key for key in rules if key != "dns"]
        if others:
            draft.gap(
                rules[others[0]].path, f"left out: {others[0]} looks into the connection, which opens it only partly"
            )
            continue
        questions = [_fqdn(one) for one in rules["dns"].items()] if "dns" in rules else []
        if "dns" in rules and not questions:
            continue
        if entries or not ports:
            found.append((reach(entries) if entries else WHOLE, questions))
    return found


def _port(entry: Node) -> list[tuple[str, int, int]] | None:
    """A port as (protocol, first, last); empty for other protocols, None for a name."""
    members = entry.known(("port", "endPort", "protocol"), "a port such as {port: '443', protocol: TCP}")
    protocol = members["protocol"].text("TCP, UDP, SCTP or ANY").upper() if "protocol" in members else "ANY"
    if protocol not in ("TCP", "UDP", "SCTP", "ANY"):
        return []
    text = members.get("port")
    if text is None:
        raise PolicyError(entry.path, "port is missing")
    if isinstance(text.value, str) and not re.fullmatch(r"(?a)[0-9]{1,5}", text.value):
        return None
    first = port(text, least=0)
    last = port(members["endPort"], least=0) if "endPort" in members else first
    if first == 0:
        first, last = 1, 65535
    last = max(first, last)
    return [(name.lower(), first, last) for name in ("TCP", "UDP") if protocol in (name, "ANY")]


def _any(place: str) -> Pattern:
    return Pattern("*", place, "*", "*")


def _fqdn(item: Node) -> Pattern:
    """A matchName or matchPattern. Raises PolicyError."""
    members = item.known(("matchName", "matchPattern"), "a name such as {matchName: api.example.com}")
    if len(members) != 1:
        raise PolicyError(item.path, "write either matchName or matchPattern")
    ((key, node),) = members.items()
    text = node.text("a name")
    if key == "matchName" or "*" not in text:
        name = target(text, node.path)
        if name.kind != "name":
            raise PolicyError(node.path, f"{show(text)} is no name; write matchPattern or toCIDR")
        return Pattern(name.text, node.path, name.text, name.text)
    if not _CHARACTERS.fullmatch(text):
        raise PolicyError(node.path, f"{show(text)} is no pattern; write one such as **.example.com")
    text = text.lower().removesuffix(".")
    if text == "*":
        return _any(node.path)
    if text.startswith("**.") and "*" not in text[3:]:
        ours = target(text[1:], node.path).text
        return Pattern(text, node.path, ours, ours)
    fixed = text.rpartition("*")[2]  # all labels behind the last star are as they stand
    suffix = fixed.partition(".")[2]
    return Pattern(text, node.path, None, target(f"*.{suffix}", node.path).text if suffix else "*")


# -- names and questions ---------------------------------------------------------------------------------------------
def _names(reading: _Reading) -> None:
    """toFQDNs as far as rules.dns lets them be asked for, then what may be asked for and no more."""
    draft, asked = reading.draft, reading.asked
    if reading.named and not asked:
        place = reading.named[0].pattern.place
        draft.note(place, "no rule lets the name be asked for (port 53 with rules.dns): taken as if another policy did")
    for named in reading.named:
        if named.pattern.ours is None and any(_says(other, named) for other in reading.named):
            continue
        _open_name(draft, named, [pattern for pattern, _ in asked])
    for pattern, name in asked:
        comment = f"{name}: may be asked for ({pattern.place})"
        if pattern.ours is not None:
            draft.allow_asking(pattern.ours, pattern.place, comment)
        elif not any(_covers(other, pattern) for other, _ in asked if other.ours is not None):
            words = f"{pattern.text} stands for part of a name; our {pattern.wider} lets more be asked for"
            if draft.only_wider(pattern.place, words):
                draft.allow_asking(pattern.wider, pattern.place, comment)


def _says(other: Named, named: Named) -> bool:
    return other.pattern.ours is not None and other.ports == named.ports and _covers(other.pattern, named.pattern)


def _open_name(draft: Draft, named: Named, asked: list[Pattern]) -> None:
    pattern, comment = named.pattern, f"{named.policy}: {named.pattern.place}"
    if pattern.ours is None:
        words = f"{pattern.text} stands for part of a name; our {pattern.wider} opens more names"
        if draft.only_wider(pattern.place, words):
            draft.allow(pattern.wider, named.ports, pattern.place, comment)
        return
    if not asked or any(_covers(question, pattern) for question in asked):
        draft.allow(pattern.ours, named.ports, pattern.place, comment)
        return
    inner = [question for question in asked if question.ours is not None and _covers(pattern, question)]
    for question in inner:
        assert question.ours is not None
        draft.allow(question.ours, named.ports, pattern.place, f"{comment}, of which {question.text} may be asked for")
    if not inner:
        draft.note(pattern.place, "no rules.dns lets it be asked for, so it is closed in Cilium too")


def _covers(outer: Pattern, inner: Pattern) -> bool:
    """Does `outer` match whatever `inner` does. True only where that is certain."""
    if outer.text in ("*", inner.text):
        return True
    if "*" not in inner.text:
        return outer.matches(inner.text)
    if not outer.text.startswith("**.") or "*" in outer.text[3:]:
        return False
    return inner.text.startswith(("*.", "**.")) and f".{inner.text.lstrip('*.')}".endswith(f".{outer.text[3:]}")
