"""A policy's address ranges, written into the verdict maps that the ruleset's text leaves empty.

libnftables reads and sorts some forty elements in a millisecond; put together here it is a thousand. Nobody looks into
a map before all of it is written: its rules are switched to later, or the namespace is shut meanwhile.

An interval is two elements, where it begins and where it no longer holds; the space before the first begins with such
an end, and one that runs to the last address has none (so nft writes them, and reads them back).

    linux/netfilter/nf_tables.h, NFTA_SET_ELEM_*
"""

from __future__ import annotations

from egress.firewall.devices import transact
from egress.firewall.nfnetlink import CREATE, INET, NEWSETELEM, attribute, nested, text, u32
from egress.firewall.tables import TABLE
from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence

    Interval = tuple[bytes, bytes, str]
    """First and last address, packed, and the verdict as text: `goto CHAIN` or `jump CHAIN`."""

CHUNK = 400  # intervals a message: one attribute holds 64 KiB, a socket's queue by itself thrice that
_CODES = {"jump": -3, "goto": -4}  # NFT_JUMP, NFT_GOTO
_END = u32(3, 1)  # NFTA_SET_ELEM_FLAGS: NFT_SET_ELEM_INTERVAL_END
_OPEN = attribute(6, b"\1\4\1\0\0\0")  # NFTA_SET_ELEM_USERDATA, for nft: to the last address


def fill(sock: socket.socket, maps: Mapping[str, Sequence[Interval]], suffix: str = "") -> None:
    """Write the intervals, disjoint and in order, into these maps; `suffix` is what this load's names end in. Raises
    FirewallError; some may be written then."""
    for name, intervals in maps.items():
        for body in messages(name, intervals, suffix):
            transact(sock, [(NEWSETELEM, CREATE, INET, body)])


def messages(name: str, intervals: Sequence[Interval], suffix: str = "") -> list[bytes]:
    """The bodies of the messages that fill a map."""
    size = len(intervals[0][0])
    head = text(1, TABLE) + text(2, name + suffix)
    key = nested(1, attribute(1, bytes(size)))[:-size]  # NFTA_SET_ELEM_KEY, but for the address itself
    verdicts: dict[str, bytes] = {}
    for _, _, verdict in intervals:
        if verdict not in verdicts:
            kind, chain = verdict.split()
            code = u32(1, _CODES[kind])
            verdicts[verdict] = nested(2, nested(2, code, text(2, chain + suffix)))
    begins = {verdict: (_element(size, len(data)) + key, data) for verdict, data in verdicts.items()}
    ending = _element(size, len(_END)) + key
    bodies = []
    for at in range(0, len(intervals), CHUNK):
        parts = []
        if at == 0 and any(intervals[0][0]):
            parts += [ending, bytes(size), _END]
        for first, last, verdict in intervals[at : at + CHUNK]:
            before, data = begins[verdict]
            end = following(last)
            if end is None:
                parts += [_element(size, len(data) + len(_OPEN)), key, first, data, _OPEN]
            else:
                parts += [before, first, data, ending, end, _END]
        bodies.append(head + nested(3, b"".join(parts)))
    return bodies


def following(packed: bytes) -> bytes | None:
    """The next address, None behind the last one."""
    number = int.from_bytes(packed, "big") + 1
    return None if number >> 8 * len(packed) else number.to_bytes(len(packed), "big")


def _element(size: int, rest: int) -> bytes:
    """The header of an element with a key of `size` octets and `rest` octets behind it."""
    whole = nested(1, bytes(8 + size + rest))
    return whole[:4]
