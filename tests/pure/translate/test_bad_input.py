"""What is no document of a format gives one error with its place, and nothing else does anything else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.model import PolicyError
from policies.translate import SYSTEMS, translate
from tests.pure.commands.calling import egress

BAD = [
    ("open-brain", "security: {sandbox: {}}", "$.security.sandbox.network", "is not there"),
    ("open-brain", "security: {sandbox: {network: {allow_egress: yes please}}}", "allow_egress", "true or false"),
    ("open-brain", "security: {sandbox: {network: {allowed_ports: [0]}}}", "allowed_ports[0]", "1 to 65535"),
    ("open-brain", "security: {sandbox: {network: {alow_egress: true}}}", "alow_egress", "unknown key"),
    ("kubernetes", "kind: Deployment\n", "$", "no NetworkPolicy"),
    ("kubernetes", "a: b\n", "$", "kind is missing"),
    ("kubernetes", "kind: NetworkPolicy\nspec: {egress: [{to: [{ipBlock: {cidr: 10.0.0.0/33}}]}]}", ".cidr", "over 32"),
    ("kubernetes", "kind: NetworkPolicy\nspec: {egress: [{to: [{}]}]}", "$.spec.egress[0].to[0]", "empty peer"),
    ("kubernetes", "kind: NetworkPolicy\nspec: {egress: [{form: []}]}", "$.spec.egress[0].form", "unknown key"),
    (
        "kubernetes",
        "kind: NetworkPolicy\nspec: {egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8, except: [192.0.2.0/24]}}]}]}",
        "except[0]",
        "does not lie inside",
    ),
    ("kubernetes", "kind: NetworkPolicy\n---\nkind: [", "doc[1]", "not YAML"),
    (
        "cilium",
        "kind: CiliumNetworkPolicy\nspec: {egress: [{toFQDNs: [{matchName: '*.x.org'}]}]}",
        "matchName",
        "no name",
    ),
    (
        "cilium",
        "kind: CiliumNetworkPolicy\nspec: {egress: [{toFQDNs: [{}]}]}",
        "toFQDNs[0]",
        "matchName or matchPattern",
    ),
    ("cilium", "kind: CiliumNetworkPolicy\nspec: {egress: [{toEntities: [moon]}]}", "toEntities[0]", "unknown entity"),
    ("cilium", "kind: CiliumNetworkPolicy\nspec: {egress: [], egres: []}", "$.spec.egres", "unknown key"),
    ("devcontainer", "echo hello\n", "$", "no iptables rule"),
    ("docker-sandbox", "rm -rf x\n", "line 1", "no sbx policy command"),
    ("docker-sandbox", "sbx policy allow network 'a\n", "line 1", "not a command"),
    ("docker-sandbox", "sbx policy allow network a.example.com:0\n", "line 1", "no port behind the colon"),
    (
        "docker-sandbox",
        '{"rules": [{"actions": ["connect:tcp"], "resources": []}]}',
        "$.rules[0].decision",
        "not there",
    ),
    ("sandbox-runtime", "{}", "$.network", "is not there"),
    ("sandbox-runtime", '{"network": {"allowedDomains": "x"}}', "$.network.allowedDomains", "write domains"),
    ("sandbox-runtime", '{"network": {"allowedDomains": ["a..b"]}}', "allowedDomains[0]", "empty label"),
    ("sandbox-runtime", '{"network": {"somethingNew": true}}', "somethingNew", "--wider"),
    ("e2b", '{"network": {"allowOut": [1]}}', "$.network.allowOut[0]", "the number 1"),
    ("e2b", '{"network": {"allow": []}}', "$.network.allow", "unknown key"),
    ("hosts", "api.example.com\n0.0.0.0 ads.example.com\n", "line 2", "white space"),
    ("hosts", "api.example.com:https\n", "line 1", "no port behind the colon"),
    ("hosts", "https://user@api.example.com\n", "line 1", "a user in a URL"),
    ("hosts", "gopher://api.example.com\n", "line 1", "no port is known"),
    ("hosts", "exa mple.com", "line 1", "white space"),
]


@pytest.mark.parametrize(("system", "text", "place", "words"), BAD)
def test_the_error_names_the_place(system: str, text: str, place: str, words: str) -> None:
    with pytest.raises(PolicyError) as caught:
        translate(system, text)
    assert place in caught.value.path
    assert words in str(caught.value)


@pytest.mark.parametrize("system", SYSTEMS)
def test_on_the_command_line_it_is_one_line(system: str) -> None:
    done = egress("translate", system, "-", stdin=b'{"a": [}\n')
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("egress translate: standard input: ")
    assert done.stderr.count("\n") == 1
    assert egress("translate", system, "-", stdin=b"\xff\xfe").returncode == 2


keys = st.sampled_from(
    ["kind", "spec", "egress", "egressDeny", "to", "ports", "port", "endPort", "ipBlock", "cidr", "except", "toFQDNs",
     "matchName", "matchPattern", "toPorts", "rules", "dns", "toCIDR", "toCIDRSet", "toEntities", "security", "sandbox",
     "network", "allow_egress", "allowed_ports", "allowedDomains", "deniedDomains", "allowOut", "denyOut", "metadata",
     "name", "actions", "resources", "decision", "policyTypes", "items", "permissions", "allow", "protocol"]
)  # fmt: skip
leaves = (
    st.none() | st.booleans() | st.integers(-1, 70000) | st.floats(allow_nan=False)
    | st.sampled_from(["NetworkPolicy", "CiliumNetworkPolicy", "NetworkPolicyList", "10.0.0.0/8", "*", "**.a.com",
                       "world", "allow", "connect:tcp", "Egress", "TCP", "", "x", "a.example.com:443",
                       "::1/0", "\x00", "ü"])
)  # fmt: skip
trees = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4), max_leaves=12
)


@given(st.sampled_from(sorted(SYSTEMS)), trees)
def test_any_document_is_translated_or_refused(system: str, tree: Any) -> None:
    try:
        translate(system, json.dumps(tree))
    except PolicyError:
        pass  # anything else is the failure


rooted = st.one_of(
    st.builds(lambda rules: {"kind": "NetworkPolicy", "spec": {"egress": rules}}, st.lists(trees, max_size=2)),
    st.builds(lambda rules: {"kind": "CiliumNetworkPolicy", "spec": {"egress": rules}}, st.lists(trees, max_size=2)),
    st.builds(
        lambda rules: {"kind": "CiliumNetworkPolicy", "spec": {"egressDeny": rules}}, st.lists(trees, max_size=2)
    ),
    st.builds(lambda one: {"network": one}, trees),
    st.builds(lambda one: {"rules": [one]}, trees),
)


@given(st.sampled_from(["kubernetes", "cilium", "sandbox-runtime", "e2b", "docker-sandbox"]), rooted)
def test_any_document_with_the_right_root_too(system: str, tree: Any) -> None:
    test_any_document_is_translated_or_refused.hypothesis.inner_test(system, tree)  # type: ignore[attr-defined]


words = st.sampled_from(
    ["iptables", "-A", "OUTPUT", "-p", "tcp", "--dport", "53", "-j", "ACCEPT", "DROP", "-m", "set", "--match-set",
     "allowed-domains", "dst", "ipset", "add", "for d in", '"a.example.com"', "; do", "$X", "'", "sbx", "policy",
     "allow", "network", "**.a.com", "deny", "--protocol", "init", "\n", "\\\n", "#",
     "api.github.com/meta", "-d", "10.0.0.0/8"]
)  # fmt: skip


@given(st.sampled_from(["devcontainer", "docker-sandbox", "hosts"]), st.lists(words, max_size=20))
def test_any_text_is_translated_or_refused(system: str, parts: list[str]) -> None:
    try:
        translate(system, " ".join(parts))
    except PolicyError:
        pass  # anything else is the failure
