"""Docker containers as sandboxes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingress.providers.containers import Container, Wishes, entries, read, wanted
from ingress.routes import Ambiguous, Sandbox

STARTED = "2026-01-01T00:00:00Z"


def inspected(name: str = "one", mode: str = "bridge", labels: object = None, **more: Any) -> dict[str, Any]:
    return {
        "Id": name.ljust(64, "0"),
        "Name": f"/{name}",
        "Config": {"Labels": {"sallyport.sandbox": "box"} if labels is None else labels},
        "State": {"Status": "running", "Running": True, "StartedAt": STARTED, **more.get("state", {})},
        "HostConfig": {"NetworkMode": mode},
        "NetworkSettings": {
            "Networks": more.get("networks", {"bridge": {"IPAddress": "172.17.0.2", "GlobalIPv6Address": ""}}),
            "Ports": more.get("ports", {}),
        },
    }


def containers(*documents: dict[str, Any]) -> list[Container]:
    return [container for document in documents if (container := read(document)) is not None]


def one(*documents: dict[str, Any], wishes: Wishes = Wishes()) -> Sandbox:  # noqa: B008 - a value
    found, complaints = entries(containers(*documents), wishes)
    assert complaints == []
    assert len(found) == 1
    assert isinstance(found[0], Sandbox)
    return found[0]


@pytest.mark.parametrize("label", ["opensandbox.io/id", "sallyport.sandbox"])
def test_a_label_makes_a_sandbox(label: str) -> None:
    labels = {
        label: "box",
        "sallyport.ports": "8080,3000",
        "sallyport.upstream-host": "localhost",
        "opensandbox.io/secure-access-token": " t ",
    }
    assert one(inspected(labels=labels)) == Sandbox(
        "box",
        "172.17.0.2",
        token="t",
        ports=frozenset({3000, 8080}),
        incarnation="one".ljust(64, "0") + " " + STARTED,
        upstream_host="localhost",
        addresses=("172.17.0.2",),
    )


def test_without_a_label_it_is_none() -> None:
    assert entries(containers(inspected(labels={}), inspected(labels={"sallyport.sandbox": " "})), Wishes()) == ([], [])


def test_an_id_that_no_route_can_name_is_complained_about() -> None:
    found, complaints = entries(containers(inspected(labels={"sallyport.sandbox": "a/b"})), Wishes())
    assert found == []
    assert complaints[0].startswith('container one: no route can name the id "a/b"')


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ({"Health": {"Status": "healthy"}}, ""),
        ({"Health": {"Status": "none"}}, ""),
        ({"Health": {"Status": "starting"}}, "its container is starting: its health check has not passed yet"),
        ({"Health": {"Status": "unhealthy"}}, "its container's health check fails"),
        ({"Paused": True}, "its container is paused"),
        ({"Restarting": True}, "its container is restarting"),
        ({"Running": False, "Status": "exited", "ExitCode": 137}, "its container doesn't run (exited, exit code 137)"),
        ({"Running": False, "Status": "created"}, "its container doesn't run (created)"),
        ({"Running": None, "Status": None}, "its container doesn't run (stopped)"),
    ],
)
def test_ready_is_running_and_healthy(state: dict[str, Any], reason: str) -> None:
    sandbox = one(inspected(state=state))
    assert (sandbox.ready, sandbox.reason) == (not reason, reason)


@pytest.mark.parametrize("label", ["sallyport.ports", "opensandbox.io/secure-access-token", "sallyport.upstream-host"])
def test_a_label_that_cannot_be_used_is_not_passed_over(label: str) -> None:
    sandbox = one(inspected(labels={"sallyport.sandbox": "box", label: "a\nb"}))
    assert not sandbox.ready
    assert sandbox.reason.startswith(f"its label {label} can't be used: ")


SIDECAR = {"opensandbox.io/egress-sidecar-for": "box", "opensandbox.io/id": "box"}


@pytest.mark.parametrize("called", ["side".ljust(64, "0"), "side".ljust(12, "0"), "side"])
def test_beside_a_sidecar_the_address_is_the_sidecars(called: str) -> None:
    sandbox = one(inspected(mode=f"container:{called}", networks={}), inspected("side", labels=SIDECAR))
    assert sandbox.ready
    assert sandbox.host == "172.17.0.2"
    assert "side" in sandbox.incarnation


def test_a_sidecar_that_is_not_well_takes_the_sandbox_with_it() -> None:
    joined = inspected(mode="container:side", networks={})
    assert one(joined, inspected("side", labels=SIDECAR, state={"Paused": True})).reason == (
        "its network's container side: its container is paused"
    )
    starting = inspected("side", labels=SIDECAR, state={"Health": {"Status": "starting"}})
    assert one(joined, starting).ready, "what it guards is the way out"
    assert one(joined).reason == "the container whose network it shares is gone"
    assert wanted(containers(joined)) == {"side"}
    assert wanted(containers(joined, inspected("side"))) == set()


NETWORKS = {
    "first": {"IPAddress": "", "GlobalIPv6Address": "FD00::2"},
    "second": {"IPAddress": "10.1.0.2", "GlobalIPv6Address": ""},
}


def test_the_network_asked_for_gives_the_address() -> None:
    both = inspected(networks=NETWORKS)
    assert one(both).host == "fd00::2"
    assert one(both).addresses == ("fd00::2", "10.1.0.2")
    assert one(both, wishes=Wishes(network="second")).host == "10.1.0.2"
    assert one(both, wishes=Wishes(network="third")).reason == (
        'it has no address on the network "third" (it is on: first, second)'
    )
    assert one(inspected(networks={})).reason == "it has no address on any network"
    assert one(inspected(mode="host", networks={})).reason.startswith("it is on the host's own network")


def test_published_ports_are_the_only_ones_where_they_are_asked_for() -> None:
    ports = {
        "8080/tcp": [{"HostIp": "0.0.0.0", "HostPort": "49153"}, {"HostIp": "::", "HostPort": "49153"}],
        "53/udp": [{"HostIp": "0.0.0.0", "HostPort": "49154"}],
        "3000/tcp": None,
        "9000/tcp": [{"HostIp": "", "HostPort": "49155"}],
    }
    wishes = Wishes(published="192.0.2.1")
    sandbox = one(inspected(ports=ports), wishes=wishes)
    assert sandbox.port_map == ((8080, "192.0.2.1", 49153), (9000, "192.0.2.1", 49155))
    assert sandbox.ports == frozenset({8080, 9000})
    labels = {"sallyport.sandbox": "box", "sallyport.ports": "8080,1"}
    assert one(inspected(ports=ports, labels=labels), wishes=wishes).ports == frozenset({8080})
    assert one(inspected(), wishes=wishes).reason == "it publishes no port"


def test_of_several_the_ones_that_run_count() -> None:
    gone = {"Running": False, "Status": "exited"}
    assert one(inspected("old", state=gone), inspected("new")).incarnation.startswith("new")
    later = {**gone, "StartedAt": "2026-01-02T00:00:00Z"}
    assert one(inspected("old", state=later), inspected("new", state=gone)).incarnation.startswith("old")
    found, _ = entries(containers(inspected("b"), inspected("a")), Wishes())
    assert isinstance(found[0], Ambiguous)
    assert found[0].where == ("a", "b")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.lists(
        st.fixed_dictionaries(
            {"Id": st.sampled_from(["a", "b"])},
            optional={
                "Name": st.just("/a") | JSON,
                "Config": st.fixed_dictionaries(
                    {"Labels": st.fixed_dictionaries({"sallyport.sandbox": st.text(max_size=3)}) | JSON}
                ),
                "State": st.fixed_dictionaries({"Running": st.just(True) | JSON, "Health": JSON}) | JSON,
                "HostConfig": st.fixed_dictionaries({"NetworkMode": st.just("container:b") | JSON}) | JSON,
                "NetworkSettings": st.fixed_dictionaries(
                    {
                        "Networks": st.dictionaries(st.text(max_size=2), st.fixed_dictionaries({"IPAddress": JSON})),
                        "Ports": st.dictionaries(st.sampled_from(["80/tcp", "x"]), JSON) | JSON,
                    }
                )
                | JSON,
            },
        )
    )
)
def test_whatever_a_daemon_says_gives_entries(documents: list[dict[str, Any]]) -> None:
    for wishes in (Wishes(), Wishes(network="a"), Wishes(published="192.0.2.1")):
        known = containers(*documents)
        wanted(known)
        for entry in entries(known, wishes)[0]:
            assert isinstance(entry, Ambiguous) or entry.ready == (not entry.reason)
