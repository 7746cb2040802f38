"""The words that all our tables are written in, and the place they are written for."""

from __future__ import annotations

from policies.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from egress.netns import Exemption

TABLE = "sallyport"
CUT_TABLE = "sallyport_cut"
SHUT_TABLE = "sallyport_shut"
ACCEPTED = 1 << 31
"""In the connection mark of every flow that any ruleset of ours has accepted: `flow_mark` has to contain it."""
RELAYED = 1 << 30
"""Beside `ACCEPTED` in the mark of a flow of the name guard's relay: `flow_mark` must not contain it."""
WHOLE = f"table inet {TABLE}\ndelete table inet {TABLE}\n"  # how every text that replaces the table begins
TOP = 2147483000  # a priority behind whoever else hooks there
ADDRESS = {4: "ipv4_addr", 6: "ipv6_addr"}
REFUSE = ["meta l4proto tcp reject with tcp reset", "reject with icmpx admin-prohibited"]


class Site(NamedTuple):
    """The namespace and kernel that a ruleset is written for."""

    # How packet sockets are held: "prefix" (all devices), "devices" (listed), "none". Or, where the last door is there
    # already: "standing" (its rules are replaced), "untouched".
    raw: str = "none"
    devices: tuple[str, ...] = ()
    own4: tuple[bytes, ...] = ()  # addresses that ARP may speak for
    onlink6: tuple[tuple[bytes, int], ...] = ()  # prefixes that neighbour discovery may go to
    log_group: int = 0  # NFLOG group of refused packets, 0 for none
    socket_match: bool = True  # the kernel has nft_socket; else our sockets' ports are noted as they send
    ct_timeout: bool = True  # the kernel has ct timeout objects
    ip_options: bool = True  # the kernel matches IPv4 options


class Inventory(NamedTuple):
    """What stands in our inet table."""

    base: frozenset[str]  # chains with a hook
    chains: frozenset[str]  # chains without one
    sets: frozenset[str]
    maps: frozenset[str]


def base_chain(hook: str, priority: int, policy: str, kind: str = "filter") -> str:
    """What makes a chain one that packets enter."""
    return f"type {kind} hook {hook} priority {priority}; policy {policy};"


def class_id(value: int) -> str:
    """A priority as nft writes them: two halves of 16 bits in hexadecimal."""
    return f"{value >> 16:x}:{value & 0xFFFF:x}"


def carries(secrets: Exemption) -> str:
    """Matches packets of this mark and priority."""
    return f"meta mark {secrets.mark:#010x} meta priority {class_id(secrets.priority)}"


def named_set(name: str, kind: str, elements: Sequence[str], flags: str = "") -> Iterable[str]:
    """A set's lines."""
    yield f"\tset {name} {{"
    yield f"\t\ttype {kind}"
    if flags:
        yield f"\t\tflags {flags}"
    if elements:
        yield "\t\telements = { " + ", ".join(elements) + " }"
    yield "\t}"


def gone(family: str, table: str) -> list[str]:
    """Take a table away, whether it is there or not: nft 1.0.6 has no `destroy`."""
    return [f"table {family} {table}", f"delete table {family} {table}"]
