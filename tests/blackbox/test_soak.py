"""A little of the soak, always the same steps; `make soak MINUTES=20` for more. docs/fuzzing.md."""

from __future__ import annotations

import os
import random
import signal
from typing import TYPE_CHECKING

import pytest

from lab import Sidecar
from lab.tls import TlsSites
from soak.model import Probe
from soak.play import Difference, Play
from soak.world import EVERYWHERE, LIES, family
from tests.blackbox.place import allow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lab import Internet, Lab

SEED, STEPS = 20, 70


@pytest.fixture(scope="module")
def tls(internet: Internet) -> Iterator[TlsSites]:
    with TlsSites(internet.namespace) as sites:
        sites.add(*EVERYWHERE)
        yield sites


@pytest.mark.timeout(300)
def test_a_life_of_the_sidecar_as_a_plain_reading_of_its_policies_has_it(lab: Lab) -> None:
    with Play(lab, random.Random(SEED)) as play:
        for _ in range(STEPS):
            play.step()
        counts = play.counts
    assert counts["attempts"] > 10 * STEPS
    assert counts["passed"] > STEPS
    assert counts["passed"] < counts["attempts"] * 3 / 4
    for what in ("changes", "faults", "flows", "flows cut", "look-ups"):
        assert counts[what] > 3, counts


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("tls")
def test_a_life_with_the_name_guard(lab: Lab) -> None:
    with Play(lab, random.Random(SEED), "guard") as play:
        for _ in range(STEPS // 3):
            play.step()
        for _ in range(4):
            play.share()
            play.open_talk()
            play.replace()
            play.open_flow()
        counts = play.counts
    for what in ("shared", "talks", "talks cut", "faults", "flows"):
        assert counts[what], counts


@pytest.mark.timeout(300)
def test_a_life_in_mode_dns(lab: Lab) -> None:
    with Play(lab, random.Random(SEED), "dns") as play:
        for _ in range(STEPS // 3):
            play.step()
        for address in EVERYWHERE[:3]:
            play.attempt(Probe("tcp", address, 853))
            play.attempt(Probe("tcp", address, 22))
        counts = play.counts
    assert 0 < counts["passed"] < counts["attempts"]
    for what in ("changes", "faults", "flows", "look-ups"):
        assert counts[what], counts


@pytest.mark.usefixtures("tls")
def test_the_soak_notices_a_name_guard_that_is_not_there(lab: Lab) -> None:
    """Two names on one address, one of them allowed: what it says of the other's connections depends on the guard."""
    with Play(lab, random.Random(SEED), "guard") as play:
        address, (name, other, *_) = next(iter(play.world.shared().items()))
        one = {"defaultAction": "deny", "egress": [{"action": "allow", "target": name}]}
        play.change("POST", one, one)
        play.ask(name, family(address))
        for port in (80, 443):
            assert play.attempt(Probe("tcp", address, port, name)) == "connected"
            assert play.attempt(Probe("tcp", address, port, other)) == "reset"
        both = {"defaultAction": "deny", "egress": [*one["egress"], {"action": "allow", "target": other}]}
        play.change("POST", both, both)
        play.ask(other, family(address))
        play.model.change(one)  # the sidecar was not told: to it the name passes, as it does without the guard
        for port in (80, 443):
            with pytest.raises(Difference, match="is not allowed, and connected"):
                play.attempt(Probe("tcp", address, port, other))


def test_the_soak_notices_a_guard_that_is_not_there(lab: Lab) -> None:
    with Play(lab, random.Random(SEED)) as play:
        play.change("POST", {}, {"defaultAction": "deny", "egress": []})
        play.attempt(Probe("tcp", LIES[0], 80))
        for pid in (play.sidecar.pid, play.sidecar.worker_pid):
            os.kill(pid, signal.SIGSTOP)  # or the tables would be back at once
        lab.unguard()
        with pytest.raises(Difference, match="is not allowed, and connected"):
            play.attempt(Probe("tcp", LIES[0], 80))


def test_the_soak_notices_a_flow_that_outlives_its_permission_and_one_that_does_not(lab: Lab) -> None:
    open_all = {"defaultAction": "allow", "egress": []}
    with Play(lab, random.Random(SEED)) as play:
        play.change("POST", open_all, open_all)
        play.open_flow()
        play.settle_flows(changed=True)
        assert len(play.flows) == 1
        play.model.change({"defaultAction": "deny", "egress": []})  # the sidecar was not told
        with pytest.raises(Difference, match="is forbidden, and goes on"):
            play.settle_flows(changed=True)
        assert play.sidecar.api("POST", "/policy", {}).status == 200
        play.model.change(open_all)  # and now it was, but not the model
        with pytest.raises(Difference, match="is allowed, and was cut"):
            play.settle_flows(changed=True)


def test_the_soak_notices_a_name_that_is_answered_otherwise(lab: Lab) -> None:
    open_all = {"defaultAction": "allow", "egress": []}
    with Play(lab, random.Random(SEED)) as play:
        play.change("POST", open_all, open_all)
        play.model.change({"defaultAction": "deny", "egress": []})
        with pytest.raises(Difference, match="has to be answered NXDOMAIN"):
            play.ask("api.example.com")


def test_soak_both_names_of_an_address_outlive_the_worker(lab: Lab) -> None:
    """The soak found an address closed: of its two names the next worker knew the first alone, since the kernel had
    needed no word about the second, and then the policy allowed that one only."""
    names = ("first.example.com", "second.example.com")
    for name in names:
        lab.dns.a(name, "198.51.100.12", ttl=600)
    with Sidecar(lab, policy=allow(*names)) as sidecar:
        for name in names:
            assert lab.query(name).addresses == ["198.51.100.12"]
        assert lab.query("third.example.com").rcode == "NXDOMAIN"  # whatever followed the answers is done
        sidecar.kill_worker()
        sidecar.wait_ready()
        assert sidecar.api("POST", "/policy", allow("second.example.com")).status == 200
        assert lab.connect("198.51.100.12", 80) == "connected"
        assert sidecar.api("POST", "/policy", allow("first.example.com")).status == 200
        assert lab.connect("198.51.100.12", 80) == "refused", "the control: a change forgets what it forbids"
