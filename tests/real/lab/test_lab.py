"""The lab by itself, with no guard in it: every control arrives, so what a guarded test misses was stopped."""

from __future__ import annotations

import os
import socket
import time

import pytest

from lab import CONTAINER_ROOT, CONTAINER_ROOT_WITHOUT_RAW, NOBODY, SIDECAR, Internet, Lab, LabError
from lab.client import NoReply
from lab.network import METADATA, METADATA6, PUBLIC_RESOLVER, PUBLIC_RESOLVER6, RESOLVER6
from lab.sites import STREAM_PORT

EVERYWHERE = ["198.51.100.10", METADATA, "10.99.0.10", "100.64.0.1", "192.0.2.7", "2001:db8:100::10", METADATA6]


@pytest.mark.parametrize("address", EVERYWHERE)
def test_every_address_answers(lab: Lab, address: str) -> None:
    assert lab.connect(address, 80) == "connected"
    assert lab.connect(address, 81) == "refused"
    assert lab.udp(address, 7) == "connected"
    assert lab.udp(address, 9) == "refused"
    assert lab.ping(address) == "connected"
    assert {one.address for one in lab.sites.arrivals()} == {address}


@pytest.mark.parametrize("server", ["203.0.113.53", RESOLVER6, PUBLIC_RESOLVER, PUBLIC_RESOLVER6])
@pytest.mark.parametrize("tcp", [False, True])
def test_every_resolver_answers_and_says_who_was_asked(lab: Lab, server: str, tcp: bool) -> None:
    lab.dns.chain(["www.example.com", "edge.example.net"], "198.51.100.10", "2001:db8:100::10", ttl=77)
    reply = lab.query("wWw.example.com", server=server, tcp=tcp)
    assert reply.answers == [
        ("wWw.example.com", "CNAME", 77, "edge.example.net."),
        ("edge.example.net", "A", 77, "198.51.100.10"),
    ]
    assert lab.query("www.example.com", "AAAA", server=server, tcp=tcp).addresses == ["2001:db8:100::10"]
    (first, second) = lab.dns.queries("www.example.com")
    assert (first.name, first.server, first.transport) == ("wWw.example.com", server, "tcp" if tcp else "udp")
    assert second.qtype == "AAAA"


def test_a_zone_has_wildcards_absences_and_generated_names(lab: Lab) -> None:
    lab.dns.a("*.wild.example.com", "198.51.100.20")
    lab.dns.a("own.wild.example.com", "198.51.100.30")
    lab.dns.generate("many.example.com", "198.18.0.0/15")
    assert lab.query("deep.er.wild.example.com").addresses == ["198.51.100.20"]
    assert lab.query("own.wild.example.com").addresses == ["198.51.100.30"]
    assert lab.query("a.many.example.com").addresses != lab.query("b.many.example.com").addresses
    absent = lab.query("absent.example.com")
    assert (absent.rcode, absent.negative_ttl) == ("NXDOMAIN", 30)
    nodata = lab.query("own.wild.example.com", "MX")
    assert (nodata.rcode, nodata.answers, nodata.negative_ttl) == ("NOERROR", [], 30)
    assert lab.query("own.wild.example.com", edns=None).edns is False


def test_a_server_misbehaves_when_told_and_only_then(lab: Lab) -> None:
    lab.dns.a("api.example.com", "198.51.100.10")
    lab.dns.behave("api.example.com", rcode="SERVFAIL", times=1)
    assert lab.query("api.example.com").rcode == "SERVFAIL"
    assert lab.query("api.example.com").addresses == ["198.51.100.10"]
    lab.dns.behave("api.example.com", truncate=True)
    assert lab.query("api.example.com").truncated
    assert lab.query("api.example.com", tcp=True).addresses == ["198.51.100.10"]
    lab.dns.behave("api.example.com", drop=True)
    with pytest.raises(NoReply) as silent:
        lab.query("api.example.com", timeout=0.1)
    assert silent.value.outcome == "timeout"
    lab.dns.behave("api.example.com", delay=0.1)
    asked = time.monotonic()
    assert lab.query("api.example.com").addresses
    assert time.monotonic() - asked >= 0.1
    lab.dns.behave("api.example.com", extra=[("other.example.net", "A", 60, bytes(4))])
    assert lab.query("api.example.com").answers[1] == ("other.example.net", "A", 60, "0.0.0.0")
    lab.dns.normal("api.example.com")
    assert len(lab.query("api.example.com").answers) == 1


