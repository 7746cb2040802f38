"""What a resolver answers, read with distrust (RFC 1035 §4.1, 2181, 2308, 6891, 9460). Pure.

The question must be ours to the byte. Names are expanded, records beyond class IN and those that only a validating
client could use are left out. Work is bounded whatever the bytes are: pointers lead backwards only, a name that many
records point at is read once, and all names together may cost `_STEPS`. What lies behind the last record is ignored.
"""

from __future__ import annotations

import struct
from operator import ge

from egress.dns.wire import CNAME, IN, OPT, SOA, Record, WireError, name_text, new_tuple
from policies.values import NamedTuple

A, NS, PTR, MX, AAAA, SRV, NAPTR, DNAME, SVCB, HTTPS = 1, 2, 12, 15, 28, 33, 35, 39, 64, 65
DAY = 86_400  # seconds: longer TTLs count as this
_FIXED = struct.Struct("!HHIH")
_COUNTS = struct.Struct("!HHHH")
_OPT_HEAD = b"\0\0\x29"  # owner root, type OPT
_PARAM = struct.Struct("!HH")
# Octets before the first name in the rdata, names, octets after them (None: whatever follows). Only these types may
# hold compressed names (RFC 3597 §4). CNAME and NAPTR, whose name comes after three strings, are read apart.
_LAYOUT: dict[int, tuple[int, int, int | None]] = {
    NS: (0, 1, 0), SOA: (0, 2, 20), PTR: (0, 1, 0), MX: (2, 1, 0), SRV: (6, 1, 0), DNAME: (0, 1, 0),
    SVCB: (2, 1, None), HTTPS: (2, 1, None),
}  # fmt: skip
_ADDRESS = {A: 4, AAAA: 16}
# Left out: OPT and the other types that are no data (RFC 6895 §3.1), and DNSSEC's (SIG, KEY, NXT, DS, RRSIG, NSEC,
# DNSKEY, NSEC3, NSEC3PARAM, CDS, CDNSKEY, DLV): validation is the resolver's job.
_DROPPED = frozenset((OPT, *range(128, 256), 24, 25, 30, 43, 46, 47, 48, 50, 51, 59, 60, 32769))
_STEPS = 32_768  # labels and pointers of all names in a message: more than 64 KiB of honest records have
_ESCAPES = 64  # steps that the text of a name with odd octets counts for
_HOPS = 64  # pointers in one name
_HIDDEN = frozenset((4, 5, 6, 7))  # SvcParamKeys: ipv4hint, ech, ipv6hint, dohpath
_MANDATORY = 0


class Answer(NamedTuple):
    """A resolver's answer. `negative_ttl` is None unless it says how long its "no" lasts."""

    id: int
    rcode: int  # with the upper bits from EDNS (RFC 6891 §6.1.3)
    truncated: bool  # nothing else was read then
    answers: tuple[Record, ...] = ()
    soa: Record | None = None  # of the authority section, looked for where the answer is a "no"
    negative_ttl: int | None = None  # seconds: the lesser of the SOA's TTL and its last field (RFC 2308 §5)


