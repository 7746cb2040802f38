"""Refused packets, as the ruleset logs them: NFLOG (linux/netfilter/nfnetlink_log.h), since `log` is silent in
containers. The kernel sends at most 200 a second; what overruns the socket is counted and lost, nothing waits for us.
"""

from __future__ import annotations

import errno
import struct
from typing import TYPE_CHECKING, NamedTuple

from egress.firewall.nfnetlink import ACK, NLMSG_ERROR, REQUEST, attribute, attributes, failure, message, messages
from egress.netns import NETLINK_NETFILTER

if TYPE_CHECKING:
    from collections.abc import Callable

    from egress.loop import Loop
    from egress.netns import Namespace

_PACKET, _CONFIG = 4 << 8, 4 << 8 | 1  # NFNL_SUBSYS_ULOG
_BIND = 1
_COPY_PACKET = 2
_SNAP = 128  # octets of each packet: headers, and IPv6's extensions
_FLUSH = 5  # hundredths of a second the kernel may gather
_EXTENSIONS = (0, 43, 44, 60, 135)
_PROTOCOLS = {1: "icmp", 6: "tcp", 17: "udp", 58: "icmpv6"}
BURST = 64  # datagrams read in one turn


class Denied(NamedTuple):
    """A packet that was refused; addresses packed, `port` the destination's, 0 where there is none."""

    protocol: str
    source: bytes
    destination: bytes
    port: int


class Reader:
    """The group's reader; `lost` counts overruns."""

    def __init__(self, namespace: Namespace, group: int) -> None:
        self.sock = namespace.netlink(NETLINK_NETFILTER, receive=1 << 18)
        self.lost = 0
        try:
            for body in (
                attribute(1, bytes([_BIND])),
                attribute(2, struct.pack(">IBx", _SNAP, _COPY_PACKET)),
                attribute(4, struct.pack(">I", _FLUSH)),
                attribute(5, struct.pack(">I", 16)),
            ):
                self._configure(body, group)
        except BaseException:
            self.sock.close()
            raise
        self.sock.setblocking(False)

    def close(self) -> None:
        self.sock.close()

    def _configure(self, body: bytes, group: int) -> None:
        self.sock.send(message(_CONFIG, REQUEST | ACK, 1, 0, body, group))
        for kind, _, _, answer in messages(self.sock.recv(8192)):
            if kind == NLMSG_ERROR:
                code = -int(struct.unpack_from("=i", answer)[0])
                if code:
                    raise failure(code, answer)

    def read(self) -> list[Denied]:
        """What came meanwhile; at most a burst's worth."""
        found = []
        for _ in range(BURST):
            try:
                data = self.sock.recv(1 << 16)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self.lost += 1
                continue
            for kind, _, _, body in messages(data):
                if kind == _PACKET:
                    payload = attributes(body, 4).get(9)
                    denied = parse(payload) if payload else None
                    if denied is not None:
                        found.append(denied)
        return found


def parse(packet: bytes) -> Denied | None:
    """The ends of an IP packet, of which only the beginning may be there; None for what isn't one."""
    if len(packet) >= 20 and packet[0] >> 4 == 4:
        at = (packet[0] & 15) * 4
        return _ends(packet, packet[9], packet[12:16], packet[16:20], at)
    if len(packet) >= 40 and packet[0] >> 4 == 6:
        number, at = packet[6], 40
        for _ in range(8):
            if number not in _EXTENSIONS or at + 8 > len(packet):
                break
            length = 8 if number == 44 else 8 * (packet[at + 1] + 1)
            number, at = packet[at], at + length
        return _ends(packet, number, packet[8:24], packet[24:40], at)
    return None


def _ends(packet: bytes, number: int, source: bytes, destination: bytes, at: int) -> Denied:
    port = int.from_bytes(packet[at + 2 : at + 4], "big") if number in (6, 17) else 0
    return Denied(_PROTOCOLS.get(number, str(number)), source, destination, port)


def watch(loop: Loop, namespace: Namespace, group: int, tell: Callable[[Denied], None]) -> Reader:
    """Call `tell` on the loop for each refused packet. Raises FirewallError or OSError where there is no NFLOG."""
    reader = Reader(namespace, group)

    def ready() -> None:
        for denied in reader.read():
            tell(denied)

    loop.add_reader(reader.sock.fileno(), ready)
    return reader
