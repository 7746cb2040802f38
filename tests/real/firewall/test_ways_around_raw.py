"""Ways around the filter for whoever kept CAP_NET_RAW; each works without the guard, or the test proves nothing."""

from __future__ import annotations

import select
import socket
import struct
import time
from typing import TYPE_CHECKING

import pytest

from tests.real.firewall import packets
from tests.real.firewall.conftest import EVERYTHING, RESOLVER, packed, part

if TYPE_CHECKING:
    from lab import Lab
    from tests.real.firewall.conftest import Guarded

TARGETS = pytest.mark.parametrize("target", ["198.51.100.66", "2001:db8:100::66"])
SO_MARK, SO_PRIORITY, SO_RCVMARK, SO_RCVPRIORITY = 36, 12, 75, 82


def here(lab: Lab, target: str) -> str:
    return lab.link.sandbox6 if ":" in target else lab.link.sandbox


# -- 1: packet sockets ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("bypass", [False, True])
@TARGETS
def test_1_a_packet_socket_on_the_device(guarded: Guarded, target: str, bypass: bool) -> None:
    lab = guarded.lab
    frame = packets.ethernet(lab, packets.udp(here(lab, target), 4444, target, 9, b"smuggled"))
    with lab.capture() as capture:
        packets.send_frame(lab, "eth0", frame, bypass=bypass)
        assert capture.arrived(payload=b"smuggled")
    guarded.firewall.lock()
    with lab.capture() as capture:
        for protocol in (0, packets.IPV4, packets.IPV6, packets.ARP, 3):
            packets.send_frame(lab, "eth0", frame, protocol, bypass=bypass)
        assert not capture.packets(0.2, payload=b"smuggled")
    guarded.load(default_allow=True)
    with lab.capture() as capture:
        for protocol in (0, packets.IPV4, packets.IPV6, packets.ARP, 3):
            packets.send_frame(lab, "eth0", frame, protocol, bypass=bypass)
        assert not capture.packets(0.2, payload=b"smuggled")


def test_1_other_frames(guarded: Guarded) -> None:
    """An ethertype of one's own, and ARP with a load, or for an address that isn't ours."""
    lab = guarded.lab
    mac, gateway = packets.hardware(lab), packets.hardware(lab, gateway=True)

    def arp(sender: str, load: bytes = b"") -> bytes:
        body = struct.pack(">HHBBH", 1, packets.IPV4, 6, 4, 1) + mac + packed(sender) + bytes(6)
        return gateway + mac + struct.pack(">H", packets.ARP) + body + packed(lab.link.gateway) + load

    own = arp(lab.link.sandbox, bytes(18))
    bad = [
        gateway + mac + b"\x88\xb5smuggled",
        arp(lab.link.sandbox, b"smuggled" * 20),
        arp("10.77.0.99", b"smuggled"),
    ]
    with lab.capture() as capture:
        for frame in bad:
            packets.send_frame(lab, "eth0", frame)
        assert len(capture.arrived(3, payload=b"smuggled")) == 3
    for start in (guarded.firewall.lock, guarded.load):
        start()
        with lab.capture() as capture:
            for frame in bad:
                packets.send_frame(lab, "eth0", frame)
                packets.send_frame(lab, "eth0", frame, packets.ARP)
            packets.send_frame(lab, "eth0", own)
            assert not capture.packets(0.2, payload=b"smuggled")
            assert packets.eventually(lambda: any(packet.frame == own for packet in capture.packets()))
            assert not capture.packets(payload=b"smuggled")


def test_1_a_device_that_comes_later(guarded: Guarded) -> None:
    """Behind a name that nobody expected: followed within an instant."""
    from egress.loop import Loop

    lab = guarded.lab
    guarded.load(default_allow=True)
    loop = Loop()
    guarded.firewall.follow(loop)
    lab.sandbox.ip("link", "add", "late7", "type", "veth", "peer", "name", "late8")

    def followed() -> bool:
        loop.call_later(0.05, loop.stop)
        loop.run()
        doors = lab.sandbox.run(["nft", "list", "table", "netdev", "sallyport"], check=True).stdout
        return "late7" in doors and "late8" in doors

    assert packets.eventually(followed)
    guarded.firewall.unwatch(loop)
    loop.run_in_thread(lambda: None, lambda *_: loop.stop())
    loop.run()  # behind what its thread was still to do: it would put back what is taken away below
    loop.close()
    for name in ("late7", "late8"):
        lab.sandbox.ip("link", "set", name, "up")
    for name in ("late7", "late8"):
        lab.sandbox.wait_running(name)
    with lab.sandbox.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as tap:
        tap.bind(("late8", 3))
        frame = b"\xff" * 6 + bytes(6) + b"\x88\xb5smuggled"
        packets.send_frame(lab, "late7", frame)

        def heard(seconds: float = 0.3) -> bool:
            tap.settimeout(seconds)
            try:
                while b"smuggled" not in tap.recv(2048):
                    pass  # neighbours of the new link talk too
            except TimeoutError:
                return False
            return True

        assert not heard()
        lab.sandbox.nft("delete table netdev sallyport\n")
        packets.send_frame(lab, "late7", frame)
        assert heard(10)


