"""A ward whose container ends at any instant: nothing of it is left, and nobody enters another's network."""

from __future__ import annotations

import errno
import gc
import os
from typing import TYPE_CHECKING, Any

import pytest

from egress.docker.containers import Said, read
from egress.docker.entrance import HeldError
from egress.docker.ward import Ward
from egress.hostconfig import host_config
from egress.loop import Loop
from lab import Namespace
from policies.model import NetworkPolicy
from tests.real.docker.test_register import networks_open

if TYPE_CHECKING:
    from lab import Lab
    from tests.real.docker.conftest import Processes


def made(place: Lab | Namespace, loop: Loop, pid: int) -> Ward:
    path = place.path if isinstance(place, Namespace) else place.sandbox.path
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    state: dict[str, Any] = {"Running": True, "Pid": pid, "StartedAt": "life 1"}
    container = read({"Id": "3f4e" * 16, "Name": "/box", "State": state, "HostConfig": {"CapDrop": ["ALL"]}})
    try:
        return Ward(loop, host_config({}), container, Said(NetworkPolicy(), "label", ""), fd)
    except HeldError:
        os.close(fd)
        raise


def turns(loop: Loop, turns: int) -> None:
    """Let the loop have so many turns, and whatever its thread has been given be done."""
    for _ in range(turns):
        loop.run_in_thread(lambda: None, lambda *_: loop.stop())
        loop.run()


@pytest.mark.parametrize("after", [0, 1, 2, 3, 4])
def test_one_that_ends_while_its_guard_is_made_leaves_nothing(lab: Lab, processes: Processes, after: int) -> None:
    loop = Loop()
    turns(loop, 1)
    gc.collect()  # what other tests have left to it must not go in the middle of this one
    before, networks = len(os.listdir("/proc/self/fd")), networks_open()
    ward = made(lab, loop, processes.start(lab.sandbox))
    said: list[str] = []
    ward.start(said.append, lock=False)
    turns(loop, after)
    ward.close()
    told = len(said)
    turns(loop, 5)
    assert said[told:] == [], "nobody waits for it any more"
    assert said in ([], [""])
    assert networks_open() == networks
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before
    loop.close()


def test_one_without_a_descriptor_for_its_guard_says_so(
    lab: Lab, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for it hears why, and can try again: nothing is left of the first time."""
    loop = Loop()
    turns(loop, 1)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    said: list[str] = []
    with monkeypatch.context() as patch:

        def none_left(*_: object) -> int:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        patch.setattr(os, "memfd_create", none_left)
        ward = made(lab, loop, processes.start(lab.sandbox))
        ward.start(said.append, lock=True)
        turns(loop, 5)
    assert said == ["Too many open files"]
    ward.close()
    turns(loop, 3)
    assert len(os.listdir("/proc/self/fd")) <= before
    again = made(lab, loop, processes.start(lab.sandbox))
    again.start(said.append, lock=True)
    turns(loop, 5)
    assert said[1:] == [""]
    again.close()
    turns(loop, 3)
    loop.close()


def test_who_comes_late_enters_nobodys_network(lab: Lab, processes: Processes) -> None:
    """The number of the descriptor is soon another container's."""
    loop = Loop()
    ward = made(lab, loop, processes.start(lab.sandbox))
    namespace = ward._firewall.namespace
    assert namespace.devices()
    number = namespace.fd
    ward.close()
    turns(loop, 2)
    next_one = os.open(lab.sandbox.path, os.O_RDONLY | os.O_CLOEXEC)
    assert next_one == number, "the control: it is taken at once"
    with pytest.raises(OSError, match="cannot enter"):
        namespace.devices()
    os.close(next_one)
    loop.close()


def test_what_is_reported_of_a_network_that_is_being_taken_apart_is_not_told(
    lab: Lab, processes: Processes, capfd: pytest.CaptureFixture[str]
) -> None:
    loop = Loop()
    for pid, told in ((processes.start(lab.sandbox), 1), (processes.zombie(), 0)):
        ward = made(lab, loop, pid)
        ward._report("somebody removed the guard's tables")
        assert capfd.readouterr().out.count("somebody removed") == told
        ward.close()
        turns(loop, 2)
    loop.close()


def test_two_do_not_guard_one_network(lab: Lab, processes: Processes) -> None:
    """Each would find its rules changed by the other, twice a second, and load them again."""
    loop = Loop()
    pid = processes.start(lab.sandbox)
    first = made(lab, loop, pid)
    before = networks_open()
    with pytest.raises(HeldError, match="guards it already"):
        made(lab, loop, pid)
    gc.collect()
    with Namespace("other") as other:
        beside = made(other, loop, pid)
        beside.close()
        turns(loop, 2)
    first.close()
    turns(loop, 2)
    assert networks_open() <= before
    second = made(lab, loop, pid)
    second.close()
    turns(loop, 2)
    loop.close()
