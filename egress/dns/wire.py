"""DNS messages on the hot path: queries read, replies written (RFC 1035, 2308, 6891, 8914). Pure.

What a sandbox sends is read strictly: a message that is not exactly one question is refused, never guessed at; octets
behind it and compression inside it are errors too. Header flags that mean nothing in a query and EDNS options are
ignored. What the sandbox gets back is written anew from the records that were allowed: id and question are echoed, RD
and CD copied, RA set, AA and AD never.

Names are text in one canonical form, so that comparing strings is comparing names: lower case, labels joined by dots,
no trailing dot, "" for the root, and every octet but [a-z0-9_-] as \\DDD (as RFC 1035 §5.1; case as RFC 4343). A dot
inside a label is \\046, so a dot in the text is always a separator.
"""

from __future__ import annotations

import struct

from policies.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeVar

    T = TypeVar("T", bound=tuple[object, ...])

HEADER = struct.Struct("!HHHHHH")
_QTAIL = struct.Struct("!HH")
_RR = struct.Struct("!HHIH")
_POINTED = struct.Struct("!HHHIH")  # a record whose owner is a compression pointer
_OPT = struct.Struct("!BHHIH")
_EXPLAINED = struct.Struct("!BHHIHHHH")  # OPT, then one option's code and length, then the EDE's code

IN, OPT, CNAME, SOA = 1, 41, 5, 6
FORMERR, SERVFAIL, NXDOMAIN, NOTIMP, REFUSED, BADVERS = 1, 2, 3, 4, 5, 16
SIZE = 1232  # the UDP size we offer and use (DNS flag day 2020)
LEAST = 512  # octets of UDP that every client takes (RFC 1035 §4.2.1); our own short replies stay within it
_QR, _RD, _RA, _TC, _CD = 0x8000, 0x0100, 0x0080, 0x0200, 0x0010
_POINTER = 0xC000
_REACH = 0x4000  # offsets from here on cannot be pointed at

new_tuple = tuple.__new__  # a NamedTuple's own __new__ is a Python function: twice as slow, felt once a packet


def mere(named: T) -> T:
    """A NamedTuple as a tuple of nothing but itself: to unpack it, or to take an item, costs half as much."""
    return tuple(named)  # type: ignore[return-value]


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
PLAIN = b"abcdefghijklmnopqrstuvwxyz0123456789-_"
_TEXT = tuple(chr(octet) if octet in PLAIN else f"\\{octet:03d}" for octet in range(256))
_LENGTHS = tuple(bytes((size,)) for size in range(64))


def name_text(labels: list[bytes]) -> tuple[str, bool]:
    """Labels as canonical text, and whether all of it is plain."""
    joined = b".".join(labels).lower()
    if not labels or len(joined.translate(None, PLAIN)) == len(labels) - 1:
        return joined.decode("ascii"), True
    return ".".join(["".join(map(_TEXT.__getitem__, label.lower())) for label in labels]), False


def encode_name(name: str) -> bytes:
    """Canonical text as uncompressed labels. Raises WireError for what no name can be."""
    if not name:
        return b"\0"
    try:
        labels = name.encode("ascii").split(b".")
    except UnicodeEncodeError:
        raise WireError(f"{name[:80]!a} is not a name in canonical form") from None
    wire = b""
    for label in labels:
        if b"\\" in label:
            label = _unescaped(label)
        size = len(label)
        if not 0 < size < 64:
            raise WireError(f"{name[:80]!r} has a label of {size} octets")
        wire += _LENGTHS[size] + label
    if len(wire) > 254:
        raise WireError(f"{name[:80]!r}... is too long for a name")
    return wire + b"\0"


def _unescaped(label: bytes) -> bytes:
    plain, *escaped = label.split(b"\\")
    for part in escaped:
        digits = part[:3]
        if len(digits) != 3 or not digits.isdigit() or int(digits) > 255:
            raise WireError(f"{label[:80]!r} has a malformed escape")
        plain += bytes((int(digits),)) + part[3:]
    return plain


def cname_target(rdata: bytes) -> str:
    """The canonical name in an uncompressed CNAME's rdata. Raises WireError where there is none."""
    labels = []
    at = 0
    try:
        while size := rdata[at]:
            labels.append(rdata[at + 1 : at + 1 + size])
            at += size + 1
    except IndexError:
        raise WireError("a CNAME without a name") from None
    return name_text(labels)[0]


