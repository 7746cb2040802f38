"""What may happen to a container while it runs: paused, renamed, taken off its network and put on it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.docker.daemon import until
from tests.docker.test_watch import API, OTHER, running
from tests.docker.watching import NETWORK

if TYPE_CHECKING:
    from tests.docker.watching import Watching


def test_one_that_is_paused_at_any_moment_stays_guarded(watching: Watching) -> None:
    host = watching.host
    with watching.held():  # paused before its guard
        watching.run("early")
        host.docker("pause", "early")
    watching.guarded("early")
    host.docker("unpause", "early")
    assert watching.reaches("early", API)
    assert not watching.reaches("early", OTHER)
    host.docker("pause", "early")
    watching.kill()
    before = len(watching.entries())
    watching.start()  # paused while another takes over
    watching.guarded("early", after=before)
    host.docker("unpause", "early")
    assert watching.reaches("early", API)
    assert not watching.reaches("early", OTHER)
    assert [entry for entry in watching.entries() if entry["level"] == "error"] == []


def test_one_that_is_renamed_is_told_of_by_its_new_name(watching: Watching) -> None:
    watching.run("box")
    watching.guarded("box")
    before = len(watching.entries())
    watching.host.docker("rename", "box", "other-box")
    # A name that is asked for a second time is told of once, so each round asks for another.
    numbers = iter(range(10_000))

    def told() -> bool:
        watching.fetch("other-box", f"http://n{next(numbers)}.example.com/")
        return any(entry.get("sandbox_id") == "other-box" for entry in watching.entries()[before:])

    watching.eventually(told)
    watching.host.docker("rm", "-f", "other-box")
    watching.said("other-box has ended")


def test_one_that_is_connected_anew_is_guarded_there_before_it_is_let_through(watching: Watching) -> None:
    host = watching.host
    watching.run("box")
    watching.guarded("box")
    host.docker("network", "disconnect", NETWORK, "box")
    watching.eventually(lambda: not watching.ports())
    with watching.held():
        host.docker("network", "connect", NETWORK, "box")
        assert not watching.reaches("box", "http://198.51.100.10/", "-m", "1")
        assert watching.ports() == set()
    watching.eventually(watching.ports)
    assert watching.reaches("box", API)
    assert not watching.reaches("box", OTHER)
    assert not watching.reaches("box", "http://198.51.100.20/", "-m", "5")
    assert [entry for entry in watching.entries() if entry["level"] == "error"] == []


def test_who_has_joined_a_guarded_network_while_nobody_watched_is_killed(watching: Watching) -> None:
    host = watching.host
    watching.run("box")
    watching.guarded("box")
    watching.kill()
    watching.run("beside", policy=None, options=("--network=container:box",))
    watching.run("stronger", policy=None, options=("--network=container:beside", "--cap-add=NET_ADMIN"))
    host.docker("rm", "-f", "beside")
    assert running(host, "stronger"), "the control"
    watching.start()
    watching.said("stronger killed: it has joined the network of box, which is guarded, and it has NET_ADMIN")
    until(lambda: not running(host, "stronger"))
    assert running(host, "box")
