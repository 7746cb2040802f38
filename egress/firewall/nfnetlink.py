"""nfnetlink messages: how they are put together and taken apart (linux/netfilter/nfnetlink.h, nf_tables.h).

All attributes are in network byte order; headers in the host's. Nothing here opens a socket.
"""

from __future__ import annotations

import errno
import os
import struct

from egress.firewall import FirewallError, SetFull
from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    import _socket
    from collections.abc import Iterator, Sequence

REQUEST, ACK, EXCL, DUMP, CREATE, APPEND = 0x1, 0x4, 0x200, 0x300, 0x400, 0x800
NLMSG_NOOP, NLMSG_ERROR, NLMSG_DONE = 1, 2, 3
BATCH_BEGIN, BATCH_END = 0x10, 0x11
NESTED = 0x8000
NFTABLES = 10  # NFNL_SUBSYS_NFTABLES
INET, NETDEV = 1, 5  # NFPROTO_*
(NEWTABLE, GETTABLE, DELTABLE, NEWCHAIN, GETCHAIN, DELCHAIN, NEWRULE, GETRULE, DELRULE) = (
    NFTABLES << 8 | number for number in range(9)
)
(NEWSET, GETSET, NEWSETELEM, GETSETELEM, DELSETELEM) = (NFTABLES << 8 | number for number in (9, 10, 12, 13, 14))

HEAD = struct.Struct("=IHHII")
_GENERIC = struct.Struct(">BBH")
_ATTR = struct.Struct("=HH")
_PAD = (b"", b"\0\0\0", b"\0\0", b"\0")


def attribute(kind: int, data: bytes) -> bytes:
    """One attribute, padded to four octets."""
    length = 4 + len(data)
    return _ATTR.pack(length, kind) + data + _PAD[length & 3]


def nested(kind: int, *attributes: bytes) -> bytes:
    """An attribute that holds attributes."""
    return attribute(kind | NESTED, b"".join(attributes))


def text(kind: int, value: str) -> bytes:
    """A NUL-terminated string."""
    return attribute(kind, value.encode() + b"\0")


def u32(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack(">I", value & 0xFFFFFFFF))


def message(kind: int, flags: int, sequence: int, family: int, body: bytes, resource: int = 0) -> bytes:
    """One nfnetlink message."""
    return HEAD.pack(20 + len(body), kind, flags | REQUEST, sequence, 0) + _GENERIC.pack(family, 0, resource) + body


def batch(messages: Sequence[tuple[int, int, int, bytes]], sequence: int) -> bytes:
    """(kind, flags, family, body) each, as one nf_tables transaction; the first message has number `sequence + 1`."""
    parts = [message(BATCH_BEGIN, 0, sequence, 0, b"", NFTABLES)]
    for kind, flags, family, body in messages:
        sequence += 1
        parts.append(message(kind, flags | ACK, sequence, family, body))
    parts.append(message(BATCH_END, 0, sequence + 1, 0, b"", NFTABLES))
    return b"".join(parts)


def attributes(body: bytes, at: int = 0, end: int | None = None) -> dict[int, bytes]:
    """Attributes by kind, flags of the kind removed; of equal kinds the last."""
    return dict(walk(body, at, end))


def walk(body: bytes, at: int = 0, end: int | None = None) -> Iterator[tuple[int, bytes]]:
    """(kind, data) in order; stops at what makes no sense."""
    stop = len(body) if end is None else end
    while at + 4 <= stop:
        length, kind = _ATTR.unpack_from(body, at)
        if length < 4 or at + length > stop:
            return
        yield kind & 0x3FFF, body[at + 4 : at + length]
        at += (length + 3) & ~3


def messages(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """(kind, flags, sequence, body after the netlink header) of each message of one datagram."""
    at = 0
    while at + 16 <= len(data):
        length, kind, flags, sequence, _ = HEAD.unpack_from(data, at)
        if length < 16:
            return
        yield kind, flags, sequence, data[at + 16 : at + length]
        at += (length + 3) & ~3


def dump(sock: _socket.socket, request: bytes, sequence: int) -> Iterator[tuple[int, bytes]]:
    """Send a dump request and yield (kind, body after nfgenmsg) of every message that answers it.

    Raises FirewallError; a dump that the kernel calls inconsistent (NLM_F_DUMP_INTR) is yielded all the same.
    """
    sock.send(request)
    while True:
        for kind, _, number, body in messages(sock.recv(1 << 17)):
            if number != sequence:
                continue
            if kind == NLMSG_DONE:
                return
            if kind == NLMSG_ERROR:
                code = -struct.unpack_from("=i", body)[0]
                if code == 0:
                    return
                raise failure(code, body)
            yield kind, body[4:]


def failure(code: int, body: bytes = b"") -> FirewallError:
    """The exception for an error number, with the kernel's extended words where the message carries some."""
    words = os.strerror(code)
    if len(body) >= 20:
        explained = attributes(body, 20).get(1)  # NLMSGERR_ATTR_MSG, right after the capped request
        if explained:
            words = words + ": " + explained.rstrip(b"\0").decode(errors="replace")
    return SetFull(words) if code == errno.ENFILE else KernelError(code, words)


class KernelError(FirewallError):
    """An error number of the kernel's, in `code`."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code
