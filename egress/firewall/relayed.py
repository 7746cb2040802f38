"""The name guard's part of the ruleset: new flows to learned addresses on 80 and 443 go to its relay.

    exempted  -115  an address that a rule names needs no name: its flow is marked as accepted, or refused, here
    intercept -110  what is left and goes to a learned address, on ports that its names open: redirected
    output       0  `relayed`: the relay's own flows, to learned addresses alone. Nobody else's to these ports

The relay's packets are told by mark and priority, each of them. A connection mark alone would let whoever forges the
relay's addresses and ports (CAP_NET_RAW) speak in its flows, behind a name that was let through.
"""

from __future__ import annotations

from egress.firewall.addressmap import chain
from egress.firewall.tables import RELAYED, base_chain, carries
from policies.ports import PortSet
from policies.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from egress.firewall.addressmap import AddressMap
    from egress.netns import Exemption

GUARDED = (80, 443)
_LOOK = PortSet(((80, 80), (443, 443)), (), False)  # what the relay looks at
CLOSED = PortSet(_LOOK.tcp, ((443, 443),), False)  # what nobody else may reach: QUIC shows its name to nobody


class Relay(NamedTuple):
    """Where the relay listens, 0 where it does not, and what its sockets carry."""

    port4: int
    port6: int
    exemption: Exemption


def flow_mark(mark: int) -> int:
    """The mark of the relay's flows where that of the others is `mark`."""
    return mark | RELAYED


def exempted(own: str, denied: AddressMap, allowed: AddressMap) -> Iterable[str]:
    """What rules say of addresses comes before the names: as in `output`, where each packet is judged again."""
    ports = ", ".join(str(port) for port in GUARDED)
    rules = [
        "ct state != new accept",  # first, since nearly all packets end here
        'oifname "lo" accept',
        "meta l4proto != tcp accept",
        f"tcp dport != {{ {ports} }} accept",
        f"{own} accept",
        *denied.rules(),
        *allowed.rules(),
    ]
    return chain("exempted", rules, base_chain("output", -115, "accept"))


def redirects(relay: Relay, own: str, mark: int, classes: Sequence[PortSet]) -> list[str]:
    """For the nat chain."""
    rules = ['oifname "lo" return']
    rules += [f"{flow} return" for flow in (own, carries(relay.exemption), f"ct mark {mark:#010x}")]
    for family, port in ((4, relay.port4), (6, relay.port6)):
        if port:
            rules += [f"{match} redirect to :{port}" for match in _learned(family, classes)]
    return rules


def arriving(relay: Relay) -> list[str]:
    """Redirected connections reach the relay, and nothing else does."""
    rules = []
    for match, port in (("ip daddr 127.0.0.1", relay.port4), ("ip6 daddr ::1", relay.port6)):
        if port:
            rules += [f"ct status dnat {match} tcp dport {port} accept", f"{match} tcp dport {port} goto refuse"]
    return rules


def judged(relay: Relay, mark: int) -> list[str]:
    """In `output`, behind what rules deny and before any flow is accepted."""
    theirs = f"ct direction original ct mark {flow_mark(mark):#010x} goto refuse"
    return [f"{carries(relay.exemption)} jump relayed", theirs]


def chains(mark: int, classes: Sequence[PortSet]) -> Iterable[str]:
    """What the relay's own packets go through."""
    yield from chain("open_relayed", [f"ct mark set {flow_mark(mark):#010x} accept"])
    rules = [f"ct direction original ct mark {flow_mark(mark):#010x} accept"]
    rules += [f"{match} goto open_relayed" for family in (4, 6) for match in _learned(family, classes)]
    yield from chain("relayed", rules)


def _learned(family: int, classes: Sequence[PortSet]) -> list[str]:
    ip = "ip" if family == 4 else "ip6"
    found = []
    for index, ports in enumerate(classes):
        open_ = [str(port) for port in GUARDED if ports.contains("tcp", port)]
        if open_:
            words = open_[0] if len(open_) == 1 else "{ " + ", ".join(open_) + " }"
            found.append(f"{ip} daddr @learned{family}_{index} tcp dport {words}")
    return found
