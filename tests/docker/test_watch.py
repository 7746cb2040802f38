"""`egress docker watch`: what it guards, what it refuses, and what stands when it or the daemon doesn't."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

from tests.docker.daemon import IMAGE, USR, Daemon, until
from tests.docker.watching import NETWORK, NOTHING, ONE, Watching

if TYPE_CHECKING:
    from pathlib import Path

API, OTHER = "http://api.example.com/", "http://other.example.com/"


def running(host: Daemon, name: str) -> bool:
    return bool(host.inspect(name)["State"]["Running"])


def test_each_container_is_held_to_its_own_policy(watching: Watching) -> None:
    watching.run("one")
    watching.run("two", policy='{"egress":[{"action":"allow","target":"other.example.com"}]}')
    watching.run("web", policy="web-only")
    for name in ("one", "two", "web"):
        watching.guarded(name)
    assert [watching.reaches(name, API) for name in ("one", "two", "web")] == [True, False, True]
    assert [watching.reaches(name, OTHER) for name in ("one", "two", "web")] == [False, True, True]
    assert "Couldn't connect" in watching.fetch("one", "http://198.51.100.20/")
    assert watching.guarded("one")["policy.digest"] != watching.guarded("two")["policy.digest"]
    assert watching.guarded("web")["policy"] == "preset web-only"
    assert watching.said("denied name other.example.com", sandbox_id="one")["rule"] == "default"
    assert watching.said("denied packet to 198.51.100.20 tcp/80", sandbox_id="one")
    assert len(watching.ports()) == 3


def test_what_belonged_to_a_container_goes_with_it(watching: Watching) -> None:
    watching.run("first")
    watching.guarded("first")
    assert watching.reaches("first", API)
    watching.host.docker("rm", "-f", "first")
    watching.said("first has ended")
    watching.eventually(lambda: not watching.ports())
    least = watching.eventually(watching.descriptors)
    for number in range(3):
        watching.run(f"next{number}")
        watching.guarded(f"next{number}")
        watching.host.docker("rm", "-f", f"next{number}")
        watching.said(f"next{number} has ended")
    watching.eventually(lambda: watching.descriptors() <= least)


def test_containers_that_end_at_once_leave_nothing(watching: Watching) -> None:
    host = watching.host
    watching.run("first")
    watching.guarded("first")
    host.docker("rm", "-f", "first")
    watching.eventually(lambda: not watching.ports())
    least = watching.descriptors()
    labels = (f"--label=sallyport.policy={ONE}", f"--network={NETWORK}")
    starts = [
        subprocess.Popen(
            ["docker", "run", "--rm", USR, *labels, IMAGE, "/bin/sleep", f"0.{4 * number:02}"],
            env=host.environment(), stdout=subprocess.DEVNULL,
        )
        for number in range(6)
    ]  # fmt: skip
    for start in starts:
        assert start.wait(200) == 0
    watching.eventually(lambda: not watching.ports() and watching.descriptors() <= least)
    assert [entry for entry in watching.entries() if entry["level"] == "error"] == []


def test_a_restarted_container_is_guarded_anew(watching: Watching) -> None:
    watching.run("box")
    watching.guarded("box")
    before = len(watching.entries())
    watching.host.docker("restart", "-t", "0", "box")
    watching.guarded("box", after=before)
    assert watching.reaches("box", API)
    assert not watching.reaches("box", OTHER)
    watching.eventually(lambda: len(watching.ports()) == 1)


def test_a_bad_label_leaves_the_container_closed_and_is_told(watching: Watching) -> None:
    labels = {
        "fault": ('{"egress":[{"action":"allow","target":"a..b"}]}', "$.egress[0].target"),
        "preset": ("no-such-preset", "neither JSON nor the absolute path of a file nor a preset"),
        "file": ("/no/such/policy.yaml", "there is no such file"),
    }
    for name, (label, words) in labels.items():
        watching.run(name, policy=label)
        assert words in watching.said(f"{name} stays closed")["error"]
        assert running(watching.host, name)
    assert watching.ports() == set()
    assert not watching.reaches("fault", "http://198.51.100.10/", "-m", "1")


def test_what_no_guard_would_hold_is_killed(watching: Watching) -> None:
    cases = {
        "elsewhere": ("--network=bridge", "it is on the network bridge"),
        "on-the-host": ("--network=host", "it shares the host's network"),
        "strong": ("--cap-add=NET_ADMIN", "it has NET_ADMIN"),
        "among-others": ("--pid=host", "it shares processes"),
        "with-the-host": ("--volume=/:/host:ro", "it is given the host's /"),
    }
    for name, (option, _) in cases.items():
        watching.run(name, options=(option,))
    for name, (_, words) in cases.items():
        assert words in watching.said(f"{name} killed")["error"]
        until(lambda name=name: not running(watching.host, name))  # type: ignore[misc]


def test_a_container_that_joins_a_second_network_is_killed(watching: Watching) -> None:
    watching.run("box")
    watching.guarded("box")
    watching.host.docker("network", "connect", "bridge", "box")
    watching.said("box killed: it is on the network bridge")
    until(lambda: not running(watching.host, "box"))


def test_who_joins_a_guarded_network_is_held_by_it_or_killed(watching: Watching) -> None:
    watching.run("box")
    watching.guarded("box")
    watching.run("beside", policy=None, options=("--network=container:box",))
    assert watching.reaches("beside", API)
    assert not watching.reaches("beside", OTHER)
    watching.run("stronger", policy=None, options=("--network=container:box", "--cap-add=NET_ADMIN"))
    watching.said("stronger killed: it has joined the network of box, which is guarded, and it has NET_ADMIN")
    until(lambda: not running(watching.host, "stronger"))
    assert running(watching.host, "beside")


def test_a_policy_file_is_followed(watching: Watching, tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_text(NOTHING)
    watching.run("box", policy=str(path))
    assert watching.guarded("box")["policy"] == str(path)
    assert not watching.reaches("box", API)
    before = len(watching.entries())
    path.write_text(ONE)
    watching.guarded("box", after=before)
    assert watching.reaches("box", API)
    path.write_text("{")
    watching.said("policy update failed", sandbox_id="box")
    assert watching.reaches("box", API)


def test_a_mended_policy_file_opens_what_stayed_closed(watching: Watching, tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_text("{")
    watching.run("box", policy=str(path))
    watching.said("box stays closed")
    path.write_text(ONE)
    watching.guarded("box")
    assert watching.reaches("box", API)


STREAM = """
import socket, time
while True:
    try:
        stream = socket.create_connection(("api.example.com", {port}), 10)
        break
    except OSError:
        time.sleep(0.1)  # its first question may have come before its guard
