"""Flows: which there are, cut for good, judged again by every load; 7 and 8 are ways around."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest

from egress.firewall import FirewallError
from lab.sites import STREAM_PORT
from tests.real.firewall import packets
from tests.real.firewall.conftest import EVERYTHING, packed, part

if TYPE_CHECKING:
    from egress.firewall.conntrack import Flow
    from egress.firewall.nflog import Denied
    from tests.real.firewall.conftest import Guarded

SITE = pytest.mark.parametrize("site", ["198.51.100.10", "2001:db8:100::10"])


def to(guarded: Guarded, site: str) -> list[Flow]:
    return [flow for flow in guarded.firewall.flows() if flow.remote == packed(site)]


def datagrams(guarded: Guarded, site: str) -> socket.socket:
    """A UDP socket whose peer keeps sending."""
    sock = guarded.lab.sandbox.socket(socket.AF_INET6 if ":" in site else socket.AF_INET, socket.SOCK_DGRAM)
    sock.settimeout(10)
    sock.connect((site, STREAM_PORT))
    sock.send(b"go")
    assert sock.recv(64)
    return sock


def hears(sock: socket.socket, seconds: float = 0.3) -> bool:
    """Whether anything comes still, after what is queued."""
    sock.setblocking(False)
    for _ in range(2):  # an error that waits is read before what is queued
        try:
            while sock.recv(65536):
                pass
        except OSError:
            pass
    sock.settimeout(seconds)
    try:
        return bool(sock.recv(64))
    except OSError:
        return False


def ended(sock: socket.socket) -> bool:
    """Whether whoever blocks in a read is told that it is over, behind what is queued."""
    sock.settimeout(10)
    try:
        while sock.recv(1 << 20):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def sends(guarded: Guarded, sock: socket.socket, site: str) -> bool:
    with guarded.lab.capture() as capture:
        for _ in range(2):  # an error that waits is told in place of sending
            try:
                sock.send(b"smuggled")
            except OSError:
                pass
        return bool(capture.packets(0.15, destination=site, payload=b"smuggled"))


@SITE
def test_flows_say_who_opened_them(guarded: Guarded, site: str) -> None:
    lab = guarded.lab
    spec = guarded.load()
    guarded.learn(site)
    stream = lab.open(site, STREAM_PORT)
    (flow,) = to(guarded, site)
    assert (flow.protocol, flow.remote_port, flow.outgoing) == ("tcp", STREAM_PORT, True)
    assert (flow.local_port, flow.mark) == (stream.getsockname()[1], spec.flow_mark)
    assert guarded.firewall.active() == {packed(site)}
    with lab.sandbox.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
        server.bind(("", 8080))
        server.listen()
        with lab.dial_in(8080) as client:
            (inbound,) = [flow for flow in guarded.firewall.flows() if flow.local_port == 8080]
            assert not inbound.outgoing
            assert inbound.remote == packed(client.getsockname()[0])
    assert guarded.firewall.active() == {packed(site)}


@SITE
def test_7_a_flow_that_was_cut_stays_cut_while_its_peer_goes_on(guarded: Guarded, site: str) -> None:
    lab = guarded.lab
    guarded.load()
    guarded.learn(site)
    stream = lab.open(site, STREAM_PORT)
    with datagrams(guarded, site) as udp:
        assert packets.eventually(hears, stream)
        assert packets.eventually(hears, udp)
        guarded.load()  # the address is gone from it
        doomed = to(guarded, site)
        assert {flow.protocol for flow in doomed} == {"tcp", "udp"}
        guarded.firewall.cut(doomed)
        assert ended(stream)
        for _ in range(3):
            assert not hears(udp)
            assert not sends(guarded, udp, site)
        assert not to(guarded, site)


@SITE
def test_a_cut_is_lifted_when_the_policy_allows_it_again(guarded: Guarded, site: str) -> None:
    guarded.load()
    guarded.learn(site)
    with datagrams(guarded, site) as udp:
        port = udp.getsockname()[1]
        guarded.load()
        guarded.firewall.cut(to(guarded, site))
        guarded.load(learned={0: [(packed(site), 60000)]})
        again = guarded.lab.sandbox.socket(udp.family, socket.SOCK_DGRAM)
        with again:
            udp.close()
            again.bind(("", port))
            again.connect((site, STREAM_PORT))
            assert not sends(guarded, again, site)
            (held,) = guarded.firewall.severed()
            assert (held.protocol, held.local_port, held.remote) == ("udp", port, packed(site))
            assert held.remote_port == STREAM_PORT
            guarded.firewall.lift([held, held])
            assert not guarded.firewall.severed()
            assert packets.eventually(sends, guarded, again, site)


@SITE
def test_7_taking_the_conntrack_entry_alone_would_not_do(guarded: Guarded, site: str) -> None:
    """The control: the peer's next datagram is a flow from outside, and the sandbox answers it."""
    guarded.load()
    guarded.learn(site)
    with datagrams(guarded, site) as udp:
        guarded.load()
        family = ["-f", "ipv6"] if ":" in site else []
        guarded.lab.sandbox.run(["conntrack", "-D", *family, "-p", "udp", "-d", site], check=True)
        assert packets.eventually(hears, udp)
        assert packets.eventually(sends, guarded, udp, site)


@SITE
def test_7_tcp_is_not_picked_up_in_mid_stream(guarded: Guarded, site: str) -> None:
    guarded.load()
    guarded.learn(site)
    stream = guarded.lab.open(site, STREAM_PORT)
    guarded.load()
    family = ["-f", "ipv6"] if ":" in site else []
    guarded.lab.sandbox.run(["conntrack", "-D", *family, "-p", "tcp", "-d", site], check=True)
    assert not sends(guarded, stream, site)
    assert not hears(stream)


