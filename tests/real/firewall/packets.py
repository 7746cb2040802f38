"""Frames and packets as an attacker with CAP_NET_RAW makes them."""

from __future__ import annotations

import ipaddress
import socket
import struct
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from lab import Lab

IPV4, IPV6, ARP = 0x0800, 0x86DD, 0x0806
SOL_PACKET, PACKET_QDISC_BYPASS = 263, 20  # linux/if_packet.h


def eventually(attempt: Callable[..., bool], *args: Any) -> bool:
    """What has to come in time: tried twenty times at least and for ten seconds, however busy the machine is."""
    deadline, tries = time.monotonic() + 10, 20
    while not (found := attempt(*args)) and (tries > 0 or time.monotonic() < deadline):
        tries -= 1
        time.sleep(0.01)
    return found


def checksum(data: bytes) -> int:
    """RFC 1071."""
    data += b"\0" * (len(data) & 1)
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def ip(source: str, destination: str, protocol: int, body: bytes, *, options: bytes = b"") -> bytes:
    """An IPv4 or IPv6 packet; the transport checksum at its place is filled in for UDP and TCP."""
    left, right = ipaddress.ip_address(source).packed, ipaddress.ip_address(destination).packed
    at = {17: 6, 6: 16}.get(protocol)
    if at is not None:
        pseudo = left + right + struct.pack(">II", len(body), protocol)
        value = checksum(pseudo + body) or 0xFFFF
        body = body[:at] + struct.pack(">H", value) + body[at + 2 :]
    if len(left) == 4:
        words = 5 + len(options) // 4
        head = struct.pack(">BBHHHBBH", 0x40 | words, 0, 4 * words + len(body), 7, 0, 64, protocol, 0) + left + right
        head += options
        return head[:10] + struct.pack(">H", checksum(head)) + head[12:] + body
    return struct.pack(">IHBB", 0x60000000, len(body), protocol, 64) + left + right + body


def udp(source: str, source_port: int, destination: str, port: int, payload: bytes) -> bytes:
    body = struct.pack(">HHHH", source_port, port, 8 + len(payload), 0) + payload
    return ip(source, destination, 17, body)


def tcp(source: str, source_port: int, destination: str, port: int, flags: int, payload: bytes = b"") -> bytes:
    body = struct.pack(">HHIIBBHHH", source_port, port, 1, 1, 0x50, flags, 8192, 0, 0) + payload
    return ip(source, destination, 6, body)


def hardware(lab: Lab, *, gateway: bool = False) -> bytes:
    """The Ethernet address of the sandbox's device, or of its gateway's."""
    if gateway:
        words: list[str] = []
        for _ in range(5):
            lab.ping(lab.link.gateway)  # so that the sandbox's neighbour table has it
            words = lab.sandbox.ip("neigh", "show", lab.link.gateway).split()
            if "lladdr" in words:
                break
        return bytes.fromhex(words[words.index("lladdr") + 1].replace(":", ""))
    words = lab.sandbox.ip("-o", "link", "show", "eth0").split()
    return bytes.fromhex(words[words.index("link/ether") + 1].replace(":", ""))


def ethernet(lab: Lab, packet: bytes, kind: int | None = None) -> bytes:
    """`packet` in a frame to the gateway. Before a lockdown: it asks for the gateway's address."""
    found = kind if kind is not None else (IPV4 if packet[0] >> 4 == 4 else IPV6)
    return hardware(lab, gateway=True) + hardware(lab) + struct.pack(">H", found) + packet


def send_frame(lab: Lab, device: str, frame: bytes, protocol: int = 0, *, bypass: bool = False) -> None:
    """Through a packet socket; what the kernel refuses is refused silently, as an attacker sees it."""
    with lab.sandbox.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as sock:
        if bypass:
            sock.setsockopt(SOL_PACKET, PACKET_QDISC_BYPASS, 1)
        try:
            sock.sendto(frame, (device, protocol))
        except OSError:
            pass


def send_ip(lab: Lab, packet: bytes) -> None:
    """Through a raw socket with a header of our own."""
    if packet[0] >> 4 == 4:
        with lab.sandbox.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as sock:
            _quietly(sock, packet, (socket.inet_ntoa(packet[16:20]), 0))
    else:
        with lab.sandbox.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_RAW) as sock:
            _quietly(sock, packet, (socket.inet_ntop(socket.AF_INET6, packet[24:40]), 0))


def _quietly(sock: socket.socket, packet: bytes, address: tuple[str, int]) -> None:
    try:
        sock.sendto(packet, address)
    except OSError:
        pass
