"""`egress policy`, and `egress explain` of a running sidecar, against the real control server on real sockets."""

from __future__ import annotations

import json
import os
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from egress.control.api import ChangeError
from policies.model import Action, NetworkPolicy
from tests.pure.commands.calling import egress, quick
from tests.real.control.conftest import TOKEN, Control

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

ALLOW = {"action": "allow", "target": "api.example.com"}


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    running = Control(tmp_path)
    yield running
    running.close()


def policy(control: Control, *arguments: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[str]:
    """Over the unix socket, where it is found by the variable."""
    return egress("policy", *arguments, stdin=stdin, env={"OPENSANDBOX_EGRESS_SOCKET": control.path})


def url(control: Control) -> str:
    return "http://{}:{}".format(*control.address)


def rules(control: Control) -> list[dict[str, object]]:
    return [rule.to_document() for rule in control.service.policy.egress]


def test_get(control: Control) -> None:
    control.call("PUT", body={"egress": [ALLOW]})
    done = policy(control, "get")
    assert done.returncode == 0
    assert json.loads(done.stdout) == {"defaultAction": "deny", "egress": [ALLOW]}
    assert "enforcing, enforced by dns+nft" in done.stderr
    assert policy(control, "get", "--yaml").stdout.startswith("defaultAction: deny\negress:\n  - {action: allow")
    found = json.loads(policy(control, "get", "--json").stdout)
    assert (found["status"], found["mode"], found["policy"]["egress"]) == ("ok", "enforcing", [ALLOW])
    explicit = egress("policy", "get", "--socket", control.path)
    assert explicit.stdout == done.stdout


def test_set_from_file_preset_and_standard_input(control: Control, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("defaultAction: allow\negress: [{action: deny, target: 192.0.2.0/24, ports: [25]}]\n")
    done = policy(control, "set", str(file))
    assert done.returncode == 0
    assert control.service.policy.default is Action.ALLOW
    assert json.loads(done.stdout) == control.service.policy.to_document()
    assert policy(control, "set", "web-only").returncode == 0
    assert len(control.service.policy.egress) == 2
    printed = policy(control, "get").stdout
    policy(control, "set", "allow-all")
    assert policy(control, "set", "-", stdin=printed.encode()).returncode == 0
    assert len(control.service.policy.egress) == 2
    assert policy(control, "set", "deny-all").returncode == 0
    assert control.service.policy == NetworkPolicy()


def test_a_bad_policy_is_not_sent(control: Control) -> None:
    policy(control, "set", "web-only")
    done = policy(control, "set", "-", stdin=b'{"egress": [{"action": "allow", "target": "a..b"}]}')
    assert (done.returncode, done.stdout) == (2, "")
    assert "$.egress[0].target" in done.stderr
    assert control.service.applied == 1


def test_add(control: Control) -> None:
    policy(control, "set", "-", stdin=json.dumps({"egress": [ALLOW]}).encode())
    done = policy(control, "add", "--allow", "b.example.com:443", "--deny", "*.example.net",
                  "--allow", "[2001:db8::1]:22",
                  '{"action": "allow", "target": "c.example.com", "protocol": "tcp", "comment": "why"}')  # fmt: skip
    assert done.returncode == 0
    assert rules(control) == [
        {"action": "deny", "target": "*.example.net"},
        {"action": "allow", "target": "b.example.com", "ports": [443]},
        {"action": "allow", "target": "2001:db8::1", "ports": [22]},
        {"action": "allow", "target": "c.example.com", "protocol": "tcp", "comment": "why"},
        ALLOW,
    ]
    assert json.loads(done.stdout)["egress"] == rules(control)
    policy(control, "add", "--deny", "api.example.com")  # the same rule otherwise: replaced
    assert rules(control)[0] == {"action": "deny", "target": "api.example.com"}
    assert ALLOW not in rules(control)


def test_remove(control: Control) -> None:
    policy(control, "add", "--allow", "api.example.com", "--allow", "api.example.com:443", "--allow", "192.0.2.1")
    assert policy(control, "remove", "API.example.com.:443").returncode == 0
    assert rules(control) == [ALLOW, {"action": "allow", "target": "192.0.2.1"}]
    done = policy(control, "remove", "other.example.com")
    assert done.returncode == 1
    assert "no matching targets found" in done.stderr
    assert json.loads(policy(control, "remove", "--json", "x.example").stdout)["reason"] == "no matching targets found"
    assert policy(control, "remove", "api.example.com", '{"target": "192.0.2.1/32"}').returncode == 0
    assert rules(control) == []


def test_over_http_with_the_token(control: Control) -> None:
    done = egress("policy", "add", "--url", url(control), "--token", TOKEN, "--allow", "a.example.com")
    assert done.returncode == 0
    done = egress("policy", "get", "--url", url(control), env={"OPENSANDBOX_EGRESS_TOKEN": TOKEN})
    assert json.loads(done.stdout)["egress"][0]["target"] == "a.example.com"
    for token in ("", "wrong"):
        done = egress("policy", "set", "allow-all", "--url", url(control), "--token", token)
        assert done.returncode == 1
        assert "token" in done.stderr
        assert TOKEN not in done.stderr
    assert control.service.policy.default is Action.DENY
    found = json.loads(egress("policy", "get", "--json", "--url", url(control)).stdout)
    assert (found["status"], found["httpStatus"]) == ("error", 401)


def test_the_sidecars_own_words_and_place(control: Control) -> None:
    control.service.fail = ChangeError(500, "the kernel said no: ENOMEM")
    done = policy(control, "add", "--allow", "a.example.com")
    assert done.returncode == 1
    assert "the kernel said no: ENOMEM" in done.stderr
    control.service.fail = ChangeError(400, "$.egress[0].target: not today", "$.egress[0].target")
    done = policy(control, "add", "--json", "--allow", "a.example.com")
    assert done.returncode == 1
    assert json.loads(done.stdout)["path"] == "$.egress[0].target"
    control.service.locked = "the policy file is broken"
    done = policy(control, "set", "web-only")
    assert (done.returncode, "the policy file is broken" in done.stderr) == (1, True)


def test_over_the_cap(tmp_path: Path) -> None:
    capped = Control(tmp_path, token="", max_rules=3)
    try:
        done = policy(capped, "set", "code-hosting")
        assert (done.returncode, "more than the 3" in done.stderr) == (1, True)
    finally:
        capped.close()


def test_what_is_not_enforced_is_said(control: Control) -> None:
    control.service.enforcement_mode = "dns"
    control.service.not_enforced = ("192.0.2.1",)
    assert "not enforced in this mode: 192.0.2.1" in policy(control, "add", "--allow", "192.0.2.1").stderr


def test_explain_of_a_running_sidecar(control: Control) -> None:
    policy(control, "add", "--allow", "api.example.com:443")
    done = egress("explain", "--socket", control.path, "api.example.com:443")
    assert (done.returncode, "egress[0]" in done.stdout) == (0, True)
    assert "rule files" in done.stderr
    assert egress("explain", "--socket", control.path, "api.example.com:22").returncode == 1
    assert egress("explain", "--url", url(control), "--token", TOKEN, "api.example.com").returncode == 0
    assert egress("explain", "--url", url(control), "api.example.com").returncode == 2  # 1 would mean: denied
    what_if = egress("explain", "--socket", control.path, "--deny", "api.example.com", "api.example.com")
    assert what_if.returncode == 1
    assert control.service.applied == 1
    control.service.enforcement_mode = "dns"
    assert egress("explain", "--socket", control.path, "192.0.2.1:22").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "write get, set, add or remove"),
        (("show",), "unknown action"),
        (("\x1b[31m",), "unknown action"),
        (("get", "more"), "unrecognized"),
        (("add",), "no rule given"),
        (("add", "api.example.com"), "--allow api.example.com"),
        (("add", "--allow", "a..b"), "empty label"),
        (("add", "--allow", "x:y"), "no port"),
        (("add", '{"action": "alow", "target": "x"}'), "rule action: unknown action"),
        (("add", '{"action": "allow"'), "not JSON"),
        (("remove",), "TARGET"),
        (("remove", ""), "empty target"),
        (("remove", "a..b"), "empty label"),
        (("remove", '{"target": "a.example.com", "action": "allow"}'), "action"),
        (("set",), "FILE"),
        (("set", "/no/such/file"), "no such file"),
        (("get", "--socket", "/a", "--url", "http://b"), "exclude each other"),
        (("get", "--url", "127.0.0.1:18080"), "http://127.0.0.1:18080"),
        (("get", "--url", "http://u:secret@127.0.0.1"), "--token"),
        (("get", "--socket", "/" + "x" * 200), "107"),
        (("get", "--json", "--yaml"), "--yaml"),
        (("get", "--url", "http://127.0.0.1:1", "--token", "a\nb"), "header"),
    ],
)
def test_a_wrong_call(arguments: tuple[str, ...], words: str) -> None:
    done = quick("policy", *arguments)
    assert (done.returncode, done.stdout, words in done.stderr) == (2, "", True), done.stderr
    assert "secret" not in done.stderr
    assert all(char.isprintable() or char == "\n" for char in done.stderr)


