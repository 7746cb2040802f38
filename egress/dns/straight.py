"""The ordinary question and the ordinary answer, read at once. Pure.

Nearly all that passes is a question for A or AAAA without EDNS options, answered by addresses that hang on the asked
name itself. For these the careful readers' work (`wire.parse_query`, `answer.parse_answer`, `Interceptor.on_answer`,
`wire.render`) comes to little, and this module does that little without their objects on the way. It never refuses:
what is not ordinary gets None here, and the careful readers decide. `docs/decisions/0005-the-straight-path.md` says
what it brings, and the tests hold it against the careful readers, octet for octet.
"""

from __future__ import annotations

import struct

from egress.dns.answer import AAAA, DAY, A, Answer
from egress.dns.wire import HEADER, IN, OPT, SIZE, Record, Template, new_tuple, reply_flags
from policies.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Any

    from egress.dns.wire import Query

MOST = 16  # addresses in an ordinary answer
RECORDS = 4096  # heads of records that are remembered
_OPT = struct.pack("!BHHIH", 0, OPT, SIZE, 0, 0)
_OPT_HEAD = _OPT[:3]
ROOM = len(_OPT)  # octets of a reply's end
_MAPPED = bytes(10) + b"\xff\xff"


class Shape(NamedTuple):
    """What a query says besides its id and its name, and what the head of its reply is."""

    qtype: int
    limit: int  # octets of a UDP reply
    heads: tuple[bytes, ...]  # of the reply behind the id, by the number of its records
    opt: bytes  # the end of the reply


def shape(data: bytes, query: Query, limit: int) -> tuple[Shape, int] | None:
    """The shape of `data`, which the careful reader has taken as `query`, and where its parent's name begins. None
    where it is not ordinary: what clients change from query to query (EDNS options) is not worth keeping.

    The reader would take the same octets with any other plain first label, too, if the name stays short enough.
    """
    opt = data[12 + len(query.question) :]
    if query.qtype not in _KINDS or not query.plain or not query.name or len(opt) > len(_OPT):
        return None
    if opt.upper() != opt.lower():
        return None  # whoever looks for it in lower case would take other octets for these
    flags = reply_flags(query)
    heads = tuple(HEADER.pack(0, flags, 1, count, 0, 1 if query.edns else 0)[2:] for count in range(MOST + 1))
    return Shape(query.qtype, limit, heads, _OPT if query.edns else b""), 13 + data[12]


class Plain(NamedTuple):
    """An ordinary answer: NOERROR, and nothing but addresses of the asked name, each once."""

    records: bytes  # as they came, their owner a pointer to the question: also how `wire.render` would write them
    teaches: tuple[tuple[bytes, int], ...]  # packed address, TTL in seconds
    ttl: int  # the lowest of them
    offsets: tuple[int, ...]  # of the TTLs in the records

    def answer(self, name: str, qtype: int) -> Answer:
        """The same as `parse_answer` gives, but for the id."""
        return Answer(0, 0, False, tuple(Record(name, qtype, ttl, packed) for packed, ttl in self.teaches))

    def aged(self, age: int) -> bytes:
        """The records after so many seconds."""
        if not age:
            return self.records
        parts: list[bytes] = []
        at = 0
        for offset, (_, ttl) in zip(self.offsets, self.teaches, strict=True):
            parts += (self.records[at:offset], (ttl - age if ttl > age else 0).to_bytes(4, "big"))
            at = offset + 4
        return b"".join(parts) + self.records[at:]

    def serve(self, query: Query, age: int, limit: int) -> bytes:
        """As a `wire.Template` of the same records."""
        return Template(0, len(self.teaches), 0, self.records, self.offsets).serve(query, age, limit)


class _Kind(NamedTuple):
    head: bytes  # of a record: pointer to the question, type, class
    record: struct.Struct
    size: int
    octets: int  # of the address
    offsets: tuple[tuple[int, ...], ...]  # of the TTLs, by the number of records


def _kind(qtype: int, octets: int) -> _Kind:
    size = 12 + octets
    return _Kind(
        struct.pack("!HHH", 0xC00C, qtype, IN),
        struct.Struct(f"!6sIH{octets}s"),
        size,
        octets,
        tuple(tuple(6 + size * number for number in range(count)) for count in range(MOST + 1)),
    )


_KINDS = {A: _kind(A, 4), AAAA: _kind(AAAA, 16)}
# One question, no authority; (answers, whether OPT follows) by these octets of the header.
_COUNTS = {
    struct.pack("!HHHH", 1, count, 0, extra): (count, bool(extra)) for count in range(1, MOST + 1) for extra in (0, 1)
}


# The same for one record alone: whether OPT follows, by the header's flags and counts; the TTL of an A record, by all
# of it but the address; OPT records without options. The last two are filled with what was found good.
_ONE = {
    bytes((0x80 | high, low)) + counts: extra
    for high in (0, 1, 4, 5)
    for low in range(0, 256, 16)
    for counts, (count, extra) in _COUNTS.items()
    if count == 1
}
_ADDRESSES: dict[bytes, int] = {}
_OPTS: dict[bytes, None] = {}
_FIRST = (6,)


def read_answer(data: bytes, question: bytes, qtype: int) -> Plain | None:
    """The answer to `question` (our own question section) where it is ordinary, else None.

    The id is not looked at.
    """
    start = 12 + len(question)
    extra = _ONE.get(data[2:12])
    if extra is not None and qtype == A and data[12:start] == question:
        at = start + 12
        end = at + 4
        found = _ADDRESSES.get(data[start:at])
        if found is not None and len(data) >= end and (not extra or data[end : end + 11] in _OPTS):
            return new_tuple(Plain, (data[start:end], ((data[at:end], found),), found, _FIRST))
    return _read(data, question, qtype, start)


def _read(data: bytes, question: bytes, qtype: int, start: int) -> Plain | None:
    kind = _KINDS.get(qtype)
    counts = _COUNTS.get(data[4:12])
    if kind is None or counts is None or data[12:start] != question or data[2] & 0xFA != 0x80 or data[3] & 0x0F:
        return None
    head, record, size, octets, offsets = kind
    count, extra = counts
    end = start + size * count
    if len(data) < end:
        return None
    if extra:
        opt = data[end : end + 11]
        if opt[:3] != _OPT_HEAD or opt[9:] != b"\0\0" or opt[5]:  # cut short, options, or upper bits of the rcode
            return None
        _keep(_OPTS, opt, None)
    if count == 1:
        found, ttl, length, packed = record.unpack_from(data, start)
        if found != head or length != octets or ttl > DAY or packed[:12] == _MAPPED:
            return None
        if qtype == A:
            _keep(_ADDRESSES, data[start : start + 12], ttl)
        return new_tuple(Plain, (data[start:end], ((packed, ttl),), ttl, offsets[1]))
    teaches = []
    lowest = DAY
    for found, ttl, length, packed in record.iter_unpack(data[start:end]):
        if found != head or length != octets or ttl > DAY or packed[:12] == _MAPPED:
            return None
        if ttl < lowest:
            lowest = ttl
        teaches.append((packed, ttl))
    if len({packed for packed, _ in teaches}) < count:
        return None
    return new_tuple(Plain, (data[start:end], tuple(teaches), lowest, offsets[count]))


def _keep(kept: dict[bytes, Any], octets: bytes, value: Any) -> None:
    if len(kept) >= RECORDS:
        kept.clear()
    kept[octets] = value