# -- 2: the stamp --------------------------------------------------------------------------------------------------
def test_2_the_stamp_cannot_be_read(guarded: Guarded) -> None:
    """By packet taps with a filter on the mark, nor by sockets that receive marks: on the device, on `lo`, and from
    the copies of multicast that the kernel loops back to the sender."""
    lab = guarded.lab
    spec = guarded.load(default_allow=True)

    def read() -> set[tuple[int, int]]:
        seen = set()
        with (
            lab.sandbox.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
            lab.sandbox.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
            lab.sandbox.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as tap,
        ):
            # BPF: accept packets whose mark is not zero (ld mark; jeq #0). linux/filter.h, SKF_AD_MARK.
            program = b"".join(
                struct.pack("=HBBI", *line)
                for line in ((0x20, 0, 0, 0xFFFFF000 + 20), (0x15, 0, 1, 0), (6, 0, 0, 0), (6, 0, 0, 0xFFFF))
            )
            import ctypes

            buffer = ctypes.create_string_buffer(program)
            tap.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HP", 4, ctypes.addressof(buffer)))
            while select.select([tap], [], [], 0)[0]:
                tap.recv(2048)  # what came before there was a filter
            for option in (SO_RCVMARK, SO_RCVPRIORITY):
                receiver.setsockopt(socket.SOL_SOCKET, option, 1)
            receiver.bind(("", 5353))
            for address in ("127.0.0.1", lab.link.sandbox):
                group = socket.inet_aton("239.1.2.3") + socket.inet_aton(address)
                receiver.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
                sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(address))
                sender.sendto(b"looped", ("239.1.2.3", 5353))
            sender.sendto(b"local", ("127.0.0.1", 5353))
            sender.sendto(b"local", (lab.link.sandbox, 5353))
            sender.sendto(b"out", ("198.51.100.10", 7))
            time.sleep(0.1)
            for _ in range(4):
                _, control, _, _ = receiver.recvmsg(100, 500)
                values = {kind: struct.unpack("=I", value)[0] for _, kind, value in control}
                seen.add((values.get(SO_MARK, 0), values.get(SO_PRIORITY, 0)))
            assert not select.select([receiver], [], [], 0)[0]
            while select.select([tap], [], [], 0)[0]:
                seen.add((tap.recv(2048)[:1][0], -1))
        return seen

    assert read() == {(0, 0)}
    # The same without what clears it, in `netdev` and in `prerouting`: it can be read.
    mark = f"meta mark {spec.stamp.mark:#x}"
    lab.sandbox.nft(
        f"flush chain netdev sallyport egress\nadd rule netdev sallyport egress {mark} accept\n"
        "flush chain inet sallyport cleared\n"
    )
    assert any(value[0] == spec.stamp.mark for value in read())


def test_2_the_stamp_cannot_be_set(guarded: Guarded) -> None:
    """Half of it is worth nothing, and the exemption's mark opens nothing but the resolver's port 53."""
    lab = guarded.lab
    frame = packets.ethernet(lab, packets.udp(lab.link.sandbox, 4444, "198.51.100.66", 9, b"smuggled"))
    spec = guarded.load()

    def attempt(mark: int, priority: int) -> bool:
        with lab.capture() as capture, lab.sandbox.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as sock:
            sock.setsockopt(socket.SOL_SOCKET, SO_MARK, struct.pack("=I", mark))
            sock.setsockopt(socket.SOL_SOCKET, SO_PRIORITY, struct.pack("=I", priority))
            try:
                sock.sendto(frame, ("eth0", 0))
            except OSError:
                pass
            return bool(capture.packets(0.1, payload=b"smuggled"))

    assert packets.eventually(attempt, spec.stamp.mark, spec.stamp.priority)  # the control: whoever knew all 64 bits
    assert not attempt(spec.stamp.mark, 0)
    assert not attempt(0, spec.stamp.priority)
    assert not attempt(spec.exemption.mark, spec.exemption.priority)
    assert guarded.firewall.unstamped() == 3
    guarded.firewall.restamp()
    assert not attempt(spec.stamp.mark, spec.stamp.priority)
    assert guarded.firewall.unstamped() == 4
    assert guarded.firewall.intact()
    before = guarded.load()
    after = guarded.load()
    guarded.firewall.sweep()  # until then both pass, for what is still under way
    assert not attempt(before.stamp.mark, before.stamp.priority)
    assert packets.eventually(attempt, after.stamp.mark, after.stamp.priority)
    guarded.learn("198.51.100.10")
    assert lab.connect("198.51.100.10", 80) == "connected"