def test_nobody_there(tmp_path: Path) -> None:
    done = egress("policy", "get", "--socket", str(tmp_path / "none"))
    assert (done.returncode, "docker exec" in done.stderr) == (1, True)
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(tmp_path / "stale"))
    stale.close()
    done = egress("policy", "get", "--socket", str(tmp_path / "stale"))
    assert (done.returncode, "refused" in done.stderr) == (1, True)
    done = egress("policy", "get", "--url", "http://127.0.0.1:1")
    assert (done.returncode, "is the sidecar running" in done.stderr) == (1, True)
    assert json.loads(egress("policy", "get", "--json", "--url", "http://127.0.0.1:1").stdout)["status"] == "error"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "does not speak HTTP"),
        (b"SSH-2.0-OpenSSH_9.9\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n<html", "is no sidecar: HTTP 200: <html"),
        (b"HTTP/1.1 502 Bad\r\nContent-Length: 4\r\n\r\n\x1b[1m", "\\x1b[1m"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{}", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", "is no sidecar"),
        (
            b'HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n{"status":"ok","policy":[1,2]}',
            "is not one that this version knows",
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n" + b"[" * 900, "is no sidecar"),
    ],
)
def test_somebody_else_there(tmp_path: Path, answer: bytes, words: str) -> None:
    path = str(tmp_path / "other")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def serve() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(65536)
                peer.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        done = egress("policy", "get", "--socket", path)
        thread.join(10)
    assert (done.returncode, words in done.stderr) == (1, True), done.stderr


def test_not_for_every_user(control: Control, tmp_path: Path) -> None:
    os.chmod(control.path, 0o600)
    tmp_path.chmod(0o755)
    import subprocess
    import sys

    from tests.pure.commands.calling import CHECKOUT

    script = (
        "import argparse, http.client, os, shutil, sys; sys.path.insert(0, sys.argv[1])\n"
        "from egress.commands import policy\n"
        "os.setgid(65534)\nos.setuid(65534)\n"
        "sys.exit(policy.main(['get', '--socket', sys.argv[2]]))"
    )
    done = subprocess.run([sys.executable, "-c", script, str(CHECKOUT), control.path], capture_output=True, timeout=60)
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr
    assert b"permission denied" in done.stderr


@pytest.mark.parametrize("action", ["get", "set", "add", "remove"])
def test_help_teaches(action: str) -> None:
    done = egress("policy", action, "--help")
    assert done.returncode == 0
    assert f"egress policy {action}" in done.stdout
    assert "egress policy add --allow" in egress("policy", "--help").stdout
