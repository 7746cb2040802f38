"""What has to hold, as nftables text. Pure: same values, same text.

Three tables, all ours; nothing else is ever touched, since containers bring tables of their own.

    inet sallyport       replaced by every load, learned addresses included (`replacement.py` says how)
    inet sallyport_cut   tuples of flows that were cut; stands through loads, so that they stay cut
    netdev sallyport     the last door: only packets that the IP path approved leave a device

A packet's way out (numbers are hook priorities):

    cleared   -310  (prerouting) the stamp of a packet that was looped back
    raw_out   -300  own DNS is not tracked; a source that isn't ours goes nowhere
    conntrack -200
    intercept -110  DNS to anybody is redirected to our listeners
    cut_out    -10  flows that were cut
    output       0  own traffic, loopback, replies, explicit denies, flows judged before, allows, learned, reject
    stamp      top  approved: mark and priority become the stamp, 64 bits that change with every load
    egress     top  (netdev) stamped: cleared, out. Else dropped: packet sockets come straight to here

A flow that the rules accept carries `flow_mark` in its connection mark. The mark is new in every load, so every load
judges every flow again. Policies close with an explicit verdict: a chain's policy alone is not set in the very
moment of a replacement.
"""

from __future__ import annotations

from egress.firewall import interception, lastdoor
from egress.firewall.addressmap import AddressMap, Chains, chain, port_rules, show, version
from egress.firewall.cuttable import cut_table
from egress.firewall.tables import (
    ADDRESS,
    CUT_TABLE,
    REFUSE,
    TABLE,
    WHOLE,
    Site,
    base_chain,
    carries,
    gone,
    named_set,
)
from policies.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from egress.firewall.relayed import Relay
    from egress.netns import Exemption
    from policies.address import Network
    from policies.address_plan import AddressRange
    from policies.ports import PortSet

LEARNED_SIZE = 65536  # elements a learned set may hold
LOCKED = "lockdown"  # in the place of a policy's digest


class RulesetSpec(NamedTuple):
    """Everything a load says, but for the namespace it says it to."""

    mode: str  # "dns+nft" or "dns"
    default_allow: bool
    plan: tuple[AddressRange, ...]
    classes: tuple[PortSet, ...]  # class k has the sets learned4_k and learned6_k
    learned: Mapping[int, Sequence[tuple[bytes, int]]]  # class -> (packed, milliseconds left)
    upstreams: tuple[tuple[bytes, int], ...]
    exempt: tuple[bytes, ...]  # resolvers reached on port 53 without interception
    doh_all: bool
    doh_networks: Sequence[Network]
    dns_ports: tuple[int, int, int, int]  # udp4, tcp4, udp6, tcp6; 0 where there is no listener
    own: tuple[tuple[bytes, str, int], ...]  # endpoints of our own traffic besides DNS: packed, protocol, port
    exemption: Exemption
    stamp: Exemption
    flow_mark: int
    digest: str = "none"  # of the policy, kept as a chain's name so that it can be read back
    dns_seconds: int = 6  # for which a redirected question is remembered: an answer that comes later is lost
    relay: Relay | None = None  # the name guard's, which then sees new flows to learned addresses on 80 and 443


def learned_set(family_bytes: int, index: int) -> str:
    """The name of the set that holds class `index`'s addresses of 4 or 16 octets."""
    return f"learned{4 if family_bytes == 4 else 6}_{index}"


def lockdown(site: Site, stamp: Exemption, *, passing: bool = False) -> str:
    """Deny-all, port 53 included; loopback and answers to who can reach the sandbox go on.

    `passing`: a policy's ruleset comes next, and decides about open flows. Until then their packets are lost, and sent
    again; one that was refused would be the end of its flow.
    """
    lines = [WHOLE + f"table inet {TABLE} {{"]
    lines += chain(f"policy_{LOCKED}", [])
    lines += chain("neighbours", neighbours(site))
    lines += chain("refuse", ["counter", *REFUSE])
    lines += _source_checks(site, [], [], [stamp])
    rest = ["ct state established drop", "goto refuse"] if passing else ["goto refuse"]
    lines += chain("output", [*_output_head([], []), *rest], base_chain("output", 0, "drop"))
    lines += _input(site, None)
    lines += _forward()
    lines += lastdoor.stamped(site, [], stamp)
    lines.append("}")
    lines += cut_table()
    lines += lastdoor.netdev(site, stamp)
    return "\n".join(lines) + "\n"


