"""Threats E1 to E5, E16 and E17: packets and queries that go around the names, tried by every kind of attacker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from lab import CONTAINER_ROOT, CONTAINER_ROOT_WITHOUT_RAW, NOBODY, Identity
from tests.blackbox.place import ALLOW_ALL, DENY_ALL, REJECTED, Place, allow, soon

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lab import Internet

ATTACKERS = pytest.mark.parametrize(
    "attacker", [NOBODY, CONTAINER_ROOT_WITHOUT_RAW, CONTAINER_ROOT], ids=["nobody", "root", "raw"]
)
DENIED = "rcode 3, 0 answers"


@pytest.fixture
def open_door(place: Place) -> Iterator[Place]:
    """The same sandbox with no guard in it, for the positive controls; afterwards guarded again."""
    place.policy(ALLOW_ALL)
    yield place
    place.policy(DENY_ALL)


@ATTACKERS
def test_e1_address_literals_are_rejected_at_once(place: Place, attacker: Identity) -> None:
    place.policy(DENY_ALL)
    four, six = place.host(), place.host(6)
    tries = [(kind, host, *port) for host in (four, six) for kind, *port in (("tcp", 80), ("udp", 5000), ("ping",))]
    begun = time.monotonic()
    heard = place.attempt(tries, attacker)
    assert time.monotonic() - begun < 10, "refusals take their time"
    assert all(outcome in REJECTED for outcome in heard), list(zip(tries, heard, strict=True))
    place.policy(ALLOW_ALL)
    assert place.attempt(tries, attacker) == ["connected"] * len(tries)


def test_e1_denied_packets_are_logged_with_address_and_port_and_counted(place: Place) -> None:
    place.policy(DENY_ALL)
    four, six = place.host(), place.host(6)
    place.attempt([("tcp", four, 8080), ("udp", six, 5000), ("tcp", four, 8080)])

    def told(host: str, port: int) -> bool:
        return any(
            event.get("target.ips") == [host] and event.get("target.port") == port
            for event in place.sidecar.events("egress.outbound")
        )

    assert soon(lambda: told(four, 8080)), place.sidecar.log
    assert soon(lambda: told(six, 5000)), place.sidecar.log
    listing = place.lab.sandbox.run(["nft", "list", "table", "inet", "sallyport"]).stdout
    assert "counter packets" in listing


@ATTACKERS
@pytest.mark.parametrize("server", ["8.8.8.8", "2001:4860:4860::8888", "127.0.0.11", "10.99.0.53"])
def test_e2_another_resolver_is_intercepted(place: Place, attacker: Identity, server: str) -> None:
    name, other, target = place.name(), place.name(), place.host()
    place.allow(name)
    place.lab.dns.a(name, target)
    place.lab.dns.a(other, target)
    place.lab.dns.forget()
    heard = place.attempt(
        [("dns", server, 53, other, over) for over in (False, True)]
        + [("dns", server, 53, name, over) for over in (False, True)],
        attacker,
    )
    assert heard == [DENIED, DENIED, "rcode 0, 1 answers", "rcode 0, 1 answers"]
    assert not place.lab.dns.queries(other)
    assert {query.server for query in place.lab.dns.queries(name)} == {"203.0.113.53"}


def test_e2_control_without_the_guard_the_other_resolver_hears_it(internet: Internet) -> None:
    with Place(internet, wait=False) as bare:
        bare.sidecar.close()
        bare.lab.unguard()
        bare.lab.dns.a("free.example.com", "192.0.2.1")
        assert bare.attempt([("dns", "8.8.8.8", 53, "free.example.com")]) == ["rcode 0, 1 answers"]
        assert bare.lab.dns.queries("free.example.com")[0].server == "8.8.8.8"


def test_e2_dockers_resolver_has_no_other_door(place: Place) -> None:
    place.policy(DENY_ALL)
    heard = place.attempt([("tcp", "127.0.0.11", 41234), ("udp", "127.0.0.11", 41234), ("tcp", "127.0.0.11", 853)])
    assert all(outcome in REJECTED for outcome in heard), heard


@ATTACKERS
def test_e3_dot_doq_doh_and_quic(place: Place, attacker: Identity) -> None:
    four, six = place.host(), place.host(6)
    name = place.name()
    place.policy({"defaultAction": "deny", "egress": [{"action": "allow", "target": name, "ports": [80]}]})
    place.teach(four, six, name=name)
    dot = [(kind, host, 853) for host in ("8.8.8.8", "2001:4860:4860::8888", four, six) for kind in ("tcp", "udp")]
    doh = [("tcp", "8.8.8.8", 443), ("tcp", "2001:4860:4860::8888", 443)]
    quic = [("udp", four, 443), ("udp", six, 443), ("tcp", four, 443)]
    heard = place.attempt([*dot, *doh, *quic], attacker)
    assert all(outcome in REJECTED for outcome in heard), heard
    assert place.attempt([("tcp", four, 80), ("tcp", six, 80)], attacker) == ["connected"] * 2
    place.allow(name)
    assert place.attempt(quic, attacker) == ["connected"] * 3  # a rule without ports: everything but 853
    assert all(outcome in REJECTED for outcome in place.attempt(dot, attacker))
    place.policy({"defaultAction": "deny", "egress": [{"action": "allow", "target": name, "ports": [853]}]})
    assert place.attempt(dot[4:], attacker) == ["connected"] * 4


def test_e3_853_stays_shut_under_default_allow(open_door: Place) -> None:
    host = open_door.host()
    heard = open_door.attempt([("tcp", host, 853), ("udp", host, 853), ("tcp", host, 443), ("udp", host, 443)])
    assert all(outcome in REJECTED for outcome in heard[:2])
    assert heard[2:] == ["connected"] * 2
    open_door.policy({"defaultAction": "allow", "egress": [{"action": "allow", "target": host, "ports": [853]}]})
    assert open_door.attempt([("tcp", host, 853), ("udp", host, 853)]) == ["connected"] * 2


def test_e3_a_doh_provider_by_name_is_a_name_like_any_other(place: Place) -> None:
    place.policy(DENY_ALL)
    assert place.ask("dns.google").rcode == "NXDOMAIN"
    place.policy(ALLOW_ALL)
    assert place.ask("use-application-dns.net").rcode == "NXDOMAIN"
    assert place.ask("_dns.resolver.arpa", "SVCB").rcode == "NXDOMAIN"


@ATTACKERS
def test_e4_the_upstreams_address_earns_nothing(place: Place, attacker: Identity) -> None:
    resolver = "203.0.113.53"
    name, other = place.name(), place.name()
    place.lab.dns.a(name, "192.0.2.80")
    place.lab.dns.a(other, "192.0.2.80")
    place.allow(name)
    place.lab.dns.forget()
    heard = place.attempt(
        [
            ("tcp", resolver, 443),
            ("tcp", resolver, 80),
            ("udp", resolver, 5000),
            ("udp", resolver, 443),
            ("tcp", resolver, 853),
            ("ping", resolver),
        ],
        attacker,
    )
    assert all(outcome in REJECTED for outcome in heard), heard
    assert place.attempt([("dns", resolver, 53, other), ("dns", resolver, 53, other, True)], attacker) == [DENIED] * 2
    assert not place.lab.dns.queries(other)
    assert place.attempt([("dns", resolver, 53, name)], attacker) == ["rcode 0, 1 answers"]  # the control


_MARK = r"""
import socket, sys
sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
try:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, int(sys.argv[2]))
except PermissionError:
    print("no mark", end=" ")
try:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, 6)
except PermissionError:
    pass
sock.settimeout(1)
try:
    sock.connect((sys.argv[1], int(sys.argv[3])))
    print("connected")
except OSError as error:
    print("failed")
"""


@pytest.mark.parametrize("mark", ["1", "4242", "1073741824"])
def test_e5_a_firewall_mark_earns_nothing(place: Place, mark: str) -> None:
    place.policy(DENY_ALL)
    for host, port in ((place.host(), "80"), ("203.0.113.53", "443")):
        assert "connected" not in place.lab.python(_MARK, host, mark, port, identity=CONTAINER_ROOT).stdout
    place.policy(ALLOW_ALL)
    assert "connected" in place.lab.python(_MARK, place.host(), mark, "80", identity=CONTAINER_ROOT).stdout


_HOSTS = r"""
import socket, sys
name, address = sys.argv[1:3]
open("/etc/hosts", "a").write("%s %s\n" % (address, name))
found = sorted({info[4][0] for info in socket.getaddrinfo(name, 80, proto=socket.IPPROTO_TCP)})
try:
    socket.create_connection((name, 80), 5).close()
    print(*found, "connected")
except OSError as error:
    print(*found, error.strerror)
"""


_OWN_HOSTS = """
mount -t tmpfs -o mode=777 none /mnt && cp /etc/hosts /mnt/hosts && chmod 666 /mnt/hosts &&
mount --bind /mnt/hosts /etc/hosts && exec "$@"
"""


@pytest.mark.parametrize("family", [4, 6])
@ATTACKERS
def test_e16_etc_hosts_teaches_nothing(place: Place, attacker: Identity, family: int) -> None:
    """A program whose /etc/hosts leads an allowed name elsewhere; the control is the same where a rule allows that."""
    name, true, false = place.name(), place.host(family), place.host(family)
    place.allow(name)
    place.teach(true, name=name)
    interpreter = "/usr/bin/python3" if attacker.uid and os.path.exists("/usr/bin/python3") else sys.executable

    def program() -> str:
        argv = [
            "unshare",
            "--mount",
            "sh",
            "-c",
            _OWN_HOSTS,
            "sh",
            *attacker.prefix(),
            interpreter,
            "-I",
            "-c",
            _HOSTS,
            name,
            false,
        ]
        return place.lab.run(argv, check=True).stdout.strip()

    assert program() == f"{false} Connection refused"
    assert place.lab.connect(true, 80) == "connected"
    place.allow(name, false)
    assert program() == f"{false} connected"


_COLLIDE = r"""
import json, os, socket, struct, sys, time
# A query from every port that the sidecar has just used: its conntrack entry must not carry ours along.
server, name, ports = sys.argv[1], sys.argv[2], [int(port) for port in sys.argv[3].split(",")]
labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
heard = {}
for port in ports:
    sock = socket.socket(socket.AF_INET6 if ":" in server else socket.AF_INET, socket.SOCK_DGRAM)
    sock.settimeout(10)
    try:
        sock.bind(("", port))
    except OSError:
        heard["taken"] = heard.get("taken", 0) + 1
        continue
    try:
        query = os.urandom(2) + struct.pack(">5H", 256, 1, 0, 0, 0) + labels + struct.pack(">BHH", 0, 1, 1)
        sock.sendto(query, (server, 53))
        outcome = "rcode %d" % (sock.recv(4096)[3] & 15)
    except OSError as error:
        outcome = type(error).__name__
    heard[outcome] = heard.get(outcome, 0) + 1
