"""OpenSandbox's own server attaches our sidecar, and its SDK drives it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.images import SANDBOX
from tests.e2e.sandboxes import GREETING, OTHER, WEB, Box, until
from tests.e2e.server import Sdk, Server, request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lab import Internet, Namespace
    from tests.e2e.daemon import Daemon

ALLOW_API = {"defaultAction": "deny", "egress": [{"action": "allow", "target": "api.example.com"}]}


def create(sdk: Sdk, daemon: Daemon, name: str, policy: Any = None, **more: Any) -> Box:
    return Box(sdk, daemon, name, sdk.call("create", name, image=SANDBOX, policy=policy, **more)["id"])


@pytest.fixture(scope="module", autouse=True)
def zone(internet: Internet, daemon: Daemon) -> None:
    for name in ("api", "other", "third"):
        internet.dns.a(f"{name}.example.com", WEB if name == "api" else OTHER, ttl=600)


@pytest.fixture(scope="module")
def box(sdk: Sdk, daemon: Daemon) -> Iterator[Box]:
    """A sandbox that may reach api.example.com; tests put its policy back."""
    made = create(sdk, daemon, "box", ALLOW_API)
    yield made
    sdk.call("kill", "box")


def test_the_policy_holds_from_the_first_command_on(box: Box) -> None:
    assert box.reach(WEB) == "ECONNREFUSED", "nobody has asked for the name"
    assert box.name_of("api.example.com") == WEB
    assert box.reach("api.example.com") == GREETING
    assert box.name_of("other.example.com") == "unknown"
    assert box.reach(OTHER) == "ECONNREFUSED"
    assert box.sdk.call("policy", "box") == ALLOW_API
    assert "info" in {event["level"] for event in box.events()}
    config = box.daemon.inspect(box.sidecar)["Config"]["Env"]
    assert "OPENSANDBOX_EGRESS_MODE=dns+nft" in config


def test_without_a_policy_the_same_attempts_arrive(sdk: Sdk, daemon: Daemon) -> None:
    free = create(sdk, daemon, "free")
    try:
        assert free.reach(WEB) == GREETING
        assert free.name_of("other.example.com") == OTHER
    finally:
        sdk.call("kill", "free")


def test_rules_are_read_patched_and_deleted_through_the_sdk(box: Box) -> None:
    box.sdk.call("patch", "box", rules_=[{"action": "allow", "target": "other.example.com"}])
    assert box.targets() == ["allow other.example.com", "allow api.example.com"]
    assert box.name_of("other.example.com") == OTHER
    assert box.reach("other.example.com").startswith("Hello from other")
    box.sdk.call("patch", "box", rules_=[{"action": "deny", "target": "other.example.com"}])
    assert box.targets() == ["deny other.example.com", "allow api.example.com"]
    assert box.name_of("other.example.com") == "unknown"
    assert box.reach(OTHER) == "ECONNREFUSED"
    box.sdk.call("delete", "box", targets=["other.example.com", "never.example.com"])
    assert box.targets() == ["allow api.example.com"]
    refused = box.sdk.ask("patch", "box", rules_=[{"action": "allow", "target": "https://api.example.com/"}])
    assert refused.fault == "SandboxApiException", refused.text
    assert "target" in refused.text
    assert box.targets() == ["allow api.example.com"]


def test_rules_are_read_and_changed_through_the_servers_own_calls(box: Box, server: Server) -> None:
    path = f"/v1/sandboxes/{box.id}/networkpolicy"
    told = server.call("GET", path)
    assert (told.status, told.json()["policy"], told.json()["enforcementMode"]) == (200, ALLOW_API, "dns+nft")
    rule = {"action": "allow", "target": "third.example.com"}
    assert server.call("PATCH", path, [rule]).status == 200
    assert box.name_of("third.example.com") == OTHER
    assert server.call("DELETE", path, ["third.example.com"]).status == 200
    assert box.name_of("third.example.com") == "unknown"
    assert server.call("PUT", path, {"defaultAction": "deny", "egress": [rule]}).status == 200
    assert box.targets() == ["allow third.example.com"]
    assert box.name_of("api.example.com") == "unknown"
    assert server.call("PUT", path, ALLOW_API).status == 200
    assert box.targets() == ["allow api.example.com"]


def test_the_sandbox_itself_changes_nothing(box: Box) -> None:
    def ask(method: str, path: str) -> str:
        return box.run(
            'python3 -c \'import http.client; c = http.client.HTTPConnection("127.0.0.1", 18080);'
            f' c.request("{method}", "{path}"); print(c.getresponse().status)\''
        )

    assert ask("GET", "/healthz") == "200"
    assert ask("GET", "/policy") == ask("POST", "/policy") == "401", "it has no token"
    assert box.targets() == ["allow api.example.com"]
    # They share a folder, and the sandbox may write there: nothing of the sidecar's lies in it.
    look = "import os; print(*sorted(os.listdir('/opt/opensandbox')))"
    assert box.daemon.docker("exec", box.sidecar, "python3", "-c", look) == "bootstrap.sh execd"
    box.run("touch /opt/opensandbox/of-the-sandbox")
    assert "of-the-sandbox" in box.daemon.docker("exec", box.sidecar, "python3", "-c", look)


def test_ports_are_reached_directly_by_the_server_and_by_the_gateway(box: Box, server: Server, gateway: str) -> None:
    for port in (8080, 3000):
        box.sdk.call("run", "box", command=f"exec python3 -m http.server -d /opt {port}", background=True)
    namespace = server.namespace
    for port in (8080, 3000):
        direct = box.sdk.call("endpoint", "box", port=port)
        until(partial(_answers, namespace, direct))
        assert server.call("GET", f"/v1/sandboxes/{box.id}/proxy/{port}/").status == 200
        until(partial(_answers, namespace, gateway, {"OpenSandbox-Ingress-To": f"{box.id}-{port}"}))
        assert _status(namespace, f"{gateway}/{box.id}/{port}/") == 200
    assert _status(namespace, f"{gateway}/nobody/8080/") == 404


def _answers(namespace: Namespace, address: str, headers: dict[str, str] | None = None) -> bool:
    return _status(namespace, address, headers) == 200


def _status(namespace: Namespace, address: str, headers: dict[str, str] | None = None) -> int:
    try:
        return request(namespace, address, headers=headers).status
    except OSError:
        return 0


def test_a_new_sandbox_is_routed_without_waiting_for_its_sidecars_health(
    unhurried: Sdk, daemon: Daemon, server: Server, gateway: str
) -> None:
    until(lambda: _status(server.namespace, f"{gateway}/nobody/44772/ping") == 404)
    fresh = create(unhurried, daemon, "fresh", ALLOW_API)
    try:
        until(lambda: _status(server.namespace, f"{gateway}/{fresh.id}/44772/ping") == 200)
        assert daemon.inspect(fresh.sidecar)["State"]["Health"]["Status"] == "starting"
    finally:
        unhurried.call("kill", "fresh")
    until(lambda: _status(server.namespace, f"{gateway}/{fresh.id}/44772/ping") == 404)


def test_the_worker_is_killed_and_everything_is_as_before(box: Box, internet: Internet) -> None:
    assert box.reach("api.example.com") == GREETING
    before, started = box.worker(), box.daemon.inspect(box.sidecar)["State"]["StartedAt"]
    box.sdk.call("patch", "box", rules_=[{"action": "allow", "target": "third.example.com"}])
    internet.dns.remove("api.example.com")  # so that only the lease can open the address again
    try:
        box.daemon.docker("exec", box.sidecar, "/opt/venv/bin/python", "-c", f"import os; os.kill({before}, 9)")
        until(lambda: box.worker() not in ("", before))
        assert until(lambda: _targets(box)) == ["allow third.example.com", "allow api.example.com"]
        assert box.reach(WEB) == GREETING, "the lease"
        assert box.reach(OTHER) == "ECONNREFUSED"
        assert box.name_of("other.example.com") == "unknown"
        assert box.name_of("third.example.com") == OTHER
        told = box.daemon.inspect(box.sidecar)["State"]
        assert (told["Running"], told["StartedAt"]) == (True, started), "the container is the same"
    finally:
        internet.dns.a("api.example.com", WEB, ttl=600)
        box.sdk.call("delete", "box", targets=["third.example.com"])


def _targets(box: Box) -> list[str]:
    answer = box.sdk.ask("policy", "box")
    return [] if answer.fault else [f"{rule['action']} {rule['target']}" for rule in answer.value["egress"]]


def test_a_pause_is_survived(box: Box, server: Server) -> None:
    assert box.reach("api.example.com") == GREETING
    box.sdk.call("pause", "box")
    assert box.daemon.inspect(box.container)["State"]["Paused"]
    assert box.sdk.call("info", "box")["state"] == "Paused"
    box.sdk.call("resume", "box")
    assert box.reach(WEB) == GREETING, "the lease"
    assert box.name_of("other.example.com") == "unknown"
    assert box.targets() == ["allow api.example.com"]


def test_a_renewed_sandbox_lives_and_one_whose_time_is_over_goes_whole(sdk: Sdk, daemon: Daemon) -> None:
    before = daemon.things()
    short = create(sdk, daemon, "short", ALLOW_API)
    was = sdk.call("info", "short")["expires"]
    assert sdk.call("renew", "short", seconds=3600) > was + 2000
    assert sdk.call("info", "short")["expires"] > was + 2000
    assert short.reach("api.example.com") == GREETING
    assert daemon.things() != before
    sdk.call("renew", "short", seconds=1)
    until(lambda: daemon.things() == before)


def test_a_deleted_sandbox_takes_everything_with_it(sdk: Sdk, daemon: Daemon) -> None:
    before = daemon.things()
    env = {"OPENSANDBOX_EGRESS_LOG_LEVEL": "warn"}
    gone = create(sdk, daemon, "gone", ALLOW_API, proxied=True, env=env)
    assert gone.reach("api.example.com") == GREETING, "through the server as the SDK's proxy"
    assert "info" not in {event["level"] for event in gone.events()}, "a variable that a request may set"
    brought = {kind: names - before[kind] for kind, names in daemon.things().items()}
    assert brought["containers"] == {gone.container, gone.sidecar}
    assert len(brought["volumes"]) == 1, "the server's own; it would leave one of ours behind"
    sdk.call("kill", "gone")
    until(lambda: daemon.things() == before)


def test_a_policy_that_cannot_be_read_creates_nothing(sdk: Sdk, daemon: Daemon) -> None:
    before = daemon.things()
    faulty = {"defaultAction": "deny", "egress": [{"action": "allow", "target": "*.*.example.com"}]}
    answer = sdk.ask("create", "faulty", image=SANDBOX, policy=faulty)
    assert answer.fault, "the sidecar refuses, so the server does"
    until(lambda: daemon.things() == before)


def test_in_mode_dns_names_are_guarded_and_packets_are_not(daemon: Daemon, servers: dict[str, Server]) -> None:
    server = servers["dns"]
    with Sdk(server) as sdk:
        box = create(sdk, daemon, "names", ALLOW_API)
        try:
            told = server.call("GET", f"/v1/sandboxes/{box.id}/networkpolicy").json()
            assert told["enforcementMode"] == "dns"
            assert box.reach("api.example.com") == GREETING
            assert box.name_of("other.example.com") == "unknown"
            assert box.reach(OTHER).startswith("Hello from other"), "as the mode says"
            sdk.call("patch", "names", rules_=[{"action": "allow", "target": "other.example.com"}])
            assert box.name_of("other.example.com") == OTHER
        finally:
            sdk.call("kill", "names")