def parse_answer(data: bytes, question: bytes, name: str) -> Answer:
    """Read an answer to `question` (our own bytes) about `name` (the same name as text).

    The id is handed out, not compared. Raises WireError, whatever the bytes are.
    """
    at = 12 + len(question)
    size = len(data)
    if not at <= size <= 0xFFFF or data[12:at] != question or not data[2] & 0x80 or data[2] & 0x78:
        raise WireError("not an answer to this question")
    questions, answers, authorities, additionals = _COUNTS.unpack_from(data, 4)
    if questions != 1:
        raise WireError(f"{questions} questions in an answer")
    ident = data[0] << 8 | data[1]
    rcode = data[3] & 15
    if data[2] & 2:
        return Answer(ident, rcode, True)
    records: list[Record] = []
    positive = False
    steps = _STEPS
    known = {12: name}  # names that a pointer alone leads to
    try:
        for _ in range(answers):
            first = data[at]
            if first >= 0xC0:
                target = (first & 0x3F) << 8 | data[at + 1]
                found = known.get(target)
                if found is None:
                    found, _, steps = _owner(data, at, steps)
                    known[target] = found
                owner = found
                at += 2
            else:
                owner, at, steps = _owner(data, at, steps)
            rtype, rclass, ttl, length = _FIXED.unpack_from(data, at)
            at += 10
            end = at + length
            if end > size:
                raise WireError("a record ends beyond the message")
            if rclass == IN and rtype not in _DROPPED:
                octets = _ADDRESS.get(rtype)
                if octets is not None:
                    if length != octets:
                        raise WireError(f"an address of {length} octets")
                    rdata = data[at:end]
                elif rtype == CNAME:
                    labels, after, steps = _labels(data, at, steps)
                    if after != end:
                        raise WireError("rdata is not what its type asks for")
                    rdata = _wire(labels)
                    text, plain = name_text(labels)
                    known.setdefault(at, text)  # as a rule the next record's owner points here
                    if not plain:
                        steps -= _ESCAPES
                else:
                    rdata, steps = _expanded(data, at, end, rtype, steps)
                if ttl > DAY:
                    ttl = _seconds(ttl)
                positive = positive or rtype != CNAME
                records.append(new_tuple(Record, (owner, rtype, ttl, rdata)))
            at = end
        soa = None
        if additionals == 1 and not authorities and data[at : at + 3] == _OPT_HEAD:  # how most answers end
            rcode |= data[at + 5] << 4
            if at + 11 + (data[at + 9] << 8 | data[at + 10]) > size:
                raise WireError("a record ends beyond the message")
        elif authorities or additionals:
            above = None if positive and not rcode else name if not records else ""
            soa, upper = _rest(data, at, authorities, additionals, above, steps)
            rcode |= upper
    except (IndexError, struct.error) as error:
        raise WireError("the message ends too early") from error
    if soa is None:
        return Answer(ident, rcode, False, tuple(records))
    least = _seconds(int.from_bytes(soa.rdata[-4:], "big"))
    return Answer(ident, rcode, False, tuple(records), soa, min(soa.ttl, least))


def _seconds(ttl: int) -> int:
    """RFC 2181 §8: a TTL with the top bit set is zero."""
    return 0 if ttl > 0x7FFFFFFF else min(ttl, DAY)


def _rest(
    data: bytes, at: int, authorities: int, additionals: int, below: str | None, steps: int
) -> tuple[Record | None, int]:
    """The authority section's SOA and the response code's upper bits, from OPT.

    `below`: the name that the SOA's zone must hold; "" where any zone may be it (after a chain of CNAMEs), None where
    no SOA is wanted.
    """
    soa: Record | None = None
    upper = -1
    size = len(data)
    for left in range(authorities + additionals, 0, -1):
        start = at
        while octets := data[at]:
            if octets >= 0xC0:
                at += 1
                break
            if octets > 63:
                raise WireError("an unknown label type")
            at += octets + 1
        rtype, rclass, ttl, length = _FIXED.unpack_from(data, at + 1)
        at += 11
        end = at + length
        if end > size:
            raise WireError("a record ends beyond the message")
        if left > additionals:
            if rtype == SOA and rclass == IN and below is not None and soa is None:
                owner, _, steps = _owner(data, start, steps)
                if not below or not owner or below == owner or below.endswith("." + owner):
                    rdata, steps = _expanded(data, at, end, SOA, steps)
                    soa = Record(owner, SOA, _seconds(ttl), rdata)
        elif rtype == OPT:
            if upper >= 0 or data[start]:
                raise WireError("two OPT records, or one with a name")
            upper = ttl >> 20 & 0xFF0
        at = end
    return soa, max(upper, 0)


def _owner(data: bytes, at: int, steps: int) -> tuple[str, int, int]:
    """A name as text, where it ends, and the steps that are left."""
    labels, at, steps = _labels(data, at, steps)
    text, plain = name_text(labels)
    return text, at, steps if plain else steps - _ESCAPES


