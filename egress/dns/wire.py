"""DNS messages on the hot path: queries read, replies written (RFC 1035, 2308, 6891, 8914). Pure.

What a sandbox sends is read strictly: a message that is not exactly one question is refused, never guessed at. What it
gets back is written anew from the records that were allowed; no byte of a resolver's message is passed on as it came.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

HEADER = struct.Struct("!HHHHHH")
_QTAIL = struct.Struct("!HH")
_RR = struct.Struct("!HHIH")
_OPT = struct.Struct("!BHHIH")

IN, OPT, SOA = 1, 41, 6
FORMERR, SERVFAIL, NXDOMAIN, NOTIMP, REFUSED, BADVERS = 1, 2, 3, 4, 5, 16
SIZE = 1232  # the UDP size we offer and use (DNS flag day 2020)
_PLAIN = re.compile(rb"[a-z0-9_.-]*").fullmatch
_DOTS = bytes(46 if i < 64 else i for i in range(256))
_QR, _RD, _RA, _TC, _CD = 0x8000, 0x0100, 0x0080, 0x0200, 0x0010


class WireError(ValueError):
    """A message that is not what it has to be."""


class Query(NamedTuple):
    """A well-formed question of a client."""

    id: int
    flags: int  # the header's second word as sent
    name: str  # lower case, no trailing dot, "" for the root; octets beyond [a-z0-9_-] as \\DDD
    qtype: int
    question: bytes  # the question section as sent, case kept: the reply repeats it
    edns: bool
    size: int  # octets of UDP payload that the client takes
    plain: bool  # only letters, digits, hyphens and underscores


class Record(NamedTuple):
    """One record of class IN; `owner` canonical as `Query.name`, `rdata` without compression."""

    owner: str
    rtype: int
    ttl: int  # seconds
    rdata: bytes


# -- names ---------------------------------------------------------------------------------------------------------
_PLAIN_OCTETS = b"abcdefghijklmnopqrstuvwxyz0123456789-_"
_ESCAPED = re.compile(r"\\(\d{3})")


def name_text(labels: list[bytes]) -> tuple[str, bool]:
    """Labels as canonical text, and whether all of it is plain."""
    joined = b".".join(labels).lower()
    if len(joined.translate(None, _PLAIN_OCTETS)) == len(labels) - 1 or not labels:
        return joined.decode("ascii"), True
    parts = [
        "".join(chr(octet) if octet in _PLAIN_OCTETS else f"\\{octet:03d}" for octet in label.lower())
        for label in labels
    ]
    return ".".join(parts), False


def encode_name(name: str) -> bytes:
    """Canonical text as uncompressed labels. Raises WireError for what no name can be."""
    if not name:
        return b"\0"
    parts = []
    for label in name.split("."):
        raw = label.encode("ascii", "replace")
        if "\\" in label:
            raw = _ESCAPED.sub(lambda found: chr(int(found[1]) & 255), label).encode("latin-1")
        if not 0 < len(raw) < 64:
            raise WireError(f"{name[:80]!r} has a label of {len(raw)} octets")
        parts.append(bytes((len(raw),)) + raw)
    wire = b"".join(parts) + b"\0"
    if len(wire) > 255:
        raise WireError(f"{name[:80]!r}... is too long for a name")
    return wire


# -- queries -------------------------------------------------------------------------------------------------------
def parse_query(data: bytes) -> Query | bytes | None:
    """A client's message: the query, the error reply it gets, or None where the only answer is silence."""
    length = len(data)
    if length < 12 or data[2] & 0x80:
        return None
    ident, flags, questions, answers, authorities, additionals = HEADER.unpack_from(data)
    if flags & 0x7800:
        return HEADER.pack(ident, _QR | (flags & 0x7900) | NOTIMP, 0, 0, 0, 0)
    if questions != 1 or answers or authorities or additionals > 1:
        return _bad(ident, flags)
    labels = []
    at = 12
    try:
        while size := data[at]:
            if size > 63:
                return _bad(ident, flags)
            labels.append(data[at + 1 : at + 1 + size])
            at += size + 1
    except IndexError:
        return _bad(ident, flags)
    end = at + 5
    if at > 266 or end > length:
        return _bad(ident, flags)
    joined = b".".join(labels).lower()
    if len(joined.translate(None, _PLAIN_OCTETS)) == len(labels) - 1:
        name, plain = joined.decode(), True
    else:
        name, plain = name_text(labels)
    edns = False
    udp = 512
    extended = 0
    if additionals:
        if length < end + 11:
            return _bad(ident, flags)
        root, rtype, udp, extended, options = _OPT.unpack_from(data, end)
        if root or rtype != OPT or end + 11 + options != length:
            return _bad(ident, flags)
        edns = True
        if udp < 512:
            udp = 512
    elif length != end:
        return _bad(ident, flags)
    query = Query(ident, flags, name, data[at + 1] << 8 | data[at + 2], data[12:end], edns, udp, plain)
    if extended >> 16 & 0xFF:  # an EDNS version that does not exist yet (RFC 6891 §6.1.3)
        return _head(query, 0, 0, 0, 1) + query.question + _OPT.pack(0, OPT, SIZE, BADVERS >> 4 << 24, 0)
    if data[at + 3] or data[at + 4] != IN:
        return error(query, REFUSED)
    return query


def _bad(ident: int, flags: int) -> bytes:
    return HEADER.pack(ident, _QR | (flags & _RD) | FORMERR, 0, 0, 0, 0)


