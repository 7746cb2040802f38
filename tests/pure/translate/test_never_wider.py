"""Whatever a document says: what its translation opens, a plain reading of the document opens too."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.matcher import CompiledPolicy, compile_policy
from policies.model import Action, PolicyError
from policies.name import parse_host
from policies.translate import Options, translate
from tests.pure.translate import readings

if TYPE_CHECKING:
    from policies.translate import Translation

NAMES = (
    "example.com", "api.example.com", "a.b.example.com", "example.org", "x.example.org", "deep.x.example.org",
    "tracker.example.org", "api-1.example.net", "other.test",
)  # fmt: skip
ADDRESSES = (
    "10.0.0.5", "10.1.2.3", "172.16.0.1", "192.168.1.1", "198.51.100.7", "198.51.100.200", "203.0.113.9",
    "2001:db8::1", "2001:db8:1::9", "fd00::1", "169.254.169.254", "8.8.8.8",
)  # fmt: skip
PORTS = (22, 80, 443, 853, 5432, 8443, 9005)
QUESTIONS = [(protocol, port) for protocol in ("tcp", "udp") for port in PORTS]

cidrs = st.sampled_from(
    ["0.0.0.0/0", "::/0", "10.0.0.0/8", "10.1.0.0/16", "198.51.100.0/24", "198.51.100.128/25", "203.0.113.9/32",
     "2001:db8::/32", "2001:db8:1::/48", "192.168.0.0/16"]
)  # fmt: skip
HOLES = {
    "0.0.0.0/0": ["10.0.0.0/8", "10.1.0.0/16", "198.51.100.0/24", "192.168.0.0/16"],
    "::/0": ["2001:db8::/32", "fd00::/8"],
    "10.0.0.0/8": ["10.1.0.0/16", "10.1.2.3/32"],
    "198.51.100.0/24": ["198.51.100.128/25", "198.51.100.7/32"],
    "2001:db8::/32": ["2001:db8:1::/48"],
}
names = st.sampled_from(NAMES)
ports = st.sampled_from((*PORTS, 53))


def lists(items: st.SearchStrategy[Any], most: int = 3) -> st.SearchStrategy[list[Any]]:
    return st.lists(items, max_size=most)


@st.composite
def blocks(draw: st.DrawFn) -> dict[str, Any]:
    cidr = draw(cidrs)
    holes = draw(lists(st.sampled_from(HOLES.get(cidr, [cidr]))))
    return {"cidr": cidr, "except": holes} if holes else {"cidr": cidr}


def check(system: str, text: str, source: Any) -> Translation:
    """The property: ours opens it, so theirs does."""
    found = translate(system, text)
    compiled = compile_policy(found.policy)
    for protocol, port in QUESTIONS:
        for name in NAMES:
            opens = compiled.decide_name_port(name, protocol, port).action is Action.ALLOW
            assert not opens or source.name((name, protocol, port)), (text, name, protocol, port, found.policy)
        for address in ADDRESSES:
            if opens_address(compiled, address, protocol, port):
                assert source.address((address, protocol, port)), (text, address, protocol, port, found.policy)
    for name in NAMES:
        if compiled.decide_name(name).action is Action.ALLOW:
            assert source.asks(name), (text, name, found.policy)
    return found


def opens_address(compiled: CompiledPolicy, address: str, protocol: str, port: int) -> bool:
    packed = parse_host(address)
    assert isinstance(packed, bytes)
    return compiled.decide_address(packed, protocol, port).action is Action.ALLOW


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "allow_egress": st.booleans(), "block_egress": st.booleans(), "restrict_egress": st.booleans(),
            "allowed_ports": lists(ports),
        },
    )
)  # fmt: skip
def test_open_brain(network: dict[str, Any]) -> None:
    document = {"security": {"sandbox": {"network": network}}}
    check("open-brain", json.dumps(document), readings.OpenBrain(document))


kubernetes_ports = st.fixed_dictionaries(
    {},
    optional={"protocol": st.sampled_from(["TCP", "UDP", "SCTP"]), "port": ports | st.just("http")},
) | st.builds(lambda one: {"protocol": "TCP", "port": one, "endPort": min(65535, one + 30)}, ports)
kubernetes_rules = st.fixed_dictionaries(
    {},
    optional={
        "to": lists(st.builds(lambda one: {"ipBlock": one}, blocks()) | st.just({"podSelector": {}})),
        "ports": lists(kubernetes_ports),
    },
)


@given(lists(kubernetes_rules))
def test_kubernetes(rules: list[Any]) -> None:
    document = {
        "kind": "NetworkPolicy",
        "metadata": {"name": "x"},
        "spec": {"policyTypes": ["Egress"], "egress": rules},
    }
    check("kubernetes", json.dumps(document), readings.Kubernetes(document))


patterns = st.sampled_from(
    ["*", "*.example.com", "**.example.com", "*.example.org", "**.example.org", "**.x.example.org", "api-*.example.net",
     "**.com", "*.*.example.com", "tracker.example.org", "*example.org"]
)  # fmt: skip
fqdns = st.builds(lambda name: {"matchName": name}, names) | st.builds(lambda text: {"matchPattern": text}, patterns)
cilium_ports = st.fixed_dictionaries(
    {"port": ports.map(str) | st.just("0")}, optional={"protocol": st.sampled_from(["TCP", "UDP", "ANY", "SCTP"])}
)
cilium_parts: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"ports": st.lists(cilium_ports, min_size=1, max_size=3)}, optional={"rules": st.just({"http": [{}]})}
)
dns_rules = st.builds(
    lambda questions: {
        "toEndpoints": [{}],
        "toPorts": [{"ports": [{"port": "53", "protocol": "ANY"}], "rules": {"dns": questions}}],
    },
    st.lists(fqdns, min_size=1, max_size=3),
)
cilium_peers = st.one_of(
    st.builds(lambda items: {"toFQDNs": items}, lists(fqdns)),
    st.builds(lambda items: {"toCIDR": items}, lists(cidrs)),
    st.builds(lambda items: {"toCIDRSet": items}, lists(blocks())),
    st.builds(lambda items: {"toEntities": items}, lists(st.sampled_from(["world", "cluster", "all"]))),
    st.just({}),
)
cilium_rules = st.builds(
    lambda peers, parts: {**peers, **({"toPorts": parts} if parts else {})}, cilium_peers, lists(cilium_parts, 2)
)
cilium_denials = st.builds(
    lambda peers, entries: {**peers, **({"toPorts": [{"ports": entries}]} if entries else {})},
    st.builds(lambda items: {"toCIDR": items}, lists(cidrs))
    | st.builds(lambda items: {"toCIDRSet": items}, lists(blocks())),
    lists(cilium_ports),
)  # fmt: skip


@given(lists(cilium_rules | dns_rules), lists(cilium_denials, 2))
def test_cilium(allowed: list[Any], denied: list[Any]) -> None:
    spec = {"egress": allowed, "egressDeny": denied}
    document = {"kind": "CiliumNetworkPolicy", "metadata": {"name": "x"}, "spec": spec}
    check("cilium", json.dumps(document), readings.Cilium(document))


entries = st.sampled_from(
    [*NAMES, "*.example.com", "*.example.org", "*.x.example.org", "10.1.2.3", "198.51.100.7"]
).flatmap(lambda host: st.just(host) | ports.map(lambda port: f"{host}:{port}"))  # fmt: skip
addresses = st.sampled_from(["10.0.0.0/8", "198.51.100.0/24", "2001:db8::/32", "[2001:db8::1]:443"])


@given(lists(entries | addresses | st.just(".example.org") | entries.map(lambda one: f"!{one}"), 5))
def test_hosts(lines: list[str]) -> None:
    check("hosts", "\n".join(lines), readings.Hosts(lines))


@given(lists(entries, 4), lists(entries | st.just("*"), 3))
def test_sandbox_runtime(allowed: list[str], denied: list[str]) -> None:
    document = {"network": {"allowedDomains": allowed, "deniedDomains": denied}}
    check("sandbox-runtime", json.dumps(document), readings.SandboxRuntime(document))


docker_rules = st.fixed_dictionaries(
    {
        "actions": st.sampled_from([["connect:tcp"], ["connect:udp"], ["connect:tcp", "connect:udp"]]),
        "resources": st.lists(
            entries | addresses | st.sampled_from(["**", "**.example.org", "**.example.com:443"]),
            min_size=1,
            max_size=3,
        ),
        "decision": st.sampled_from(["allow", "allow", "deny"]),
    }
)


@given(lists(docker_rules, 4))
def test_docker_sandbox(rules: list[Any]) -> None:
    document = {"rules": rules}
    check("docker-sandbox", json.dumps(document), readings.DockerSandbox(document))


v4 = st.sampled_from(["10.0.0.0/8", "10.1.2.3", "198.51.100.0/24", "203.0.113.9", "0.0.0.0/0"])


@given(
    st.fixed_dictionaries({}, optional={"allowInternetAccess": st.booleans()}),
    lists(v4 | st.sampled_from([*NAMES, "*.example.org"]), 4),
    lists(v4),
)
def test_e2b(root: dict[str, Any], allowed: list[str], denied: list[str]) -> None:
    document = {**root, "network": {"allowOut": allowed, "denyOut": denied}}
    check("e2b", json.dumps(document), readings.E2b(document))


@given(
    lists(names),
    lists(st.sampled_from(["10.1.0.0/16", "198.51.100.0/24"])),
    lists(st.tuples(st.sampled_from(["tcp", "udp"]), ports)),
)
def test_devcontainer(domains: list[str], networks: list[str], open_ports: list[tuple[str, int]]) -> None:
    lines = [f"iptables -A OUTPUT -p {protocol} --dport {port} -j ACCEPT" for protocol, port in open_ports]
    lines += [f"ipset add allowed-domains {network}" for network in networks]
    words = " ".join(f'"{domain}"' for domain in domains)
    lines += [f"for domain in {words}; do", "  true", "done"]
    lines += ["iptables -P OUTPUT DROP", "iptables -A OUTPUT -m set --match-set allowed-domains dst -j ACCEPT"]
    document = {"domains": domains, "networks": networks, "ports": open_ports}
    check("devcontainer", "\n".join(lines), readings.Devcontainer(document))


# What these tests would see: a translation that is wider, made so by hand.
@pytest.mark.parametrize(
    ("system", "text", "source"),
    [
        ("hosts", "*.example.com", readings.Hosts(["api.example.com"])),
        ("hosts", "198.51.100.0/24", readings.Hosts(["198.51.100.7:443"])),
        ("sandbox-runtime", '{"network": {"allowedDomains": ["*"]}}', readings.SandboxRuntime({"network": {}})),
    ],
)
def test_a_wider_translation_is_seen(system: str, text: str, source: Any) -> None:
    with pytest.raises(AssertionError):
        check(system, text, source)


def test_what_has_a_wider_form_only_is_wider_only_when_asked_for() -> None:
    text = '{"kind": "CiliumNetworkPolicy", "spec": {"egress": [{"toFQDNs": [{"matchPattern": "*.example.com"}]}]}}'
    found = translate("cilium", text)
    assert found.policy.egress == ()
    assert [gap.place for gap in found.gaps] == ["$.spec.egress[0].toFQDNs[0].matchPattern"]
    wide = translate("cilium", text, Options(wider=True))
    assert [rule.target for rule in wide.policy.egress] == ["*.example.com"]
    assert [one.place for one in wide.widened] == ["$.spec.egress[0].toFQDNs[0].matchPattern"]


def test_a_denial_that_cannot_be_said_stops_the_translation() -> None:
    spec = {"egress": [{"toCIDR": ["10.0.0.0/8"]}], "egressDeny": [{"toEndpoints": [{}]}]}
    text = json.dumps({"kind": "CiliumNetworkPolicy", "spec": spec})
    with pytest.raises(PolicyError, match=r"egressDeny\[0\]\.toEndpoints\[0\].*--wider"):
        translate("cilium", text)
    assert len(translate("cilium", text, Options(wider=True)).widened) == 1
