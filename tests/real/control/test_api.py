"""The control API, call by call, over real sockets."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from egress.events import Events
from egress.log import Log
from policies.model import Action, NetworkPolicy

if TYPE_CHECKING:
    from pathlib import Path

    from tests.real.control.conftest import Control

ALLOW = {"action": "allow", "target": "api.example.com"}
DENY = {"action": "deny", "target": "*.example.com"}
RESET = {"status": "ok", "mode": "deny_all", "reason": "policy reset to default deny-all"}


def test_get_policy(control: Control) -> None:
    answer = control.call("GET")
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {
        "status": "ok",
        "mode": "deny_all",
        "enforcementMode": "dns+nft",
        "policy": {"defaultAction": "deny", "egress": []},
    }


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_replace(control: Control, method: str) -> None:
    answer = control.call(method, body={"defaultAction": "deny", "egress": [ALLOW]})
    assert (answer.status, answer.json()) == (200, {"status": "ok", "mode": "enforcing", "enforcementMode": "dns+nft"})
    assert control.call("GET").json()["policy"] == {"defaultAction": "deny", "egress": [ALLOW]}
    assert control.call(method, body={"defaultAction": "allow"}).json()["mode"] == "allow_all"


@pytest.mark.parametrize("method", ["POST", "PUT"])
@pytest.mark.parametrize("body", [None, " \r\n\t", "null", "{}", " { } ", "\nnull\n"])
def test_nothing_resets_to_deny_all(control: Control, method: str, body: str | None) -> None:
    control.service.policy = NetworkPolicy(Action.ALLOW)
    answer = control.call(method, body=body)
    expected = {**RESET, "enforcementMode": "dns+nft"} if (body or "").strip() else RESET
    assert (answer.status, answer.json()) == (200, expected)
    assert control.service.policy == NetworkPolicy()


def test_patch_and_delete(control: Control) -> None:
    control.call("POST", body={"egress": [DENY]})
    answer = control.call("PATCH", body=[ALLOW, {"action": "deny", "target": "API.example.com."}])
    assert (answer.status, answer.json()) == (200, {"status": "ok", "mode": "enforcing", "enforcementMode": "dns+nft"})
    assert control.call("GET").json()["policy"]["egress"] == [ALLOW, DENY]
    applied = control.service.applied
    none = control.call("DELETE", body=["other.example.com"])
    assert none.status == 200
    assert none.json()["reason"] == "no matching targets found"
    assert control.service.applied == applied  # nothing was loaded for it
    answer = control.call("DELETE", body=["api.example.com", "nobody.example"])
    assert (answer.status, answer.json()) == (200, {"status": "ok", "mode": "enforcing", "enforcementMode": "dns+nft"})
    assert control.call("GET").json()["policy"]["egress"] == [DENY]


@pytest.mark.parametrize(
    ("method", "body", "path"),
    [
        ("POST", b"{", "$"),
        ("POST", b"[]", "$"),
        ("POST", b'{"egress":[{"action":"allow","target":"api.example.com"},{"target":"x.example"}]}', "$.egress[1]"),
        ("PUT", b'{"egress":[{"action":"allow","target":"a..b"}]}', "$.egress[0].target"),
        ("POST", b'{"egress":[],"egress":[]}', "$"),
        ("POST", b'{"defaultAction":NaN}', "$"),
        ("POST", b'\xff{"defaultAction":"deny"}', "$"),
        ("POST", b'\xef\xbb\xbf{"defaultAction":"deny"}', "$"),
        ("POST", b"[" * 100_000, "$"),
        ("POST", b'{"defaultAction":"deny"} x', "$"),
        ("PATCH", b"[]", "$"),
        ("PATCH", b"", "$"),
        ("PATCH", b"{}", "$"),
        ("DELETE", b"[]", "$"),
        ("DELETE", b"", "$"),
        ("DELETE", b'["a..b"]', "$[0]"),
    ],
)
def test_bad_bodies_name_the_place_and_change_nothing(control: Control, method: str, body: bytes, path: str) -> None:
    control.service.policy = before = NetworkPolicy(Action.ALLOW)
    answer = control.call(method, body=body)
    assert answer.status == 400
    document = answer.json()
    assert document["status"] == "error"
    assert document["path"].startswith(path)
    assert document["reason"].startswith(path)
    assert control.service.policy is before


def test_too_many_rules(open_control: Control) -> None:
    rules = [{"action": "allow", "target": f"n{number}.example.com"} for number in range(4)]
    answer = open_control.call("POST", body={"egress": rules}, local=True)
    assert answer.status == 413
    assert "MAX_RULES" in answer.json()["reason"]
    assert open_control.call("PUT", body={"egress": rules[:3]}, local=True).status == 200
    answer = open_control.call("PATCH", body=rules[3:], local=True)
    assert answer.status == 413  # the sum counts
    assert len(open_control.service.policy.egress) == 3
    assert open_control.call("PATCH", body=rules[:1], local=True).status == 200  # replaces, adds none


def test_zero_is_no_cap(control: Control) -> None:
    control.api._max_rules = 0
    rules = [{"action": "allow", "target": f"n{number}.example.com"} for number in range(5000)]
    assert control.call("POST", body={"egress": rules}).status == 200
    assert len(control.call("GET").json()["policy"]["egress"]) == 5000


def test_4096_of_the_largest_rules_fit(control: Control) -> None:
    name = ".".join(["a" * 61] * 4)
    rules = [
        {
            "action": "allow",
            "target": f"{number:04}.{name}",
            "ports": [443, "8000-8100"],
            "protocol": "tcp",
            "comment": "c" * 200,
        }
        for number in range(4096)
    ]
    body = json.dumps({"egress": rules}).encode()
    assert len(body) > 2_000_000
    assert control.call("POST", body=body).status == 200
    assert control.call("GET").json()["policy"]["egress"] == rules


def test_a_failed_apply_is_500_and_says_why(control: Control) -> None:
    control.service.fail = OSError("nft said no")
    answer = control.call("POST", body={"egress": [ALLOW]})
    assert answer.status == 500
    assert "nft said no" in answer.json()["reason"]
    assert control.call("GET").json()["policy"]["egress"] == []


def test_locked_down(control: Control) -> None:
    control.service.locked = control.service.ill = "policy.json: broken"
    answer = control.call("POST", body={"egress": [ALLOW]})
    assert answer.status == 503
    assert "policy.json: broken" in answer.json()["reason"]
    health = control.call("GET", "/healthz")
    assert (health.status, health.body) == (503, b"policy.json: broken")
    assert control.service.applied == 0


def test_healthz_asks_nobody(control: Control) -> None:
    for token in (None, "wrong", "correct horse"):
        answer = control.call("GET", "/healthz", token=token)
        assert (answer.status, answer.body) == (200, b"ok")


def test_not_enforced_is_told(control: Control) -> None:
    control.service.enforcement_mode = "dns"
    control.service.not_enforced = ("allow 192.0.2.0/24",)
    for answer in (control.call("GET"), control.call("POST", body={"egress": [ALLOW]})):
        assert answer.json()["enforcementMode"] == "dns"
        assert answer.json()["notEnforced"] == ["allow 192.0.2.0/24"]


@pytest.mark.parametrize("token", [None, "", "wrong", "correct hors", "correct horse battery", "Correct Horse"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"])
def test_e13_without_the_token_nothing_is_told_or_changed(control: Control, method: str, token: str | None) -> None:
    answer = control.call(method, token=token)
    assert answer.status == 401
    assert "www-authenticate" in answer.headers
    assert control.service.applied == 0
    if method != "HEAD":
        assert "OPENSANDBOX-EGRESS-AUTH" in answer.json()["reason"]
    assert control.call("GET").status == 200


def test_the_token_twice_is_refused(control: Control) -> None:
    twice = (("OpenSandbox-Egress-Auth", "correct horse"),)
    assert control.call("GET", headers=twice).status == 401


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_e13_without_a_configured_token_tcp_cannot_write(open_control: Control, method: str) -> None:
    for token in (None, "", "x"):
        answer = open_control.call(method, body=[ALLOW], token=token)
        assert answer.status == 401
        assert "OPENSANDBOX_EGRESS_TOKEN" in answer.json()["reason"]
        assert "unix socket" in answer.json()["reason"]
    assert open_control.call("GET", token=None).status == 200
    assert open_control.service.applied == 0


def test_the_unix_socket_needs_no_token(control: Control, open_control: Control) -> None:
    for running in (control, open_control):
        assert running.call("GET", token=None, local=True).status == 200
        assert running.call("POST", body={"egress": [ALLOW]}, token=None, local=True).status == 200
        assert running.service.applied == 1


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("OPTIONS", "/policy", "GET, HEAD, POST, PUT, PATCH, DELETE"),
        ("TRACE", "/policy", "GET, HEAD, POST, PUT, PATCH, DELETE"),
        ("BREW", "/policy", "GET, HEAD, POST, PUT, PATCH, DELETE"),
        ("POST", "/healthz", "GET, HEAD"),
        ("DELETE", "/healthz", "GET, HEAD"),
    ],
)
def test_405(control: Control, method: str, path: str, allow: str) -> None:
    answer = control.call(method, path)
    assert (answer.status, answer.headers["allow"]) == (405, allow)
    assert answer.json()["status"] == "error"


@pytest.mark.parametrize("path", ["/", "/policy/", "/Policy", "/credential-vault", "/%70olicy", "//policy", "*"])
def test_404(control: Control, path: str) -> None:
    answer = control.call("GET", path)
    assert answer.status == 404
    assert answer.json()["status"] == "error"


@pytest.mark.parametrize("target", ["/policy?x=1", "http://sandbox.example.com/policy", "HTTP://x:18080/policy?y"])
def test_forms_of_the_target(control: Control, target: str) -> None:
    assert control.call("GET", target).status == 200


def test_head(control: Control) -> None:
    answer = control.call("HEAD")
    assert (answer.status, answer.body) == (200, b"")
    assert int(answer.headers["content-length"]) == len(control.call("GET").body)


def test_compressed_bodies_are_refused(control: Control) -> None:
    answer = control.call("POST", body=b"\x1f\x8b", headers=(("Content-Encoding", "gzip"),))
    assert answer.status == 415
    assert control.call("POST", body=b"{}", headers=(("Content-Encoding", "identity"),)).status == 200


def test_changes_are_told_as_events(control: Control, tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        log = Log(file.fileno())
        control.api._events = Events(log, control.loop)
        control.call("POST", body={"egress": [ALLOW, DENY]})
        control.call("PATCH", body=[ALLOW])
        control.call("DELETE", body=["nobody.example.com"])  # changes nothing, tells nothing
        control.call("PATCH", body=[{"action": "allow"}])
        control.service.fail = OSError("nft said no")
        control.call("POST", body=None)
        control.call("POST", body=None, token="wrong")  # the sandbox cannot fill the log this way
        log.close()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [(line["opensandbox.event"], line["level"]) for line in lines] == [
        ("egress.updated", "info"),
        ("egress.updated", "info"),
        ("egress.update_failed", "warn"),
        ("egress.update_failed", "error"),
    ]
    assert lines[0]["rules"] == [ALLOW, DENY]
    assert lines[1]["rules"] == [ALLOW]
    assert "$[0]" in lines[2]["error"]
    assert "nft said no" in lines[3]["error"]
