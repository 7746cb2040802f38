"""DNS from the client's side: queries built by hand, answers read by dnslib (so that ours are judged by other code)."""

from __future__ import annotations

import struct
from typing import Any

import dnslib

from lab import rdata

_EDE = 15  # RFC 8914 §2


def build_query(
    name: str, qtype: str | int, ident: int, edns: int | None = 1232, options: bytes = b"", *, flags: int = 0x0100
) -> bytes:
    """A query with one question, class IN."""
    header = struct.pack(">6H", ident, flags, 1, 0, 0, int(edns is not None))
    question = rdata.encode_name(name) + struct.pack(">HH", rdata.type_number(qtype), 1)
    opt = b"" if edns is None else struct.pack(">BHHIH", 0, rdata.TYPES["OPT"], edns, 0, len(options)) + options
    return header + question + opt


class Reply:
    """An answer. `record` is dnslib's view of it, for whatever is not here; `raw` the octets."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.record: Any = dnslib.DNSRecord.parse(raw)

    def __repr__(self) -> str:
        return f"Reply({self.rcode}, {self.answers}, ede={self.ede})"

    @property
    def rcode(self) -> str:
        """`"NOERROR"`, `"NXDOMAIN"`, …"""
        code = self.record.header.rcode
        return next((name for name, number in rdata.RCODES.items() if number == code), str(code))

    @property
    def truncated(self) -> bool:
        return bool(self.record.header.tc)

    @property
    def answers(self) -> list[tuple[str, str, int, str]]:
        """The answer section: (owner without the last dot, type, TTL, data as dnslib prints it)."""
        return [
            (str(one.rname).rstrip("."), rdata.type_name(one.rtype), one.ttl, str(one.rdata)) for one in self.record.rr
        ]

    @property
    def addresses(self) -> list[str]:
        """A and AAAA data, in order."""
        return [data for _, rtype, _, data in self.answers if rtype in ("A", "AAAA")]

    @property
    def ttls(self) -> list[int]:
        return [ttl for _, _, ttl, _ in self.answers]

    @property
    def negative_ttl(self) -> int | None:
        """What the absence may be cached for: the SOA's TTL or its last field (RFC 2308 §5); None without one."""
        for one in self.record.auth:
            if one.rtype == rdata.TYPES["SOA"]:
                return int(min(one.ttl, one.rdata.times[4]))
        return None

    @property
    def edns(self) -> bool:
        return any(one.rtype == rdata.TYPES["OPT"] for one in self.record.ar)

    @property
    def ede(self) -> tuple[int, str] | None:
        """The extended error: (code, text)."""
        for one in self.record.ar:
            if one.rtype == rdata.TYPES["OPT"]:
                for option in one.rdata:
                    if option.code == _EDE:
                        return int.from_bytes(option.data[:2]), bytes(option.data[2:]).decode()
        return None
