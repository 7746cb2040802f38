"""What is made of a daemon's word that is out of date, or that it could not give."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

import egress.docker.register
from egress.docker.api import DockerError
from lab import Namespace

if TYPE_CHECKING:
    from lab import Lab
    from tests.real.docker.conftest import Heard, Processes
    from tests.real.docker.daemon import Daemon


def test_one_that_ends_while_it_is_looked_at_is_no_fault(
    lab: Lab, daemon: Daemon, heard: Heard, processes: Processes
) -> None:
    """Its process is a zombie: it has a number still, and no namespaces any more."""
    pid = processes.zombie()
    assert os.path.exists(f"/proc/{pid}")
    daemon.run("ending", pid)
    daemon.run("box", processes.start(lab.sandbox))
    for _ in range(3):
        heard.look()
    assert heard.said == []
    assert heard.names() == ["box"] * 3, "the control"
    daemon.containers.clear()
    heard.look()
    assert len(heard.gone) == 2
    assert heard.said == []


def test_of_one_that_is_never_to_be_seen_it_is_told(
    daemon: Daemon, heard: Heard, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(egress.docker.register, "UNSEEN", -1.0)
    pid = processes.zombie()
    identity = daemon.run("elsewhere", pid)
    heard.look()
    assert heard.said == [], "it may just be ending"
    heard.look()
    (said,) = heard.said
    assert said.startswith(f"error: elsewhere stays closed: its process {pid} can't be seen from here")
    daemon.containers[identity]["State"]["StartedAt"] = "life 2"
    heard.look()
    assert len(heard.said) == 1, "another life, which may just be ending too"


def test_what_could_not_be_looked_at_is_looked_at_again_by_itself(
    lab: Lab, daemon: Daemon, heard: Heard, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(egress.docker.register, "AGAIN", 0.01)
    identity = daemon.run("box", processes.start(lab.sandbox))
    well = threading.Event()
    daemon.instead[f"GET /containers/{identity}/json"] = lambda: (
        (200, daemon.containers[identity]) if well.is_set() else (500, {"message": "layer is being removed"})
    )
    daemon.run("other", processes.start(lab.sandbox))
    heard.look()
    heard.until(lambda: daemon.asked.count(f"GET /containers/{identity}/json") > 3)
    assert set(heard.names()) == {"other"}, "one holds up no other"
    well.set()
    heard.until(lambda: "box" in heard.names())
    assert heard.said == []


@pytest.mark.parametrize("then", ["gone", "ended", "restarted"])
def test_one_that_is_another_by_the_second_look_is_left_to_its_event(
    lab: Lab, daemon: Daemon, heard: Heard, processes: Processes, then: str
) -> None:
    """Between the opening of its network and the daemon's confirmation."""
    identity = daemon.run("box", processes.start(lab.sandbox))
    heard.look()
    document = daemon.containers[identity]
    state = {"ended": {"Running": False}, "restarted": {**document["State"], "StartedAt": "life 2"}}
    second = (404, {"message": "No such container"}) if then == "gone" else (200, document | {"State": state[then]})
    answers: list[Any] = [second, (200, document)]
    daemon.instead[f"GET /containers/{identity}/json"] = answers.pop
    before = networks_open()
    heard.look()
    assert answers == []
    assert (heard.names(), heard.said, heard.refused) == (["box"], [], [])
    assert networks_open() == before


def networks_open() -> int:
    """How many descriptors of network namespaces this process has."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            links.append(os.readlink(f"/proc/self/fd/{name}"))
    return sum(link.startswith("net:[") for link in links)


def test_a_number_that_is_another_processs_by_now_leads_nowhere(
    lab: Lab, daemon: Daemon, heard: Heard, processes: Processes
) -> None:
    """The daemon has not heard of the end, and confirms it: what it holds open itself says otherwise."""
    with Namespace("other") as other:
        mine = str(lab.sandbox.path)
        daemon.run("box", processes.start(lab.sandbox), sandbox=mine)
        daemon.run("taken", processes.start(other), sandbox=mine)
        daemon.run("hosts", os.getpid())
        daemon.run("unsaid", processes.start(other), sandbox="/no/such/file")
        heard.look()
    assert sorted(heard.names()) == ["box", "unsaid"]
    assert heard.said == []


def test_a_list_that_breaks_off_ends_nobody(lab: Lab, daemon: Daemon, heard: Heard, processes: Processes) -> None:
    daemon.run("box", processes.start(lab.sandbox))
    heard.look()
    for answer in (b"", b"[", b'[{"Id": "box"}'):
        daemon.instead["GET /containers/json"] = lambda answer=answer: (  # type: ignore[misc]
            b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + answer
        )
        with pytest.raises(DockerError, match="broke off its answer"):
            heard.look()
    daemon.instead["GET /containers/json"] = lambda: (200, None)
    with pytest.raises(DockerError, match="no list of containers"):
        heard.look()
    heard.heard()
    assert heard.gone == []
    del daemon.instead["GET /containers/json"]
    daemon.containers.clear()
    heard.look()
    assert len(heard.gone) == 1, "the control"


def test_who_has_joined_a_guarded_network_unseen_is_found(
    lab: Lab, daemon: Daemon, heard: Heard, processes: Processes
) -> None:
    """While nobody watched, and by way of a container that is gone."""
    daemon.run("box", processes.start(lab.sandbox))
    daemon.run("held", processes.start(lab.sandbox), label=None, NetworkMode="container:box")
    daemon.run("strong", processes.start(lab.sandbox), label=None, NetworkMode="container:x", CapAdd=["NET_ADMIN"])
    with Namespace("other") as other:
        daemon.run("alone", processes.start(other), label=None, NetworkMode="container:y", CapAdd=["NET_ADMIN"])
        heard.look()
    (refused,) = heard.refused
    assert (refused.container.name, refused.done) == ("strong", "killed")
    assert "it has joined the network of box, which is guarded, and it has NET_ADMIN" in refused.reason


def test_a_kill_that_fails_is_tried_again(
    lab: Lab, daemon: Daemon, heard: Heard, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(egress.docker.register, "AGAIN", 0.01)
    identity = daemon.run("box", processes.start(lab.sandbox), NetworkMode="host")
    answers = [(204, None), (500, {"message": "cannot kill it"})]
    daemon.instead[f"POST /containers/{identity}/kill"] = answers.pop
    heard.look()
    heard.until(lambda: len(heard.refused) == 2)
    assert [refused.done for refused in heard.refused] == ["could not be killed (cannot kill it)", "killed"]


def test_events_are_followed_past_one_that_the_daemon_has_trouble_with(
    lab: Lab, daemon: Daemon, heard: Heard, processes: Processes
) -> None:
    heard.follow()
    broken = daemon.run("broken", processes.start(lab.sandbox))
    daemon.instead[f"GET /containers/{broken}/json"] = lambda: (500, {"message": "layer is being removed"})
    daemon.tell("start", broken)
    box = daemon.run("box", processes.start(lab.sandbox))
    daemon.tell("start", box)
    heard.until(lambda: heard.names() == ["box"])
    daemon.containers[box]["Name"] = "/renamed"
    daemon.tell("rename", box)
    heard.until(lambda: heard.names() == ["box", "renamed"])
    del daemon.containers[broken]
    daemon.tell("die", broken)
    daemon.tell("die", box)
    heard.until(lambda: heard.gone == [broken, box])
    assert heard.said == ["info: following the Docker daemon"]
