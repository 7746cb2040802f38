"""The last door's base chain, on every device: what text cannot say, and what a standing chain says about itself.

A netdev chain names its devices. Linux 6.16 and later take a name's prefix instead, and the empty prefix is every
device, present and future; nft before 1.1.6 cannot write that, and worse: it drops a chain it cannot read, finds the
rules of that chain without their home, and reads the ruleset again, for ever. So where people list rulesets with such
an nft, the chain names devices, also some that are likely to come, and is extended the moment another one appears.
"""

from __future__ import annotations

import errno
import struct

from egress.firewall.nfnetlink import (
    CREATE,
    DELTABLE,
    DUMP,
    GETCHAIN,
    NETDEV,
    NEWCHAIN,
    NEWTABLE,
    NLMSG_ERROR,
    KernelError,
    attribute,
    attributes,
    batch,
    dump,
    failure,
    message,
    messages,
    nested,
    text,
    u32,
    walk,
)
from egress.firewall.tables import TABLE, TOP
from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    import _socket
    from collections.abc import Sequence

LIKELY = ("eth0", "eth1", "eth2", "eth3", "net0", "net1", "net2", "tap0", "tun0")  # bound when they appear, Linux 6.16
MOST = 240  # devices a chain takes: NFT_NETDEVICE_MAX, less room to spare
_EGRESS = 1  # NF_NETDEV_EGRESS
_MSG_DONTWAIT = 0x40
_HOOKNUM, _PRIORITY, _DEVICES = 1, 2, 4  # NFTA_HOOK_*
_NAME, _PREFIX = 1, 2  # NFTA_DEVICE_*


def _hook(*devices: bytes) -> bytes:
    return nested(4, u32(_HOOKNUM, _EGRESS), u32(_PRIORITY, TOP), nested(_DEVICES, *devices))


def bar(sock: _socket.socket, names: Sequence[str]) -> None:
    """A last door that nothing passes, on these devices, in the place of ours. Raises KernelError."""
    table = text(1, TABLE)
    hook = _hook(*[text(_NAME, name) for name in names[:MOST]])
    transact(
        sock,
        [
            (NEWTABLE, CREATE, NETDEV, table),
            (DELTABLE, 0, NETDEV, table),
            (NEWTABLE, CREATE, NETDEV, table),
            (NEWCHAIN, CREATE, NETDEV, table + text(3, "egress") + hook + u32(5, 0) + text(7, "filter")),
        ],
    )


def make_prefix_chain(sock: _socket.socket) -> bool:
    """Make the chain for all devices, dropping everything until text fills it. False: this kernel knows no prefix."""
    chain = text(1, TABLE) + text(3, "egress")
    body = chain + _hook(attribute(_PREFIX, b"\0")) + u32(5, 0) + text(7, "filter")
    try:
        transact(sock, [(NEWTABLE, CREATE, NETDEV, text(1, TABLE)), (NEWCHAIN, CREATE, NETDEV, body)])
    except KernelError as error:
        if error.code in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOENT):
            return False
        raise
    return True


def covered(sock: _socket.socket) -> frozenset[str]:
    """The devices that the standing chain names: what the kernel says, since a device that went took its hook along
    (before Linux 6.16). Raises FirewallError."""
    found = frozenset[str]()
    for _, body in dump(sock, message(GETCHAIN, DUMP, 3, NETDEV, b""), 3):  # to its end, or the rest is read next
        fields = attributes(body)
        if (fields.get(1), fields.get(3)) == (TABLE.encode() + b"\0", b"egress\0") and 4 in fields:
            listed = attributes(fields[4]).get(_DEVICES, b"")
            found = frozenset(name.rstrip(b"\0").decode() for kind, name in walk(listed) if kind == _NAME)
    return found


def cover(sock: _socket.socket, names: Sequence[str]) -> bool:
    """Put these devices behind the standing chain too (Linux 6.5), if there is one: making it anew would drop what
    passes meanwhile on all the others. Raises FirewallError."""
    there = covered(sock)
    for name in names:
        if there and name not in there:
            body = text(1, TABLE) + text(3, "egress") + _hook(text(_NAME, name))
            transact(sock, [(NEWCHAIN, 0, NETDEV, body)])
    return bool(there)


def transact(sock: _socket.socket, changes: Sequence[tuple[int, int, int, bytes]]) -> None:
    """(kind, flags, family, body) each, as one transaction. Raises KernelError."""
    sock.send(batch(changes, 1))
    trouble = None
    while True:
        try:
            data = sock.recv(65536, _MSG_DONTWAIT)
        except BlockingIOError:
            break
        for kind, _, _, body in messages(data):
            if kind == NLMSG_ERROR:
                code = -int(struct.unpack_from("=i", body)[0])
                if code and trouble is None:
                    trouble = failure(code, body)
    if trouble is not None:
        raise trouble