count = 0
while data := stream.recv(4096):
    count += len(data)
    print(count, flush=True)
"""


def test_killed_it_leaves_everything_guarded_and_the_next_one_takes_over(watching: Watching) -> None:
    from lab.sites import STREAM_PORT

    host = watching.host
    watching.run("box", "/usr/bin/python3", "-c", STREAM.format(port=STREAM_PORT))
    watching.guarded("box")

    def streamed() -> int:
        return int((host.docker("logs", "--tail=1", "box") or "0").split()[-1])

    until(lambda: running(host, "box") and streamed() > 0)
    assert watching.reaches("box", API)
    watching.kill()
    # The rules are the kernel's: what was open is, the rest is refused, and nobody answers names.
    assert watching.reaches("box", API, "--resolve", "api.example.com:80:198.51.100.10")
    assert not watching.reaches("box", "http://198.51.100.20/")
    assert "resolve host" in watching.fetch("box", OTHER)
    at = streamed()
    until(lambda: streamed() > at)
    watching.run("closed")
    assert not watching.reaches("closed", "http://198.51.100.10/", "-m", "1")
    ports = watching.ports()
    before = len(watching.entries())
    watching.start()
    watching.guarded("box", after=before)
    watching.guarded("closed", after=before)
    assert ports < watching.ports()
    assert watching.reaches("box", API)
    assert watching.reaches("closed", API)
    assert not watching.reaches("box", OTHER)
    at = streamed()
    until(lambda: streamed() > at)  # the connection of before has never been cut
    assert watching.stop() == 0
    assert watching.ports()


def test_what_ended_while_nobody_watched_is_cleared_up(watching: Watching) -> None:
    watching.run("box")
    watching.guarded("box")
    watching.kill()
    watching.host.docker("rm", "-f", "box")
    assert watching.ports()
    watching.start()
    watching.eventually(lambda: not watching.ports())


def test_only_one_watches(watching: Watching) -> None:
    done = watching.host.egress("docker", "watch")
    assert (done.returncode, done.stderr) == (
        1, "egress docker watch: another egress docker watch runs for sallyport0; end that one first\n",
    )  # fmt: skip


def test_a_gate_that_somebody_removed_is_laid_again(watching: Watching) -> None:
    watching.run("box")
    watching.guarded("box")
    ports = watching.ports()
    watching.remove_gate()
    watching.said("somebody removed or changed the host's gate; it is laid again")
    assert watching.ports() == ports
    assert watching.reaches("box", API)


def test_the_daemon_is_followed_again_after_a_restart(watching: Watching) -> None:
    host = watching.host
    watching.run("box", options=("--restart=always",))
    watching.guarded("box")
    before = len(watching.entries())
    host.stop()
    watching.said("the daemon ended its stream of events; what is guarded stays guarded", after=before)
    watching.kill()
    watching.spawn()  # as at boot: before the daemon
    watching.said("no Docker daemon answers there", after=before)
    host.start()
    watching.said("the Docker daemon is back", after=before)
    watching.guarded("box", after=before)  # Docker has started it again
    assert watching.reaches("box", API)
    assert not watching.reaches("box", OTHER)
    watching.run("fresh")
    watching.guarded("fresh")
    assert watching.reaches("fresh", API)


def test_many_at_once(watching: Watching) -> None:
    count = int(os.environ.get("SALLYPORT_CONTAINERS", "8"))
    names = [f"box{number}" for number in range(count)]
    labels = [f"--label=sallyport.policy={ONE}", f"--network={NETWORK}"]
    starts = [
        subprocess.Popen(
            ["docker", "run", "-d", "--name", name, USR, *labels, IMAGE, "/bin/sleep", "600"],
            env=watching.host.environment(), stdout=subprocess.DEVNULL,
        )
        for name in names
    ]  # fmt: skip
    for start in starts:
        assert start.wait(200) == 0
    for name in names:
        watching.guarded(name)
    assert len(watching.ports()) == count
    for name in (names[0], names[-1]):
        assert watching.reaches(name, API)
        assert not watching.reaches(name, OTHER)
    assert all("error" not in json.dumps(entry["level"]) for entry in watching.entries())
