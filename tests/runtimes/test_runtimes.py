"""The sandbox under other runtimes, in the sidecar's network namespace: what leaves, and what is said about it."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from lab.identity import SIDECAR_WITH_RAW
from tests.runtimes import bundles

if TYPE_CHECKING:
    from pathlib import Path

    from lab import Lab
    from tests.runtimes.bundles import Runtime

pytestmark = pytest.mark.real

POLICY = {"egress": [{"action": "allow", "target": "api.example.com"}]}
RAW = b"sallyport-raw-payload"
# What a program with Docker's capabilities can try. The frame is from the sandbox's address to one that nobody allows.
PROBE = """
import json, socket, sys
raw = sys.argv[1].encode()
head = bytes.fromhex("4500003900004000401100000a4d0002c0000209")
head = head[:12] + socket.inet_aton(sys.argv[2]) + head[16:]
def attempt(work):
    try:
        return work()
    except OSError as error:
        return error.strerror or str(error)
def connect(address):
    with socket.socket() as sock:
        sock.settimeout(3)
        sock.connect((address, 80))
        return "connected"
def ask(server, name):
    labels = b"".join(bytes([len(one)]) + one.encode() for one in name.split("."))
    question = b"\\x12\\x34\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0" + labels + b"\\0\\0\\1\\0\\1"
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        sock.settimeout(10)
        sock.sendto(question, (server, 53))
        answer = sock.recv(512)
        return "NXDOMAIN" if answer[3] & 15 == 3 else socket.inet_ntoa(answer[-4:])
def packet():
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sock:
        sock.bind(("eth0", 0))
        return sock.send(b"\\xff" * 6 + b"\\2\\0\\0\\0\\0\\1\\x08\\0" + head + bytes(8) + raw)
def raw_ip():
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, 255) as sock:
        return sock.sendto(head + bytes(8) + raw, ("192.0.2.9", 0))
print(json.dumps({
    "allowed name": attempt(lambda: ask("203.0.113.53", "api.example.com")),
    "other name, other resolver": attempt(lambda: ask("8.8.8.8", "other.example.com")),
    "allowed": attempt(lambda: connect("198.51.100.10")),
    "other": attempt(lambda: connect("198.51.100.20")),
    "packet": attempt(packet),
    "raw": attempt(raw_ip),
    "kernel": open("/proc/version").read(),
}))
"""


@pytest.fixture(params=bundles.RUNTIMES, ids=lambda runtime: runtime.name)
def runtime(request: pytest.FixtureRequest) -> Runtime:
    chosen: Runtime = request.param
    if chosen.missing():
        if os.environ.get("CI"):
            pytest.fail(chosen.missing(), pytrace=False)
        pytest.skip(chosen.missing())
    return chosen


def probe(runtime: Runtime, folder: Path, lab: Lab) -> dict[str, str]:
    address = next(
        entry["local"]
        for entry in json.loads(lab.sandbox.ip("-json", "addr", "show", "dev", "eth0"))[0]["addr_info"]
        if entry["family"] == "inet"
    )
    argv = ["/usr/bin/python3", "-c", PROBE, RAW.decode(), address]
    done = bundles.run(runtime, folder, lab.sandbox.path, argv)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    assert ("gvisor" in found.pop("kernel")) is runtime.name.startswith("gVisor")
    return found


def zone(lab: Lab) -> None:
    lab.dns.a("api.example.com", "198.51.100.10")
    lab.dns.a("other.example.com", "198.51.100.20")


def test_without_a_guard_everything_arrives(runtime: Runtime, lab: Lab, tmp_path: Path) -> None:
    """The control."""
    zone(lab)
    with lab.capture() as wire:
        found = probe(runtime, tmp_path, lab)
        assert wire.arrived(payload=RAW)
    assert found["allowed name"] == "198.51.100.10"
    assert found["other name, other resolver"] == "198.51.100.20"
    assert found["allowed"] == found["other"] == "connected"


def test_with_the_guard_only_what_is_allowed_leaves(
    runtime: Runtime, lab: Lab, tmp_path: Path, start_sidecar: Any
) -> None:
    zone(lab)
    sidecar = start_sidecar(policy=POLICY, identity=SIDECAR_WITH_RAW)
    with lab.capture() as wire:
        found = probe(runtime, tmp_path, lab)
        assert not wire.packets(0.5, payload=RAW)
        left = {packet.destination for packet in wire.packets(0) if packet.protocol in (6, 17)}
    assert lab.dns.queries("other.example.com") == []
    if runtime.own_stack:
        assert "connected" not in found.values()
        assert left == set()
        assert soon(lambda: "network stack of its own" in sidecar.api("GET", "/healthz", token=None).text)
        return
    assert found["allowed name"] == "198.51.100.10"
    assert found["other name, other resolver"] == "NXDOMAIN"
    assert found["allowed"] == "connected"
    assert found["other"] == "Connection refused"
    assert left <= {"203.0.113.53", "198.51.100.10"}
    assert sidecar.api("GET", "/healthz", token=None).status == 200


@pytest.mark.parametrize("network", ["host", "sandbox"])
def test_inside_gvisor_the_sidecar_does_not_start_and_the_doctor_says_why(
    network: str, lab: Lab, tmp_path: Path
) -> None:
    chosen = next(one for one in bundles.RUNTIMES if f"--network={network}" in one.options)
    if chosen.missing():
        pytest.skip(chosen.missing())
    admin = ("CAP_NET_ADMIN", "CAP_NET_RAW")
    egress = f"{sys.prefix}/bin/egress"
    serve = bundles.run(chosen, tmp_path, lab.sandbox.path, [egress, "serve"], admin)
    assert serve.returncode == 1
    assert serve.stderr.startswith("egress: cannot guard: gVisor is the kernel here")
    assert serve.stderr.count("\n") == 1
    # A second container in the same namespace finds no addresses any more: the doctor asks for none.
    doctor = bundles.run(
        chosen, tmp_path, lab.sandbox.path, [egress, "doctor", "--json", "--offline", "--for", "serve"], admin
    )
    assert doctor.returncode == 1, doctor.stderr
    states = {one["name"]: one for one in json.loads(doctor.stdout)["findings"]}
    assert states["stacks"]["state"] == "missing"
    assert "gVisor is the kernel here" in states["stacks"]["found"]


def soon(condition: Any, seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return bool(condition())
