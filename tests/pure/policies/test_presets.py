"""The presets parse, say what they are for, and do it."""

from __future__ import annotations

import pytest

from policies import presets
from policies.address import parse_address
from policies.matcher import CompiledPolicy, Teach, compile_policy
from policies.model import Action
from policies.parser import parse_policy


def _compiled(name: str) -> CompiledPolicy:
    return compile_policy(presets.load(name))


def _open(compiled: CompiledPolicy, text: str, port: int = 443) -> bool:
    return compiled.decide_address(parse_address(text), "tcp", port).action is Action.ALLOW


def test_the_presets_there_are() -> None:
    assert {"deny-all", "allow-all-but-private", "web-only", "code-hosting", "package-installs"} <= set(presets.names())


@pytest.mark.parametrize("name", presets.names())
def test_each_parses_and_explains_itself(name: str) -> None:
    policy = presets.load(name)
    assert len(presets.description(name)) > 60
    assert parse_policy(str(policy.to_document()).replace("'", '"')) == policy


@pytest.mark.parametrize("name", ["nothing", "../presets/deny-all", "deny-all.yaml", ""])
def test_a_name_that_is_none(name: str) -> None:
    with pytest.raises(KeyError, match="deny-all"):
        presets.load(name)


def test_deny_all_and_allow_all() -> None:
    assert presets.load("deny-all").mode == "deny_all"
    assert presets.load("allow-all").mode == "allow_all"


def test_allow_all_but_private() -> None:
    compiled = _compiled("allow-all-but-private")
    assert compiled.decide_name("api.example.com").action is Action.ALLOW
    assert _open(compiled, "8.8.8.8")
    assert _open(compiled, "2606::1")
    for text in [
        "10.0.0.1",
        "172.20.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "127.0.0.1",
        "169.254.169.254",
        "fd00::1",
        "fe80::1",
        "::1",
        "224.0.0.1",
        "64:ff9b::10.0.0.1",
        "2002:c0a8:1::1",
        "ff02::1",
    ]:
        assert not _open(compiled, text), text


def test_web_only() -> None:
    compiled = _compiled("web-only")
    ports = compiled.decide_name("www.example.com").ports
    assert (ports.tcp, ports.udp, ports.echo) == (((80, 80), (443, 443)), ((443, 443),), False)
    assert not _open(compiled, "8.8.8.8")
    assert compiled.teach(parse_address("10.0.0.1")) is Teach.STRIP


def test_no_mail() -> None:
    compiled = _compiled("no-mail")
    assert compiled.decide_name_port("mail.example.com", "tcp", 25).action is Action.DENY
    assert compiled.decide_name_port("mail.example.com", "tcp", 443).action is Action.ALLOW
    assert not _open(compiled, "192.0.2.1", 587)
    assert _open(compiled, "192.0.2.1", 443)


def test_templates_name_examples_only() -> None:
    for name in ("package-installs", "model-api", "internal-services"):
        for rule in presets.load(name).egress:
            assert rule.kind == "address" or rule.target.endswith("example.com")