print(json.dumps(heard))
"""


@ATTACKERS
def test_e17_the_sidecars_own_source_ports(place: Place, attacker: Identity) -> None:
    suffix, stolen = place.name(), place.name()
    place.lab.dns.generate(suffix, "198.51.0.0/16")
    place.lab.dns.a(stolen, "192.0.2.90")
    place.allow(f"*.{suffix}")
    place.lab.dns.forget()
    for number in range(40):
        assert place.ask(f"x{number}.{suffix}").addresses
    ports = sorted({query.port for query in place.lab.dns.queries() if query.name.lower().endswith(suffix)})
    assert len(ports) > 15, "source ports are not random"
    arguments = ("203.0.113.53", stolen, ",".join(map(str, ports)))
    place.sidecar.kill_worker()  # its sockets are gone, what conntrack knows of them would not be
    assert place.ask(f"back.{suffix}").addresses
    answer = place.lab.python(_COLLIDE, *arguments, identity=attacker, timeout=60)
    heard = json.loads(answer.stdout)
    assert heard.pop("taken", 0) < len(ports) / 2
    assert set(heard) == {"rcode 3"}, (heard, answer.stderr)
    assert not place.lab.dns.queries(stolen)
    place.policy(allow(f"*.{suffix}", stolen))
    answer = place.lab.python(_COLLIDE, *arguments, identity=attacker, timeout=60)
    heard = json.loads(answer.stdout)
    heard.pop("taken", None)
    assert set(heard) == {"rcode 0"}, heard  # and honest clients lose no name to it


_RAW = r"""
import os, socket, struct, sys
gateway, source, target, marker = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4].encode()

def checksum(data):
    total = sum(struct.unpack(">%dH" % (len(data) // 2), data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF

def ip(origin, protocol, body):
    head = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(body), 1, 0, 64, protocol, 0,
                       socket.inet_aton(origin), socket.inet_aton(target))
    return head[:10] + struct.pack(">H", checksum(head)) + head[12:] + body

def datagram(word):
    body = word + marker
    body += b"." * (len(body) % 2)
    return struct.pack(">4H", 40000, 5000, 8 + len(body), 0) + body

def hardware(device):
    with open("/sys/class/net/%s/address" % device) as file:
        return bytes.fromhex(file.read().strip().replace(":", ""))

def neighbour():
    with open("/proc/net/arp") as file:
        for line in file:
            if line.startswith(gateway + " "):
                return bytes.fromhex(line.split()[3].replace(":", ""))

tried = 0
def attempt(send):
    global tried
    try:
        send()
    except OSError:
        pass
    tried += 1

to = neighbour() or b"\xff" * 6
for device in ("eth0", "lo"):
    for bypass in (0, 1):
        packet = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        packet.setsockopt(263, 20, bypass)  # SOL_PACKET, PACKET_QDISC_BYPASS
        packet.bind((device, 0x0800))
        for origin in (source, "198.51.100.123"):
            frame = to + (hardware("eth0") if device == "eth0" else b"\0" * 6) + b"\x08\x00"
            word = b"frame-%s-%d" % (device.encode(), bypass)
            attempt(lambda: packet.send(frame + ip(origin, 17, datagram(word))))
    cooked = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM)
    attempt(lambda: cooked.sendto(ip(source, 17, datagram(b"cooked")), (device, 0x0800, 0, 0, to)))
for protocol in (17, 47, 132, 99):
    raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, protocol)
    attempt(lambda: raw.sendto(datagram(b"raw"), (target, 0)))
    included = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    for origin in (source, "198.51.100.123", "8.8.8.8"):
        attempt(lambda: included.sendto(ip(origin, protocol, datagram(b"included")), (target, 0)))
