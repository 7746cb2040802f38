"""The packet side: one ruleset per sandbox, written as text, loaded in one transaction, fed by small netlink messages.

ruleset.py     what has to hold, as text (pure)
shut.py        before anything else: nothing passes but loopback
nft.py         loads text through libnftables
intervals.py   a policy's address ranges: thousands of map elements in a few milliseconds
netlink.py     learned addresses: set elements in a few microseconds
conntrack.py   flows: listed, cut, their sockets destroyed
nflog.py       which packets were refused
guardhouse.py  all of it for one namespace
"""

from __future__ import annotations


class FirewallError(Exception):
    """The kernel, or the library in front of it, refused; the text is theirs."""


class SetFull(FirewallError):
    """A set has no room for another element (ENFILE)."""
