"""One example of each format, as its documentation writes it: what comes of it, and what is said about the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from policies.model import NetworkPolicy
from policies.parser import parse_policy
from policies.translate import SYSTEMS, Options, Translation, translate
from tests.pure.commands.calling import egress, quick

HERE = Path(__file__).parent / "examples"
FILES = {
    "settings.yaml": "open-brain",
    "networkpolicy.yaml": "kubernetes",
    "cilium.yaml": "cilium",
    "init-firewall.sh": "devcontainer",
    "sbx-policy.sh": "docker-sandbox",
    "governance.json": "docker-sandbox",
    "srt-settings.json": "sandbox-runtime",
    "claude-settings.json": "sandbox-runtime",
    "e2b.json": "e2b",
    "allowed.txt": "hosts",
}


def example(name: str, **options: object) -> Translation:
    return translate(FILES[name], (HERE / name).read_text(), Options(**options))  # type: ignore[arg-type]


def rules(policy: NetworkPolicy, *, around: bool = False) -> list[str]:
    """The rules in short; the denials of the network around only if wanted."""
    return [rule.describe() for rule in policy.egress if around or not rule.comment.startswith("not outside")]


def test_every_system_has_an_example() -> None:
    assert set(FILES.values()) == set(SYSTEMS)
    assert {path.name for path in HERE.iterdir()} == {*FILES, "github-meta.json"}


@pytest.mark.parametrize("name", FILES)
def test_every_rule_says_where_it_came_from_and_reads_back(name: str) -> None:
    policy = example(name).policy
    assert policy.egress
    assert all(rule.comment for rule in policy.egress)
    assert parse_policy(json.dumps(policy.to_document())) == policy


def test_open_brain() -> None:
    found = example("settings.yaml")
    assert rules(found.policy) == ["allow * tcp 80, 443", "allow 0.0.0.0/0 tcp 80, 443", "allow ::/0 tcp 80, 443"]
    assert "deny 10.0.0.0/8" in rules(found.policy, around=True)
    assert not found.gaps


@pytest.mark.parametrize("line", ["allow_egress: false", "block_egress: true", ""])
def test_open_brain_that_allows_nothing(line: str) -> None:
    text = f"security:\n  sandbox:\n    network:\n      allowed_ports: [443]\n      {line}\n"
    assert translate("open-brain", text).policy == NetworkPolicy()


def test_kubernetes() -> None:
    found = example("networkpolicy.yaml")
    assert rules(found.policy) == [
        "deny 10.0.0.0/8", "deny 172.16.0.0/12", "deny 192.168.0.0/16",
        "allow * port 53",
        "allow 0.0.0.0/0 tcp 443", "allow 198.51.100.0/24 tcp 5432, 9000-9010",
    ]  # fmt: skip
    assert [gap.place for gap in found.gaps] == ["$.spec.egress[3].to[0]"]


def test_an_exception_that_another_rule_opens_is_no_denial() -> None:
    text = """
kind: NetworkPolicy
spec:
  egress:
    - to: [{ipBlock: {cidr: 198.51.100.0/24, except: [198.51.100.128/25]}}]
    - to: [{ipBlock: {cidr: 198.51.100.130/32}}]
