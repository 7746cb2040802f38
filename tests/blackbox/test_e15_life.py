"""The name guard over time (E15): policies that change under open connections, leases that end, deaths, floods."""

from __future__ import annotations

import contextlib
import os
import signal
import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lab import CONTAINER_ROOT, LabError
from lab.tls import TlsSites
from tests.blackbox.place import DENY_ALL, Place, allow, soon
from tests.blackbox.speaker import words
from tests.blackbox.test_threats_rest import held

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lab import Internet

FAMILIES = pytest.mark.parametrize("family", [4, 6])


@pytest.fixture(scope="module")
def tls(internet: Internet) -> Iterator[TlsSites]:
    with TlsSites(internet.namespace) as sites:
        yield sites


_talks: list[ssl.SSLSocket] = []


@pytest.fixture
def guarded(internet: Internet) -> Iterator[Place]:
    with Place(internet, env={"SNI": "enforce"}) as made:
        yield made
        while _talks:
            _talks.pop().close()


class Talk:
    """A TLS connection that goes on: what is said comes back."""

    def __init__(self, place: Place, address: str, name: str) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        sock = place.lab.open(address, 443, timeout=10)
        self.sock = context.wrap_socket(sock, server_hostname=name, suppress_ragged_eofs=False)
        _talks.append(self.sock)
        self.sock.settimeout(10)
        self.sock.sendall(b"hello")
        assert self.sock.recv(4096) == name.encode() + b" said hello"

    def goes_on(self) -> bool:
        self.sock.sendall(b"still here")
        return self.sock.recv(4096) == b"still here"

    def ending(self) -> str:
        """Without a word from us: a blocked reader has to notice."""
        try:
            return "closed" if not self.sock.recv(4096) else "talking"
        except TimeoutError:
            return "silence"
        except OSError:
            return "reset"


def ground(place: Place, tls: TlsSites, family: int = 4) -> tuple[str, str, str]:
    """Two names, allowed and looked up, on one address with TLS; the address last."""
    one, other, address = place.name(), place.name(), place.host(family)
    tls.add(address)
    place.allow(one, other)
    for name in (one, other):
        place.teach(address, name=name)
    return one, other, address


@FAMILIES
def test_e15_a_change_cuts_the_name_that_it_denies_and_no_other(tls: TlsSites, guarded: Place, family: int) -> None:
    """Both names share the address, and the address stays open: the relay itself has to end the one."""
    one, other, address = ground(guarded, tls, family)
    kept, doomed = Talk(guarded, address, one), Talk(guarded, address, other)
    guarded.allow(one)
    assert doomed.ending() == "reset"
    assert kept.goes_on()
    assert words(guarded.lab, [("tls", address, one), ("tls", address, other)]) == [one, "reset"]


@FAMILIES
def test_e15_a_change_that_takes_the_address_away_cuts_all(tls: TlsSites, guarded: Place, family: int) -> None:
    one, other, address = ground(guarded, tls, family)
    talks = [Talk(guarded, address, name) for name in (one, other)]
    guarded.policy(DENY_ALL)
    assert [talk.ending() for talk in talks] == ["reset", "reset"]
    assert words(guarded.lab, [("tls", address, one)]) == ["refused"]


def test_e15_a_rule_for_the_address_stands_above_the_name(tls: TlsSites, guarded: Place) -> None:
    one, other, address = ground(guarded, tls)
    kept = Talk(guarded, address, one)
    guarded.policy(allow(address))  # the names are denied now, and the address needs none
    assert kept.goes_on()
    assert words(guarded.lab, [("tls", address, "whoever.example.net")]) == ["whoever.example.net"]
    guarded.policy({"defaultAction": "deny", "egress": [{"action": "deny", "target": address},
                                                        *allow(one, other)["egress"]]})  # fmt: skip
    assert kept.ending() == "reset"
    assert words(guarded.lab, [("tls", address, one)]) == ["refused"]


def test_e15_the_end_of_a_lease_ends_no_connection(tls: TlsSites, guarded: Place) -> None:
    """The kernel's element goes, as it does by its time-out; new connections are refused, and open ones go on, through
    a change of the policy that still allows their name too."""
    one, other, address = ground(guarded, tls)
    kept = Talk(guarded, address, one)
    for name in guarded.sets():
        with contextlib.suppress(LabError):
            guarded.lab.sandbox.nft(f"delete element inet sallyport {name} {{ {address} }}\n")
    assert guarded.lease(address) is None
    assert words(guarded.lab, [("tls", address, one)]) == ["refused"]
    assert kept.goes_on()
    guarded.teach(address, name=other, ask=False)
    guarded.allow(one, other, guarded.name())
    assert kept.goes_on()