def test_2_a_mark_earns_nothing_outside_the_resolvers_port(guarded: Guarded) -> None:
    lab = guarded.lab
    lab.dns.a("api.example.com", "198.51.100.10")
    guarded.load()

    def ask(address: str, port: int, mark: int, priority: int, seconds: float = 0.3) -> bool:
        with lab.sandbox.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, SO_MARK, struct.pack("=I", mark))
            sock.setsockopt(socket.SOL_SOCKET, SO_PRIORITY, struct.pack("=I", priority))
            sock.settimeout(seconds)
            try:
                sock.sendto(b"\0\1\1\0\0\1\0\0\0\0\0\0\3api\7example\3com\0\0\1\0\1", (address, port))
                return bool(sock.recv(512))
            except OSError:
                return False

    mark, priority = guarded.exemption
    assert ask(RESOLVER, 53, mark, priority, 10)
    assert not ask(RESOLVER, 53, mark, 0)
    assert not ask(RESOLVER, 53, mark ^ 1, priority)
    assert not ask(RESOLVER, 7, mark, priority)
    assert not ask("8.8.8.8", 53, mark, priority)


# -- 3: inbound flows forged over loopback -------------------------------------------------------------------------
@TARGETS
def test_3_an_inbound_flow_forged_over_loopback(guarded: Guarded, target: str) -> None:
    lab = guarded.lab
    mine = here(lab, target)

    def attempt() -> bool:
        """ "From" the target to a port here, over `lo`; then the answer, which would leave as a reply."""
        packet = packets.udp(target, 7, mine, 4444, b"knock")
        packets.send_ip(lab, packet)
        lo = bytes(12) + struct.pack(">H", packets.IPV6 if ":" in target else packets.IPV4) + packet
        packets.send_frame(lab, "lo", lo)
        packets.send_frame(lab, "lo", lo, bypass=True)
        family = socket.AF_INET6 if ":" in target else socket.AF_INET
        with lab.capture() as capture, lab.sandbox.socket(family, socket.SOCK_DGRAM) as sock:
            sock.bind((mine, 4444))
            try:
                sock.sendto(b"smuggled", (target, 7))
            except OSError:
                pass
            return bool(capture.packets(0.15, payload=b"smuggled"))

    guarded.load()
    assert not attempt()
    # Without the rules of the source and without the last door the same attempt gets out.
    for chain in ("raw_in", "raw_out"):
        lab.sandbox.nft(f"flush chain inet sallyport {chain}\n")
    lab.sandbox.nft("delete table netdev sallyport\n")
    lab.sandbox.sysctl({"net.ipv4.conf.all.accept_local": 1, "net.ipv4.conf.lo.accept_local": 1})
    assert packets.eventually(attempt)


# -- 4: forwarding -------------------------------------------------------------------------------------------------
@TARGETS
def test_4_a_frame_injected_on_lo_is_not_forwarded(guarded: Guarded, target: str) -> None:
    lab = guarded.lab
    lab.sandbox.sysctl(
        {
            "net.ipv4.ip_forward": 1,
            "net.ipv6.conf.all.forwarding": 1,
            "net.ipv4.conf.all.rp_filter": 0,
            "net.ipv4.conf.lo.rp_filter": 0,
            "net.ipv4.conf.lo.accept_local": 1,
        }
    )
    foreign = "fd99::7" if ":" in target else "10.99.0.7"
    kind = packets.IPV6 if ":" in target else packets.IPV4
    frame = bytes(12) + struct.pack(">H", kind) + packets.udp(foreign, 4444, target, 9, b"smuggled")

    def attempt() -> bool:
        with lab.capture() as capture:
            packets.send_frame(lab, "lo", frame)
            packets.send_frame(lab, "lo", frame, bypass=True)
            return bool(capture.packets(0.15, payload=b"smuggled"))

    assert packets.eventually(attempt)
    guarded.firewall.lock()
    assert not attempt()
    guarded.load(default_allow=True)
    assert not attempt()
    # Nor when it comes to `lo` in a way that the last door let pass: `forward` holds by itself.
    lab.sandbox.nft("delete table netdev sallyport\nflush chain inet sallyport raw_in\n")
    assert not attempt()


