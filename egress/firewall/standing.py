"""What stands in the kernel: is a table of ours there and whole, and which policy is it.

Read by netlink messages of our own, in a fraction of a millisecond: this decides at start whether to lock down, and
it is looked at again while serving, because somebody may remove tables that he takes for his.
"""

from __future__ import annotations

import sys

from egress.firewall.nfnetlink import (
    DUMP,
    GETCHAIN,
    GETSET,
    GETTABLE,
    INET,
    NETDEV,
    NFTABLES,
    NLMSG_ERROR,
    REQUEST,
    attributes,
    dump,
    failure,
    message,
    messages,
    text,
    u32,
)
from egress.firewall.tables import CUT_TABLE, TABLE, Inventory
from policies.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import _socket

_DORMANT = 0x1
_GETOBJ, _COUNTER = NFTABLES << 8 | 19, 1  # NFT_MSG_GETOBJ, NFT_OBJECT_COUNTER
_DROP, _ACCEPT = 0, 1
_ANONYMOUS, _MAP = 0x1, 0x8  # NFT_SET_*
_FORWARD, _OUTPUT = 2, 3  # NF_INET_*
_EGRESS = 1  # NF_NETDEV_EGRESS

CUT = INET | 0x100  # in a snapshot the family of the table that holds cut flows

Snapshot = dict[tuple[int, str], tuple[int, int, int]]
"""(family, chain) -> (hook, policy, rules and references) of every chain of ours; hook -1 for a chain without one."""


class Standing(NamedTuple):
    """An intact table of ours."""

    mode: str  # "dns+nft", "dns" or "lockdown"
    digest: str  # of its policy, as the load gave it
    raw: bool  # the last door stands too


def snapshot(sock: _socket.socket) -> Snapshot:
    """Our chains as they are. Raises FirewallError."""
    chains: Snapshot = {}
    for family in (INET, NETDEV):
        awake = {}
        for _, body in dump(sock, message(GETTABLE, DUMP, 1, family, b""), 1):
            fields = attributes(body)
            name = _text(fields.get(1))
            if name in (TABLE, CUT_TABLE) and not int.from_bytes(fields.get(2, b""), "big") & _DORMANT:
                awake[name] = family if name == TABLE else CUT
        for _, body in dump(sock, message(GETCHAIN, DUMP, 2, family, b""), 2):
            fields = attributes(body)
            known = awake.get(_text(fields.get(1)))
            if known is None:
                continue
            hook, policy = -1, _ACCEPT
            if 4 in fields:
                hook = int.from_bytes(attributes(fields[4])[1], "big")
                policy = int.from_bytes(fields.get(5, b"\1"), "big")
            chains[(known, _text(fields.get(3)))] = (hook, policy, int.from_bytes(fields.get(6, b""), "big"))
    return chains


def judge(chains: Snapshot) -> Standing | None:
    """The table that these chains make, or None when it isn't whole."""
    digest = next((name[7:] for family, name in chains if family == INET and name.startswith("policy_")), "")
    mode = next((name[5:].replace("_", "+") for family, name in chains if name.startswith("mode_")), "lockdown")
    output = chains.get((INET, "output"), (-1, _ACCEPT, 0))
    if not digest or output[0] != _OUTPUT or output[2] < 3 or (INET, "raw_out") not in chains:
        return None
    raw = chains.get((NETDEV, "egress"), (-1, _ACCEPT, 0))
    guarded = raw[0] == _EGRESS and raw[1] == _DROP and raw[2] > 0
    if mode != "dns":
        forward = chains.get((INET, "forward"), (-1, _ACCEPT, 0))
        if output[1] != _DROP or forward[:2] != (_FORWARD, _DROP):
            return None
    return Standing(mode, digest, guarded)


def inventory(sock: _socket.socket, chains: Snapshot) -> Inventory:
    """What of ours stands in the inet table, for `replacement.gently`. Raises FirewallError."""
    sets: list[str] = []
    maps: list[str] = []
    for _, body in dump(sock, message(GETSET, DUMP, 4, INET, b""), 4):
        fields = attributes(body)
        flags = int.from_bytes(fields.get(3, b""), "big")
        if _text(fields.get(1)) == TABLE and not flags & _ANONYMOUS:
            (maps if flags & _MAP else sets).append(_text(fields.get(2)))
    return Inventory(
        frozenset(name for (family, name), (hook, _, _) in chains.items() if family == INET and hook >= 0),
        frozenset(name for (family, name), (hook, _, _) in chains.items() if family == INET and hook < 0),
        frozenset(sets),
        frozenset(maps),
    )


def counter(sock: _socket.socket, family: int, name: str) -> int:
    """Packets that a named counter of our table has seen. Raises FirewallError (there is none)."""
    request = text(1, TABLE) + text(2, name) + u32(3, _COUNTER)
    sock.send(message(_GETOBJ, REQUEST, 3, family, request))
    for kind, _, _, body in messages(sock.recv(8192)):
        if kind == NLMSG_ERROR:
            raise failure(-int.from_bytes(body[:4], sys.byteorder, signed=True), body)
        data = attributes(body, 4).get(4, b"")
        return int.from_bytes(attributes(data).get(2, b""), "big")
    return 0


def _text(data: bytes | None) -> str:
    return data.rstrip(b"\0").decode(errors="replace") if data else ""
