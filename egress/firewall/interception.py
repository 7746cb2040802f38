"""The ruleset's part for DNS and for traffic of our own: everybody's questions come to our listeners, ours go out.

Exempt are resolvers that the operator lets the sandbox ask directly.
"""

from __future__ import annotations

from egress.firewall.addressmap import show, version
from egress.firewall.tables import ADDRESS, named_set
from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from egress.firewall.ruleset import RulesetSpec
    from egress.firewall.tables import Site
    from egress.netns import Exemption

LISTENER = {4: "127.0.0.1", 6: "::1"}


def _elements(spec: RulesetSpec) -> dict[str, dict[int, list[str]]]:
    """What our sets hold, by set and IP version.

    Own DNS to port 53 and all own UDP DNS is not tracked: a sandbox that reuses our source port must not find a
    conntrack entry of ours. Over TCP to another port it is, since the sandbox may be allowed to the same port and its
    connections have to be tracked.
    """
    own: dict[int, list[str]] = {4: [], 6: []}
    untracked: dict[int, list[str]] = {4: [], 6: []}
    exempt: dict[int, list[str]] = {4: [], 6: []}
    for packed, port in spec.upstreams:
        for protocol in ("udp", "tcp"):
            element = f"{show(packed)} . {protocol} . {port}"
            own[version(packed)].append(element)
            if protocol == "udp" or port == 53:
                untracked[version(packed)].append(element)
    for packed, protocol, port in spec.own:
        own[version(packed)].append(f"{show(packed)} . {protocol} . {port}")
    for packed in spec.exempt:
        exempt[version(packed)].append(show(packed))
    return {"own": own, "untracked": untracked, "exempt": exempt}


def sets(spec: RulesetSpec, site: Site) -> Iterable[str]:
    """The sets that the rules of this module look into."""
    if not site.socket_match:
        flags = "dynamic,timeout\n\t\ttimeout 60s\n\t\tsize 65536"
        yield from named_set("ports", "inet_proto . inet_service", [], flags)
    for name, versions in _elements(spec).items():
        key = "" if name == "exempt" else " . inet_proto . inet_service"
        for number, elements in versions.items():
            if elements:
                yield from named_set(f"{name}{number}", ADDRESS[number] + key, list(dict.fromkeys(elements)))


def _each(spec: RulesetSpec, name: str, match: str, verdict: str) -> list[str]:
    """The rule once for each IP version whose set has elements."""
    return [
        f"{match.replace('{6}', '' if number == 4 else '6').replace('{f}', str(number))} {verdict}"
        for number, elements in _elements(spec)[name].items()
        if elements
    ]


def untrack_out(spec: RulesetSpec, site: Site, mark: str) -> list[str]:
    """Before connection tracking: our own questions, told by `mark`, are none of its business."""
    note = "" if site.socket_match else "update @ports { meta l4proto . th sport } "
    match = mark + " ip{6} daddr . meta l4proto . th dport @untracked{f} " + note
    return _each(spec, "untracked", match.rstrip(), "notrack accept")


def untrack_in(spec: RulesetSpec) -> list[str]:
    """Neither are the answers to them."""
    match = 'iifname != "lo" ip{6} saddr . meta l4proto . th sport @untracked{f}'
    return _each(spec, "untracked", match, "notrack accept")


def timeouts(spec: RulesetSpec, site: Site) -> Iterable[str]:
    """All redirects end at one address and port: with the usual 30 s, 64,512 source ports are soon used up.

    The first answer does not count as a reply yet: `unreplied` is for how long it may keep one waiting.
    """
    if site.ct_timeout:
        for number, port in ((4, spec.dns_ports[0]), (6, spec.dns_ports[2])):
            if port:
                yield f"\tct timeout dns{number} {{"
                yield "\t\tprotocol udp"
                yield f"\t\tl3proto ip{'' if number == 4 else '6'}"
                yield f"\t\tpolicy = {{ unreplied: {spec.dns_seconds}, replied: 2 }}"
                yield "\t}"


def _listeners(spec: RulesetSpec) -> list[tuple[int, str, int]]:
    """(IP version, protocol, port) of each that there is."""
    udp4, tcp4, udp6, tcp6 = spec.dns_ports
    return [one for one in ((4, "udp", udp4), (4, "tcp", tcp4), (6, "udp", udp6), (6, "tcp", tcp6)) if one[2]]


def redirects(spec: RulesetSpec, site: Site) -> list[str]:
    """For the nat chain: questions to anybody but exempt resolvers."""
    rules = _each(spec, "exempt", "ip{6} daddr @exempt{f}", "return")
    for number, protocol, port in _listeners(spec):
        short = f'ct timeout set "dns{number}" ' if protocol == "udp" and site.ct_timeout else ""
        rules.append(f"meta nfproto ipv{number} {protocol} dport 53 {short}redirect to :{port}")
    return rules


def redirected(spec: RulesetSpec) -> list[str]:
    """Redirected questions reach their listener."""
    return [
        f"ct status dnat ip{'' if number == 4 else '6'} daddr {LISTENER[number]} {protocol} dport {port} accept"
        for number, protocol, port in _listeners(spec)
    ]


def exempt(spec: RulesetSpec) -> list[str]:
    """Questions to exempt resolvers pass."""
    return _each(spec, "exempt", "ip{6} daddr @exempt{f} meta l4proto { tcp, udp } th dport 53", "accept")


def own(spec: RulesetSpec) -> list[str]:
    """For packets that carry our exemption: where they may go."""
    return _each(spec, "own", "ip{6} daddr . meta l4proto . th dport @own{f}", "accept")


def not_to_us(site: Site, exemption: Exemption) -> str:
    """The sandbox can send a query to our resolver from our own socket's port; it is redirected, and whatever leaves
    the listener's port as an answer then reaches our socket, over `lo`, in the resolver's name."""
    ours = f"socket mark {exemption.mark:#010x}" if site.socket_match else "meta l4proto . th dport @ports"
    return f'iifname "lo" meta l4proto {{ tcp, udp }} fib saddr type != local {ours} drop'
