"""Shut: only loopback passes, by one small transaction of our own, before the lockdown's is even read.

A transaction's rules hold from its end on, but connection tracking wakes up while the kernel reads it. In between it
takes the next packet of a flow that is older than itself for the first of a new one. Comes that packet from outside,
the flow counts as opened there, and what the sandbox sends on it as replies. So first nothing comes and nothing goes,
by rules that need no tracking; the lockdown then takes the place of this table.

    linux/netfilter/nf_tables.h
"""

from __future__ import annotations

from egress.firewall.devices import transact
from egress.firewall.nfnetlink import (
    APPEND,
    CREATE,
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
from egress.firewall.tables import TABLE
from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

_HOOKS = {"input": 1, "forward": 2, "output": 3}  # NF_INET_LOCAL_IN, _FORWARD, _LOCAL_OUT
_DROP, _ACCEPT = 0, 1
_INTERFACE = {"input": 6, "output": 7}  # NFT_META_IIFNAME, NFT_META_OIFNAME
_VERDICT, _REGISTER = 0, 1  # NFT_REG_VERDICT, NFT_REG_1


def shut(sock: socket.socket) -> None:
    """Replace whatever the table holds. Raises FirewallError."""
    table = text(1, TABLE)
    changes = [(NEWTABLE, CREATE, INET, table), (DELTABLE, 0, INET, table), (NEWTABLE, CREATE, INET, table)]
    for name, number in _HOOKS.items():
        hook = nested(4, u32(1, number), u32(2, 0))
        changes.append((NEWCHAIN, CREATE, INET, table + text(3, name) + hook + u32(5, _DROP) + text(7, "filter")))
    for name, key in _INTERFACE.items():
        changes.append((NEWRULE, CREATE | APPEND, INET, table + text(2, name) + nested(4, *_accepts("lo", key))))
    transact(sock, changes)


def _accepts(interface: str, key: int) -> list[bytes]:
    """The expressions of a rule that accepts what this interface's name matches."""
    name = attribute(1, interface.encode().ljust(16, b"\0"))  # IFNAMSIZ
    verdict = nested(2, u32(1, _ACCEPT))
    return [
        _expression("meta", u32(1, _REGISTER), u32(2, key)),
        _expression("cmp", u32(1, _REGISTER), u32(2, 0), nested(3, name)),
        _expression("immediate", u32(1, _VERDICT), nested(2, verdict)),
    ]


def _expression(name: str, *data: bytes) -> bytes:
    return nested(1, text(1, name), nested(2, *data))