# -- spoofed sources, other shapes of packets ----------------------------------------------------------------------
@TARGETS
def test_a_spoofed_source_goes_nowhere(guarded: Guarded, target: str) -> None:
    lab = guarded.lab
    foreign = "fd99::7" if ":" in target else "10.99.0.7"

    def attempt(source: str) -> bool:
        with lab.capture() as capture:
            packets.send_ip(lab, packets.udp(source, 4444, target, 9, b"smuggled"))
            return bool(capture.packets(0.1, payload=b"smuggled"))

    assert packets.eventually(attempt, foreign)
    guarded.load(default_allow=True)
    assert packets.eventually(attempt, here(lab, target))
    assert not attempt(foreign)
    guarded.load()
    assert not attempt(here(lab, target))


def test_routing_headers_and_source_routes_go_nowhere(guarded: Guarded) -> None:
    """An allowed address must not be the first stop on the way to another one."""
    lab = guarded.lab
    via = socket.inet_aton("198.51.100.66")
    udp = struct.pack(">HHHH", 4444, 9, 16, 0) + b"smuggled"
    routed4 = packets.ip(lab.link.sandbox, "198.51.100.10", 17, udp, options=b"\x83\x07\x04" + via + b"\0")
    segment = struct.pack(">BBBBI", 17, 2, 2, 1, 0) + packed("2001:db8:100::66")
    routed6 = packets.ip(lab.link.sandbox6, "2001:db8:100::10", 43, segment + udp)

    def attempt(packet: bytes) -> bool:
        with lab.capture() as capture:
            packets.send_ip(lab, packet)
            return bool(capture.packets(0.1, payload=b"smuggled"))

    assert packets.eventually(attempt, routed4)
    assert packets.eventually(attempt, routed6)
    guarded.load(default_allow=True)
    assert not attempt(routed4)
    assert not attempt(routed6)


def test_neighbour_discovery_is_no_way_out(guarded: Guarded) -> None:
    """Its packets pass to neighbours, small; never to an address beyond them."""
    lab = guarded.lab

    def attempt(destination: str, hops: int, size: int) -> bool:
        body = struct.pack(">BBHI", 135, 0, 0, 0) + packed(destination) + b"smuggled" + bytes(size)
        with lab.capture() as capture, lab.sandbox.socket(socket.AF_INET6, socket.SOCK_RAW, 58) as sock:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, hops)
            try:
                sock.sendto(body, (destination, 0))
            except OSError:
                pass
            return bool(capture.packets(0.1, payload=b"smuggled"))

    assert packets.eventually(attempt, "2001:db8:100::66", 255, 0)
    guarded.load()
    assert packets.eventually(attempt, lab.link.gateway6, 255, 0)
    assert not attempt("2001:db8:100::66", 255, 0)
    assert not attempt(lab.link.gateway6, 64, 0)
    assert not attempt(lab.link.gateway6, 255, 200)


def test_ipv6_lives_on(guarded: Guarded) -> None:
    """Neighbours are found behind the guard, after their entries have gone."""
    lab = guarded.lab
    guarded.load(plan=(part("2001:db8:100::/48", allow=EVERYTHING), part("198.51.100.0/24", allow=EVERYTHING)))
    for _ in range(2):
        lab.sandbox.ip("neigh", "flush", "dev", "eth0")
        lab.internet.namespace.ip("neigh", "flush", "all")
        assert lab.connect("2001:db8:100::10", 80) == "connected"
        assert lab.connect("198.51.100.10", 80) == "connected"


@pytest.mark.parametrize("tcp", [False, True])
def test_fragments_are_judged_whole(guarded: Guarded, tcp: bool) -> None:
    lab = guarded.lab
    whole = packets.udp(lab.link.sandbox, 4444, "198.51.100.66", 9, b"smuggled" * 20)
    if tcp:
        whole = packets.tcp(lab.link.sandbox, 4444, "198.51.100.66", 9, 0x10, b"smuggled" * 20)
    head, body = whole[:20], whole[20:]
    pieces = []
    for at in range(0, len(body), 64):
        part_ = body[at : at + 64]
        flags = (0x2000 if at + 64 < len(body) else 0) | at // 8
        piece = head[:2] + struct.pack(">HHH", 20 + len(part_), 99, flags) + head[8:10] + b"\0\0" + head[12:]
        pieces.append(piece[:10] + struct.pack(">H", packets.checksum(piece)) + piece[12:] + part_)

    def attempt() -> bool:
        with lab.capture() as capture:
            for piece in pieces:
                packets.send_ip(lab, piece)
            return bool(capture.packets(0.1, payload=b"smuggled"))

    assert packets.eventually(attempt)
    guarded.load()
    assert not attempt()