def test_a_big_answer_is_cut_over_udp_and_whole_over_tcp(lab: Lab) -> None:
    lab.dns.a("big.example.com", *(f"198.51.100.{n}" for n in range(200)))
    assert lab.query("big.example.com").truncated
    assert len(lab.query("big.example.com", tcp=True).addresses) == 200


@pytest.mark.parametrize("forge", ["id", "case", "question", "port", "source"])
def test_a_forgery_comes_first_and_the_truth_after(lab: Lab, forge: str) -> None:
    lab.dns.a("api.example.com", "198.51.100.10")
    lab.dns.behave("api.example.com", forge=forge)
    heard: list[tuple[bytes, tuple[str, int]]] = []
    with lab.sandbox.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(20)
        query = bytes.fromhex("123401000001000000000000") + b"\3aPi\7example\3com\0\0\1\0\1"
        sock.sendto(query, ("203.0.113.53", 53))
        while len(heard) < 2:
            heard.append(sock.recvfrom(4096))
    (lie, from_liar), (truth, from_server) = heard
    assert from_server == ("203.0.113.53", 53)
    assert truth[:2] == query[:2]
    assert truth[12:33] == query[12:33]
    assert socket.inet_aton("198.51.100.66") in lie
    assert (lie[:2] != query[:2]) == (forge == "id")
    assert (lie[12:33] != query[12:33]) == (forge in ("case", "question"))
    assert (from_liar != from_server) == (forge in ("port", "source"))


def test_a_fetch_by_name_reaches_the_site(lab: Lab) -> None:
    lab.dns.a("api.example.com", lab.site("web"))
    fetched = lab.fetch("api.example.com", "/hello")
    assert fetched.ok
    assert fetched.response is not None
    assert fetched.response.headers["x-site"] == "web"
    assert [one.port for one in lab.sites.arrivals("http")] == [80]


@pytest.mark.parametrize("address", ["198.51.100.10", "2001:db8:100::10"])
def test_some_peers_keep_sending(lab: Lab, address: str) -> None:
    stream = lab.open(address, STREAM_PORT)
    with lab.sandbox.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.settimeout(20)
        udp.connect((address, STREAM_PORT))
        udp.send(b"go")
        first, later = [udp.recv(64) for _ in range(2)]
    assert int(later) == int(first) + 1
    assert stream.recv(9) == b"00000000\n"
    assert stream.recv(9) == b"00000001\n"


@pytest.mark.parametrize(
    ("reject", "outcome"),
    [
        ("reject with tcp reset", "refused"),
        ("reject with icmpx admin-prohibited", "admin-prohibited"),
        ("reject with icmpx host-unreachable", "unreachable"),
        ("drop", "timeout"),
    ],
)
@pytest.mark.parametrize("address", ["198.51.100.10", "2001:db8:100::10"])
def test_what_a_firewall_says_is_heard(lab: Lab, address: str, reject: str, outcome: str) -> None:
    lab.sandbox.nft(f"table inet t {{ chain o {{ type filter hook output priority 0; tcp dport 80 {reject}; }}; }}")
    assert lab.connect(address, 80, timeout=0.3) == outcome
    assert lab.connect(address, 443) == "connected"


@pytest.mark.parametrize("address", ["198.51.100.10", "2001:db8:100::10"])
def test_what_a_firewall_says_to_datagrams_is_heard(lab: Lab, address: str) -> None:
    prohibited = "reject with icmpx admin-prohibited"
    chain = f"meta l4proto {{ icmp, icmpv6 }} counter; udp dport 7 {prohibited}; udp dport 123 drop"
    lab.sandbox.nft(f"table inet t {{ chain o {{ type filter hook output priority 0; {chain}; }}; }}")
    assert lab.udp(address, 7) == "admin-prohibited"
    assert lab.udp(address, 123, timeout=0.3) == "dropped"
    assert lab.udp(address, 5000) == "connected"


def test_a_capture_sees_what_no_socket_accepts(lab: Lab) -> None:
    with lab.capture() as capture:
        lab.udp("192.0.2.99", 40000, payload=b"nobody listens here")
        (packet,) = capture.arrived(payload=b"nobody listens")
    assert (packet.destination, packet.protocol, packet.destination_port) == ("192.0.2.99", 17, 40000)
    assert packet.source == lab.link.sandbox


ATTEMPTS = """
import errno, os, socket
def attempt(function):
    try:
        function()
        return "yes"
    except PermissionError:
        return "no"
def mark():
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).setsockopt(socket.SOL_SOCKET, 36, 1)
print(os.getuid(), attempt(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)), attempt(mark))
"""