def test_e15_forged_packets_in_a_relayed_flow_stay_inside(tls: TlsSites, guarded: Place) -> None:
    """CAP_NET_RAW: somebody else's octets with the addresses, ports and numbers of a connection that was let through.
    The control is the same packet in a flow to an address that a rule opens."""
    one, _, address = ground(guarded, tls)
    free = guarded.host()
    guarded.policy(allow(one, free))
    guarded.teach(address, name=one)
    talk = Talk(guarded, address, one)
    plain = guarded.lab.open(free, 443)
    listed = guarded.lab.run(["ss", "-Htn", "state", "established"], check=True).stdout.split("\n")
    # The relay's own socket: from an address of ours, to the server's, and not the client's (which the same line shows
    # with its redirected peer); both have the same shape, so both are tried.
    places = [line.split()[2:4] for line in listed if f"{address}:443" in line or f"{free}:443" in line]
    assert len(places) == 3, listed
    forge = r"""
import socket, struct, sys
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
for argument in sys.argv[1:]:
    here, there = [part.rsplit(":", 1) for part in argument.split(",")]
    payload = b"forged for " + there[0].encode()
    tcp = struct.pack(">HHIIBBHHH", int(here[1]), int(there[1]), 1, 1, 0x50, 0x18, 1000, 0, 0) + payload
    pseudo = socket.inet_aton(here[0]) + socket.inet_aton(there[0]) + struct.pack(">BBH", 0, 6, len(tcp))
    data = pseudo + tcp + b"\0" * (len(tcp) % 2)
    total = sum(struct.unpack(">%dH" % (len(data) // 2), data))
    while total >> 16: total = (total & 0xffff) + (total >> 16)
    tcp = tcp[:16] + struct.pack(">H", ~total & 0xffff) + tcp[18:]
    ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(tcp), 1, 0, 64, 6, 0)
    packet = ip + socket.inet_aton(here[0]) + socket.inet_aton(there[0]) + tcp
    try:
        raw.sendto(packet, (there[0], 0))
    except OSError as error:
        print(error)
"""
    with guarded.lab.capture() as wire:
        guarded.lab.python(forge, *(",".join(pair) for pair in places), identity=CONTAINER_ROOT)
        assert wire.arrived(payload=f"forged for {free}".encode()), "the control"
        assert not wire.packets(0.2, payload=f"forged for {address}".encode())
    plain.close()
    assert talk.goes_on()


# -- deaths ------------------------------------------------------------------------------------------------------------
def test_e15_killed_it_is_closed_and_comes_back(tls: TlsSites, guarded: Place) -> None:
    one, _, address = ground(guarded, tls)
    talk = Talk(guarded, address, one)
    before = guarded.sidecar.relay_pid
    os.kill(before, signal.SIGKILL)
    assert talk.ending() in ("reset", "closed")
    tries = [("tls", address, one), ("tls", address, "evil.example.net")]
    assert words(guarded.lab, tries) == [one, "reset"], "whoever comes meanwhile waits for the next one"
    assert soon(lambda: relay(guarded) not in (0, before))
    assert "name guard ended by signal 9" in guarded.sidecar.log
    assert guarded.ask(one).addresses == [address], "DNS has not noticed"


def relay(place: Place) -> int:
    with contextlib.suppress(LabError):
        return place.sidecar.relay_pid
    return 0


def test_e15_while_it_stands_still_nothing_passes_and_dns_goes_on(tls: TlsSites, guarded: Place) -> None:
    one, other, address = ground(guarded, tls)
    pid = guarded.sidecar.relay_pid
    os.kill(pid, signal.SIGSTOP)
    try:
        sock = guarded.lab.open(address, 80)
        with guarded.lab.capture() as wire:
            sock.sendall(f"GET / HTTP/1.1\r\nHost: {one}\r\n\r\n".encode())
            assert not wire.packets(0.3, payload=one.encode())
        assert guarded.ask(other).addresses == [address]
        guarded.allow(one)
        assert guarded.sidecar.api("GET", "/healthz").status == 200
    finally:
        os.kill(pid, signal.SIGCONT)
    assert soon(lambda: words(guarded.lab, [("tls", address, one), ("tls", address, other)]) == [one, "reset"])


def test_e15_the_worker_dies_and_connections_go_on(tls: TlsSites, guarded: Place) -> None:
    one, other, address = ground(guarded, tls)
    kept, doomed = Talk(guarded, address, one), Talk(guarded, address, other)
    worker = guarded.sidecar.kill_worker()
    assert kept.goes_on()
    assert doomed.goes_on()
    guarded.sidecar.wait_ready()
    assert guarded.sidecar.worker_pid != worker
    assert soon(lambda: words(guarded.lab, [("tls", address, one), ("tls", address, "x.example.net")])
                == [one, "reset"])  # fmt: skip
    guarded.allow(one)
    assert doomed.ending() == "reset", "the next one judges what the one before let through"
    assert kept.goes_on()


