"""E11: a policy change against a thousand open flows whose both ends keep sending."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from lab import Lab, Sidecar
from tests.blackbox.place import allow, soon

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lab.namespace import Namespace

PORT = 7007
GONE, KEPT = ("198.51.100.31", "2001:db8:31::1"), ("198.51.100.32", "2001:db8:32::1")
HOSTS = (GONE[0], KEPT[0], GONE[1], KEPT[1])
NAMES = {"gone.example.com": GONE, "kept.example.com": KEPT}
FLOWS, INBOUND = 1000, 40


class Told(NamedTuple):
    """What one end of a flow saw; see lab/crowd.py."""

    last: float
    heard: int
    lost: int
    ended: str


def crowd(namespace: Namespace, *arguments: object) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "lab.crowd", *map(str, arguments)]
    process = namespace.popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() in ("answering\n", "holding\n")
    return process


def told(process: subprocess.Popen[str]) -> dict[int, Told]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("tell\n")
    process.stdin.flush()
    return {int(number): Told(*seen) for number, seen in json.loads(process.stdout.readline()).items()}


def speaks(process: subprocess.Popen[str]) -> bool:
    """Whether each of its flows has heard something."""
    seen = told(process)
    return len(seen) in (FLOWS, INBOUND) and all(flow.heard for flow in seen.values())


def learn(lab: Lab, names: Sequence[str]) -> None:
    for name in names:
        assert lab.query(name).addresses
        assert lab.query(name, "AAAA").addresses


@pytest.fixture
def named(lab: Lab) -> Lab:
    for name, addresses in NAMES.items():
        lab.dns.a(name, *addresses)
    return lab


def test_e11_of_a_thousand_flows_the_forbidden_half_dies_and_the_other_loses_nothing(named: Lab) -> None:
    """TCP and UDP, IPv4 and IPv6. The figure is docs/benchmarks-load.md's; here the bounds are for a busy machine."""
    lab = named
    with Sidecar(lab, policy=allow(*NAMES)) as sidecar:
        learn(lab, list(NAMES))
        outside = crowd(lab.internet.namespace, "answer", PORT, *HOSTS)
        inside = crowd(lab.sandbox, "hold", PORT, FLOWS, *HOSTS)
        # As a gateway's, from an address that no rule allows: opened from outside, so nobody's to revoke.
        server = crowd(lab.sandbox, "answer", PORT + 1, lab.link.sandbox, lab.link.sandbox6)
        dialled = crowd(lab.internet.namespace, "hold", PORT + 1, INBOUND, lab.link.sandbox, lab.link.sandbox6)
        assert soon(lambda: all(speaks(process) for process in (inside, outside, server, dialled)))
        changed = time.monotonic()
        assert sidecar.api("POST", "/policy", allow("kept.example.com"), timeout=30).status == 200
        answered = time.monotonic()
        time.sleep(4.0)
        ours, theirs = told(inside), told(outside)
        within, without = told(server), told(dialled)
        for process in (inside, outside, dialled, server):
            process.communicate("", timeout=30)
    doomed = [number for number in range(FLOWS) if HOSTS[number % 4] in GONE]
    assert set(ours) == set(theirs) == set(range(FLOWS)), "the control: all of them were open, both ways"
    assert all(ours[number].heard and theirs[number].heard for number in range(FLOWS))
    late = max(max(ours[number].last, theirs[number].last) for number in doomed)
    assert late < answered + 3, "the answer to the change says that it holds"
    assert answered - changed < 10
    streams = [number for number in doomed if number // 4 % 2 == 0]
    assert all(ours[number].ended for number in streams), "whoever reads is told"
    for number in set(range(FLOWS)) - set(doomed):
        for end in (ours[number], theirs[number]):
            assert (end.lost, end.ended) == (0, ""), number
            assert end.last > answered + 1, "it goes on"
    assert set(within) == set(without) == set(range(INBOUND))
    for end in (*within.values(), *without.values()):
        assert (end.lost, end.ended) == (0, "")
        assert end.last > answered + 1


BLOCKED = r"""
import socket, sys
host = sys.argv[1]
sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
sock.connect((host, 8000))
print("reading", flush=True)
try:
    print("read", sock.recv(10))
except OSError as error:
    print("told", error.errno)
"""


@pytest.mark.parametrize("family", [0, 1], ids=["IPv4", "IPv6"])
def test_e11_a_reader_that_waits_for_nothing_is_told(named: Lab, family: int) -> None:
    """Its peer says nothing, so no packet ever would: the control is the reader that waits on."""
    lab = named
    with Sidecar(lab, policy=allow(*NAMES)) as sidecar:
        learn(lab, list(NAMES))
        readers = []
        for hosts in (GONE, KEPT):
            argv = [sys.executable, "-I", "-c", BLOCKED, hosts[family]]
            readers.append(lab.sandbox.popen(argv, stdout=subprocess.PIPE, text=True))
        for reader in readers:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "reading\n"
        assert sidecar.api("POST", "/policy", allow("kept.example.com")).status == 200
        out, _ = readers[0].communicate(timeout=60)
        assert out.startswith("told")
        assert readers[1].poll() is None


@pytest.mark.parametrize("family", [0, 1], ids=["IPv4", "IPv6"])
def test_e11_a_lease_that_ends_by_time_leaves_its_flows_and_one_that_is_revoked_does_not(
    named: Lab, family: int
) -> None:
    """An element taken out of the kernel's set is what time does to it; then nothing new is let through, what is open
    goes on, and a policy change still knows whose it is."""
    lab = named
    host = GONE[family]
    with Sidecar(lab, policy=allow(*NAMES)) as sidecar:
        learn(lab, list(NAMES))
        flow = lab.open(host, 8000)
        name = f"learned{6 if family else 4}_0"
        lab.sandbox.nft(f"delete element inet sallyport {name} {{ {host} }}\n")
        assert lab.connect(host, 8000) == "refused", "the control: its time is up"
        flow.settimeout(10)
        for _ in range(3):
            flow.send(b"still")
            assert flow.recv(10) == b"still"
        assert sidecar.api("POST", "/policy", allow("kept.example.com")).status == 200
        assert soon(lambda: _dead(flow))


def _dead(flow: Any) -> bool:
    flow.settimeout(0.2)
    try:
        flow.send(b"x")
        return not flow.recv(10)
    except TimeoutError:
        return False
    except OSError:
        return True
