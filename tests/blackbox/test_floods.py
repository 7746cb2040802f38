"""E14: what is used up by asking, and who is asked to make room. `make bench-load` measures it."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from egress.firewall.leases import ADDRESSES
from lab import CONTAINER_ROOT, NOBODY, Identity
from lab.client import NoReply
from tests.blackbox.place import REJECTED, Place, allow, soon

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lab import Internet

NAMED = "198.51.100.10"
POLICY = allow("api.example.com", "*.flood.example.com", "*.wide.example.com")


@pytest.fixture(scope="module")
def flooded(internet: Internet) -> Iterator[Place]:
    with Place(internet, policy=POLICY, env={"NAME_BUDGET": "0"}) as place:
        place.lab.dns.a("api.example.com", NAMED)
        place.lab.dns.generate("flood.example.com", "198.18.0.0/15")
        yield place


def honest(place: Place, *, tcp: bool = False) -> bool:
    with contextlib.suppress(NoReply, OSError):
        return place.lab.query("api.example.com", timeout=1, tcp=tcp).addresses == [NAMED]
    return False


# Names that no rule allows, as fast as they go: from so many sockets, over IPv4 or IPv6, to the end of its input.
_FLOOD = r"""
import select, socket, sys
count, family = int(sys.argv[1]), (socket.AF_INET6 if ":" in sys.argv[2] else socket.AF_INET)
socks = []
for _ in range(count):
    sock = socket.socket(family, socket.SOCK_DGRAM)
    sock.setblocking(False)
    sock.connect((sys.argv[2], 53))
    socks.append(sock)
print("flooding", flush=True)
head, tail = b"\1\2\1\0\0\1\0\0\0\0\0\0\x08", b"\6denied\7example\3net\0\0\1\0\1"
sent = 0
while not select.select([0], [], [], 0)[0]:
    for sock in socks:
        try:
            sock.send(head + b"%08x" % sent + tail)
            sent += 1
        except OSError:
            pass
print(sent)
"""


@pytest.mark.parametrize("attacker", [NOBODY, CONTAINER_ROOT], ids=["nobody", "raw"])
@pytest.mark.parametrize("server", ["203.0.113.53", "2001:db8:113::53"])
@pytest.mark.parametrize("sockets", [1, 500])
def test_e14_whoever_floods_from_however_many_sockets_the_honest_are_answered(
    flooded: Place, attacker: Identity, server: str, sockets: int
) -> None:
    """Dropped for a second where it is too much, as UDP may be: who asks again is answered, and the API is."""
    interpreter = "/usr/bin/python3" if attacker.uid else sys.executable
    flood = flooded.lab.sandbox.popen(
        [interpreter, "-I", "-c", _FLOOD, str(sockets), server],
        identity=attacker, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert flood.stdout is not None
    assert flood.stdout.readline() == "flooding\n"
    end, asked = time.monotonic() + 0.5, 0
    while asked < 3 or time.monotonic() < end:
        assert soon(lambda: honest(flooded), 10)
        assert flooded.sidecar.api("GET", "/healthz", timeout=10).status == 200
        asked += 1
    assert flood.poll() is None
    assert int(flood.communicate("")[0]) > 1000, "the control: it was a flood"
    assert soon(lambda: flooded.ask(flooded.name()).rcode == "NXDOMAIN"), "all is as ever"
    assert "Traceback" not in flooded.sidecar.log


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["IPv4", "IPv6"])
def test_e14_half_open_and_slow_tcp_keeps_nobody_out(flooded: Place, family: int) -> None:
    """Four times as many connections as are kept: silent, with half a question, with a question and nobody to read."""
    server = "203.0.113.53" if family == socket.AF_INET else "2001:db8:113::53"
    question = b"\1\2\1\0\0\1\0\0\0\0\0\0\3api\7example\3com\0\0\1\0\1"
    question = len(question).to_bytes(2, "big") + question
    held = []
    for number in range(512):
        sock = flooded.lab.sandbox.socket(family, socket.SOCK_STREAM)
        sock.settimeout(10)
        with contextlib.suppress(OSError):  # hung up on meanwhile
            sock.connect((server, 53))
            sock.sendall((b"", question[:7], question)[number % 3])
        held.append(sock)
        if number % 100 == 0:
            assert soon(lambda: honest(flooded, tcp=True), 10)
    assert soon(lambda: honest(flooded, tcp=True), 10)
    assert soon(lambda: honest(flooded), 10)
    assert flooded.sidecar.api("GET", "/healthz", timeout=10).status == 200
    hung_up = 0
    for sock in held:
        sock.settimeout(0.001)
        with contextlib.suppress(TimeoutError, OSError):
            while data := sock.recv(100):
                assert data
            hung_up += 1
        sock.close()
    assert hung_up > 256, "the control: they were too many to be kept"


def test_e14_a_full_table_of_addresses_costs_only_who_filled_it(flooded: Place) -> None:
    """A wildcard's names lead to as many addresses as may be open: its next name is refused, with the reason; one of
    its names that leads elsewhere now has its own oldest ones replaced; what others have learned stays open."""
    place, dns = flooded, flooded.lab.dns
    dns.set_logging(False)
    assert honest(place)
    each, reply, number = 64, None, 0
    for number in range(ADDRESSES // each + 1):
        name = f"w{number}.wide.example.com"
        dns.behave(name, "A", rcode="NOERROR", extra=[(name, "A", 1, packed) for packed in octets(number * each, each)])
        reply = place.ask(name, tcp=True, timeout=10)
        if reply.rcode == "SERVFAIL":
            break
        assert len(reply.addresses) == each
    assert reply is not None
    assert reply.rcode == "SERVFAIL"
    assert number * each > ADDRESSES - 2 * each
    assert reply.ede is not None
    assert "no room" in reply.ede[1]
    assert place.lab.connect(at(number * each, each)[-1], 80) in REJECTED
    first = "w0.wide.example.com"
    dns.normal(first, "A")
    dns.a(first, *at(1 << 20, 3), ttl=1)
    assert soon(lambda: sorted(place.ask(first, timeout=10).addresses) == sorted(at(1 << 20, 3)))
    for address in at(1 << 20, 3):
        assert place.lab.connect(address, 80) == "connected"
    assert honest(place)
    assert place.lab.connect(NAMED, 80) == "connected"
    assert place.lab.connect(at(each, each)[0], 80) == "connected", "the next name's are all there"
    assert place.sidecar.api("POST", "/policy", allow("api.example.com")).status == 200
    assert soon(lambda: honest(place))
    assert place.lab.connect(NAMED, 80) == "connected"
    assert place.lab.connect(at(each, each)[0], 80) in REJECTED


def at(start: int, count: int) -> list[str]:
    """Addresses that nobody else here has, and that are ordinary ones."""
    return [socket.inet_ntoa(packed) for packed in octets(start, count)]


def octets(start: int, count: int) -> list[bytes]:
    return [((11 << 24) + start + number).to_bytes(4, "big") for number in range(count)]
