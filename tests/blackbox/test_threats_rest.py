"""Threats E5, E14, E15, E18 and E19 at the running sidecar: who it is, what floods it, what was there before it."""

from __future__ import annotations

import json
import os
import statistics
import struct
import subprocess
import sys
import time
from pathlib import Path
from socket import AF_INET, AF_INET6, SO_LINGER, SO_REUSEADDR, SOCK_STREAM, SOL_SOCKET
from typing import TYPE_CHECKING

import pytest

from lab import CONTAINER_ROOT, CONTAINER_ROOT_WITHOUT_RAW, NOBODY, Identity, Lab, Sidecar
from lab.client import NoReply
from tests.blackbox.place import ALLOW_ALL, DENY_ALL, REJECTED, Place, allow, soon

if TYPE_CHECKING:
    import socket

    from lab import Internet

ATTACKERS = pytest.mark.parametrize(
    "attacker", [NOBODY, CONTAINER_ROOT_WITHOUT_RAW, CONTAINER_ROOT], ids=["nobody", "root", "raw"]
)
POLICY = allow("api.example.com")
NAMED = "198.51.100.10"


# -- E5 --------------------------------------------------------------------------------------------------------------
@ATTACKERS
@pytest.mark.parametrize("resolver", ["203.0.113.53", "2001:db8:113::53"])
def test_e5_the_sidecars_uid_earns_nothing(internet: Internet, attacker: Identity, resolver: str) -> None:
    """Root in the sandbox is the sidecar's own uid: no rule goes by that, neither for the resolvers nor for others."""
    with Place(internet, policy=DENY_ALL, env={"DNS_UPSTREAM": "203.0.113.53,2001:db8:113::53"}) as place:
        name, host = place.name(), place.host(6 if ":" in resolver else 4)
        tries = [(kind, there, port) for there in (resolver, host) for kind, port in (("tcp", 443), ("udp", 5000))]
        heard = place.attempt(tries, attacker)
        assert all(outcome in REJECTED for outcome in heard), heard
        place.lab.dns.forget()
        place.attempt([("dns", resolver, 53, name), ("dns", resolver, 53, name, True)], attacker)
        assert not place.lab.dns.queries(name), "its own questions, and nobody else's, reach the resolver"
        place.policy(ALLOW_ALL)
        assert place.attempt(tries, attacker) == ["connected"] * len(tries)


_SQUAT = r"""
import socket, sys
held = []
for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
        for port in range(int(sys.argv[1]), int(sys.argv[2])):
            sock = socket.socket(family, kind)
            if kind == socket.SOCK_STREAM:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            else:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            try:
                sock.bind((host, port))
            except OSError:
                continue
            held.append(sock)
print(len(held), flush=True)
sys.stdin.read()
"""