def test_e15_all_of_it_dies_and_starts_again(tls: TlsSites, guarded: Place) -> None:
    """The standing rules lead to nobody: closed. The next life takes over the addresses, without their names."""
    one, _, address = ground(guarded, tls)
    guarded.sidecar.env["OPENSANDBOX_EGRESS_RULES"] = str(allow(one)).replace("'", '"')
    guarded.allow(one)
    guarded.teach(address, name=one)
    guarded.sidecar.kill()
    assert words(guarded.lab, [("tls", address, one), ("http", address, one)]) == ["refused"] * 2
    guarded.sidecar.restart()
    tries = [("tls", address, one), ("tls", address, "evil.example.net")]
    assert words(guarded.lab, tries) == [one, "reset"]
    assert guarded.sidecar.terminate() == 0
    assert words(guarded.lab, tries) == ["refused"] * 2


def test_e15_switched_on_by_a_restart_old_flows_count_as_new(tls: TlsSites, internet: Internet) -> None:
    """What was opened without the guard has shown its name to nobody."""
    with Place(internet) as place:
        one, other, address = ground(place, tls)
        talk = Talk(place, address, one)
        place.sidecar.kill()
        place.sidecar.env |= {"OPENSANDBOX_EGRESS_SNI": "enforce",
                              "OPENSANDBOX_EGRESS_RULES": str(allow(one, other)).replace("'", '"')}  # fmt: skip
        assert talk.goes_on()
        place.sidecar.restart()
        assert talk.ending() == "reset"
        _talks.pop().close()


# -- what it may, and how much -----------------------------------------------------------------------------------------
def test_e15_its_process_has_nothing(guarded: Place) -> None:
    lines = Path(f"/proc/{guarded.sidecar.relay_pid}/status").read_text().splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    links = [os.path.realpath(one) for one in Path(f"/proc/{guarded.sidecar.relay_pid}/fd").iterdir()]
    assert not [link for link in links if "memfd" in link], "policy and leases are none of its business"


def test_e15_a_flood_of_connections_starves_nobody(tls: TlsSites, guarded: Place) -> None:
    """Many that say nothing, half a hello or a denied name: DNS answers, memory is bounded, and then it is over."""
    one, _, address = ground(guarded, tls)
    flood = r"""
import socket, sys, time
held, made, end = [], 0, time.monotonic() + 3
say = [b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 100,
       b"GET / HTTP/1.1\r\nHost: evil.example.net\r\n\r\n"]
while time.monotonic() < end:
    sock = socket.socket()
    sock.settimeout(1)
    try:
        sock.connect((sys.argv[1], 443 if made % 3 == 1 else 80))
        sock.send(say[made % 3])
    except OSError:
        pass
    made += 1
    held.append(sock)
    if len(held) > 900: held.pop(0).close()
print(made)
"""
    before = held(guarded.sidecar.relay_pid)
    pid = guarded.sidecar.relay_pid
    program = guarded.lab.sandbox.popen(["python3", "-I", "-c", flood, address], identity=CONTAINER_ROOT, stdout=-1,
                                        text=True)  # fmt: skip
    while program.poll() is None:
        assert soon(lambda: answered(guarded, one, address))
        assert guarded.sidecar.api("GET", "/healthz", timeout=10).status == 200
        assert held(pid) - before < 64 << 20
    assert int(program.communicate()[0]) > 300, "the control: it was a flood"
    assert soon(lambda: words(guarded.lab, [("tls", address, one)]) == [one])
    assert guarded.sidecar.relay_pid == pid
    assert "unexpected" not in guarded.sidecar.log


def answered(place: Place, name: str, address: str) -> bool:
    with contextlib.suppress(LabError):
        return place.ask(name, timeout=2).addresses == [address]
    return False


def test_e15_a_server_that_cannot_be_reached_is_heard_of(guarded: Place) -> None:
    """The client's connection stands already when the server refuses: it is reset, which is as near as it gets."""
    name, address = guarded.name(), guarded.host()
    guarded.allow(name)
    guarded.teach(address, name=name)
    guarded.lab.internet.namespace.nft(
        "table inet lab_refusing {\nchain arriving {\ntype filter hook input priority 0;\n"
        f"ip daddr {address} tcp dport 80 reject with tcp reset\n}}\n}}\n"
    )
    try:
        begun = time.monotonic()
        assert words(guarded.lab, [("http", address, name)]) == ["reset"]
        assert time.monotonic() - begun < 20
    finally:
        guarded.lab.internet.namespace.nft("delete table inet lab_refusing\n")
    assert words(guarded.lab, [("http", address, name)]) == [name], "the control"
    told = [event for event in guarded.sidecar.events("egress.outbound") if event["action"] == "deny"]
    assert not told, "nothing was denied"
