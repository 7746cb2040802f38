"""What a resolver answers, read with distrust (RFC 1035 §4.1, 2181, 2308, 9460). Pure.

The question must be ours to the byte. Names are expanded, records beyond class IN and those that only a validating
client could use are left out, and every loop is bounded by the message's length: pointers lead backwards only.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from egress.dns.wire import IN, SOA, Record, WireError, name_text

A, NS, CNAME, PTR, MX, AAAA, SRV, NAPTR, DNAME, SVCB, HTTPS = 1, 2, 5, 12, 15, 28, 33, 35, 39, 64, 65
DAY = 86_400  # seconds: longer TTLs count as this
_FIXED = struct.Struct("!HHIH")
_COUNTS = struct.Struct("!HHHH")
# Octets before the first name in the rdata, names, octets after them (None: whatever follows).
_LAYOUT: dict[int, tuple[int, int, int | None]] = {
    NS: (0, 1, 0), CNAME: (0, 1, 0), SOA: (0, 2, 20), PTR: (0, 1, 0), MX: (2, 1, 0), SRV: (6, 1, 0), DNAME: (0, 1, 0),
    SVCB: (2, 1, None), HTTPS: (2, 1, None),
}  # fmt: skip
_ADDRESS = {A: 4, AAAA: 16}
_DNSSEC = frozenset((24, 25, 30, 43, 46, 47, 48, 50, 51, 59, 60, 32769))  # validation is the resolver's job
_HIDDEN = frozenset((4, 5, 6, 7))  # SvcParamKeys: ipv4hint, ech, ipv6hint, dohpath
_MANDATORY = 0


class Answer(NamedTuple):
    """A resolver's answer. `negative_ttl` is None unless it says how long its "no" lasts."""

    id: int
    rcode: int
    truncated: bool
    answers: tuple[Record, ...] = ()
    soa: Record | None = None
    negative_ttl: int | None = None


def parse_answer(data: bytes, question: bytes, name: str) -> Answer:
    """Read an answer to `question` (our own bytes) about `name`. Raises WireError, whatever the bytes are."""
    at = 12 + len(question)
    if len(data) < at or data[12:at] != question or not data[2] & 0x80 or data[2] & 0x78:
        raise WireError("not an answer to this question")
    questions, answers, authorities, _ = _COUNTS.unpack_from(data, 4)
    if questions != 1:
        raise WireError(f"{questions} questions in an answer")
    ident = data[0] << 8 | data[1]
    rcode = data[3] & 15
    if data[2] & 2:
        return Answer(ident, rcode, True)
    records: list[Record] = []
    positive = False
    try:
        for _ in range(answers):
            if data[at] == 0xC0 and data[at + 1] == 12:
                owner = name
                at += 2
            else:
                labels, at = _labels(data, at)
                owner = name_text(labels)[0]
            rtype, rclass, ttl, length = _FIXED.unpack_from(data, at)
            at += 10
            end = at + length
            if end > len(data):
                raise WireError("a record ends beyond the message")
            if rclass == IN and rtype not in _DNSSEC:
                octets = _ADDRESS.get(rtype)
                if octets is not None:
                    if length != octets:
                        raise WireError(f"an address of {length} octets")
                    rdata = data[at:end]
                else:
                    rdata = _expanded(data, at, end, rtype)
                positive = positive or rtype != CNAME
                records.append(Record(owner, rtype, _seconds(ttl), rdata))
            at = end
        if positive and not rcode:
            return Answer(ident, rcode, False, tuple(records))
        soa = _find_soa(data, at, authorities, name, records)
    except (IndexError, struct.error) as error:
        raise WireError("the message ends too early") from error
    negative = min(soa.ttl, _seconds(int.from_bytes(soa.rdata[-4:], "big"))) if soa is not None else None
    return Answer(ident, rcode, False, tuple(records), soa, negative)


def _seconds(ttl: int) -> int:
    """RFC 2181 §8: a TTL with the top bit set is zero."""
    return 0 if ttl > 0x7FFFFFFF else min(ttl, DAY)