print("tried", tried)
"""


def test_e6_raw_and_packet_sockets_send_nothing_out(place: Place) -> None:
    target, marker = place.host(), "raw-socket-marker"
    link = place.lab.link
    place.policy(DENY_ALL)
    place.lab.connect(link.gateway, 80)  # the neighbour is known

    def arrived() -> set[bytes]:
        with place.lab.capture() as wire:
            arguments = (link.gateway, link.sandbox, target, marker)
            done = place.lab.python(_RAW, *arguments, identity=CONTAINER_ROOT)
            assert done.stdout.startswith("tried"), done.stderr
            return {packet.frame for packet in wire.packets(0.2, payload=marker.encode())}

    assert arrived() == set()
    worker = place.sidecar.worker_pid
    os.kill(worker, signal.SIGSTOP)  # or it would put its tables back before the control has begun
    try:
        place.lab.sandbox.nft("delete table netdev sallyport\ndelete table inet sallyport\n")
        assert len(arrived()) >= 4, "the control: without the guard the same attempts leave"
    finally:
        os.kill(worker, signal.SIGCONT)
    assert soon(lambda: place.lab.connect(target, 80) in REJECTED), "and the guard puts its tables back by itself"
    assert soon(lambda: arrived() == set())


@pytest.mark.parametrize("attacker", [NOBODY, CONTAINER_ROOT_WITHOUT_RAW], ids=["nobody", "root"])
def test_e6_without_net_raw_there_are_no_such_sockets(place: Place, attacker: Identity) -> None:
    arguments = (place.lab.link.gateway, place.lab.link.sandbox, place.host(), "x")
    assert "PermissionError" in place.lab.python(_RAW, *arguments, identity=attacker).stderr


_FORGE = r"""
import socket, struct, sys, threading, os, time
# Answers forged over loopback in the resolver's name, to every port that /proc tells, with every id sniffed.
resolver, name, lie = sys.argv[1:4]
labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
sniffer = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
sniffer.settimeout(0.05)
forger = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
ask = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
ask.settimeout(10)
ask.sendto(b"\x12\x34" + struct.pack(">5H", 256, 1, 0, 0, 0) + labels + b"\0\0\1\0\1", (resolver, 53))
seen = sent = 0
begun = time.monotonic()
while (age := time.monotonic() - begun) < 0.9 or (not seen and age < 8):
    try:
        frame = sniffer.recv(4096)
    except OSError:
        continue
    at = frame.lower().find(labels.lower())
    if at < 0 or frame[23:24] != b"\x11" or struct.unpack(">H", frame[36:38])[0] != 53:
        continue
    seen += 1
    port, ident, question = frame[34:36], frame[42:44], frame[at : at + len(labels) + 5]
    body = ident + struct.pack(">5H", 0x8180, 1, 1, 0, 0) + question
    body += b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 300, 4) + socket.inet_aton(lie)
    udp = b"\0\x35" + port + struct.pack(">HH", 8 + len(body), 0) + body
    own = socket.inet_ntoa(frame[26:30])
    both = socket.inet_aton(resolver) + frame[26:30]
    head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(udp), 1, 0, 64, 17, 0) + both
    for _ in range(3):
        try:
            forger.sendto(head + udp, (own, 0))
            sent += 1
        except OSError:
            pass
print("forged", flush=True)  # the true answer may come
answer = ask.recv(4096)
print(seen, sent, "lie" if socket.inet_aton(lie) in answer else "true")
"""


def test_e6_answers_forged_over_loopback_are_not_believed(place: Place) -> None:
    name, true, lie = place.name(), place.host(), place.host()
    place.allow(name)
    place.lab.dns.a(name, true)
    place.lab.dns.behave(name, held=True)
    forger = place.lab.sandbox.popen(
        [sys.executable, "-I", "-c", _FORGE, "203.0.113.53", name, lie],
        identity=CONTAINER_ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert forger.stdout is not None
    assert forger.stdout.readline() == "forged\n", forger.communicate()
    place.lab.dns.normal(name)
    out, errors = forger.communicate(timeout=60)
    assert out.split()[-1:] == ["true"], (out, errors)
    assert int(out.split()[0]) > 0, "the sniffer saw nothing: the attempt was none"
    assert place.lab.connect(lie, 80) in REJECTED
    assert place.lab.connect(true, 80) == "connected"