"""
    assert rules(translate("kubernetes", text).policy) == ["allow 198.51.100.0/25", "allow 198.51.100.130"]


def test_cilium() -> None:
    found = example("cilium.yaml")
    assert rules(found.policy) == [
        "deny 203.0.113.7",
        "allow api.example.org tcp 443", "allow *.example.com tcp 443",
        "allow *.example.com port 53", "allow api.example.org port 53",
        "allow 203.0.113.0/25", "allow 0.0.0.0/0 tcp 8443", "allow ::/0 tcp 8443",
    ]  # fmt: skip
    assert [gap.place for gap in found.gaps] == ["doc[0].spec.egress[4].toServices[0]"]
    assert any("elsewhere" not in note.words and "closed in Cilium too" in note.words for note in found.notes)


def test_cilium_policies_of_one_pod_add_up() -> None:
    one = (
        "kind: CiliumNetworkPolicy\nmetadata: {name: %s}\nspec: {egress: [{toFQDNs: [{matchName: %s.example.com}]}]}\n"
    )
    text = "---\n".join(one % (name, name) for name in ("a", "b", "c"))
    with pytest.raises(ValueError, match=r"3 policies \(a, b, c\); choose the pod's with --name"):
        translate("cilium", text)
    found = translate("cilium", text, Options(names=("a", "c")))
    assert rules(found.policy) == ["allow a.example.com", "allow c.example.com"]


def test_devcontainer() -> None:
    found = example("init-firewall.sh")
    expected = [
        "allow * port 53",
        "allow api.example.com", "allow cdn.example.com", "allow telemetry.example.org",
        "allow 0.0.0.0/0 tcp 22", "allow 192.0.2.0/24",
    ]  # fmt: skip
    assert rules(found.policy) == expected
    assert [gap.place for gap in found.gaps] == ["line 36", "line 19"]
    with_meta = example("init-firewall.sh", github_meta=(HERE / "github-meta.json").read_text())
    assert rules(with_meta.policy) == [*expected, "allow 198.51.100.0/24", "allow 203.0.113.0/25"]
    assert [gap.place for gap in with_meta.gaps] == ["line 36"]


def test_docker_sandbox() -> None:
    found = example("sbx-policy.sh")
    assert rules(found.policy) == [
        "deny ads.example.org", "allow api.example.com tcp", "allow *.example.org tcp 443",
        "allow time.example.com udp 123", "allow 198.51.100.0/24 tcp",
    ]  # fmt: skip
    assert [gap.place for gap in found.gaps] == ["line 4", "line 7"]
    wide = example("sbx-policy.sh", wider=True)
    assert not wide.gaps
    assert [one.place for one in wide.widened] == ["line 4", "line 7"]
    assert rules(example("governance.json").policy) == [
        "deny ads.example.org tcp", "allow api.example.com port 443", "allow *.example.org tcp",
        "allow *.example.org udp", "allow 2001:db8::/32 tcp",
    ]  # fmt: skip


def test_sandbox_runtime() -> None:
    assert rules(example("srt-settings.json").policy) == [
        "deny tracker.example.org", "allow api.example.com tcp", "allow *.example.org tcp",
        "allow git.example.net tcp 22", "allow 2001:db8::7 tcp 443",
    ]  # fmt: skip
    found = example("claude-settings.json")
    assert rules(found.policy) == ["allow *.example.com tcp 443"]
    assert [gap.place for gap in found.gaps] == ["$.permissions.allow[1]"]


def test_e2b() -> None:
    assert rules(example("e2b.json").policy) == [
        "allow api.example.com tcp 80, 443", "allow *.example.org tcp 80, 443", "allow 198.51.100.0/24",
    ]  # fmt: skip
    assert rules(translate("e2b", '{"network": {"denyOut": ["198.51.100.0/24"]}}').policy) == [
        "deny 198.51.100.0/24", "allow *", "allow 0.0.0.0/0",
    ]  # fmt: skip


def test_hosts() -> None:
    found = example("allowed.txt")
    assert rules(found.policy) == [
        "deny tracker.example.org", "allow api.example.com", "allow *.example.org", "allow example.net port 443",
        "allow *.example.net port 443", "allow docs.example.com tcp 443", "allow 198.51.100.0/24",
        "allow 2001:db8::1 port 443",
    ]  # fmt: skip
    assert [gap.place for gap in found.gaps] == ["line 6"]


# -- the command -----------------------------------------------------------------------------------------------------
def test_the_command_prints_the_policy_and_says_the_rest() -> None:
    done = egress("translate", "hosts", str(HERE / "allowed.txt"))
    assert done.returncode == 1  # something was left out
    assert parse_policy(done.stdout) == example("allowed.txt").policy
    assert "allowed.txt: gap: line 6: left out: opens all of files.example.com, not only '/public/'" in done.stderr
    assert "8 rules, 1 left out" in done.stderr
    assert egress("translate", "--lossy", "hosts", str(HERE / "allowed.txt")).returncode == 0
    wide = egress("translate", "--wider", "--yaml", "hosts", str(HERE / "allowed.txt"))
    assert wide.returncode == 0
    assert "wider: line 6" in wide.stderr
    assert "files.example.com" in {rule.target for rule in parse_policy(wide.stdout, yaml=True).egress}


def test_the_command_reads_standard_input_and_prints_json() -> None:
    done = egress("translate", "--json", "hosts", "-", stdin=b"api.example.com:443\n")
    assert done.returncode == 0
    assert json.loads(done.stdout) == {
        "system": "hosts", "file": "standard input", "gaps": [], "widened": [], "notes": [],
        "policy": {"defaultAction": "deny", "egress": [
            {"action": "allow", "target": "api.example.com", "ports": [443], "comment": "from line 1"}]},
    }  # fmt: skip


@pytest.mark.parametrize("option", ["--github-meta", "--name"])
def test_an_option_of_another_system_is_refused(option: str) -> None:
    done = egress("translate", "hosts", str(HERE / "allowed.txt"), option, "x")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{option} is for" in done.stderr


def test_a_preset_is_no_file(tmp_path: Path) -> None:
    done = egress("translate", "hosts", "web-only", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "web-only: no such file or directory" in done.stderr


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_help_names_every_system(system: str) -> None:
    assert system in quick("translate", "--help").stdout