@pytest.mark.parametrize(
    ("identity", "said"),
    [
        (CONTAINER_ROOT, "0 yes yes"),  # since Linux 5.17 NET_RAW is enough for SO_MARK
        (CONTAINER_ROOT_WITHOUT_RAW, "0 no no"),
        (SIDECAR, "0 no yes"),
        (NOBODY, "65534 no no"),
    ],
)
def test_identities_hold_what_they_say(lab: Lab, identity: object, said: str) -> None:
    done = lab.python(ATTEMPTS, identity=identity)  # type: ignore[arg-type]
    assert (done.stdout.strip(), done.stderr) == (said, "")
    assert lab.run(["nft", "list", "ruleset"], identity=CONTAINER_ROOT).returncode != 0


def test_a_lab_without_ipv6_has_none_even_on_loopback(internet: Internet) -> None:
    with Lab(internet, ipv6=False) as lab:
        assert lab.connect("198.51.100.10", 80) == "connected"
        assert lab.connect("2001:db8:100::10", 80) == "unreachable"
        assert lab.connect("::1", 80) == "unreachable"


def test_the_internet_can_call_the_sandbox(lab: Lab) -> None:
    with lab.sandbox.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind(("", 8080))
        listener.listen()
        with lab.dial_in(8080) as caller:
            taken, peer = listener.accept()
            taken.close()
            assert peer == caller.getsockname()


def test_nothing_is_left_behind(internet: Internet) -> None:
    with Lab(internet) as lab:
        sleeper = lab.sandbox.popen(["sleep", "60"])
        path = lab.sandbox.path
        assert path.exists()
    assert sleeper.returncode is not None
    assert not path.exists()
    outside = os.stat("/proc/self/ns/net").st_ino

    def fail_inside() -> None:
        nonlocal path
        with Lab(internet) as lab, lab.sandbox.entered():
            path = lab.sandbox.path
            assert os.stat("/proc/self/ns/net").st_ino != outside
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        fail_inside()
    assert not path.exists()
    assert os.stat("/proc/self/ns/net").st_ino == outside


def test_a_failing_command_is_quoted(lab: Lab) -> None:
    with pytest.raises(LabError, match="nosuch"):
        lab.sandbox.ip("link", "show", "nosuch")
    with pytest.raises(LabError, match="syntax error"):
        lab.sandbox.nft("add nonsense")


def test_stranger_misbehaviour(lab: Lab) -> None:
    lab.dns.chain(["www.example.com", "edge.example.net"], "198.51.100.10")
    lab.dns.behave("www.example.com", no_chain=True)
    assert [rtype for _, rtype, _, _ in lab.query("www.example.com").answers] == ["CNAME"]
    lab.dns.behave("www.example.com", only=[("www.example.com", "A", 9, bytes([192, 0, 2, 1]))])
    assert lab.query("www.example.com").answers == [("www.example.com", "A", 9, "192.0.2.1")]
    lab.dns.behave("www.example.com", truncate_full=True)
    both = lab.query("www.example.com")
    assert both.truncated
    assert both.addresses == ["198.51.100.10"]
    lab.dns.behave("www.example.com", raw=b"..junk", times=1)
    assert (
        lab.client.query_raw(b"\1\2" + bytes([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]) + b"\3www\7example\3com\0\0\1\0\1")[2:]
        == b"junk"
    )
    lab.dns.behave("absent.example.com", no_soa=True)
    assert lab.query("absent.example.com").negative_ttl is None
    lab.dns.behave("www.example.com", rcode="NXDOMAIN", no_edns=True)
    reply = lab.query("www.example.com")
    assert (reply.rcode, reply.edns, reply.addresses) == ("NXDOMAIN", False, ["198.51.100.10"])
    lab.dns.behave("www.example.com", close=True)
    with pytest.raises(NoReply) as closed:
        lab.query("www.example.com", tcp=True)
    assert closed.value.outcome == "refused"
    lab.dns.remove("edge.example.net")
    lab.dns.normal("www.example.com")
    assert lab.query("www.example.com").rcode == "NXDOMAIN"
    assert lab.dns.count() == len(lab.dns.queries()) > 0


def test_a_source_port_can_be_chosen_and_is_seen(lab: Lab) -> None:
    lab.dns.a("api.example.com", "198.51.100.10")
    lab.query("api.example.com", source_port=45454, ident=0x1234, options=bytes.fromhex("000a00080102030405060708"))
    (seen,) = lab.dns.queries()
    assert (seen.port, seen.ident, seen.client, seen.size) == (45454, 0x1234, lab.link.sandbox, 1232)
    assert seen.options == bytes.fromhex("000a00080102030405060708")