def render(
    spec: RulesetSpec,
    site: Site,
    before: Exemption | None = None,
    apart: dict[str, Sequence[tuple[bytes, bytes, str]]] | None = None,
) -> str:
    """The whole ruleset as one transaction; `before` is the stamp until now, which packets under way still carry. With
    `apart` the maps of addresses are left empty, and what they are to hold is put there, for `intervals.fill`."""
    enforcing = spec.mode == "dns+nft"
    deny, allow = Chains("deny", "goto refuse"), Chains("allow", "goto open")
    denied = AddressMap(spec.plan, "deny", deny, "goto refuse")
    allowed = AddressMap(spec.plan, "allow", allow)
    lines = [WHOLE + f"table inet {TABLE} {{"]
    lines += chain(f"policy_{spec.digest}", [])
    lines += chain(f"mode_{spec.mode.replace('+', '_')}", [])
    lines += interception.sets(spec, site)
    lines += interception.timeouts(spec, site)
    lines += chain("refuse", _refuse(site))
    mark = carries(spec.exemption)
    out, into = interception.untrack_out(spec, site, mark), interception.untrack_in(spec)
    stamps = [spec.stamp] if before is None else [spec.stamp, before]
    lines += _source_checks(site, out, into, stamps, names_only=not enforcing)
    redirects = interception.redirects(spec, site)
    own = [f"{mark} jump own", *interception.redirected(spec)]
    names: list[str] = []
    relay = spec.relay if enforcing else None
    if relay is not None:
        from egress.firewall import relayed  # few have it

        redirects += relayed.redirects(relay, mark, spec.flow_mark, spec.classes)
        own += relayed.arriving(relay)
        names += relayed.exempted(mark, denied, allowed)
        names += relayed.chains(spec.flow_mark, spec.classes)
    lines += chain("intercept", redirects, base_chain("output", -110, "accept", "nat"))
    lines += names
    lines += chain("own", interception.own(spec))
    if enforcing:
        lines += chain("neighbours", neighbours(site))
        lines += chain("open", [f"ct mark set {spec.flow_mark:#010x} accept"])
        lines += deny.text()
        lines += allow.text()
        for one in (denied, allowed):
            lines += one.text(empty=apart is not None)
            if apart is not None:
                apart.update(one.apart())
        for index, ports in enumerate(spec.classes):
            lines += _learned(index, spec.learned.get(index, ()))
            lines += chain(f"class_{index}", port_rules(_direct(ports, relay), "goto open"))
        lines += _doh_sets(spec)
        rules = [*_output_head(own, interception.exempt(spec)), *_output_tail(spec, denied, allowed)]
        lines += chain("output", rules, base_chain("output", 0, "drop"))
        lines += _input(site, spec.exemption)
        lines += _forward()
    else:
        dot = "meta l4proto { tcp, udp } th dport 853 goto refuse"
        rules = [*own, *_LOCAL, *interception.exempt(spec), _PORT_53, dot]
        lines += chain("output", rules, base_chain("output", 0, "accept"))
        lines += chain("input", [interception.not_to_us(site, spec.exemption)], base_chain("input", 0, "accept"))
    marks = [spec.exemption] if relay is None else [spec.exemption, relay.exemption]
    lines += lastdoor.stamped(site if enforcing else Site(), marks, spec.stamp)
    lines.append("}")
    if enforcing:
        lines += cut_table()
        lines += lastdoor.netdev(site, spec.stamp)
    else:
        lines += gone("inet", CUT_TABLE) + gone("netdev", TABLE)
    return "\n".join(lines) + "\n"


