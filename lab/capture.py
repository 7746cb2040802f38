"""Seeing what really came over the wire: a packet socket at the internet's end.

The sandbox's own kernel can say that it sent, and its firewall that it dropped; this says what arrived. See packet(7).
"""

from __future__ import annotations

import socket
import struct
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Self

    from lab.namespace import Namespace

_ETH_P_ALL = 3
_IPV4, _IPV6 = 0x0800, 0x86DD
_OUTGOING = 4


class Packet(NamedTuple):
    """One frame. Addresses and ports are empty or 0 where the frame has none."""

    ethertype: int
    source: str
    destination: str
    protocol: int  # of IP: 1 ICMP, 6 TCP, 17 UDP, 58 ICMPv6
    source_port: int
    destination_port: int
    payload: bytes  # what follows the IP header
    frame: bytes


class Capture:
    """Records from `__init__` on; `packets` reads what has come. A context manager."""

    def __init__(self, namespace: Namespace) -> None:
        with namespace.entered():
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
        self._socket.setblocking(False)
        self._packets: list[Packet] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def packets(self, seconds: float = 0.0, *, destination: str | None = None, payload: bytes = b"") -> list[Packet]:
        """What arrived so far, after waiting `seconds` for more; only what goes to an address or holds some bytes."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                frame, origin = self._socket.recvfrom(65535)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    break
                time.sleep(0.005)
                continue
            # Frames on `lo` are the servers' own talk, and what goes out is their answers.
            if origin[2] != _OUTGOING and not origin[0].startswith("lo"):
                self._packets.append(dissect(frame))
        return [
            packet
            for packet in self._packets
            if destination in (None, packet.destination) and (not payload or payload in packet.frame)
        ]

    def arrived(self, least: int = 1, *, payload: bytes, seconds: float = 10.0) -> list[Packet]:
        """As `packets`, as soon as `least` of them are there: what is expected may take its time on a busy machine."""
        deadline = time.monotonic() + seconds
        while len(found := self.packets(payload=payload)) < least and time.monotonic() < deadline:
            time.sleep(0.005)
        return found


def dissect(frame: bytes) -> Packet:
    """An Ethernet frame, as far as it can be read."""
    ethertype = int.from_bytes(frame[12:14])
    source = destination = ""
    protocol, rest = 0, frame[14:]
    if ethertype == _IPV4 and len(rest) >= 20:
        protocol = rest[9]
        source, destination = (
            socket.inet_ntop(socket.AF_INET, rest[12:16]),
            socket.inet_ntop(socket.AF_INET, rest[16:20]),
        )
        rest = rest[(rest[0] & 15) * 4 :]
    elif ethertype == _IPV6 and len(rest) >= 40:
        protocol = rest[6]
        source, destination = (socket.inet_ntop(socket.AF_INET6, rest[at : at + 16]) for at in (8, 24))
        rest = rest[40:]
    ports = struct.unpack_from(">HH", rest) if protocol in (6, 17) and len(rest) >= 4 else (0, 0)
    return Packet(ethertype, source, destination, protocol, ports[0], ports[1], rest, frame)