@ATTACKERS
def test_e5_ports_taken_before_it_starts(lab: Lab, attacker: Identity) -> None:
    """Of the kernel's 100 ports 90 are the sandbox's, ready to share: the sidecar finds others, and answers there."""
    lab.dns.a("api.example.com", NAMED)
    lab.sandbox.run(["sh", "-c", "echo 40000 40099 > /proc/sys/net/ipv4/ip_local_port_range"], check=True)
    interpreter = "/usr/bin/python3" if attacker.uid and os.path.exists("/usr/bin/python3") else sys.executable
    squatter = lab.sandbox.popen(
        [interpreter, "-I", "-c", _SQUAT, "40000", "40090"],
        identity=attacker, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert squatter.stdout is not None
    assert int(squatter.stdout.readline()) == 4 * 90, "the control: they are to be had"
    with Sidecar(lab, policy=POLICY):
        for tcp in (False, True):
            assert lab.query("api.example.com", tcp=tcp).addresses == [NAMED]
            assert lab.query("denied.example.com", tcp=tcp).rcode == "NXDOMAIN"
        assert lab.connect(NAMED, 80) == "connected"
        assert lab.connect("198.51.100.20", 80) in REJECTED
    squatter.communicate("", timeout=10)


# -- E14 -------------------------------------------------------------------------------------------------------------
_FLOOD = r"""
import os, random, select, socket, struct, sys

kind = sys.argv[1]
targets = [(socket.AF_INET, ("203.0.113.53", 53)), (socket.AF_INET6, ("2001:db8:113::53", 53))]
chance = random.Random(5)

def question(name):
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    return os.urandom(2) + struct.pack(">5H", 0x0100, 1, 0, 0, 0) + labels + b"\0\0\1\0\1"

def packet(number):
    if kind == "garbage" and number % 3:
        return chance.randbytes(chance.randrange(0, 1400))
    if kind == "garbage":  # a name that leads back to itself
        return os.urandom(2) + struct.pack(">5H", 0x0100, 1, 0, 0, 0) + b"\1a\xc0\x0c\0\1\0\1"
    if kind == "distinct":  # half of them denied
        return question("n%d.flood.example.%s" % (number, "com" if number % 2 else "org"))
    if kind == "silent":
        return question("s%d.silent.example.com" % (number % 3))
    return question("h%d.huge.example.com" % (number % 40))

sockets = []
for number in range(100):
    family, target = targets[number % 2]
    sock = socket.socket(family, socket.SOCK_DGRAM)
    sock.setblocking(False)
    sock.connect(target)
    sockets.append(sock)
print("flooding", flush=True)
sent = 0
while not select.select([0], [], [], 0)[0]:
    for sock in sockets:
        try:
            sock.send(packet(sent))
            sent += 1
        except OSError:
            pass
print(sent)
"""


@pytest.mark.parametrize("kind", ["garbage", "distinct", "silent", "huge"])
def test_e14_a_flood_from_many_sockets_starves_nobody(internet: Internet, kind: str) -> None:
    """As root in a container, over IPv4 and IPv6: the honest are answered, the API too, and memory stays bounded."""
    policy = allow("api.example.com", "*.flood.example.com", "*.silent.example.com", "*.huge.example.com")
    with Place(internet, policy=policy) as place:
        lab = place.lab
        lab.dns.a("api.example.com", NAMED)
        lab.dns.generate("flood.example.com", "198.18.0.0/15")
        for number in range(3):
            lab.dns.behave(f"s{number}.silent.example.com", drop=True)
        for number in range(40):
            for part in range(40):
                lab.dns.txt(f"h{number}.huge.example.com", f"{part}" * 100)
        lab.dns.set_logging(False)
        assert lab.query("api.example.com").addresses == [NAMED]
        worker = place.sidecar.worker_pid
        before = held(worker)
        argv = [sys.executable, "-I", "-c", _FLOOD, kind]
        flood = lab.sandbox.popen(
            argv, identity=CONTAINER_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert flood.stdout is not None
        assert flood.stdout.readline() == "flooding\n"
        tries: list[int] = []
        statuses, end = set(), time.monotonic() + 2
        while len(tries) < 10 or time.monotonic() < end:
            tries.append(next(number for number in range(1, 20) if honest(lab)))
            statuses.add(place.sidecar.api("GET", "/healthz").status)
        assert flood.poll() is None
        sent = int(flood.communicate("")[0])
        assert sent > 1000, "the control: it was a flood"
        assert statuses == {200}
        assert statistics.median(tries) < 2, "most are answered at the first try"
        assert place.sidecar.worker_pid == worker
        assert soon(lambda: held(worker) - before < 20 << 20)
        assert "Traceback" not in place.sidecar.log
        assert "unexpected" not in place.sidecar.log


def honest(lab: Lab) -> bool:
    """A full socket drops, as UDP does; whoever asks asks again."""
    try:
        return lab.query("api.example.com", timeout=2).addresses == [NAMED]
    except NoReply:
        return False


def held(pid: int) -> int:
    """Octets of memory of its own making. What it has of files weighs less or more as others come and go who map them,
    and so do pages that a fork shares: they are counted whole."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Anonymous:"))


# -- E15 -------------------------------------------------------------------------------------------------------------
def test_e15_without_inspection_a_shared_address_is_open_and_the_denied_name_is_not_told(place: Place) -> None:
    """What docs/security.md says of it: packets cannot tell the names apart, only the answers can."""
    allowed, denied, shared = place.name(), place.name(), place.host()
    place.allow(allowed)
    place.lab.dns.a(denied, shared)
    place.teach(shared, name=allowed)
    assert place.ask(denied).rcode == "NXDOMAIN"
    assert place.lab.connect(shared, 443) == "connected"


# -- E18 -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("host", ["198.51.100.20", "2001:db8:100::20"])
@ATTACKERS
def test_e18_flows_opened_before_it_by_anybody_are_cut(lab: Lab, attacker: Identity, host: str) -> None:
    """TCP and UDP, with a peer that never stops sending; the control is that they lived until then."""
    code = r"""
import socket, sys, time
host = sys.argv[1]
family = socket.AF_INET6 if ":" in host else socket.AF_INET
tcp, udp = socket.socket(family, socket.SOCK_STREAM), socket.socket(family, socket.SOCK_DGRAM)
tcp.connect((host, 19)); udp.connect((host, 19)); udp.send(b"begin")
for sock in (tcp, udp):
    sock.settimeout(10)
    assert sock.recv(65536)
print("flowing", flush=True)
sys.stdin.readline()
def alive(sock):
    sock.settimeout(0.3)
    end = time.monotonic() + 15
    while time.monotonic() < end:
        try:
            if not sock.recv(65536):
                return False
        except OSError:
            return False
    return True
print(alive(tcp), alive(udp), flush=True)
"""
    interpreter = "/usr/bin/python3" if attacker.uid and os.path.exists("/usr/bin/python3") else sys.executable
    program = lab.sandbox.popen(
        [interpreter, "-I", "-c", code, host],
        identity=attacker, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert program.stdout is not None
    assert program.stdout.readline() == "flowing\n"
    with Sidecar(lab, policy=POLICY):
        out, _ = program.communicate("go\n", timeout=60)
        assert out == "False False\n"


def test_e18_flows_opened_while_no_rules_stood_between_two_lives(lab: Lab) -> None:
    """The tables are gone with the sidecar dead, flows are opened, it starts again: they count as from before."""
    with Sidecar(lab, policy=POLICY) as sidecar:
        sidecar.kill()
        lab.unguard()
        flow = lab.open("198.51.100.20", 8000)
        flow.send(b"on")
        assert flow.recv(5) == b"on"
        sidecar.restart()
        assert soon(lambda: gone(flow))
        assert lab.connect("198.51.100.20", 80) in REJECTED


@pytest.mark.parametrize("host", [NAMED, "2001:db8:100::10"])
def test_e18_a_cut_ends_when_its_address_is_learned_again(lab: Lab, host: str) -> None:
    """Else who connects from the same port, as pools and busy clients do, is refused for as long as he tries."""
    lab.dns.a("api.example.com", host)

    def connect(port: int) -> str:
        with lab.sandbox.socket(AF_INET6 if ":" in host else AF_INET, SOCK_STREAM) as sock:
            sock.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
            sock.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
            sock.settimeout(10)
            sock.bind(("", port))
            return "refused" if sock.connect_ex((host, 80)) else "connected"

    with Sidecar(lab, policy=POLICY) as sidecar:
        kind = "AAAA" if ":" in host else "A"
        assert lab.query("api.example.com", kind).addresses == [host]
        assert connect(41000) == "connected"
        assert sidecar.api("POST", "/policy", DENY_ALL).status == 200
        assert connect(41000) == "refused"
        assert sidecar.api("POST", "/policy", POLICY).status == 200
        assert connect(41000) == "refused", "allowed again, and not learned yet"
        assert lab.query("api.example.com", kind).addresses == [host]
        assert soon(lambda: connect(41000) == "connected")


def gone(flow: socket.socket) -> bool:
    flow.settimeout(0.2)
    try:
        flow.send(b"x")
        return not flow.recv(10)
    except TimeoutError:
        return False
    except OSError:
        return True


# -- E19 -------------------------------------------------------------------------------------------------------------
def test_e19_nothing_that_decides_lies_in_the_shared_volume(lab: Lab) -> None:
    for name in ("POLICY_FILE", "SOCKET"):
        for path in ("/opt/opensandbox/policy.json", "/opt/opensandbox/../opensandbox/x", "//opt/opensandbox/a/b"):
            with Sidecar(lab, policy=POLICY, env={name: path}, wait=False) as sidecar:
                assert sidecar.process is not None
                assert sidecar.process.wait(60) == 2
                assert f"OPENSANDBOX_EGRESS_{name}" in sidecar.log
                assert lab.connect("198.51.100.20", 80) in REJECTED


@pytest.mark.parametrize("at", ["policy.json", "rules/deny.always"])
def test_e19_no_link_is_followed(lab: Lab, at: str, tmp_path: Path) -> None:
    """A link in the place of our files, to one that opens everything: closed, with the reason, until it is gone."""
    lab.dns.a("api.example.com", NAMED)
    sidecar = Sidecar(lab, policy=POLICY, env={"POLICY_FILE": "/var/egress/policy.json"}, wait=False)
    trap = sidecar.state / "trap"
    trap.write_text(json.dumps(ALLOW_ALL) if at == "policy.json" else "# nothing is denied\n")
    link = sidecar.state / at
    link.parent.mkdir(exist_ok=True)
    link.symlink_to("/var/egress/trap")
    before = trap.read_bytes()
    with sidecar:
        assert soon(lambda: locked(sidecar)), sidecar.log
        assert lab.connect("198.51.100.20", 80) in REJECTED
        link.unlink()
        sidecar.wait_ready()
        assert sidecar.api("POST", "/policy", POLICY).status == 200
        assert trap.read_bytes() == before
        assert lab.query("api.example.com").addresses == [NAMED]
        assert lab.connect("198.51.100.20", 80) in REJECTED


def locked(sidecar: Sidecar) -> bool:
    try:
        return sidecar.api("GET", "/healthz", token=None).status == 503
    except OSError:
        return False
