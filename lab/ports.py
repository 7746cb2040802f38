"""Ports of the machine's own, for programs that have to be told theirs."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")  # ip(7)
_LOWEST = 10_000


def free_port() -> int:
    """A TCP port that nobody has, and that the kernel gives to nobody who asks for any: until it is used, no connection
    of a neighbour's takes it. Raises LookupError after a thousand that were taken."""
    first = int(_RANGE.read_text().split()[0])
    for _ in range(1000):
        port = random.randrange(_LOWEST, first) if first > _LOWEST else 0
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("", port))
            return int(sock.getsockname()[1])
    raise LookupError(f"no free port below {first}")
