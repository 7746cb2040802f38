"""The rulesets that golden files are kept of."""

from __future__ import annotations

import ipaddress

from egress.firewall.relayed import Relay
from egress.firewall.ruleset import RulesetSpec
from egress.firewall.tables import Site
from egress.netns import Exemption
from policies.address import Network
from policies.matcher import compile_policy
from policies.parser import parse_policy
from policies.ports import EVERYTHING


def packed(text: str) -> bytes:
    return ipaddress.ip_address(text).packed


SITE = Site(
    raw="devices",
    devices=("lo", "eth0"),
    own4=(packed("172.17.0.2"),),
    onlink6=((packed("fd00:17::"), 64), (packed("fd00:17::"), 80)),
    log_group=5353,
)
OLD_SITE = Site(raw="none", onlink6=SITE.onlink6, socket_match=False, ct_timeout=False, ip_options=False)
STAMP = Exemption(0x80000001, 0x90000001)
BASE = RulesetSpec(
    mode="dns+nft",
    default_allow=False,
    plan=(),
    classes=(EVERYTHING,),
    learned={},
    upstreams=((packed("192.0.2.53"), 53),),
    exempt=(),
    doh_all=False,
    doh_networks=(),
    dns_ports=(1053, 1054, 1055, 1056),
    own=(),
    exemption=Exemption(0xDEADBEEF, 0xCAFEBABE),
    stamp=STAMP,
    flow_mark=0x12345679,
    digest="0123456789abcdef",
)


def of_policy(document: str, **changes: object) -> RulesetSpec:
    """A ruleset as the sidecar makes it from a policy."""
    policy = parse_policy(document)
    compiled = compile_policy(policy)
    spec = BASE._replace(
        default_allow=policy.default.value == "allow",
        plan=compiled.address_plan(),
        classes=compiled.port_classes(),
    )
    return spec._replace(**changes)  # type: ignore[arg-type]


PORTS = """{"egress": [
    {"action": "deny", "target": "10.0.0.0/8", "ports": [22]},
    {"action": "allow", "target": "10.1.0.0/16"},
    {"action": "allow", "target": "2001:db8::/32", "ports": [443, "8000-8100"], "protocol": "tcp"},
    {"action": "deny", "target": "*.example.com", "ports": [25]},
    {"action": "allow", "target": "*.example.com"},
    {"action": "allow", "target": "dot.example.net", "ports": [853]}
]}"""
OPEN = """{"defaultAction": "allow", "egress": [{"action": "deny", "target": "*.example.com", "ports": [25]}]}"""

SPECS: dict[str, tuple[RulesetSpec, Site]] = {
    "deny_all": (BASE, SITE),
    "ports": (
        of_policy(PORTS, learned={0: [(packed("198.51.100.10"), 120000), (packed("2001:db8:100::10"), 61000)]}),
        SITE,
    ),
    "default_allow": (of_policy(OPEN, doh_networks=(Network(packed("8.8.8.0"), 24),)), SITE),
    "operator": (
        BASE._replace(
            upstreams=((packed("192.0.2.53"), 5353), (packed("2001:db8::53"), 53)),
            exempt=(packed("192.0.2.54"), packed("2001:db8::54")),
            doh_all=True,
            own=((packed("192.0.2.80"), "tcp", 8443),),
        ),
        SITE,
    ),
    "names_of_connections": (
        of_policy(
            PORTS,
            learned={0: [(packed("198.51.100.10"), 120000)]},
            relay=Relay(2001, 2002, Exemption(0xFEEDFACE, 0xC0FFEE01)),
        ),
        SITE,
    ),
    "names_of_connections_default_allow": (
        of_policy(OPEN, relay=Relay(2001, 0, Exemption(0xFEEDFACE, 0xC0FFEE01))),
        OLD_SITE,
    ),
    "names_only": (BASE._replace(mode="dns", exempt=(packed("192.0.2.54"),)), SITE),
    "old_kernel_without_ipv6": (BASE._replace(dns_ports=(1053, 1054, 0, 0)), OLD_SITE),
}