# -- queries -------------------------------------------------------------------------------------------------------
def parse_query(data: bytes) -> Query | bytes | None:
    """A client's message: the query, the error reply it gets, or None where the only answer is silence.

    Silent: messages with QR set (an answer to an answer is a loop) and those without a whole header. Then, in order:
    opcode not QUERY, NOTIMP; anything but one question and at most one OPT, FORMERR; an EDNS version that we don't
    know, BADVERS; class not IN, REFUSED. An error that came before the question could be read doesn't echo it.
    """
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
            if size > 63 or at > 264:  # a pointer, or too long: checked here, or 64 KiB of labels would be walked
                return _bad(ident, flags)
            labels.append(data[at + 1 : at + 1 + size])
            at += size + 1
    except IndexError:
        return _bad(ident, flags)
    end = at + 5
    if at > 266 or end > length:  # 255 octets with the root's (RFC 1035 §2.3.4)
        return _bad(ident, flags)
    joined = b".".join(labels).lower()
    if len(joined.translate(None, PLAIN)) == len(labels) - 1:  # nothing but the dots is left
        name, plain = joined.decode("ascii"), True
    else:
        name, plain = name_text(labels)
    edns = False
    udp = LEAST
    extended = 0
    if additionals:
        if length < end + 11:
            return _bad(ident, flags)
        root, rtype, udp, extended, options = _OPT.unpack_from(data, end)
        if root or rtype != OPT or end + 11 + options != length:
            return _bad(ident, flags)
        edns = True
        if udp < LEAST:  # RFC 6891 §6.2.3
            udp = LEAST
    elif length != end:
        return _bad(ident, flags)
    qtype = data[at + 1] << 8 | data[at + 2]
    query = new_tuple(Query, (ident, flags, name, qtype, data[12:end], edns, udp, plain))
    if extended >> 16 & 0xFF:  # an EDNS version that does not exist yet (RFC 6891 §6.1.3)
        return _head(query, 0, 0, 0, 1) + query.question + _OPT.pack(0, OPT, SIZE, BADVERS >> 4 << 24, 0)
    if data[at + 3] or data[at + 4] != IN:
        return error(query, REFUSED)
    return query


def _bad(ident: int, flags: int) -> bytes:
    return HEADER.pack(ident, _QR | (flags & _RD) | FORMERR, 0, 0, 0, 0)


# -- replies -------------------------------------------------------------------------------------------------------
_PLAIN_OPT = _OPT.pack(0, OPT, SIZE, 0, 0)
EDE_TEXT = 300  # octets of an EDE's text


def reply_flags(query: Query) -> int:
    """The second word of a reply's header, for NOERROR."""
    return _QR | _RA | (query.flags & (_RD | _CD))


def _head(query: Query, rcode: int, answers: int, authorities: int, additionals: int) -> bytes:
    return HEADER.pack(query.id, reply_flags(query) | rcode, 1, answers, authorities, additionals)


def _opt(query: Query, code: int | None, text: str, rest: int) -> bytes:
    """The OPT record of a reply of `rest` other octets, with an Extended DNS Error where there is one (RFC 8914 §2)."""
    if not query.edns:
        return b""
    if code is None:
        return _PLAIN_OPT
    if not text.isprintable():
        text = "".join(c if c.isprintable() else "?" for c in text)
    note = text.encode()
    room = min(EDE_TEXT, LEAST - rest - _EXPLAINED.size)
    if len(note) > room:
        note = note[:room].decode(errors="ignore").encode()
    size = len(note)
    return _EXPLAINED.pack(0, OPT, SIZE, 0, 6 + size, 15, 2 + size, code) + note


def error(query: Query, rcode: int, ede: int | None = None, text: str = "") -> bytes:
    """A reply without records; `rcode` below 16. At most 512 octets, as all replies that we write ourselves."""
    question = query.question
    opt = _opt(query, ede, text, 12 + len(question))
    return _head(query, rcode, 0, 0, 1 if opt else 0) + question + opt


_WHO = encode_name("guard.invalid") + encode_name("hostmaster.guard.invalid")  # a name that resolves nowhere: RFC 6761
_NEGATIVE = struct.Struct(f"!HHHIH{len(_WHO)}sIIIII")


