"""The lab's sidecar: started, asked, killed, restarted. The first test is the one that CONTRIBUTING.md shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lab import LabError, Sidecar

if TYPE_CHECKING:
    from collections.abc import Callable

    from lab import Lab

POLICY = {"defaultAction": "deny", "egress": [{"action": "allow", "target": "api.example.com"}]}


def test_an_allowed_name_is_reached_and_its_neighbour_is_not(lab: Lab, start_sidecar: Callable[..., Sidecar]) -> None:
    lab.dns.a("api.example.com", "198.51.100.10")
    assert lab.connect("198.51.100.10", 80) == "connected"  # the control: nothing guards yet
    start_sidecar(policy=POLICY)
    assert lab.connect("198.51.100.10", 80) == "refused"  # nobody has asked for the name
    assert lab.query("api.example.com").addresses == ["198.51.100.10"]
    assert lab.connect("198.51.100.10", 80) == "connected"
    assert lab.query("other.example.com").rcode == "NXDOMAIN"
    with lab.capture() as wire:
        lab.udp("192.0.2.1", 40000, payload=b"out")
        assert not wire.packets(0.1, payload=b"out")


@pytest.mark.parametrize("as_pid1", [False, True])
def test_it_can_be_killed_in_part_and_whole_and_started_again(lab: Lab, as_pid1: bool) -> None:
    lab.dns.a("api.example.com", "198.51.100.10")
    with Sidecar(lab, policy=POLICY, as_pid1=as_pid1) as sidecar:
        first = sidecar.kill_worker()
        assert lab.query("api.example.com").addresses == ["198.51.100.10"]
        assert sidecar.worker_pid != first
        assert sidecar.terminate() == 0
        assert lab.connect("198.51.100.20", 80) == "refused"
        sidecar.restart()
        assert lab.query("api.example.com").addresses == ["198.51.100.10"]
        sidecar.kill()
        assert lab.connect("198.51.100.20", 80) == "refused"
        lab.unguard()
        assert lab.connect("198.51.100.20", 80) == "connected"


def test_its_api_and_its_log_can_be_read(lab: Lab) -> None:
    with Sidecar(lab, policy=POLICY) as sidecar:
        answer = sidecar.api("GET", "/policy")
        assert answer.status == 200
        body: dict[str, Any] = answer.json()
        assert body["policy"]["egress"] == POLICY["egress"]
        assert sidecar.api("PATCH", "/policy", [], token="wrong").status == 401
        assert [event["egress.default"] for event in sidecar.events("egress.loaded")] == ["deny"]


def test_a_sidecar_that_does_not_start_says_why(lab: Lab) -> None:
    with pytest.raises(LabError, match=r"exit code 2:\n.*OPENSANDBOX_EGRESS_MODE"):
        Sidecar(lab, env={"MODE": "nonsense"}).__enter__()