# -- replies -------------------------------------------------------------------------------------------------------
_PLAIN_OPT = _OPT.pack(0, OPT, SIZE, 0, 0)
EDE_TEXT = 200  # octets of an EDE's text


def _head(query: Query, rcode: int, answers: int, authorities: int, additionals: int) -> bytes:
    flags = _QR | _RA | (query.flags & (_RD | _CD)) | rcode
    return HEADER.pack(query.id, flags, 1, answers, authorities, additionals)


def _explained(code: int, text: str) -> bytes:
    """An OPT record with an Extended DNS Error (RFC 8914 §2)."""
    note = "".join(c if c.isprintable() else "?" for c in text).encode()[:EDE_TEXT].decode(errors="ignore").encode()
    return _OPT.pack(0, OPT, SIZE, 0, 6 + len(note)) + struct.pack("!HHH", 15, 2 + len(note), code) + note


def _opt(query: Query, code: int | None, text: str) -> bytes:
    if not query.edns:
        return b""
    return _PLAIN_OPT if code is None else _explained(code, text)


def error(query: Query, rcode: int, ede: int | None = None, text: str = "") -> bytes:
    """A reply without records."""
    opt = _opt(query, ede, text)
    return _head(query, rcode, 0, 0, 1 if opt else 0) + query.question + opt


_SOA_TAIL = encode_name("guard.invalid") + encode_name("hostmaster.guard.invalid")


def _soa(ttl: int) -> bytes:
    """An SOA at the asked name itself, so that stub resolvers know how long to remember (RFC 2308 §5)."""
    rdata = _SOA_TAIL + struct.pack("!IIIII", 1, 3600, 600, 86400, ttl)
    return struct.pack("!HHHIH", 0xC00C, SOA, IN, ttl, len(rdata)) + rdata


def denied(query: Query, ttl: int, ede_code: int, text: str) -> bytes:
    """NXDOMAIN that may be remembered for `ttl` seconds; the reason as EDE where the client understands that."""
    opt = _opt(query, ede_code, text)
    return _head(query, NXDOMAIN, 0, 1, 1 if opt else 0) + query.question + _soa(ttl) + opt


def nodata(query: Query, ttl: int, ede_code: int | None = None, text: str = "") -> bytes:
    """The name may be asked, but there is nothing of this type."""
    opt = _opt(query, ede_code, text)
    return _head(query, 0, 0, 1, 1 if opt else 0) + query.question + _soa(ttl) + opt


class Template:
    """A rendered answer: served to any query with the same question, its TTLs aged."""

    __slots__ = ("_aged", "_answers", "_at", "_authorities", "_base", "_rcode", "_ttls")

    def __init__(self, rcode: int, answers: int, authorities: int, base: bytes, ttls: list[tuple[int, int]]) -> None:
        self._rcode = rcode
        self._answers = answers
        self._authorities = authorities
        self._base = base
        self._ttls = ttls  # offset in base, seconds
        self._at = 0
        self._aged = base

    def serve(self, query: Query, age: int, limit: int) -> bytes:
        """The reply after `age` seconds; over `limit` octets it is truncated: no records, ask over TCP."""
        if age != self._at:
            aged = bytearray(self._base)
            for offset, ttl in self._ttls:
                left = ttl - age
                aged[offset : offset + 4] = (left if left > 0 else 0).to_bytes(4, "big")
            self._aged = bytes(aged)
            self._at = age
        opt = _PLAIN_OPT if query.edns else b""
        flags = _QR | _RA | (query.flags & (_RD | _CD)) | self._rcode
        if 12 + len(query.question) + len(self._aged) + len(opt) > limit:
            return HEADER.pack(query.id, flags | _TC, 1, 0, 0, 1 if opt else 0) + query.question + opt
        head = HEADER.pack(query.id, flags, 1, self._answers, self._authorities, 1 if opt else 0)
        return head + query.question + self._aged + opt


def render(name: str, records: Sequence[Record], *, rcode: int = 0, authority: Sequence[Record] = ()) -> Template:
    """An answer to a question about `name`, owners compressed against the question and earlier CNAME targets."""
    start = 12 + len(encode_name(name)) + 4
    known = {name: 12} if name else {}
    ttls: list[tuple[int, int]] = []
    parts: list[bytes] = []
    at = 0
    for section in (records, authority):
        for owner, rtype, ttl, rdata in section:
            offset = known.get(owner)
            head = (0xC000 | offset).to_bytes(2, "big") if offset is not None else encode_name(owner)
            body = at + len(head)
            parts.append(head + _RR.pack(rtype, IN, ttl, len(rdata)) + rdata)
            ttls.append((body + 4, ttl))
            at = body + 10 + len(rdata)
            if rtype == 5 and start + body + 10 < 0x4000:
                known.setdefault(cname_target(rdata), start + body + 10)
    return Template(rcode, len(records), len(authority), b"".join(parts), ttls)


def ask(ident: int, name: str, qtype: int, size: int = SIZE) -> bytes:
    """A question for a resolver: RD, EDNS without DO and without options (what the client sent there stays here)."""
    return (
        HEADER.pack(ident, _RD, 1, 0, 0, 1) + encode_name(name) + _QTAIL.pack(qtype, IN) + _OPT.pack(0, OPT, size, 0, 0)
    )


def cname_target(rdata: bytes) -> str:
    """The canonical name in an uncompressed CNAME's rdata."""
    labels = []
    at = 0
    while size := rdata[at]:
        labels.append(rdata[at + 1 : at + 1 + size])
        at += size + 1
    return name_text(labels)[0]
