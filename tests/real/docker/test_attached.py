"""`egress attach` to a container that ends, or ended, at any instant."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from egress.docker.api import Docker
from egress.docker.attached import guard
from egress.docker.containers import Said, read
from egress.docker.entrance import claim
from egress.docker.ward import Ward
from egress.hostconfig import host_config
from policies.model import NetworkPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lab import Lab
    from tests.real.docker.conftest import Processes
    from tests.real.docker.daemon import Daemon

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """The test's process gets its own back."""
    before = [signal.getsignal(number) for number in SIGNALS]
    yield
    for number, handler in zip(SIGNALS, before, strict=True):
        signal.signal(number, handler)


def attach(daemon: Daemon, identity: str, then: dict[str, Any] | None = None) -> str:
    """Attach as soon as the daemon has told of it; `then` is its state by the second time it is asked."""
    container = read(daemon.containers[identity])
    if then is not None:
        daemon.containers[identity]["State"] |= then
    return guard(Docker(daemon.host), container, Said(NetworkPolicy(), "label", ""), host_config({}))


def test_one_that_has_changed_since_it_was_asked_for_is_not_guarded(
    lab: Lab, daemon: Daemon, processes: Processes
) -> None:
    box = daemon.run("box", processes.start(lab.sandbox))
    assert attach(daemon, box, {"StartedAt": "life 2"}) == "it was restarted just now; try again"
    assert attach(daemon, box, {"Running": False}) == "it has ended"
    ending = daemon.run("ending", processes.zombie())
    assert "can't be seen from here" in attach(daemon, ending)
    gone = daemon.run("gone", 1 << 22)  # no process has such a number
    assert attach(daemon, gone) == "it has ended"
    taken = daemon.run("taken", os.getpid())
    assert "can't be seen from here" in attach(daemon, taken), "not the host's own network in its place"


def test_one_that_another_guards_is_left_to_it(lab: Lab, daemon: Daemon, processes: Processes) -> None:
    box = daemon.run("box", processes.start(lab.sandbox))
    with open(lab.sandbox.path) as network, claim(network.fileno()):
        assert "guards it already" in attach(daemon, box)


@pytest.mark.parametrize("ends", [True, False])
def test_one_that_ends_while_it_is_being_guarded_has_ended_and_that_is_all(
    lab: Lab, daemon: Daemon, processes: Processes, monkeypatch: pytest.MonkeyPatch, *, ends: bool
) -> None:
    pid = processes.start(lab.sandbox)

    def start(ward: Ward, done: Callable[[str], None], *, lock: bool) -> None:
        assert lock
        if ends:
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        ward._loop.call_soon(lambda: done("No such device"))  # its network has gone with it

    monkeypatch.setattr(Ward, "start", start)
    reason = attach(daemon, daemon.run("box", pid))
    assert reason == ("" if ends else "No such device; what stands of the rules stays")
