"""Failures counted across workers, so that a 32-bit signature can't be searched. Pure; the time is an argument.

What is counted, each in a leaky bucket (`burst` at once, then `rate` a second):

    client   failures of a client address (v6: its /64)        20, then 1 a second
    missing  404s of a client address, in a bucket of its own   120, then 10 a second
    sandbox  failed signatures for a sandbox, all addresses     60, then 1 a second
    looks    signatures looked at while that one is full        3, then 3 a second

Over `client`, whatever would need a look is answered 429, right or wrong; a second later one look is free again.
Over `sandbox`, a signature from an address that has not lately been let into this sandbox is only looked at while
`looks` allows it, right or wrong. The access token isn't bound by it: the owner is never locked out by strangers.

Why that is enough. A guess hits with probability 2^-32, whatever sandbox, port, expiry and key it names. One address
gets 1 look a second. All addresses together, however many, get at most 60 + 4 t looks at a sandbox in t seconds (3 a
second while the budget is spent, 1 a second that it earns). So the mean time to a hit is 2^32 / 4 s = 34 years of
flooding one sandbox; a day of it succeeds with probability 345,660 / 2^32 = 8 in 100,000. That is for one gateway: n of
them, each with counters of its own, make it n times that.

The counters lie in one shared mapping made before the workers are forked: fixed size, no lock. A cell is one aligned
double, the time at which its bucket is empty again; two workers that write at once lose a count, and no value can do
more than a full bucket, since one that says more doesn't count. Cells are found by a keyed hash whose key is drawn at
each start, so nobody outside knows who shares a cell; a bucket has a cell in each of three rows and the lowest counts
(a count-min sketch), so that filling many cells does not fill somebody else's bucket.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
from hashlib import blake2b
from typing import Any, NamedTuple, TypeAlias

ROWS = 3
Cells: TypeAlias = "memoryview[float]"


class Bucket(NamedTuple):
    """How many at once, and how many a second after that; `cells` in each row, a power of two."""

    burst: float
    rate: float
    cells: int

    @property
    def size(self) -> int:
        """Doubles in all rows."""
        return ROWS * self.cells


CLIENT = Bucket(20, 1, 16_384)
MISSING = Bucket(120, 10, 16_384)
SANDBOX = Bucket(60, 1, 4_096)
LOOKS = Bucket(3, 3, 4_096)

_SKEW = 5.0
"""Seconds by which one worker's idea of now may be ahead of another's."""
RECENT = 3_600.0
"""Seconds for which an address that was let into a sandbox is known there."""
_WAYS = 4
_SUCCESS_SETS = 4_096
_LINK_WAYS = 8
_TURNS = 1_000
_LINK_SETS = 4_096


class Throttle:
    """The counters of one gateway. Make it before forking; each worker uses its own copy of this object."""

    def __init__(self, key: bytes | None = None, descriptor: int = -1) -> None:
        """descriptor: the memory file of a gateway before this one, with its key; taken over where it has our shape."""
        sizes = [
            CLIENT.size,
            MISSING.size,
            SANDBOX.size,
            LOOKS.size,
            _WAYS * _SUCCESS_SETS,
            2 * _LINK_WAYS * _LINK_SETS,
        ]
        if descriptor >= 0 and (not key or os.fstat(descriptor).st_size != 8 * sum(sizes)):
            os.close(descriptor)
            descriptor, key = -1, None
        if descriptor < 0:
            descriptor = os.memfd_create("sallyport-throttle", os.MFD_CLOEXEC)
            os.ftruncate(descriptor, 8 * sum(sizes))
        self._key = key or os.urandom(32)
        self._fd = descriptor
        self._map = mmap.mmap(self._fd, 8 * sum(sizes))
        whole = memoryview(self._map)
        offsets = [8 * sum(sizes[:i]) for i in range(len(sizes) + 1)]
        parts = [whole[offsets[i] : offsets[i + 1]] for i in range(len(sizes))]
        self._client, self._missing, self._sandbox, self._looks = (part.cast("d") for part in parts[:4])
        self._successes, self._links = (part.cast("Q") for part in parts[4:])
        self._views: list[Any] = [
            self._client,
            self._missing,
            self._sandbox,
            self._looks,
            self._successes,
            self._links,
            *parts,
            whole,
        ]

    def handed(self) -> tuple[int, bytes]:
        """Descriptor and key, for a gateway that goes on with the same counters."""
        return self._fd, self._key

    def close(self) -> None:
        """Give the memory back."""
        for view in self._views:
            view.release()
        self._map.close()
        os.close(self._fd)

    # -- what the gate asks -------------------------------------------------------------------------------------------

    def may_look(self, client: str, now: float) -> bool:
        """May anything that this address sends to prove itself be looked at."""
        return _room(self._client, self._cells(b"client", _place(client), CLIENT), CLIENT, now)

    def may_look_at_signature(self, client: str, sandbox: str, now: float) -> bool:
        """May a signature for this sandbox be looked at; ask `may_look` first. The look counts where it has to."""
        name = sandbox.encode()
        if _room(self._sandbox, self._cells(b"sandbox", name, SANDBOX), SANDBOX, now):
            return True
        if self.knows(client, sandbox, now):
            return True
        cells = self._cells(b"looks", name, LOOKS)
        if not _room(self._looks, cells, LOOKS, now):
            return False
        _take(self._looks, cells, LOOKS, now)
        return True

    def failed(self, client: str, now: float) -> None:
        """This address has shown something wrong."""
        _take(self._client, self._cells(b"client", _place(client), CLIENT), CLIENT, now)

    def failed_signature(self, client: str, sandbox: str, now: float) -> None:
        """This address has shown a wrong signature for a sandbox."""
        self.failed(client, now)
        _take(self._sandbox, self._cells(b"sandbox", sandbox.encode(), SANDBOX), SANDBOX, now)

    def may_miss(self, client: str, now: float) -> bool:
        """May this address be told that a sandbox does not exist."""
        return _room(self._missing, self._cells(b"missing", _place(client), MISSING), MISSING, now)

    def missed(self, client: str, now: float) -> None:
        """This address asked for something that does not exist."""
        _take(self._missing, self._cells(b"missing", _place(client), MISSING), MISSING, now)

    def succeeded(self, client: str, sandbox: str, now: float) -> None:
        """This address has been let into this sandbox."""
        start, tag = self._success(client, sandbox)
        cells = self._successes
        # The word of this pair, else the oldest of the set: one word a pair, tag above, seconds below.
        where = min(range(start, start + _WAYS), key=lambda i: -1 if cells[i] >> 32 == tag else cells[i] & 0xFFFFFFFF)
        cells[where] = tag << 32 | int(now) & 0xFFFFFFFF

    def knows(self, client: str, sandbox: str, now: float) -> bool:
        """Has this address been let into this sandbox within the last hour."""
        start, tag = self._success(client, sandbox)
        for word in self._successes[start : start + _WAYS]:
            if word >> 32 == tag and -60 <= now - (word & 0xFFFFFFFF) <= RECENT:
                return True
        return False

    # -- links that are good once -------------------------------------------------------------------------------------

    def spend(self, link: bytes, until: int, now: float) -> bool | None:
        """Use up a link that is good until `until`: True the first time, then False; None: no room, or no turn yet.

        The one place where two workers must not both win: a record lock, which the kernel drops should its holder die.
        """
        for _ in range(_TURNS):
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.sched_yield()  # whoever holds it needs some microseconds
                continue
            try:
                return self._spend(link, until, now)
            finally:
                fcntl.lockf(self._fd, fcntl.LOCK_UN)
        return None

    def _spend(self, link: bytes, until: int, now: float) -> bool | None:
        start, tag = self._link(link)
        cells = self._links
        free = -1
        for i in range(start, start + 2 * _LINK_WAYS, 2):
            if cells[i] == tag and cells[i + 1]:
                return False
            if cells[i + 1] < int(now):
                free = i
        if free < 0:
            return None
        cells[free] = tag
        cells[free + 1] = min(until, 2**63)
        return True

    def spent(self, link: bytes) -> bool:
        """Has this link been used."""
        start, tag = self._link(link)
        cells = self._links
        return any(cells[i] == tag and cells[i + 1] for i in range(start, start + 2 * _LINK_WAYS, 2))

    # -- where things lie ---------------------------------------------------------------------------------------------

    def _hash(self, kind: bytes, name: bytes) -> bytes:
        return blake2b(name, digest_size=16, key=self._key, person=kind).digest()

    def _cells(self, kind: bytes, name: bytes, bucket: Bucket) -> tuple[int, ...]:
        found = self._hash(kind, name)
        cells = bucket.cells
        return tuple(
            row * cells + (int.from_bytes(found[4 * row : 4 * row + 4], "little") & (cells - 1)) for row in range(ROWS)
        )

    def _success(self, client: str, sandbox: str) -> tuple[int, int]:
        found = self._hash(b"success", _place(client) + b"\0" + sandbox.encode())
        return (
            _WAYS * (int.from_bytes(found[:4], "little") & (_SUCCESS_SETS - 1)),
            int.from_bytes(found[4:8], "little") or 1,
        )

    def _link(self, link: bytes) -> tuple[int, int]:
        found = self._hash(b"link", link)
        return (
            2 * _LINK_WAYS * (int.from_bytes(found[:4], "little") & (_LINK_SETS - 1)),
            int.from_bytes(found[8:], "little") or 1,
        )


def _place(client: str) -> bytes:
    """What an address counts as: itself, or its /64, the least that one customer of a network gets (RFC 6177)."""
    if ":" not in client:
        return client.encode(errors="replace")
    try:
        packed = socket.inet_pton(socket.AF_INET6, client.partition("%")[0])
    except (OSError, ValueError):
        return client.encode(errors="replace")
    if packed.startswith(b"\0" * 10 + b"\xff\xff"):
        return ".".join(map(str, packed[12:])).encode()
    return packed[:8]


def _debt(view: Cells, cells: tuple[int, ...], bucket: Bucket, now: float) -> float:
    """Seconds until the bucket is empty, by the row that knows least; never more than a full one takes."""
    least = bucket.burst / bucket.rate
    most = least + _SKEW
    for cell in cells:
        debt = view[cell] - now
        # Nobody puts in more than fits: what says so is torn, or from before the clock went back, and doesn't count.
        if not 0 < debt <= most:
            return 0.0
        least = min(least, debt)
    return least


def _room(view: Cells, cells: tuple[int, ...], bucket: Bucket, now: float) -> bool:
    """Is there room for one more."""
    return _debt(view, cells, bucket, now) * bucket.rate <= bucket.burst - 1 + 1e-6


def _take(view: Cells, cells: tuple[int, ...], bucket: Bucket, now: float) -> None:
    """Put one more in, up to the brim. A row that holds more keeps it, unless nobody can have put in so much."""
    full = bucket.burst / bucket.rate
    level = now + min(_debt(view, cells, bucket, now) + 1 / bucket.rate, full)
    for cell in cells:
        if not level < view[cell] <= now + full:
            view[cell] = level
