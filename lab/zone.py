"""What the lab's DNS server knows and how it misbehaves: a zone, and behaviours laid over it. Pure.

It looks like a recursive resolver: it chases CNAMEs through its own zone and answers with the whole chain.
"""

from __future__ import annotations

import dataclasses
import hashlib
import struct
from typing import Any

from lab import rdata

_CNAME = rdata.TYPES["CNAME"]
_OPT = rdata.TYPES["OPT"]
_MAX_CHAIN = 20


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    owner: str
    rtype: int
    ttl: int
    data: bytes


@dataclasses.dataclass(slots=True)
class Behaviour:
    """How to answer one name (or every name) other than the zone says. Fields left alone change nothing.

    `forge` sends a forged answer first: from another port (`port`), another address (`source`), or with another id
    (`id`), the question's letters in the wrong case (`case`) or another question (`question`). The true answer follows
    after `gap` seconds unless `only_forged`. A forged answer carries `forged_address`.
    """

    rcode: int | None = None
    delay: float = 0.0
    held: bool = False  # the answer waits until this is taken back
    drop: bool = False
    drop_udp: bool = False
    truncate: bool = False  # TC and no records over UDP
    truncate_full: bool = False  # TC with the records still there
    close: bool = False  # TCP: close in place of an answer
    forge: str = ""
    only_forged: bool = False
    gap: float = 0.05
    forged_address: str = "198.51.100.66"
    no_soa: bool = False
    no_chain: bool = False  # the CNAME alone, its target's records left out
    no_edns: bool = False
    extra: list[Record] = dataclasses.field(default_factory=list)  # appended to the answer section
    only: list[Record] | None = None  # the whole answer section, whatever the zone holds
    raw: bytes | None = None  # the whole message; its first two octets are replaced by the query's id
    repeat: int = 1
    times: int = -1  # how many queries it lasts; -1: until cleared

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Behaviour:
        plain = dict(fields)
        for key in ("extra", "only"):
            if plain.get(key) is not None:
                plain[key] = [Record(owner, rtype, ttl, bytes.fromhex(data)) for owner, rtype, ttl, data in plain[key]]
        if plain.get("raw") is not None:
            plain["raw"] = bytes.fromhex(plain["raw"])
        return cls(**plain)


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """A parsed query. `name` keeps the case it came in; `section` is the question section as sent."""

    ident: int
    flags: int
    name: str
    qtype: int
    qclass: int
    section: bytes
    size: int | None  # EDNS payload size; None without EDNS
    options: bytes


def parse(data: bytes) -> Question | None:
    """A query, or None when it is none that a server could answer."""
    try:
        ident, flags, questions, answers, authorities, additional = struct.unpack_from(">6H", data)
        if flags & 0x8000 or questions != 1:
            return None
        labels, at = [], 12
        while length := data[at]:
            if length > 63:
                return None
            labels.append(data[at + 1 : at + 1 + length].decode("latin-1"))
            at += 1 + length
        at += 1
        qtype, qclass = struct.unpack_from(">HH", data, at)
        end = at + 4
        size, options = None, b""
        if answers == authorities == 0 and additional == 1 and data[end] == 0:
            rtype, size_field, _, length = struct.unpack_from(">HHIH", data, end + 1)
            if rtype == _OPT:
                size, options = size_field, data[end + 11 : end + 11 + length]
        return Question(ident, flags, ".".join(labels), qtype, qclass, data[12:end], size, options)
    except (IndexError, struct.error):
        return None