def _labels(data: bytes, at: int, steps: int) -> tuple[list[bytes], int, int]:
    """The labels of a name, where it ends, and the steps that are left.

    A pointer must lead before everything that its name has touched so far, so there are no loops (and no pointers
    into the header).
    """
    labels: list[bytes] = []
    total = 1
    after = -1
    lowest = at
    hops = 0
    while size := data[at]:
        if size < 64:
            labels.append(data[at + 1 : at + 1 + size])  # cut short: the next look at data is beyond its end
            total += size + 1
            if total > 255:
                raise WireError("a name is too long")
            at += size + 1
        elif size >= 0xC0:
            if after < 0:
                after = at + 2
            target = (size & 0x3F) << 8 | data[at + 1]
            hops += 1
            if target >= lowest or target < 12 or hops > _HOPS:
                raise WireError("a compression pointer does not lead backwards, or too many follow each other")
            lowest = at = target
        else:
            raise WireError("an unknown label type")
    steps -= len(labels) + hops
    if steps < 0:
        raise WireError("the message's names are too much work")
    return labels, at + 1 if after < 0 else after, steps


def _wire(labels: list[bytes]) -> bytes:
    return b"".join([bytes((len(label),)) + label for label in labels]) + b"\0"


def _expanded(data: bytes, at: int, end: int, rtype: int, steps: int) -> tuple[bytes, int]:
    """The rdata with every compressed name written out, and the steps that are left."""
    layout = _LAYOUT.get(rtype)
    if layout is None:
        if rtype != NAPTR:
            return data[at:end], steps
        before = 4
        for _ in range(3):  # flags, services, regexp: character strings (RFC 3403 §4.1)
            before += 1 + data[at + before]
        layout = (before, 1, 0)
    prefix, names, rest = layout
    rdata = data[at : at + prefix]
    place = at + prefix
    for _ in range(names):
        labels, place, steps = _labels(data, place, steps)
        rdata += _wire(labels)
    if place > end or (rest is not None and end - place != rest):
        raise WireError("rdata is not what its type asks for")
    return rdata + data[place:end], steps  # below 64 KiB: whatever a pointer adds stands elsewhere in the message


def scrub_svcb(rdata: bytes) -> bytes | None:
    """An SVCB or HTTPS record without addresses, ECH keys and DoH paths (RFC 9460 §7, 9461, 9849); None: malformed.

    Addresses must come through A and AAAA, where they are checked; ECH would hide a name that somebody looks for. A
    key that is taken out is taken out of the list of mandatory ones too: the client can do without it.
    """
    try:
        labels, at, _ = _labels(rdata, 2, 128)
        head = rdata[:2] + _wire(labels)
        if head[:2] == b"\0\0":
            return head  # parameters of an alias mean nothing (RFC 9460 §2.4.2)
        mandatory = b""
        kept = b""
        keys: set[int] = set()
        last = -1
        while at < len(rdata):
            key, length = _PARAM.unpack_from(rdata, at)
            end = at + 4 + length
            if key <= last or end > len(rdata):
                return None
            last = key
            keys.add(key)
            if key == _MANDATORY:
                if not length or length % 2:
                    return None
                mandatory = rdata[at + 4 : end]
            elif key not in _HIDDEN:
                kept += rdata[at:end]
            at = end
    except (WireError, IndexError, struct.error):
        return None
    if mandatory:
        needed = struct.unpack(f"!{len(mandatory) // 2}H", mandatory)
        if needed[0] == _MANDATORY or not keys.issuperset(needed) or any(map(ge, needed, needed[1:])):
            return None  # RFC 9460 §8: ascending, present, and not the list itself
        left = [key for key in needed if key not in _HIDDEN]
        if left:
            head += struct.pack(f"!HH{len(left)}H", _MANDATORY, 2 * len(left), *left)
    return head + kept
