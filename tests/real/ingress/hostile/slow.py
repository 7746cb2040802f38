"""Clients that have little room for what comes, or do not read at all."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

from tests.real.ingress.hostile.ground import PATIENCE

# More than the kernel takes from us for a client that does not read, so that a part of it stays with the gateway.
SIZE = 2 * int(Path("/proc/sys/net/ipv4/tcp_wmem").read_text().split()[2]) + (4 << 20)
ROOM = ["--buffer-bytes", str(SIZE)]


def slow(port: int, tls: bool) -> socket.socket:
    """A connection of somebody who has little room for what comes."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    sock.settimeout(PATIENCE)
    sock.connect(("127.0.0.1", port))
    if not tls:
        return sock
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(sock)


def broken_off(sock: socket.socket) -> bool:
    """Was it reset, as no whole answer ends? By the kernel's word (tcpi_state: TCP_CLOSE), with nothing read."""
    return bool(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == 7)
