"""Kubernetes NetworkPolicy (networking.k8s.io/v1): the egress part.

Policies that select the same pod add up, so several of one file may be translated together. What selects pods or
namespaces has no address that a file could know: it is left out. Port 53 to anywhere lets names be asked for.
"""

from __future__ import annotations

from policies.model import PolicyError
from policies.translate.draft import ALL_PORTS, WHOLE, Draft, Options, Reach, Translation, network, reach
from policies.translate.manifests import chosen, label
from policies.translate.tree import Node, port
from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    from policies.name import Target

KINDS = ("NetworkPolicy",)
_SPEC = ("podSelector", "policyTypes", "ingress", "egress")
_SELECTORS = ("podSelector", "namespaceSelector")


def translate(text: str, options: Options) -> Translation:
    """Translate the policies of a manifest that speak of egress. Raises PolicyError."""
    draft = Draft(options)
    for policy in chosen(text, KINDS, options, draft, _speaks):
        spec = policy.members()["spec"].known(_SPEC, "a NetworkPolicy's spec")
        for rule in spec["egress"].items("egress rules") if "egress" in spec else ():
            _rule(draft, rule, label(policy))
    return draft.finish()


def _speaks(policy: Node) -> bool:
    spec = policy.members().get("spec")
    if spec is None:
        raise PolicyError(f"{policy.path}.spec", "is not there")
    members = spec.members("a NetworkPolicy's spec")
    if "policyTypes" in members:
        types = [item.text("Ingress or Egress") for item in members["policyTypes"].items("Ingress, Egress")]
        return "Egress" in types
    return "egress" in members


def _rule(draft: Draft, rule: Node, name: str) -> None:
    members = rule.known(("to", "ports"), "an egress rule")
    ports = _ports(draft, members.get("ports"))
    if not ports:
        return
    peers = members["to"].items("peers") if "to" in members else []
    if ports.names(53) or (not peers and ports.holds(53)):
        draft.allow_asking("*", rule.path, f"{name}: port 53 is open to a resolver ({rule.path})")
    if not peers:
        for text in ("0.0.0.0/0", "::/0"):
            draft.allow_network(network(text, rule.path), (), ports, f"{name}: {rule.path}, to anywhere")
    for peer in peers:
        _peer(draft, peer, ports, name)


def _peer(draft: Draft, peer: Node, ports: Reach, name: str) -> None:
    found = peer.known(("ipBlock", *_SELECTORS), "a peer such as {ipBlock: {cidr: 192.0.2.0/24}}")
    selectors = [key for key in _SELECTORS if key in found]
    if "ipBlock" in found and selectors:
        raise PolicyError(peer.path, f"ipBlock and {selectors[0]} exclude each other")
    if "ipBlock" in found:
        block = found["ipBlock"].known(("cidr", "except"), "an ipBlock")
        if "cidr" not in block:
            raise PolicyError(found["ipBlock"].path, "cidr is missing")
        whole = network(block["cidr"].text("a network"), block["cidr"].path)
        excepted = excepts(block.get("except"), whole)
        if whole.text in ("0.0.0.0/0", "::/0") and not excepted and ports.holds(53):
            draft.allow_asking("*", peer.path, f"{name}: port 53 is open to any resolver ({peer.path})")
        draft.allow_network(whole, excepted, ports, f"{name}: {peer.path}")
    elif selectors:
        if ports.without_dns():
            draft.gap(peer.path, f"left out: pods chosen by {' and '.join(selectors)}, whose addresses no file knows")
    else:
        raise PolicyError(peer.path, "an empty peer; write ipBlock, podSelector or namespaceSelector")


def excepts(node: Node | None, whole: Target) -> list[Target]:
    """The exceptions of a block, which lie inside it. Raises PolicyError."""
    found = []
    for item in node.items("networks") if node is not None else ():
        one = network(item.text("a network"), item.path)
        inner, outer = one.network, whole.network
        assert inner is not None
        assert outer is not None
        if inner.length < outer.length or not outer.contains(inner.packed):
            raise PolicyError(item.path, f"{one.text} does not lie inside {whole.text}")
        found.append(one)
    return found


def _ports(draft: Draft, node: Node | None) -> Reach:
    """What a list of ports opens. Empty or missing: everything."""
    items = node.items("ports") if node is not None else []
    if not items:
        return WHOLE
    entries: list[tuple[str, int, int]] = []
    for item in items:
        members = item.known(("protocol", "port", "endPort"), "a port such as {protocol: TCP, port: 443}")
        protocol = members["protocol"].text("TCP, UDP or SCTP") if "protocol" in members else "TCP"
        if protocol == "SCTP":
            draft.gap(item.path, "left out: SCTP is never opened here")
            continue
        if protocol not in ("TCP", "UDP"):
            raise PolicyError(members["protocol"].path, "unknown protocol; write TCP, UDP or SCTP")
        if "port" not in members:
            if "endPort" in members:
                raise PolicyError(item.path, "endPort without port")
            entries.append((protocol.lower(), *ALL_PORTS[0]))
            continue
        if isinstance(members["port"].value, str):
            draft.gap(members["port"].path, "left out: a named port's number stands with the pods")
            continue
        first = port(members["port"])
        last = port(members["endPort"]) if "endPort" in members else first
        if last < first:
            raise PolicyError(members["endPort"].path, f"{last} is below port {first}")
        entries.append((protocol.lower(), first, last))
    return reach(entries)