_DISCOVERY = "nd-router-solicit, nd-neighbor-solicit, nd-neighbor-advert"
_GROUPS = "mld-listener-report, mld-listener-reduction, mld2-listener-report"
_UNSPECIFIED = "mld-listener-report, nd-router-solicit, nd-neighbor-solicit, mld2-listener-report"  # may come from ::
_PORT_53 = "meta l4proto { tcp, udp } th dport 53 goto refuse"
# Docker's own resolver would ask for the sandbox whatever it likes.
_LOCAL = ["ip daddr 127.0.0.11 goto refuse", 'oifname "lo" fib daddr type { local, broadcast, multicast } accept']


# -- before connection tracking --------------------------------------------------------------------------------------
def _source_checks(
    site: Site, out: list[str], into: list[str], stamps: Sequence[Exemption], *, names_only: bool = False
) -> Iterable[str]:
    """Nobody inside may speak for an address that isn't here: over loopback that forges flows from outside, and
    answers of resolvers. Resets that a reject rule sends do speak for the far end; in `output` they alone have a flow
    before connection tracking has looked."""
    reset = "ct state related tcp flags & rst == rst accept"
    if names_only:
        # Only what could forge an answer to us: everything else isn't ours to judge in this mode.
        foreign = "meta l4proto { tcp, udp } fib saddr type != local drop"
        out = [*out, f'oifname "lo" {reset}', f'oifname "lo" {foreign}']
        into = [*into, 'iifname != "lo" accept', "ct status dnat accept", reset, foreign]
    else:
        options = [f"ip option {option} exists drop" for option in ("lsrr", "ssrr")] if site.ip_options else []
        out = [
            *out,
            # Answers of our listener, and all else that could only pass what follows: a local source, no IP options.
            f"ip saddr {interception.LISTENER[4]} ip hdrlength 5 accept",
            f'oifname "lo" {reset}',
            f"ip6 saddr :: icmpv6 type {{ {_UNSPECIFIED} }} accept",
            "fib saddr type != local drop",
            *options,
            "exthdr rt exists drop",
        ]
        into = [
            *into,
            'iifname != "lo" accept',
            "ct status dnat accept",
            reset,
            "fib saddr type != local drop",
        ]
    if not names_only:
        yield from lastdoor.cleared(stamps)
    yield from chain("raw_out", out, base_chain("output", -300, "accept"))
    yield from chain("raw_in", into, base_chain("prerouting", -300, "accept"))


# -- the filter ------------------------------------------------------------------------------------------------------
def _refuse(site: Site) -> list[str]:
    rules = ["counter"]
    if site.log_group:
        rules.append(f"limit rate 200/second burst 400 packets log group {site.log_group} snaplen 128")
    return rules + REFUSE


def _output_head(own: list[str], exempt: list[str]) -> list[str]:
    """What comes before the policy. The resolvers' port is settled before any state is looked at."""
    return [
        *own,
        *_LOCAL,
        *exempt,
        _PORT_53,
        "meta l4proto icmpv6 jump neighbours",
        "ct direction reply ct state established accept",
        "ct direction reply ct state related meta l4proto { icmp, icmpv6 } accept",
    ]


def neighbours(site: Site) -> list[str]:
    """What IPv6 needs of its neighbours: small packets that no router forwards, to addresses on the link."""
    networks = [f"{show(packed)}/{length}" for packed, length in _disjoint(site.onlink6)]
    onlink = ", ".join(["fe80::/10", "ff02::/16", *networks])
    return [
        f"icmpv6 type {{ {_DISCOVERY} }} ip6 hoplimit 255 ip6 length <= 64 ip6 daddr {{ {onlink} }} accept",
        f"icmpv6 type {{ {_GROUPS} }} ip6 hoplimit 1 ip6 length <= 256 ip6 daddr ff02::/16 accept",
    ]


