"""DNS record data in wire form, for the lab's own server.

Written apart from `egress.dns.wire` on purpose: a server that shared the sidecar's code would share its mistakes.
Sources: RFC 1035 §3.3, RFC 2782 (SRV), RFC 9460 §2.2 (SVCB, HTTPS).
"""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

TYPES = {
    "A": 1,
    "NS": 2,
    "CNAME": 5,
    "SOA": 6,
    "NULL": 10,
    "PTR": 12,
    "MX": 15,
    "TXT": 16,
    "AAAA": 28,
    "SRV": 33,
    "NAPTR": 35,
    "DNAME": 39,
    "OPT": 41,
    "SSHFP": 44,
    "RRSIG": 46,
    "TLSA": 52,
    "SVCB": 64,
    "HTTPS": 65,
    "AXFR": 252,
    "ANY": 255,
    "CAA": 257,
}
RCODES = {"NOERROR": 0, "FORMERR": 1, "SERVFAIL": 2, "NXDOMAIN": 3, "NOTIMP": 4, "REFUSED": 5}
SVCB_KEYS = {"mandatory": 0, "alpn": 1, "port": 3, "ipv4hint": 4, "ech": 5, "ipv6hint": 6, "dohpath": 7}


def type_number(rtype: str | int) -> int:
    """`"A"`, `"TYPE65"` or 1 as a number."""
    if isinstance(rtype, int):
        return rtype
    name = rtype.upper()
    return int(name[4:]) if name.startswith("TYPE") else TYPES[name]


def type_name(number: int) -> str:
    """1 as `"A"`; what has no name here as `"TYPE65280"`."""
    return next((name for name, value in TYPES.items() if value == number), f"TYPE{number}")


def encode_name(name: str) -> bytes:
    """Labels, uncompressed; `""` is the root. Latin-1, so that any octet can be had."""
    labels = [label.encode("latin-1") for label in name.rstrip(".").split(".") if label]
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"


def address(text: str) -> tuple[int, bytes]:
    """An address as (record type, data)."""
    if ":" in text:
        return TYPES["AAAA"], socket.inet_pton(socket.AF_INET6, text)
    return TYPES["A"], socket.inet_pton(socket.AF_INET, text)


def soa(zone: str, minimum: int) -> bytes:
    """An SOA whose last field is the negative TTL (RFC 2308 §4)."""
    numbers = struct.pack(">5I", 2024010101, 7200, 3600, 1209600, minimum)
    return encode_name(f"ns.{zone}") + encode_name(f"hostmaster.{zone}") + numbers


def mx(preference: int, exchange: str) -> bytes:
    return struct.pack(">H", preference) + encode_name(exchange)


def txt(*strings: str | bytes) -> bytes:
    parts = [part.encode("latin-1") if isinstance(part, str) else part for part in strings]
    return b"".join(bytes([len(part)]) + part for part in parts)


def srv(priority: int, weight: int, port: int, target: str) -> bytes:
    return struct.pack(">3H", priority, weight, port) + encode_name(target)


def svcb(priority: int, target: str, parameters: Mapping[str | int, bytes] | None = None) -> bytes:
    """SVCB or HTTPS data; parameters by name or number, in key order whatever order they come in."""
    numbered = {SVCB_KEYS[key] if isinstance(key, str) else key: value for key, value in (parameters or {}).items()}
    body = b"".join(struct.pack(">HH", key, len(numbered[key])) + numbered[key] for key in sorted(numbered))
    return struct.pack(">H", priority) + encode_name(target) + body