def _find_soa(data: bytes, at: int, authorities: int, name: str, records: list[Record]) -> Record | None:
    """The SOA of a zone that the last name of the chain may lie in."""
    for _ in range(authorities):
        labels, at = _labels(data, at)
        rtype, rclass, ttl, length = _FIXED.unpack_from(data, at)
        at += 10
        end = at + length
        if end > len(data):
            raise WireError("a record ends beyond the message")
        if rtype == SOA and rclass == IN:
            owner = name_text(labels)[0]
            if records or not owner or name == owner or name.endswith("." + owner):
                return Record(owner, SOA, _seconds(ttl), _expanded(data, at, end, SOA))
        at = end
    return None


def _labels(data: bytes, at: int) -> tuple[list[bytes], int]:
    """The labels of a name and where it ends. A pointer must lead before the place it stands in the chain of jumps."""
    labels: list[bytes] = []
    total = 1
    after = -1
    lowest = at
    while True:
        size = data[at]
        if size == 0:
            return labels, at + 1 if after < 0 else after
        if size < 64:
            label = data[at + 1 : at + 1 + size]
            total += size + 1
            if total > 255 or len(label) != size:
                raise WireError("a name is too long or cut short")
            labels.append(label)
            at += size + 1
        elif size >= 0xC0:
            if after < 0:
                after = at + 2
            target = (size & 0x3F) << 8 | data[at + 1]
            if target >= lowest or target < 12:
                raise WireError("a compression pointer does not lead backwards")
            lowest = at = target
        else:
            raise WireError("an unknown label type")


def _wire(labels: list[bytes]) -> bytes:
    return b"".join([bytes((len(label),)) + label for label in labels]) + b"\0"


def _expanded(data: bytes, at: int, end: int, rtype: int) -> bytes:
    """The rdata with every compressed name written out."""
    if rtype == NAPTR:
        before = 4
        for _ in range(3):  # flags, services, regexp: character strings
            before += 1 + data[at + before]
        layout: tuple[int, int, int | None] = (before, 1, 0)
    else:
        found = _LAYOUT.get(rtype)
        if found is None:
            return data[at:end]
        layout = found
    prefix, names, rest = layout
    parts = [data[at : at + prefix]]
    place = at + prefix
    for _ in range(names):
        labels, place = _labels(data, place)
        parts.append(_wire(labels))
    if place > end or (rest is not None and end - place != rest):
        raise WireError("rdata is not what its type asks for")
    parts.append(data[place:end])
    return b"".join(parts)


def scrub_svcb(rdata: bytes) -> bytes | None:
    """An SVCB or HTTPS record without addresses, ECH keys and DoH paths (RFC 9460 §7, 9461, 9849); None: malformed.

    Addresses must come through A and AAAA, where they are checked; ECH would hide a name that somebody looks for.
    """
    try:
        labels, at = _labels(rdata, 2)
        head = rdata[:2] + _wire(labels)
        if rdata[:2] == b"\0\0":
            return head  # alias mode has no parameters
        kept: dict[int, bytes] = {}
        last = -1
        while at < len(rdata):
            key, length = struct.unpack_from("!HH", rdata, at)
            value = rdata[at + 4 : at + 4 + length]
            if key <= last or len(value) != length:
                return None
            last = key
            if key not in _HIDDEN:
                kept[key] = value
            at += 4 + length
    except (WireError, IndexError, struct.error):
        return None
    mandatory = kept.pop(_MANDATORY, None)
    if mandatory is not None:
        if len(mandatory) % 2 or not mandatory:
            return None
        keys = [mandatory[i : i + 2] for i in range(0, len(mandatory), 2)]
        left = b"".join(key for key in keys if int.from_bytes(key, "big") not in _HIDDEN)
        if left:
            kept = {_MANDATORY: left, **kept}
    return head + b"".join(struct.pack("!HH", key, len(value)) + value for key, value in kept.items())
