"""What survives the worker: memory files that the supervisor holds and hands to the next one.

A `Shelf` is two memfds. A store writes the whole content to the one that is not current, and its epoch last, in one
8-byte write: whoever dies in between leaves the older content valid. `append` adds records behind the current content;
a record that was cut short by a SIGKILL is recognised by its length and ignored.

    memfd:  epoch u64 │ length u64 │ crc32 u32 │ content │ record │ record │ …
    record: length u32 │ crc32 u32 │ bytes
"""

from __future__ import annotations

import json
import os
import struct
from zlib import crc32

from egress.firewall.leases import Teaching
from policies.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from egress.firewall.leases import Leases

_HEAD = struct.Struct("<QQI")
_RECORD = struct.Struct("<II")
_LEASE = struct.Struct("<ddBHH")  # until, answered, address length, name length, chain length
_ACCEPTED = struct.Struct("<Q5I")
COMPACT_AT = 4 * 1024 * 1024  # octets of appended records after which the content is written anew


class Shelf:
    """Bytes that outlive a SIGKILL of their writer. One writer at a time."""

    def __init__(self, name: str) -> None:
        self._fds = (os.memfd_create(f"{name}-a", os.MFD_CLOEXEC), os.memfd_create(f"{name}-b", os.MFD_CLOEXEC))
        self._current = 0
        self._epoch = 0
        self._end = 0
        self._content_end = 0

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)

    def load(self) -> tuple[bytes, list[bytes]]:
        """The newest complete content and the records behind it; empty when nothing was ever stored."""
        best = (0, b"", 0)
        for index, fd in enumerate(self._fds):
            head = os.pread(fd, _HEAD.size, 0)
            if len(head) < _HEAD.size:
                continue
            epoch, length, check = _HEAD.unpack(head)
            content = os.pread(fd, length, _HEAD.size)
            if epoch > best[0] and len(content) == length and crc32(content) == check:
                best = (epoch, content, index)
        self._epoch, content, self._current = best
        self._end = self._content_end = _HEAD.size + len(content) if self._epoch else 0
        records = []
        if self._epoch:
            fd = self._fds[self._current]
            tail = os.pread(fd, os.fstat(fd).st_size - self._end, self._end)
            at = 0
            while at + _RECORD.size <= len(tail):
                length, check = _RECORD.unpack_from(tail, at)
                record = tail[at + _RECORD.size : at + _RECORD.size + length]
                if len(record) < length or crc32(record) != check:
                    break
                records.append(record)
                at += _RECORD.size + length
            self._end += at
        return content, records

    def store(self, content: bytes) -> None:
        """Replace everything, atomically."""
        other = 1 - self._current if self._epoch else 0
        fd = self._fds[other]
        os.ftruncate(fd, 0)
        os.pwrite(fd, _HEAD.pack(0, len(content), crc32(content)), 0)
        view = memoryview(content)
        at = 0
        while at < len(view):
            at += os.pwrite(fd, view[at:], _HEAD.size + at)
        self._epoch += 1
        os.pwrite(fd, self._epoch.to_bytes(8, "little"), 0)
        self._current = other
        self._end = self._content_end = _HEAD.size + len(content)

    def append(self, record: bytes) -> bool:
        """Add a record; False when it is time to `store` anew."""
        data = _RECORD.pack(len(record), crc32(record)) + record
        self._end += os.pwrite(self._fds[self._current], data, self._end)
        return self._end - self._content_end < COMPACT_AT


class Accepted(NamedTuple):
    """The last accepted policy, and the secrets of the ruleset that carries it."""

    document: bytes  # JSON in the contract's shape
    generation: int
    secrets: tuple[int, ...] = ()  # the exemption's mark and priority, the stamp's, the flows' mark; () = unknown


class Handover:
    """What one worker leaves to the next."""

    def __init__(self) -> None:
        self._policy = Shelf("policy")
        self._leases = Shelf("leases")

    def close(self) -> None:
        """For a process that it is none of the business of."""
        self._policy.close()
        self._leases.close()

    def store_policy(self, accepted: Accepted) -> None:
        secrets = accepted.secrets or (0,) * 5
        self._policy.store(_ACCEPTED.pack(accepted.generation, *secrets) + accepted.document)

    def policy(self) -> Accepted | None:
        content, _ = self._policy.load()
        if len(content) < _ACCEPTED.size:
            return None
        generation, *secrets = _ACCEPTED.unpack_from(content)
        return Accepted(content[_ACCEPTED.size :], generation, tuple(secrets) if all(secrets) else ())

    def store_leases(self, leases: Leases) -> None:
        """Write all of them: after a policy change, and when the journal has grown long."""
        self._leases.store(b"".join(_pack(packed, teaching) for packed, teaching in leases.teachings()))

    def add_leases(self, teachings: Iterable[tuple[bytes, Teaching]]) -> bool:
        """Write down what was just learned; False when `store_leases` is due."""
        pack = _LEASE.pack
        # `_pack` without its call where there is no chain: this is done for every answer.
        return self._leases.append(
            b"".join(
                [
                    pack(teaching[3], teaching[4], len(packed), len(teaching[0]), 0) + packed + teaching[0].encode()
                    if not teaching[1]
                    else _pack(packed, teaching)
                    for packed, teaching in teachings
                ]
            )
        )

    def leases(self) -> Iterator[tuple[bytes, Teaching]]:
        """Everything written down, oldest first: later entries of the same name and address replace earlier ones."""
        content, records = self._leases.load()
        yield from _unpack(content)
        for record in records:
            yield from _unpack(record)


def _pack(packed: bytes, teaching: Teaching) -> bytes:
    name, links, _, until, answered = teaching
    chain = json.dumps(links).encode() if links else b""
    return _LEASE.pack(until, answered, len(packed), len(name), len(chain)) + packed + name.encode() + chain


def _unpack(data: bytes) -> Iterator[tuple[bytes, Teaching]]:
    from policies.ports import NOTHING

    at = 0
    while at + _LEASE.size <= len(data):
        until, answered, address, name, chain = _LEASE.unpack_from(data, at)
        at += _LEASE.size
        packed = data[at : at + address]
        at += address
        text = data[at : at + name].decode()
        at += name
        links = tuple(json.loads(data[at : at + chain])) if chain else ()
        at += chain
        yield packed, Teaching(text, links, NOTHING, until, answered)
