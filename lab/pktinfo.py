"""UDP sockets that answer from the address they were asked at, though they are bound to none.

The internet namespace answers at every address, so its sockets are wildcards; without IP_PKTINFO the kernel would pick
the source of an answer itself, and conntrack would not know it for one. See ip(7), ipv6(7), linux/in.h.
"""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

_IP_PKTINFO = 8
_IPV6_RECVPKTINFO = 49
_IPV6_PKTINFO = 50
_IP_FREEBIND = 15
_IPV6_FREEBIND = 78
_SPACE = socket.CMSG_SPACE(20)


class Datagram(NamedTuple):
    data: bytes
    source: tuple[str, int]
    destination: str


def wildcard(family: int, port: int, kind: int = socket.SOCK_DGRAM) -> socket.socket:
    """A non-blocking socket on every address of one family; TCP sockets listen."""
    sock = socket.socket(family, kind)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    if kind == socket.SOCK_DGRAM:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVPKTINFO, 1)
            sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_FREEBIND, 1)
        else:
            sock.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
            sock.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
    sock.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", port))
    if kind == socket.SOCK_STREAM:
        sock.listen(1024)
    sock.setblocking(False)
    return sock


def receive(sock: socket.socket) -> Datagram:
    """One datagram with the address it was sent to. Raises BlockingIOError when there is none."""
    data, ancillary, _, source = sock.recvmsg(65535, _SPACE)
    destination = ""
    for level, kind, value in ancillary:
        if level == socket.IPPROTO_IP and kind == _IP_PKTINFO:
            destination = socket.inet_ntop(socket.AF_INET, value[8:12])
        elif level == socket.IPPROTO_IPV6 and kind == _IPV6_PKTINFO:
            destination = socket.inet_ntop(socket.AF_INET6, value[:16])
    return Datagram(data, (source[0], source[1]), destination)


def send(sock: socket.socket, data: bytes, source: str, destination: tuple[str, int]) -> None:
    """Send from `source`, which need not be an address of this host's."""
    if ":" in source:
        info = socket.inet_pton(socket.AF_INET6, source) + struct.pack("=i", 0)
        ancillary = [(socket.IPPROTO_IPV6, _IPV6_PKTINFO, info)]
    else:
        info = struct.pack("=i", 0) + socket.inet_pton(socket.AF_INET, source) + bytes(4)
        ancillary = [(socket.IPPROTO_IP, _IP_PKTINFO, info)]
    sock.sendmsg([data], ancillary, 0, destination)
