"""`egress check`: what it prints, what it finds, what it does with files that are no policies."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from egress.commands.places import faults
from policies import presets
from policies.parser import parse_policy
from tests.pure.commands.calling import egress, quick

if TYPE_CHECKING:
    from pathlib import Path

GOOD = '{"egress": [{"action": "Allow", "target": "API.example.com.", "ports": ["443", 80, "81-90"]}]}'
NORMAL = {
    "defaultAction": "deny",
    "egress": [{"action": "allow", "target": "api.example.com", "ports": ["80-90", 443]}],
}


def write(folder: Path, name: str, text: str | bytes) -> str:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def test_the_policy_comes_out_as_it_is_understood(tmp_path: Path) -> None:
    done = egress("check", write(tmp_path, "policy.json", GOOD))
    assert done.returncode == 0
    assert json.loads(done.stdout) == NORMAL
    assert "good JSON, default deny, 1 rule" in done.stderr


def test_yaml_out_means_the_same(tmp_path: Path) -> None:
    odd = r'{"action": "deny", "target": "*", "comment": "no: \"x\" # y"}'
    text = f'{{"egress": [{odd}, {{"action": "allow", "target": "::/0"}}]}}'
    done = egress("check", "--yaml", write(tmp_path, "policy.json", text))
    assert done.returncode == 0
    assert parse_policy(done.stdout, yaml=True) == parse_policy(text)
    assert egress("check", "--yaml", "deny-all").stdout == "defaultAction: deny\negress: []\n"


def test_standard_input_and_what_it_is(tmp_path: Path) -> None:
    assert json.loads(egress("check", "-", stdin=GOOD.encode()).stdout) == NORMAL
    done = egress("check", "--json", "-", stdin=b"defaultAction: allow\n")
    assert json.loads(done.stdout) == {
        "file": "standard input", "format": "yaml", "valid": True, "mode": "allow_all",
        "policy": {"defaultAction": "allow", "egress": []}, "errors": [], "warnings": [],
    }  # fmt: skip
    assert egress("check", "-", stdin=b"").returncode == 0


@pytest.mark.parametrize("name", presets.names())
def test_every_preset_is_good(name: str) -> None:
    done = quick("check", "--json", name)
    assert done.returncode == 0
    assert json.loads(done.stdout)["policy"] == presets.load(name).to_document()


def test_the_ending_says_what_a_file_is(tmp_path: Path) -> None:
    yaml = "egress: [{action: allow, target: api.example.com}]\n"
    assert egress("check", write(tmp_path, "policy.yaml", yaml)).returncode == 0
    assert egress("check", write(tmp_path, "policy", yaml)).returncode == 0
    assert egress("check", write(tmp_path, "policy.json", yaml)).returncode == 2


def test_all_faults_are_told_each_with_its_line(tmp_path: Path) -> None:
    text = """{"defaultAction": "deny", "egress": [
      {"action": "allow", "target": "good.example.com"},
      {"action": "allow",
       "target": "a..b"},
      {"action": "alow", "target": "x.example.com"},
      {"action": "allow", "target": "y.example.com", "ports": [443, 70000]},
      {"action": "allow", "target": "z.example.com", "target": "z.example.com"},
      {"action": "allow", "target": "z.example.com", "ports": [443.0]},
      {"target": "w.example.com"}
    ]}"""
    path = write(tmp_path, "policy.json", text)
    done = egress("check", path)
    assert done.returncode == 2
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    for line, place in (
        (4, "$.egress[1].target"), (5, "$.egress[2].action"), (6, "$.egress[3].ports[1]"), (7, "$.egress[4].target"),
        (8, "$.egress[5].ports[0]"), (9, "$.egress[6]"),
    ):  # fmt: skip
        assert any(told.startswith(f"{path}:{line}: error: {place}: ") for told in lines), (line, place, lines)
    assert lines[-1].endswith("6 errors")
    report = json.loads(egress("check", "--json", path).stdout)
    assert (report["valid"], report["policy"], len(report["errors"])) == (False, None, 6)
    assert report["errors"][0]["path"] == "$.egress[1].target"
    assert report["errors"][0]["line"] == 4


def test_lines_in_yaml_too() -> None:
    text = b"# policy\negress:\n- action: allow\n  target: api.example.com\n- action: allow\n  target: 'no good'\n"
    (fault,) = faults(text, yaml=True)
    assert (fault.path, fault.line) == ("$.egress[1].target", 6)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("junk", b"\x00\x01\xfe\xff\x7fELF" * 100),
        ("junk.json", b"\x00\x01\xfe\xff\x7fELF" * 100),
        ("nul.yaml", b"egress: \x00"),
        ("mark.json", b"\xef\xbb\xbf{}"),
        ("deep.json", b"[" * 200_000),
        ("deep.yaml", b"- " * 200_000),
        ("deeper.json", b'{"egress":[' + b"[" * 900 + b"]" * 900 + b"]}"),
        ("deepest.json", b'{"egress":[' + b'{"a":' * 480 + b"1" + b"}" * 480 + b"]}"),
        ("alias.yaml", b"a: &a [x]\nb: *a\n"),
        ("list.json", b"[]"),
        ("number.yaml", b"5"),
        ("control.json", b'{"egress": [{"action": "allow", "target": "\x1b[31m"}]}'),
        ("key.json", b'{"\\u001b[31m": 1}'),
    ],
)
def test_what_is_no_policy_is_an_error_with_words(tmp_path: Path, name: str, content: bytes) -> None:
    done = egress("check", write(tmp_path, name, content))
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: $" in done.stderr
    assert all(char.isprintable() or char == "\n" for char in done.stderr)


def test_what_cannot_be_read(tmp_path: Path) -> None:
    for text, words in (
        (str(tmp_path), "a folder"),
        (str(tmp_path / "none.yaml"), "no such file"),
        ("no-such-preset", "presets: allow-all"),
        ("/dev/zero", "more than 16 MiB"),
        ("", "empty file name"),
    ):
        done = egress("check", text)
        assert (done.returncode, done.stdout, words in done.stderr) == (2, "", True), done.stderr
    done = egress("check", "web-only", str(tmp_path / "none.yaml"))
    assert done.returncode == 2
    assert json.loads(done.stdout)["defaultAction"] == "deny"  # the good one is shown all the same
    reports = [json.loads(line) for line in egress("check", "--json", "web-only", str(tmp_path)).stdout.splitlines()]
    assert [report["valid"] for report in reports] == [True, False]


def test_a_file_wins_over_a_preset_of_the_same_name(tmp_path: Path) -> None:
    write(tmp_path, "web-only", "defaultAction: allow\n")
    (tmp_path / "deny-all").mkdir()
    assert json.loads(egress("check", "web-only", cwd=tmp_path).stdout)["defaultAction"] == "allow"
    assert egress("check", "deny-all", cwd=tmp_path).returncode == 0


def test_warnings_are_no_errors_but_for_strict(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "policy.yaml",
        "egress: [{action: allow, target: '*.example.com'}, {action: deny, target: a.example.com}]",
    )
    done = egress("check", path)
    assert done.returncode == 0
    assert "warning: $.egress[1]: never decides anything" in done.stderr
    assert egress("check", "--strict", path).returncode == 1
    assert egress("check", "--strict", "model-api").returncode == 0
    quiet = egress("check", "--quiet", "model-api")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")


def test_the_mode_comes_from_the_option_or_the_variable(tmp_path: Path) -> None:
    path = write(tmp_path, "policy.yaml", "egress: [{action: allow, target: 192.0.2.1}]")
    assert "mode dns" not in egress("check", path).stderr
    assert "mode dns" in egress("check", "--mode", "dns", path).stderr
    assert "mode dns" in egress("check", path, env={"OPENSANDBOX_EGRESS_MODE": "DNS"}).stderr
    assert "more than the 0" not in egress("check", path, env={"OPENSANDBOX_EGRESS_MAX_RULES": "0"}).stderr


def test_help_teaches() -> None:
    done = egress("check", "--help")
    assert done.returncode == 0
    for words in ("egress check policy.yaml", "--strict", "exit code"):
        assert words in done.stdout
    for arguments in ((), ("--colour", "web-only"), ("--json", "--yaml", "web-only")):
        done = egress("check", *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert "egress check --help" in done.stderr
