"""DNS: redirected whoever is asked; our own look-ups can be neither forged over loopback nor borrowed."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING

import pytest

from lab.client import NoReply
from tests.real.firewall import packets
from tests.real.firewall.conftest import EVERYTHING, RESOLVER, RESOLVER6, packed, part

if TYPE_CHECKING:
    from tests.real.firewall.conftest import Guarded

QUERY = b"\x12\x34\1\0\0\1\0\0\0\0\0\0\3api\7example\3com\0\0\1\0\1"


def serve_one(listener: socket.socket) -> tuple[bytes, tuple[str, int]]:
    """Take one query at the redirect's end and echo it as an answer."""
    query, client = listener.recvfrom(2048)
    listener.sendto(query[:2] + b"\x81\x83" + query[4:], client)
    return query, client


@pytest.mark.parametrize("server", [RESOLVER, "8.8.8.8", "127.0.0.11", "127.0.0.53", RESOLVER6, "2001:4860:4860::8888"])
def test_whoever_is_asked_the_listener_answers(guarded: Guarded, server: str) -> None:
    lab = guarded.lab
    for mode in ("dns+nft", "dns"):
        guarded.load(mode=mode)
        ipv6 = ":" in server
        listener = guarded.listeners["udp6" if ipv6 else "udp4"]
        with lab.sandbox.socket(socket.AF_INET6 if ipv6 else socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.settimeout(10)
            client.sendto(QUERY, (server, 53))
            query, _ = serve_one(listener)
            assert query == QUERY
            answer, source = client.recvfrom(2048)
            assert (answer[2:4], source[:2]) == (b"\x81\x83", (server, 53))
        stream = guarded.listeners["tcp6" if ipv6 else "tcp4"]
        with lab.sandbox.socket(socket.AF_INET6 if ipv6 else socket.AF_INET, socket.SOCK_STREAM) as client:
            client.settimeout(10)
            client.connect((server, 53))
            stream.accept()[0].close()
    assert not lab.dns.queries()


def test_dockers_resolver_has_no_other_port(guarded: Guarded) -> None:
    lab = guarded.lab
    with lab.sandbox.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
        server.bind(("127.0.0.11", 0))
        server.listen()
        port = server.getsockname()[1]
        assert lab.connect("127.0.0.11", port) == "connected"
        for mode in ("dns+nft", "dns"):
            guarded.load(mode=mode)
            assert lab.connect("127.0.0.11", port) == "refused"
        assert lab.connect("127.0.0.1", port) == "refused"  # nobody listens there: the host's word, not ours


def test_exempt_resolvers_are_asked_directly_on_port_53_alone(guarded: Guarded) -> None:
    lab = guarded.lab
    lab.dns.a("api.example.com", "198.51.100.10")
    guarded.load(exempt=(packed("9.9.9.9"), packed("2620:fe::9")))
    for server in ("9.9.9.9", "2620:fe::9"):
        assert lab.query("api.example.com", server=server).addresses == ["198.51.100.10"]
        assert lab.query("api.example.com", server=server, tcp=True).addresses == ["198.51.100.10"]
        assert lab.connect(server, 443) == "refused"
        assert lab.connect(server, 853) == "refused"
    assert {query.server for query in lab.dns.queries()} == {"9.9.9.9", "2620:fe::9"}


@pytest.mark.parametrize("resolver", [RESOLVER, RESOLVER6])
@pytest.mark.parametrize("port", [53, 5353])
def test_our_own_lookups_pass_and_are_not_tracked(guarded: Guarded, resolver: str, port: int) -> None:
    lab = guarded.lab
    lab.dns.a("api.example.com", "198.51.100.10")
    guarded.load(upstreams=((packed(resolver), port),))
    with guarded.firewall.udp(packed(resolver), port, guarded.exemption) as sock:
        sock.setblocking(True)
        sock.settimeout(10)
        sock.send(QUERY)
        if port == 53:
            assert sock.recv(512)[:2] == QUERY[:2]
        else:
            with pytest.raises(ConnectionRefusedError):  # nobody there, and we are told so by a tracked-less error
                sock.recv(512)
    if port == 53:
        with guarded.firewall.tcp(packed(resolver), port, guarded.exemption) as sock:
            sock.setblocking(True)
            sock.settimeout(10)
            sock.sendall(struct.pack(">H", len(QUERY)) + QUERY)
            assert sock.recv(512)
    assert not [flow for flow in guarded.flows() if flow.remote == packed(resolver) and flow.tracked]


# -- 5: forged answers -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("resolver", [RESOLVER, RESOLVER6])
@pytest.mark.parametrize("way", ["raw", "frame", "redirect"])
def test_5_an_answer_forged_over_loopback(guarded: Guarded, resolver: str, way: str) -> None:
    """The attacker has sniffed everything: address, port, id. The third way lets the sandbox ask the resolver from
    our socket's port: redirected, a reply of the listener's port comes back in the resolver's name, on `lo`."""
    lab = guarded.lab
    ipv6 = ":" in resolver
    mine = lab.link.sandbox6 if ipv6 else lab.link.sandbox
    local = "::1" if ipv6 else "127.0.0.1"
    forged = b"\x12\x34\x81\x80forged"

    def attempt() -> bool:
        with guarded.firewall.udp(packed(resolver), 53, guarded.exemption) as ours:
            port = ours.getsockname()[1]
            ours.send(QUERY)
            answer = packets.udp(resolver, 53, mine, port, forged)
            if way == "raw":
                packets.send_ip(lab, answer)
            elif way == "frame":
                kind = packets.IPV6 if ipv6 else packets.IPV4
                for bypass in (False, True):
                    packets.send_frame(lab, "lo", bytes(12) + struct.pack(">H", kind) + answer, bypass=bypass)
            else:
                listener = guarded.listeners["udp6" if ipv6 else "udp4"]
                packets.send_ip(lab, packets.udp(mine, port, resolver, 53, QUERY))
                try:
                    listener.recv(2048)
                except TimeoutError:
                    return False
                packets.send_ip(lab, packets.udp(local, listener.getsockname()[1], mine, port, forged))
            ours.setblocking(True)
            ours.settimeout(0.2)
            try:
                return forged in (ours.recv(512), ours.recv(512))  # the true answer comes too
            except OSError:
                return False

    for mode in ("dns+nft", "dns"):
        for has_socket_match in (True, False):
            guarded.load(mode=mode, has_socket_match=has_socket_match)
            assert not attempt(), (mode, has_socket_match)


@pytest.mark.parametrize("way", ["raw", "redirect"])
def test_5_each_of_these_answers_is_believed_by_a_socket_without_protection(guarded: Guarded, way: str) -> None:
    """The control: the rules that protect flushed, and a socket that isn't ours."""
    lab = guarded.lab
    guarded.load(mode="dns")
    lab.sandbox.sysctl({"net.ipv4.conf.all.accept_local": 1})
    for chain in ("raw_in", "input", "raw_out") if way == "raw" else ("input",):
        lab.sandbox.nft(f"table inet sallyport {{\n chain {chain} {{\n }}\n}}\nflush chain inet sallyport {chain}\n")
    forged = b"\x12\x34\x81\x80forged"
    with lab.sandbox.socket(socket.AF_INET, socket.SOCK_DGRAM) as ours:
        ours.connect((RESOLVER, 53))
        ours.settimeout(10)
        mine, port = ours.getsockname()
        if way == "raw":
            packets.send_ip(lab, packets.udp(RESOLVER, 53, mine, port, forged))
        else:
            listener = guarded.listeners["udp4"]
            packets.send_ip(lab, packets.udp(mine, port, RESOLVER, 53, QUERY))
            listener.recv(2048)
            packets.send_ip(lab, packets.udp("127.0.0.1", listener.getsockname()[1], mine, port, forged))
        assert ours.recv(512) == forged


# -- 6: source ports that collide ------------------------------------------------------------------------------------
@pytest.mark.parametrize("resolver", [RESOLVER, RESOLVER6])
@pytest.mark.parametrize("tcp", [False, True])
def test_6_a_query_from_the_port_that_ours_has_just_used(guarded: Guarded, resolver: str, tcp: bool) -> None:
    lab = guarded.lab
    lab.dns.a("api.example.com", "198.51.100.10")
    guarded.load()
    for _ in range(20):
        kind = "tcp" if tcp else "udp"
        with getattr(guarded.firewall, kind)(packed(resolver), 53, guarded.exemption) as ours:
            ours.setblocking(True)
            ours.settimeout(10)
            ours.send(struct.pack(">H", len(QUERY)) + QUERY if tcp else QUERY)
            assert ours.recv(512)
            port = ours.getsockname()[1]
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with pytest.raises(NoReply):
            lab.query("denied.example.net", server=resolver, source_port=port, timeout=0.05, tcp=tcp)
    assert not lab.dns.queries("denied.example.net")


def test_4_the_resolvers_address_earns_nothing(guarded: Guarded) -> None:
    lab = guarded.lab
    guarded.load()
    for resolver in (RESOLVER, RESOLVER6):
        assert lab.connect(resolver, 443) == "refused"
        assert lab.udp(resolver, 7) != "connected"
        assert lab.ping(resolver) != "connected"
    guarded.load(upstreams=((packed(RESOLVER), 5000),), plan=(part("203.0.113.0/24", allow=EVERYTHING),))
    assert lab.connect(RESOLVER, 5000) == "connected"  # a rule opens it, and its TCP works beside ours
    assert lab.udp(RESOLVER, 5000) == "connected"


def test_9_redirected_queries_are_forgotten_soon(guarded: Guarded) -> None:
    lab = guarded.lab
    guarded.load()

    def remembered() -> list[int]:
        """For how many seconds; on a busy machine one may be forgotten before it has been listed."""
        with lab.sandbox.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.sendto(QUERY, ("8.8.8.8", 53))
            guarded.listeners["udp4"].recv(2048)
        done = lab.sandbox.run(["conntrack", "-L", "-p", "udp", "--dport", "53"])
        return [int(line.split()[2]) for line in done.stdout.splitlines() if "dport=53" in line]

    seconds = next(filter(None, (remembered() for _ in range(20))), [])
    assert seconds
    assert max(seconds) <= 6
