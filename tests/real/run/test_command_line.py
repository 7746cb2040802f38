"""The command line of `egress run`: what it takes, what it refuses, what it says at the end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


def test_help_teaches_and_says_what_is_not_contained(caller: Any) -> None:
    done = caller.run("closed", "--help")
    assert done.returncode == 0
    for words in ("egress run --allow api.example.com", "NOT contained", "--share-path", "pasta", "exit code"):
        assert words in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "no command"),
        (("--",), "no command"),
        (("word", "--", "true"), "'word' stands before --"),
        (("--allow",), "--allow"),
        (("--allow", "a..example.com", "--", "true"), "--allow"),
        (("--deny", "", "--", "true"), "--deny"),
        (("--policy", "no-such-thing", "--", "true"), "presets: "),
        (("--share-path", "/no/such/path", "--", "true"), "no such file"),
        (("--share-path", "/run", "--", "true"), "not the whole"),
        (("--env", "=x", "--", "true"), "NAME=VALUE"),
        (("--json", "99", "--", "true"), "descriptor"),
        (("--json", "/no/such/folder/file", "--", "true"), "/no/such/folder/file"),
        (("--colour", "--", "true"), "--colour"),
    ],
)
def test_a_wrong_command_line_is_refused_in_one_line(caller: Any, arguments: tuple[str, ...], words: str) -> None:
    done = caller.run("closed", *arguments)
    assert (done.returncode, words in done.stderr, "Traceback" in done.stderr) == (2, True, False), done.stderr
    assert done.stdout == ""


def test_the_two_dashes_may_be_left_out_and_belong_to_the_command_after_the_first(caller: Any) -> None:
    assert caller.run("closed", "--offline", "--quiet", "echo", "-n", "--quiet").stdout == "--quiet"
    assert caller.run("closed", "--offline", "--quiet", "--", "echo", "--", "--help").stdout == "-- --help\n"


def test_rules_stand_in_their_order(caller: Any, read_notes: Any) -> None:
    policy = caller.home / "policy.yaml"
    policy.write_text("egress:\n- {action: allow, target: base.example.com}\n")
    done = caller.run(
        "closed", "--offline", "--allow", "api.example.com:443", "--policy", str(policy), "--deny", "bad.example.com",
        "--allow", "192.0.2.0/24", "--", "true",
    )  # fmt: skip
    assert read_notes(done.stderr)["policy"] == {
        "defaultAction": "deny",
        "egress": [
            {"action": "deny", "target": "bad.example.com"},
            {"action": "allow", "target": "api.example.com", "ports": [443]},
            {"action": "allow", "target": "192.0.2.0/24"},
            {"action": "allow", "target": "base.example.com"},
        ],
    }


def test_a_preset_is_found_by_name(caller: Any, read_notes: Any) -> None:
    done = caller.run("closed", "--offline", "--policy", "web-only", "--", "true")
    assert done.returncode == 0
    assert read_notes(done.stderr)["policy"]["egress"]


def test_a_broken_policy_file_names_the_place(caller: Any) -> None:
    policy = caller.home / "policy.json"
    policy.write_text('{"egress": [{"action": "allow", "target": "a..example.com"}]}')
    done = caller.run("closed", "--offline", "--policy", str(policy), "--", "true")
    assert (done.returncode, "$.egress[0].target" in done.stderr) == (2, True)


def test_summary_names_what_was_refused_and_the_rule(caller: Any) -> None:
    done = caller.run("closed", "--offline", "--", "sh", "-c", "exit 6")
    assert done.returncode == 6
    assert done.stdout == ""
    assert "--allow denied.example.com" in done.stderr
    assert "3x  192.0.2.9:443 tcp" in done.stderr
    assert "--allow 192.0.2.9:443" in done.stderr


def test_quiet_says_nothing_and_json_everything(caller: Any) -> None:
    target = Path(caller.home, "denied.json")
    done = caller.run("closed", "--offline", "--quiet", "--json", str(target), "--", "sh", "-c", "exit 6")
    assert (done.returncode, done.stdout, done.stderr) == (6, "", "")
    assert json.loads(target.read_text()) == {
        "exitCode": 6,
        "deniedNames": [
            {"name": "denied.example.com", "count": 1, "reason": "default deny", "rule": "default",
             "allow": "--allow denied.example.com"}
        ],
        "deniedPackets": [
            {"address": "192.0.2.9", "protocol": "tcp", "port": 443, "count": 3, "names": [],
             "allow": "--allow 192.0.2.9:443"}
        ],
        "deniedMore": 0,
    }  # fmt: skip


def test_json_to_a_descriptor(caller: Any) -> None:
    done = caller.run("closed", "--offline", "--quiet", "--json", "1", "--", "true")
    assert json.loads(done.stdout)["exitCode"] == 0