class Zone:
    """Names (lower case), their records, and the behaviours; of these the most specific wins."""

    def __init__(self) -> None:
        self.behaviours: dict[tuple[str, int], Behaviour] = {}
        self.clear()

    def clear(self) -> None:
        for behaviour in self.behaviours.values():
            behaviour.held = False
        self.records: dict[tuple[str, int], list[Record]] = {}
        self.names: set[str] = set()
        self.behaviours.clear()
        self.pools: dict[str, tuple[bytes, int, int]] = {}

    def add(self, owner: str, rtype: int, ttl: int, data: bytes) -> None:
        name = owner.lower().rstrip(".")
        self.records.setdefault((name, rtype), []).append(Record(name, rtype, ttl, data))
        self.names.add(name)

    def remove(self, owner: str, rtype: int | None) -> None:
        name = owner.lower().rstrip(".")
        for key in [key for key in self.records if key[0] == name and rtype in (None, key[1])]:
            del self.records[key]
        if not any(key[0] == name for key in self.records):
            self.names.discard(name)

    def generate(self, suffix: str, network: bytes, prefix: int, ttl: int) -> None:
        """Any name below `suffix` has one address of its own in the network, told by a hash of the name."""
        self.pools[suffix.lower()] = (network, prefix, ttl)

    def behaviour(self, name: str, qtype: int) -> Behaviour | None:
        for key in ((name, qtype), (name, 0), ("*", qtype), ("*", 0)):
            found = self.behaviours.get(key)
            if found:
                if found.times > 0:
                    found.times -= 1
                if found.times == 0:
                    del self.behaviours[key]
                return found
        return None

    def _find(self, name: str, rtype: int) -> list[Record]:
        exact = self.records.get((name, rtype))
        if exact is not None or name in self.names:
            return exact or []
        parent = name
        while "." in parent:
            parent = parent.partition(".")[2]
            wild = self.records.get((f"*.{parent}", rtype))
            if wild is not None:
                return [dataclasses.replace(record, owner=name) for record in wild]
            pool = self.pools.get(parent)
            if pool and rtype == (1 if len(pool[0]) == 4 else 28):
                return [Record(name, rtype, pool[2], _member(pool[0], pool[1], name))]
        return []

    def exists(self, name: str) -> bool:
        if name in self.names or any(known.endswith(f".{name}") for known in self.names):
            return True
        parent = name
        while "." in parent:
            parent = parent.partition(".")[2]
            if f"*.{parent}" in self.names or parent in self.pools:
                return True
        return False

    def answer(self, name: str, qtype: int, *, chase: bool = True) -> tuple[int, list[Record]]:
        """(rcode, answer section) for a lower-case name."""
        chain: list[Record] = []
        for _ in range(_MAX_CHAIN):
            found = self._find(name, qtype)
            alias = self._find(name, _CNAME) if qtype != _CNAME else []
            if found or not alias:
                break
            chain += alias
            if not chase:
                return 0, chain
            name = rdata_name(alias[0].data).lower()
        else:
            return 0, chain
        return (0 if found or self.exists(name) else 3), chain + found


def _member(network: bytes, prefix: int, name: str) -> bytes:
    bits = len(network) * 8 - prefix
    host = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=16).digest()) & ((1 << bits) - 1)
    return (int.from_bytes(network) | host).to_bytes(len(network))


def rdata_name(data: bytes) -> str:
    """The name that uncompressed record data starts with."""
    labels, at = [], 0
    while length := data[at]:
        labels.append(data[at + 1 : at + 1 + length].decode("latin-1"))
        at += 1 + length
    return ".".join(labels)


def message(
    question: Question,
    rcode: int,
    answers: list[Record],
    authorities: list[Record],
    *,
    limit: int,
    truncate: bool = False,
    keep: bool = False,
    edns: bool = True,
) -> bytes:
    """A whole response. Owners and CNAME targets are compressed, as real servers do. Over `limit`: TC, no records."""
    with_opt = edns and question.size is not None
    header = question.flags & 0x0100 | 0x8080 | rcode  # QR, RD as asked, RA
    opt = struct.pack(">BHHIH", 0, _OPT, 1232, 0, 0) if with_opt else b""
    body = bytearray(question.section)
    seen: dict[str, int] = {}
    _remember(question.name.lower(), 12, seen)
    for record in (*answers, *authorities):
        body += _compressed(record.owner, 12 + len(body), seen)
        data = record.data
        if record.rtype == _CNAME:
            data = _compressed(rdata_name(data), 12 + len(body) + 10, seen)
        body += struct.pack(">HHIH", record.rtype, 1, record.ttl, len(data)) + data
    whole = struct.pack(">6H", question.ident, header, 1, len(answers), len(authorities), int(with_opt)) + body + opt
    if len(whole) > limit or (truncate and not keep):
        empty = struct.pack(">6H", question.ident, header | 0x0200, 1, 0, 0, int(with_opt))
        return empty + question.section + opt
    if truncate:
        return whole[:2] + struct.pack(">H", header | 0x0200) + whole[4:]
    return whole


def _remember(name: str, at: int, seen: dict[str, int]) -> None:
    while name:
        if at < 0x4000:
            seen.setdefault(name, at)
        label, _, name = name.partition(".")
        at += 1 + len(label)


def _compressed(name: str, at: int, seen: dict[str, int]) -> bytes:
    out, rest = b"", name.lower()
    while rest:
        if rest in seen:
            out += struct.pack(">H", 0xC000 | seen[rest])
            break
        label, _, rest = rest.partition(".")
        out += bytes([len(label)]) + label.encode("latin-1")
    else:
        out += b"\0"
    _remember(name.lower(), at, seen)
    return out
