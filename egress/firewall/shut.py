"""Shut: only loopback passes, by one small transaction of our own, before anything else is read or imported.

A transaction's rules hold from its end on, but connection tracking wakes up while the kernel reads it. In between it
takes the next packet of a flow that is older than itself for the first of a new one. Comes that packet from outside,
the flow counts as opened there, and what the sandbox sends on it as replies. So first nothing comes and nothing goes,
by rules that need no tracking, in a table of its own. Behind it the ruleset is read and becomes complete, interval
sets and all; then that table is taken away (`reopen`). Whoever dies in between leaves it shut.

At the start of `egress serve` this is the lockdown: a hundredth of a second after the interpreter has begun. Nothing
is imported here that it has not loaded by then, but for the C module of sockets.

    linux/netfilter/nf_tables.h
"""

from __future__ import annotations

import _socket
import struct

from egress.firewall import FirewallError
from egress.firewall.devices import LIKELY, bar, transact
from egress.firewall.nfnetlink import (
    APPEND,
    CREATE,
    DELRULE,
    DELTABLE,
    INET,
    NEWCHAIN,
    NEWRULE,
    NEWTABLE,
    attribute,
    nested,
    text,
    u32,
)
from egress.firewall.standing import judge, snapshot
from egress.firewall.tables import SHUT_TABLE, TABLE

_HOOKS = {"input": 1, "forward": 2, "output": 3}  # NF_INET_LOCAL_IN, _FORWARD, _LOCAL_OUT
_DROP, _ACCEPT = 0, 1
_INTERFACE = {"input": 6, "output": 7}  # NFT_META_IIFNAME, NFT_META_OIFNAME
_VERDICT, _REGISTER = 0, 1  # NFT_REG_VERDICT, NFT_REG_1
_ADDRESS_TYPE, _SOURCE, _LOCAL = 3, 1, 2  # NFT_FIB_RESULT_ADDRTYPE, NFTA_FIB_F_SADDR, RTN_LOCAL
_SOCK_CLOEXEC, _NETFILTER = 0o2000000, 12


_kept: list[_socket.socket] = []


def at_once() -> None:
    """Shut this process's namespace, unless an intact table of ours guards it. Raises FirewallError, OSError."""
    sock = _socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW | _SOCK_CLOEXEC, _NETFILTER)
    _kept.append(sock)  # closing it after a change waits for the kernel's clean-up, some 20 ms
    sock.bind((0, 0))
    close_up(sock, [name for _, name in _socket.if_nameindex()])


def close_up(sock: _socket.socket, present: list[str]) -> None:
    """Shut the namespace of this socket, with these devices, unless an intact table of ours guards it. Raises
    FirewallError."""
    if not guarded(sock):
        shut(sock)
        close_door(sock, present)


def guarded(sock: _socket.socket) -> bool:
    """Does an intact table of ours stand, its last door too? Raises FirewallError."""
    found = judge(snapshot(sock))
    return found is not None and (found.raw or found.mode == "dns")


def shut(sock: _socket.socket) -> None:
    """In the place of whatever our table holds. Where it is shut already it stays so throughout. Raises
    FirewallError."""
    ours, table = text(1, TABLE), text(1, SHUT_TABLE)
    changes = [(NEWTABLE, CREATE, INET, ours), (DELTABLE, 0, INET, ours), (NEWTABLE, CREATE, INET, table)]
    for name, number in _HOOKS.items():
        hook = nested(4, u32(1, number), u32(2, 0))
        changes.append((NEWCHAIN, CREATE, INET, table + text(3, name) + hook + u32(5, _DROP) + text(7, "filter")))
    for name, key in _INTERFACE.items():
        changes.append((DELRULE, 0, INET, table + text(2, name)))
        changes.append((NEWRULE, CREATE | APPEND, INET, table + text(2, name) + nested(4, *_loopback(key))))
    transact(sock, changes)


def close_door(sock: _socket.socket, present: list[str]) -> None:
    """Nothing leaves by a packet socket either, where the kernel can hold these; the ruleset that comes will say so
    where it cannot."""
    outward = [name for name in present if name != "lo"]
    for names in (dict.fromkeys([*outward, *LIKELY]), outward):
        try:
            bar(sock, list(names))
            return
        except FirewallError:
            pass  # before Linux 6.16 no names of devices that are to come, before 5.16 none at all


def reopen(sock: _socket.socket) -> None:
    """The ruleset that stands is complete: it decides. Raises FirewallError."""
    table = text(1, SHUT_TABLE)
    transact(sock, [(NEWTABLE, CREATE, INET, table), (DELTABLE, 0, INET, table)])


def _loopback(key: int) -> list[bytes]:
    """The expressions of a rule that accepts what stays inside, and speaks for nobody outside: connection tracking may
    be awake, and would believe it."""
    return [
        *_equal(_expression("meta", u32(1, _REGISTER), u32(2, key)), b"lo".ljust(16, b"\0")),  # IFNAMSIZ
        *_equal(
            _expression("fib", u32(1, _REGISTER), u32(2, _ADDRESS_TYPE), u32(3, _SOURCE)), struct.pack("=I", _LOCAL)
        ),
        _expression("immediate", u32(1, _VERDICT), nested(2, nested(2, u32(1, _ACCEPT)))),
    ]


def _equal(load: bytes, value: bytes) -> tuple[bytes, bytes]:
    return load, _expression("cmp", u32(1, _REGISTER), u32(2, 0), nested(3, attribute(1, value)))


def _expression(name: str, *data: bytes) -> bytes:
    return nested(1, text(1, name), nested(2, *data))