def _no(query: Query, rcode: int, ttl: int, ede: int | None, text: str) -> bytes:
    """A negative answer. Stub resolvers keep it for the TTL of its SOA (RFC 2308 §5).

    The SOA's owner is the asked name's parent: a zone's own name could not be missing, and some stubs want the owner
    to be at or above what they asked for.
    """
    question = query.question
    parent = question[0] + 13 if question[0] else 12
    soa = _NEGATIVE.pack(_POINTER | parent, SOA, IN, ttl, len(_WHO) + 20, _WHO, 1, 3600, 600, 86400, ttl)
    opt = _opt(query, ede, text, 12 + len(question) + _NEGATIVE.size)
    return _head(query, rcode, 0, 1, 1 if opt else 0) + question + soa + opt


def denied(query: Query, ttl: int, ede_code: int, text: str) -> bytes:
    """NXDOMAIN that may be remembered for `ttl` seconds; the reason as EDE where the client understands that."""
    return _no(query, NXDOMAIN, ttl, ede_code, text)


def nodata(query: Query, ttl: int, ede_code: int | None = None, text: str = "") -> bytes:
    """The name may be asked, but there is nothing of this type; to be remembered for `ttl` seconds."""
    return _no(query, 0, ttl, ede_code, text)


class Template(NamedTuple):
    """A rendered answer: served to any query with the same question, its TTLs aged."""

    rcode: int
    answers: int
    authorities: int
    records: bytes  # of both sections
    offsets: tuple[int, ...]  # of their TTLs

    def serve(self, query: Query, age: int, limit: int) -> bytes:
        """The reply after `age` seconds; over `limit` octets it is truncated: no records, ask over TCP."""
        rcode, answers, authorities, records, offsets = self
        question = query.question
        opt = _PLAIN_OPT if query.edns else b""
        flags = reply_flags(query) | rcode
        extra = 1 if opt else 0
        if 12 + len(question) + len(records) + len(opt) > limit:
            return HEADER.pack(query.id, flags | _TC, 1, 0, 0, extra) + question + opt
        if age:
            aged = bytearray(records)
            for offset in offsets:
                left = int.from_bytes(aged[offset : offset + 4], "big") - age
                aged[offset : offset + 4] = (left if left > 0 else 0).to_bytes(4, "big")
            records = bytes(aged)
        return HEADER.pack(query.id, flags, 1, answers, authorities, extra) + question + records + opt


def render(name: str, records: Sequence[Record], *, rcode: int = 0, authority: Sequence[Record] = ()) -> Template:
    """An answer to a question about `name`.

    Owners are compressed against the question, earlier owners and CNAME targets; names in rdata are left as they are.
    """
    literal = "\\" not in name  # then a place in the text is the same place in the question
    start = 16 + (len(name) + 2 if literal and name else len(encode_name(name)))
    known = {name: 12} if name else {}
    offsets: list[int] = []
    parts: list[bytes] = []
    at = 0
    for section in (records, authority):
        for owner, rtype, ttl, rdata in section:
            offset = known.get(owner)
            if offset is None and literal and owner and name.endswith("." + owner):
                offset = known[owner] = 12 + len(name) - len(owner)
            if offset is not None:
                part = _POINTED.pack(_POINTER | offset, rtype, IN, ttl, len(rdata))
            else:
                part = encode_name(owner) + _RR.pack(rtype, IN, ttl, len(rdata))
                if start + at < _REACH and owner:
                    known[owner] = start + at
            parts += (part, rdata)
            at += len(part)
            offsets.append(at - 6)
            if rtype == CNAME and start + at < _REACH:
                target = cname_target(rdata)
                if target:
                    known.setdefault(target, start + at)
            at += len(rdata)
    return Template(rcode, len(records), len(authority), b"".join(parts), tuple(offsets))


def ask(ident: int, name: str, qtype: int, size: int = SIZE) -> bytes:
    """A question for a resolver: RD, EDNS without DO and without options (what the client sent there stays here)."""
    opt = _PLAIN_OPT if size == SIZE else _OPT.pack(0, OPT, size, 0, 0)
    return HEADER.pack(ident, _RD, 1, 0, 0, 1) + encode_name(name) + _QTAIL.pack(qtype, IN) + opt