def _disjoint(networks: Sequence[tuple[bytes, int]]) -> list[tuple[bytes, int]]:
    """Without networks that lie in another one: an interval set takes no overlaps. Of one family."""
    kept: dict[tuple[int, int], tuple[bytes, int]] = {}
    for packed, length in sorted(networks, key=lambda network: network[1]):
        number, bits = int.from_bytes(packed, "big"), 8 * len(packed)
        if not any((wide, number >> bits - wide) in kept for wide in range(length + 1)):
            kept[(length, number >> bits - length)] = (packed, length)
    return sorted(kept.values())


def _output_tail(spec: RulesetSpec, denied: AddressMap, allowed: AddressMap) -> list[str]:
    rules = denied.rules()
    if spec.doh_all:
        rules.append("meta l4proto { tcp, udp } th dport 443 goto refuse")
    else:
        for family in sorted({version(network.packed) for network in spec.doh_networks}):
            listed = f"ip{'' if family == 4 else '6'} daddr @doh{family}"
            rules.append(f"{listed} meta l4proto {{ tcp, udp }} th dport 443 goto refuse")
    if spec.relay is not None:
        from egress.firewall.relayed import judged

        rules += judged(spec.relay, spec.flow_mark)
    rules.append(f"ct direction original ct mark {spec.flow_mark:#010x} accept")
    rules += allowed.rules()
    for index in range(len(spec.classes)):
        rules += [f"ip daddr @learned4_{index} jump class_{index}", f"ip6 daddr @learned6_{index} jump class_{index}"]
    if spec.default_allow:
        rules += _open_default(spec)
    return [*rules, "goto refuse"]


def _open_default(spec: RulesetSpec) -> list[str]:
    """An address learned under a restriction is held to it; anything else is open, but for DNS over TLS."""
    from policies.ports import EVERYTHING

    rules = []
    for index, ports in enumerate(spec.classes):
        if EVERYTHING.minus(_direct(ports, spec.relay)):
            rules += [f"ip daddr @learned4_{index} goto refuse", f"ip6 daddr @learned6_{index} goto refuse"]
    return rules + port_rules(EVERYTHING, "goto open")


def _direct(ports: PortSet, relay: Relay | None) -> PortSet:
    """What the sandbox itself may reach of what a name opens."""
    if relay is None:
        return ports
    from egress.firewall.relayed import CLOSED

    return ports.minus(CLOSED)


def _doh_sets(spec: RulesetSpec) -> Iterable[str]:
    families: dict[int, list[tuple[bytes, int]]] = {4: [], 6: []}
    for network in () if spec.doh_all else spec.doh_networks:
        families[version(network.packed)].append((network.packed, network.length))
    for family, networks in families.items():
        if networks:
            elements = [f"{show(packed)}/{length}" for packed, length in _disjoint(networks)]
            yield from named_set(f"doh{family}", ADDRESS[family], elements, "interval")


def _learned(index: int, entries: Sequence[tuple[bytes, int]]) -> Iterable[str]:
    families: dict[int, list[str]] = {4: [], 6: []}
    for packed, left in entries:
        families[version(packed)].append(f"{show(packed)} timeout {max(left, 1)}ms")
    for family, elements in families.items():
        yield f"\tset learned{family}_{index} {{"
        yield f"\t\ttype {ADDRESS[family]}"
        yield f"\t\tsize {LEARNED_SIZE}"
        yield "\t\tflags timeout"
        if elements:
            yield "\t\telements = { " + ", ".join(elements) + " }"
        yield "\t}"


def _input(site: Site, exemption: Exemption | None) -> Iterable[str]:
    # What follows is about others; saves answers a look-up.
    rules = [f'iifname "lo" ip saddr {interception.LISTENER[4]} accept']
    if exemption is not None:
        rules.append(interception.not_to_us(site, exemption))
    # A flow that was cut, or that is older than we are, must not come back as one from outside.
    rules.append('iifname != "lo" ct state new tcp flags & (fin | syn | rst | ack) != syn drop')
    yield from chain("input", rules, base_chain("input", 0, "accept"))


def _forward() -> Iterable[str]:
    return chain("forward", ["drop"], base_chain("forward", 0, "drop"))
