"""`egress explain`: decision, rule, reason, and what becomes of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress.commands.explain import Asked, parse_target
from egress.commands.output import CommandError
from egress.commands.verdict import judge
from policies.matcher import compile_policy
from policies.model import Action
from policies.parser import parse_policy
from tests.pure.commands.calling import CHECKOUT, egress, quick

if TYPE_CHECKING:
    from pathlib import Path

POLICY = """
egress:
- {action: deny, target: bad.example.com, comment: known bad}
- {action: allow, target: "*.example.com", ports: [443, "8000-8100"]}
- {action: allow, target: quic.example.net, ports: [443], protocol: udp}
- {action: deny, target: 198.51.100.128/25}
- {action: allow, target: 198.51.100.0/24, ports: [5432]}
- {action: allow, target: "2001:db8::/32"}
- {action: allow, target: 10.0.0.5}
"""


@pytest.fixture
def policy(tmp_path: Path) -> str:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    return str(path)


def explain(policy: str, target: str, *more: str) -> Any:
    done = quick("explain", "--json", "--policy", policy, *more, "--", target)
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert done.returncode == {"allow": 0, "deny": 1}[found["decision"]]
    return found


@pytest.mark.parametrize(
    ("target", "decision", "origin"),
    [
        ("api.example.com", "allow", "egress[1]"),
        ("API.Example.COM.", "allow", "egress[1]"),
        ("api.example.com:443", "allow", "egress[1]"),
        ("api.example.com:8050", "allow", "egress[1]"),
        ("api.example.com:22", "deny", None),
        ("api.example.com:853", "deny", None),
        ("api.example.com:53", "deny", None),
        ("bad.example.com:443", "deny", "egress[0]"),
        ("example.com", "deny", None),
        ("https://user:secret@api.example.com/v1?x=[y]#z", "allow", "egress[1]"),
        ("http://api.example.com/", "deny", None),
        ("http://api.example.com:8000/", "allow", "egress[1]"),
        ("https://quic.example.net/", "deny", None),
        ("quic.example.net:443", "allow", "egress[2]"),
        ("198.51.100.1", "allow", "egress[4]"),
        ("198.51.100.1:5432", "allow", "egress[4]"),
        ("198.51.100.1:443", "deny", None),
        ("198.51.100.200:5432", "deny", "egress[3]"),
        ("::ffff:198.51.100.200", "deny", "egress[3]"),
        ("[::ffff:198.51.100.1]:5432", "allow", "egress[4]"),
        ("[2001:db8::1]:443", "allow", "egress[5]"),
        ("[2001:db8::1]", "allow", "egress[5]"),
        ("2001:db8::1", "allow", "egress[5]"),
        ("https://[2001:db8::1]/", "allow", "egress[5]"),
        ("2001:db9::1", "deny", None),
        ("169.254.169.254:80", "deny", None),
        ("10.0.0.5:53", "deny", None),
        (".", "deny", None),
        ("-odd-.example.com", "allow", "egress[1]"),
        ("use-application-dns.net", "deny", None),
        ("_dns.resolver.arpa", "deny", None),
    ],
)
def test_decisions(policy: str, target: str, decision: str, origin: str | None) -> None:
    found = explain(policy, target)
    assert found["decision"] == decision, found
    assert (found["rule"] or {}).get("origin") == origin, found
    assert "secret" not in json.dumps(found)


def test_protocols(policy: str) -> None:
    assert explain(policy, "quic.example.net:443", "--protocol", "udp")["decision"] == "allow"
    assert explain(policy, "quic.example.net:443", "--protocol", "tcp")["decision"] == "deny"
    assert "UDP only" in explain(policy, "quic.example.net:443")["notes"]
    assert explain(policy, "quic.example.net", "--protocol", "tcp")["decision"] == "deny"


def test_what_a_program_reads(policy: str) -> None:
    assert explain(policy, "bad.example.com") == {
        "target": "bad.example.com", "kind": "name", "name": "bad.example.com", "port": None, "protocol": None,
        "decision": "deny",
        "rule": {"origin": "egress[0]", "action": "deny", "target": "bad.example.com", "comment": "known bad"},
        "reason": 'rule egress[0] "deny bad.example.com" (known bad)',
        "ports": {"tcp": [], "udp": [], "echo": False},
        "notes": ["it does not resolve: NXDOMAIN"],
    }  # fmt: skip
    found = explain(policy, "[2001:DB8:0::1]:443")
    assert (found["kind"], found["address"], found["port"]) == ("address", "2001:db8::1", 443)
    assert explain(policy, "api.example.com")["ports"]["tcp"] == [443, "8000-8100"]


def notes(policy: str, target: str, *more: str) -> str:
    return "; ".join(explain(policy, target, *more)["notes"])


def test_notes(policy: str) -> None:
    assert "private" in notes(policy, "api.example.com")
    assert "stays closed" in notes(policy, "api.example.com")
    assert "an allowed name that resolves to it" in notes(policy, "203.0.113.1:443")
    assert "no name opens it" in notes(policy, "203.0.113.1:22")
    assert "no name opens it" in notes(policy, "198.51.100.200:443")
    assert "never learned" in notes(policy, "10.1.2.3:443")
    assert "private" in notes(policy, "10.1.2.3:443")
    assert "covers names below example.com" in notes(policy, "example.com")
    assert "covers quic.example.net alone" in notes(policy, "www.quic.example.net")
    for mode in ("dns", "dns+nft"):
        assert "names below example.com that were never seen" in notes(policy, "api.example.com", "--mode", mode)
        assert "never seen" not in notes(policy, "quic.example.net", "--mode", mode)
    assert "refused at once" in notes(policy, "api.example.com:22")


def test_mode_dns(policy: str) -> None:
    found = explain(policy, "203.0.113.1:22", "--mode", "dns")
    assert (found["decision"], found["rule"]) == ("allow", None)
    assert "would be denied" in found["notes"][0]
    assert explain(policy, "203.0.113.1:853", "--mode", "dns")["decision"] == "deny"
    assert explain(policy, "api.example.com:22", "--mode", "dns")["decision"] == "allow"
    assert explain(policy, "bad.example.com:443", "--mode", "dns")["decision"] == "deny"


def test_inline_rules_come_first_denials_before_all(policy: str) -> None:
    done = egress("explain", "--allow", "*.example.com:443", "--deny", "bad.example.com", "bad.example.com")
    assert done.returncode == 1
    assert "--deny" in done.stdout
    assert egress("explain", "--allow", "bad.example.com", "--policy", policy, "bad.example.com").returncode == 0
    assert egress("explain", "--allow", "a.example.com,b.example.com", "b.example.com").returncode == 0
    assert egress("explain", "--deny", "192.0.2.1", "192.0.2.2").returncode == 1  # deny by default


def test_several_targets_and_for_people(policy: str) -> None:
    done = egress("explain", "--policy", policy, "api.example.com:443", "bad.example.com")
    assert done.returncode == 1
    assert done.stdout.startswith("allow  api.example.com:443\n       because  rule egress[1]")
    assert "deny   bad.example.com\n" in done.stdout
    assert len(egress("explain", "--json", "--policy", policy, "a.example.com", "b.example").stdout.splitlines()) == 2
    assert egress("explain", "--policy", "-", "api.example.com", stdin=POLICY.encode()).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "see egress explain --help"),
        (("api.example.com",), "no policy"),
        (("--policy", "web-only"), "see egress explain --help"),
        (("--policy", "nothing-of-the-kind", "a.example.com"), "presets: "),
        (("--policy", "/no/such/file", "a.example.com"), "no such file"),
        (("--policy", "web-only", "a..b"), "empty label"),
        (("--policy", "web-only", "*.example.com"), "a pattern"),
        (("--policy", "web-only", "192.0.2.0/24"), "a pattern"),
        (("--policy", "web-only", "example.com:0"), "no port"),
        (("--policy", "web-only", "example.com:99999"), "no port"),
        (("--policy", "web-only", "[2001:db8::1"), "[2001:db8::1]:443"),
        (("--policy", "web-only", "192.0.2.300"), "0 to 255"),
        (("--policy", "web-only", "010.0.0.1"), "leading zeros"),
        (("--policy", "web-only", "fe80::1%eth0"), "zone ids"),
        (("--policy", "web-only", "https:///path"), "without a host"),
        (("--policy", "web-only", ""), "empty"),
        (("--policy", "web-only", "\x1b[31m"), "\\x1b"),
        (("--policy", "web-only", "--protocol", "sctp", "a.example.com"), "sctp"),
        (("--allow", "a..b", "a.example.com"), "--allow"),
        (("--deny", "", "a.example.com"), "empty target"),
        (("--policy", "web-only", "--socket", "/x", "a.example.com"), "exclude each other"),
        (("--socket", "/no/such/socket", "a.example.com"), "no such file"),
        (("--url", "ftp://x", "a.example.com"), "--url"),
    ],
)
def test_a_wrong_call_says_what_to_do(arguments: tuple[str, ...], words: str) -> None:
    done = quick("explain", *arguments)
    assert (done.returncode, done.stdout, words in done.stderr) == (2, "", True), done.stderr
    assert all(char.isprintable() or char == "\n" for char in done.stderr)


def test_the_answer_is_the_exit_code_whoever_reads(policy: str) -> None:
    command = [sys.executable, "-m", "egress", "explain", "--policy", policy, "bad.example.com"]
    environ = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, timeout=60, env=environ)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")  # nobody reads: no word, and the answer all the same
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=60, env=environ)
    assert done.returncode == 2
    assert done.stderr == b"egress explain: cannot write the output: No space left on device\n"
    closed = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], stderr=subprocess.PIPE, timeout=60, env=environ)
    assert closed.returncode == 2
    assert b"Traceback" not in closed.stderr
    helped = subprocess.run(
        ["sh", "-c", '"$@" --help | head -c 1', "sh", *command], capture_output=True, timeout=60, env=environ
    )
    assert (helped.stdout, helped.stderr) == (b"u", b"")


def test_help_teaches() -> None:
    done = egress("explain", "--help")
    assert done.returncode == 0
    for words in ("egress explain --policy web-only", "--protocol udp", "exit code: 0"):
        assert words in done.stdout


@given(st.text(max_size=40) | st.from_regex(r"[a-z0-9.:\[\]/@-]{0,30}", fullmatch=True))
def test_any_text_is_a_target_or_an_error(text: str) -> None:
    try:
        asked = parse_target(text)
    except CommandError as error:
        shown = str(error)
    else:
        assert asked.port is None or 1 <= asked.port <= 65535
        shown = asked.text
    assert shown.isprintable()


@given(
    st.lists(st.sampled_from(POLICY.strip().splitlines()[1:]), max_size=6),
    st.sampled_from(["allow", "deny"]),
    st.sampled_from(["api.example.com", "bad.example.com", "quic.example.net", "198.51.100.1", "198.51.100.200",
                     "2001:db8::1", "10.0.0.5", "169.254.169.254"]),
    st.sampled_from([None, 22, 443, 853, 5432]),
    st.sampled_from(["", "tcp", "udp"]),
)  # fmt: skip
def test_the_verdict_is_the_policys(rules: list[str], default: str, host: str, port: int | None, protocol: str) -> None:
    text = f"defaultAction: {default}\n" + ("egress:\n" + "\n".join(rules) if rules else "")
    compiled = compile_policy(parse_policy(text, yaml=True))
    parsed = parse_target(host)
    verdict = judge(compiled, Asked(host, parsed.host, port, protocol), "dns+nft")
    protocols = [protocol] if protocol else ["tcp", "udp"]
    if isinstance(parsed.host, str):
        ports = compiled.decide_name(parsed.host).ports
        expected = any(ports.contains(each, port) for each in protocols)
    else:
        expected = any(compiled.decide_address(parsed.host, each, port).action is Action.ALLOW for each in protocols)
    assert verdict.allowed is expected
    assert verdict.reason