@SITE
def test_8_flows_from_before(guarded: Guarded, site: str) -> None:
    """Opened before the first ruleset, some with connection tracking on already; cut when the policy says no."""
    lab = guarded.lab
    # An acknowledgement that is put off would come under the lockdown, which ends the flow of whoever says something.
    family, gateway = ("-6", lab.link.gateway6) if ":" in site else ("-4", lab.link.gateway)
    lab.sandbox.ip(family, "route", "change", "default", "via", gateway, "dev", "eth0", "quickack", "1")
    stream = lab.open(site, STREAM_PORT)
    other = "2001:db8:100::20" if ":" in site else "198.51.100.20"
    kept = lab.open(other, STREAM_PORT)
    with datagrams(guarded, site) as udp:
        guarded.firewall.lock()
        assert not hears(stream)
        guarded.load(plan=(part(other + ("/128" if ":" in site else "/32"), allow=EVERYTHING),))
        doomed = to(guarded, site)
        assert {(flow.protocol, flow.outgoing) for flow in doomed} == {("tcp", True), ("udp", True)}
        guarded.firewall.cut(doomed)
        assert ended(stream)
        assert not hears(udp)
        assert not sends(guarded, udp, site)
        assert packets.eventually(sends, guarded, kept, other)
        assert packets.eventually(hears, kept, 3)  # the peer's retransmissions have slowed down meanwhile


@SITE
def test_8_shut_before_connection_tracking_wakes_up(
    guarded: Guarded, site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes while the lockdown is being read would else be a flow from outside, which the sandbox answers."""
    lab = guarded.lab
    streams = [lab.open(site, STREAM_PORT) for _ in range(4)]
    seen: list[bool] = []
    loader = guarded.firewall._loader
    load = loader.load

    def slowly(write: Any, *rest: Any) -> None:
        seen.extend(hears(stream) for stream in streams)
        seen.append(sends(guarded, streams[0], site))
        seen.append(lab.connect(site, 80, timeout=0.3) == "connected")
        with lab.sandbox.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:  # loopback goes on
            sock.bind(("127.0.0.1", 0))
            sock.sendto(b"here", sock.getsockname())
            sock.settimeout(20)
            assert sock.recv(10) == b"here"
        assert not to(guarded, site) or all(not flow.tracked for flow in to(guarded, site))
        load(write, *rest)

    monkeypatch.setattr(loader, "load", slowly)
    assert packets.eventually(hears, streams[0])
    guarded.firewall.lock()
    assert seen
    assert not any(seen)
    assert not any(hears(stream, 0.1) for stream in streams)
    assert all(not flow.tracked or flow.outgoing for flow in to(guarded, site))


@SITE
def test_a_lockdown_that_the_kernel_refuses_leaves_it_shut(guarded: Guarded, site: str) -> None:
    lab = guarded.lab

    def refused(*_: object) -> None:
        raise FirewallError("refused")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guarded.firewall._loader, "load", refused)
        with pytest.raises(FirewallError):
            guarded.firewall.lock()
    assert guarded.firewall.standing() is None
    assert lab.connect(site, 80, timeout=0.5) != "connected"
    assert lab.udp(site, 7, timeout=0.5) != "connected"
    assert guarded.firewall.lock()
    assert lab.connect(site, 80) == "refused"


@SITE
def test_8_tracked_flows_from_before(guarded: Guarded, site: str) -> None:
    lab = guarded.lab
    chain = " chain c {\n  type filter hook output priority 0;\n  ct state new counter\n }\n"
    lab.sandbox.nft(f"table inet other {{\n{chain}}}\n")
    stream = lab.open(site, STREAM_PORT)
    with datagrams(guarded, site) as udp:
        guarded.firewall.lock()
        assert not sends(guarded, stream, site)
        assert not sends(guarded, udp, site)
        guarded.load()
        guarded.firewall.cut(to(guarded, site))
        assert not hears(udp)
        assert not hears(stream)


@SITE
def test_a_load_judges_living_flows_again(guarded: Guarded, site: str) -> None:
    lab = guarded.lab
    guarded.load()
    guarded.learn(site)
    stream = lab.open(site, 5000)
    stream.send(b"one")
    assert stream.recv(3) == b"one"
    guarded.load(learned={0: [(packed(site), 60000)]})
    stream.send(b"two")
    assert stream.recv(3) == b"two"
    guarded.load()
    assert not sends(guarded, stream, site)


@SITE
def test_a_flow_outlives_its_lease(guarded: Guarded, site: str) -> None:
    guarded.load()
    guarded.learn(site)
    stream = guarded.lab.open(site, 5000)
    guarded.learn(site, seconds=0.5)
    assert packets.eventually(lambda: guarded.lab.connect(site, 5000) == "refused")
    stream.send(b"still")
    assert stream.recv(5) == b"still"
    assert guarded.lab.connect(site, 5000) == "refused"


def test_refused_packets_are_told(guarded: Guarded) -> None:
    from egress.loop import Loop

    lab = guarded.lab
    guarded.load()
    loop = Loop()
    told: list[Denied] = []
    guarded.firewall.watch_denied(loop, told.append)
    lab.connect("198.51.100.10", 8080)
    lab.udp("2001:db8:100::10", 123)
    lab.ping("198.51.100.10")
    refused = {
        ("tcp", packed("198.51.100.10"), 8080),
        ("udp", packed("2001:db8:100::10"), 123),
        ("icmp", packed("198.51.100.10"), 0),
    }

    def seen() -> set[tuple[object, ...]]:
        loop.call_later(0.05, loop.stop)
        loop.run()
        return {(one.protocol, one.destination, one.port) for one in told}

    assert packets.eventually(lambda: refused <= seen()), told
    guarded.firewall.close()
    loop.close()
