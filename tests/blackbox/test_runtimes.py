"""A network stack of its own beside the sidecar: what holds, what does not, and that it is said.

The stacks here are made of what they are made of: gVisor takes an interface's addresses and sends by packet sockets,
Kata joins the tap device of a virtual machine to it by tc. With the real gVisor: `make test-runtimes`.
"""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

from lab.identity import SIDECAR_WITH_RAW
from lab.namespace import Namespace
from tests.blackbox.place import soon

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lab import Lab

DENY: dict[str, Any] = {"egress": []}
MIRROR = "protocol all u32 match u8 0 0 action mirred egress redirect dev eth0"


def health(sidecar: Any) -> str:
    return str(sidecar.api("GET", "/healthz", token=None).text)


def frame(payload: bytes) -> bytes:
    """A datagram from the sandbox's address to one that nobody allows."""
    ip = bytes.fromhex("45000030000040004011000000000000")[:12] + socket.inet_aton("10.77.0.2") + b"\xc0\0\2\x09"
    return b"\xff" * 6 + bytes.fromhex("020000000001") + b"\x08\x00" + ip + bytes(8) + payload


class Machine:
    """A virtual machine's end of a tap device that tc joins to eth0."""

    def __init__(self, lab: Lab, namespace: Namespace) -> None:
        self.lab, self.namespace = lab, namespace
        lab.sandbox.ip("link", "add", "tap0_kata", "type", "veth", "peer", "name", "vm0", "netns", namespace.name)
        lab.sandbox.ip("link", "set", "tap0_kata", "up")
        namespace.ip("link", "set", "vm0", "up")

    def join(self) -> None:
        for command in ("qdisc add dev tap0_kata ingress", f"filter add dev tap0_kata parent ffff: {MIRROR}"):
            done = self.lab.sandbox.run(["tc", *command.split()])
            if done.returncode:
                pytest.skip(f"this kernel has no {command.split()[0]} for it: {done.stderr.strip()}")

    def send(self, payload: bytes) -> None:
        with self.namespace.socket(socket.AF_PACKET, socket.SOCK_RAW) as sock:
            sock.bind(("vm0", 0))
            sock.send(frame(payload))


@pytest.fixture
def machine(lab: Lab) -> Iterator[Machine]:
    with Namespace("vm") as namespace:
        yield Machine(lab, namespace)


def test_a_stack_that_takes_the_addresses_is_told_and_nothing_of_it_passes(lab: Lab, start_sidecar: Any) -> None:
    sidecar = start_sidecar(policy=DENY, identity=SIDECAR_WITH_RAW)
    assert health(sidecar).strip() == "ok"
    addresses = [
        f"{entry['local']}/{entry['prefixlen']}"
        for entry in json.loads(lab.sandbox.ip("-json", "addr", "show", "dev", "eth0"))[0]["addr_info"]
    ]
    lab.sandbox.ip("addr", "flush", "dev", "eth0")
    assert soon(lambda: "no address" in health(sidecar))
    assert "network stack of its own (gVisor)" in health(sidecar)
    assert any(event["level"] == "error" and "gVisor" in event["msg"] for event in sidecar.events())
    with lab.capture() as wire, lab.sandbox.socket(socket.AF_PACKET, socket.SOCK_RAW) as sock:
        sock.bind(("eth0", 0))
        for _ in range(3):
            try:
                sock.send(frame(b"as gVisor sends"))
            except OSError:
                pass  # ENOBUFS: the last door dropped it
        assert not wire.packets(0.3, payload=b"as gVisor sends")
    for address in addresses:
        lab.sandbox.ip("addr", "add", address, "dev", "eth0")
    assert soon(lambda: health(sidecar).strip() == "ok")


def test_addresses_that_are_gone_already_are_told_at_the_start(lab: Lab, start_sidecar: Any) -> None:
    lab.sandbox.ip("addr", "flush", "dev", "eth0")
    sidecar = start_sidecar(policy=DENY, wait=False)
    sidecar.wait_for_log("network stack of its own (gVisor)")
    assert soon(lambda: sidecar.api("GET", "/healthz", token=None).status == 503)


def test_a_guard_does_not_start_beside_a_machine_that_it_cannot_hold(
    lab: Lab, start_sidecar: Any, machine: Machine
) -> None:
    machine.join()
    sidecar = start_sidecar(policy=DENY, wait=False)
    assert sidecar.process.wait(60) == 1
    assert "tc redirects what comes in on tap0_kata" in sidecar.log
    assert "Traceback" not in sidecar.log


def test_what_tc_redirects_passes_every_rule_so_it_is_told(lab: Lab, start_sidecar: Any, machine: Machine) -> None:
    """The honest half: the day this kernel's egress hook sees such frames, this test says so."""
    sidecar = start_sidecar(policy=DENY, identity=SIDECAR_WITH_RAW)
    assert health(sidecar).strip() == "ok"
    machine.join()
    with lab.capture() as wire:

        def leaves() -> bool:
            machine.send(b"from the machine")
            return bool(wire.arrived(payload=b"from the machine", seconds=1))

        assert soon(leaves)
    assert soon(lambda: "tap0_kata" in health(sidecar))
    assert sidecar.api("GET", "/healthz", token=None).status == 503
    lab.sandbox.run(["tc", "qdisc", "del", "dev", "tap0_kata", "ingress"], check=True)
    assert soon(lambda: health(sidecar).strip() == "ok")


def test_the_doctor_says_it_too(lab: Lab, machine: Machine) -> None:
    import sys

    ask = [f"{sys.prefix}/bin/egress", "doctor", "--offline", "--for", "serve", "--json"]

    def state() -> tuple[str, str]:
        findings = json.loads(lab.sandbox.run(ask, timeout=60).stdout)["findings"]
        (found,) = [one for one in findings if one["name"] == "stacks"]
        return found["state"], found["found"] + found["advice"]

    assert state()[0] == "ok"
    machine.join()
    assert state()[0] == "missing"
    assert "tap0_kata" in state()[1]
