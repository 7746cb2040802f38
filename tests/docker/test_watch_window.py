"""Between a container's start and its guard: it sends from its first instruction, and a listener outside hears nothing.

The control is the same container without the watch: there the listener hears it in every way. To make the time between
start and guard as long as a test needs it, the watching process is made to stand still.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

from tests.docker.daemon import IMAGE, USR, Daemon, until
from tests.docker.sender import TCP_PORT
from tests.docker.watching import NOTHING, TABLE, Watching

if TYPE_CHECKING:
    from lab.capture import Capture

SENDER = f"--volume={Path(__file__).with_name('sender.py')}:/sender.py:ro"
TARGET, TARGET6 = "198.51.100.77", "2001:db8:100::77"
COMMAND = ("/usr/bin/python3", "-I", "-S", "/sender.py")
WAYS = {"udp4", "udp6", "tcp", "icmp", "frame", "imitated", "dns"}


def last(host: Daemon, name: str) -> tuple[int, set[str]]:
    """The number of its last round, and what the kernel took of it then."""
    words = host.docker("logs", "--tail=1", name).split()
    return (int(words[0]), set(words[1:])) if words else (0, set())


def heard(host: Daemon, wire: Capture, tag: str) -> set[str]:
    """The ways in which something of it has come so far."""
    packets = wire.packets()
    found = {way for way in WAYS if any(f"{tag}-{way}".encode() in packet.frame for packet in packets)}
    if any(packet.destination == TARGET and packet.destination_port == TCP_PORT for packet in packets):
        found.add("tcp")
    if any(f"{len(tag):c}{tag}".encode() in packet.payload for packet in packets):
        found.add("dns")
    return found


def open_network(host: Daemon) -> str:
    """A network as the watched one is, without the watch."""
    host.docker(
        "network", "create", "--subnet=172.30.0.0/16", "--ipv6", "--subnet=fd5a:11::/64", "open-network",
    )  # fmt: skip
    return "--network=open-network"


def test_without_the_watch_all_of_it_arrives(host: Daemon) -> None:
    network = open_network(host)
    try:
        with host.lab.capture() as wire:
            host.docker("run", "-d", USR, SENDER, network, IMAGE, *COMMAND, "ctl", TARGET, TARGET6, "172.30.0.77")
            until(lambda: heard(host, wire, "ctl") == WAYS, what=lambda: heard(host, wire, "ctl"))
    finally:
        host.clear()
        host.docker("network", "rm", "open-network")


def test_nothing_leaves_before_the_guard_and_only_what_is_allowed_after(watching: Watching) -> None:
    host = watching.host
    watching.run("first")
    watching.guarded("first")
    imitated = host.inspect("first")["NetworkSettings"]["Networks"]["sallyport"]["IPAddress"]
    with host.lab.capture() as wire:
        with watching.held():
            watching.run("early", *COMMAND, "win", TARGET, TARGET6, imitated, policy=NOTHING, options=(SENDER,))
            # The kernel took everything, raw frames in a guarded container's name too, for fifty rounds.
            until(lambda: last(host, "early")[0] > 50)
            assert last(host, "early")[1] == WAYS
            assert heard(host, wire, "win") == set()
            assert watching.reaches("first", "http://198.51.100.10/") is False  # its name was not asked for
        watching.guarded("early")
        before = last(host, "early")[0]
        until(lambda: last(host, "early")[0] > before + 50)
        assert heard(host, wire, "win") == set()
        assert {"udp4", "udp6", "icmp"}.isdisjoint(last(host, "early")[1])  # refused inside, at once
    assert watching.reaches("first", "http://api.example.com/")


def test_a_container_that_nobody_labelled_stays_closed(watching: Watching) -> None:
    host = watching.host
    with host.lab.capture() as wire:
        arguments = ("nol", TARGET, TARGET6, "172.30.0.77")
        watching.run("unlabelled", *COMMAND, *arguments, policy=None, options=(SENDER,))
        watching.said("unlabelled is on sallyport without the label")
        until(lambda: last(host, "unlabelled")[0] > 50)
        assert heard(host, wire, "nol") == set()


def test_nothing_passes_between_two_containers(watching: Watching) -> None:
    """Docker's own rule and the gate's hold each by itself; without both, one container reaches the other."""
    host = watching.host
    open_to_all = '{"defaultAction":"allow","egress":[{"action":"allow","target":"172.30.0.0/16"}]}'
    listen = "import socket\ns=socket.create_server(('',8000))\nwhile 1: s.accept()[0].close()"
    watching.run("two", "/usr/bin/python3", "-c", listen, policy=open_to_all)
    watching.run("three", policy=open_to_all)
    watching.guarded("two")
    watching.guarded("three")
    address = host.inspect("two")["NetworkSettings"]["Networks"]["sallyport"]["IPAddress"]
    with host.lab.sandbox.entered():  # the control: it listens, and the host reaches it
        until(lambda: _connects(address))

    def reached() -> bool:
        code = f"import socket;socket.create_connection(('{address}',8000),1);print('reached')"
        return "reached" in host.docker("exec", "three", "/usr/bin/python3", "-c", code, check=False)

    def rule(change: str, verdict: str) -> None:
        argv = ["iptables", change, "FORWARD", "-i", "sallyport0", "-o", "sallyport0", "-j", verdict]
        host.lab.sandbox.run(argv, check=True)

    assert not reached()
    rule("-I", "ACCEPT")  # before Docker's
    try:
        assert not reached()
        with watching.held():  # else it lays the gate again
            host.lab.sandbox.run(["nft", "delete", "chain", "bridge", TABLE, "between"], check=True)
            until(reached)
    finally:
        rule("-D", "ACCEPT")
    watching.said("it is laid again")
    assert not reached()


def _connects(address: str) -> bool:
    try:
        with socket.create_connection((address, 8000), 1):
            return True
    except OSError:
        return False
