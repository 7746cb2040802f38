"""The names that clients write into a ClientHello or a Host header, and what is wrong with some. Pure."""

from __future__ import annotations

import re

_NAME = re.compile(rb"[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*")
_NUMBER = re.compile(rb"[0-9]+|0x[0-9a-f]*")
_LONGEST = 253  # octets of a name, RFC 1035 2.3.4


class Refused(Exception):
    """What a client said cannot be let through; the text is the reason, safe to print."""


def canonical(written: bytes, what: str) -> str:
    """A host name in lower case, with the octets that the DNS side lets questions have. `what` says where it stood.

    Raises Refused. A name whose last label is a number is an address to some reader (`0x7f.1`, `2130706433`).
    """
    name = written.lower()
    if not name:
        raise Refused(f"the {what} is empty")
    if name[:1] == b"[" or b":" in name or _NUMBER.fullmatch(name.rpartition(b".")[2]):
        raise Refused(f"the {what} is an address")
    if len(name) > _LONGEST or not _NAME.fullmatch(name):
        raise Refused(f"the {what} is no host name")
    return name.decode("ascii")
