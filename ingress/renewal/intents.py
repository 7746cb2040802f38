"""Which renew intents there are to send, and when: the part of renew.py that knows no Redis. Pure; time is an argument.

    note -> quiet? -> claimed by another worker? -> waiting (at most QUEUE) -> taken -> sent
                                                       ^                        |
                                                       +----- put back ---------+-> too old: given up

A sandbox that was noted is quiet for the interval. Where its intent is dropped or given up, it is quiet for AGAIN only,
so that a sandbox in use is not forgotten for the rest of the interval.
"""

from __future__ import annotations

import json
import mmap
import time
from typing import NamedTuple

QUEUE = 1024
"""Intents that may wait; of one sandbox the latest does."""
KEEP = 240.0
"""Seconds after which an intent that Redis didn't take is given up: its reader throws away what is five minutes old."""
AGAIN = 5.0
"""Seconds until the next intent of a sandbox whose last one was lost."""
SEEN = 65_536
"""Sandboxes that are remembered at most."""
LONGEST_URI = 2048
"""Characters of a request_uri that are kept: a thousand waiting intents must not be 64 MiB."""
CLAIMS = 16_384
"""Cells of the table that workers share."""

_FIRST_TIDY = 1024
_encode = json.JSONEncoder(separators=(",", ":")).encode


class Intent(NamedTuple):
    """A sandbox was in use."""

    sandbox: str
    port: int
    request_uri: str
    observed: int
    """Unix time in nanoseconds."""
    since: float
    """When it was noted, on the clock that everything else here is measured by."""

    def payload(self) -> str:
        """As the server reads it. A port of 0 and an empty URI are left out, as they always were."""
        fields: dict[str, object] = {"sandbox_id": self.sandbox, "observed_at": rfc3339(self.observed)}
        if self.port:
            fields["port"] = self.port
        if self.request_uri:
            fields["request_uri"] = self.request_uri
        return _encode(fields)


def rfc3339(nanoseconds: int) -> str:
    """Unix time in nanoseconds as RFC 3339 in UTC; always nine digits of a second, for some readers choke on five."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest:09d}Z"


class Claims:
    """Which sandboxes some worker has noted, in memory that all workers share.

    A cell is one aligned 64-bit word, 32 bits of the id's hash and the end of its quiet time in sixteenths of a second,
    so it is written whole without a lock. Two workers that look at the same instant may both send, and so may two
    whose sandboxes share a cell: an intent more is harmless. Forks of one process only: they hash alike.
    """

    def __init__(self, memory: mmap.mmap | bytearray | None = None) -> None:
        whole = memoryview(mmap.mmap(-1, CLAIMS * 8) if memory is None else memory)
        self._cells: memoryview[int] = whole.cast("B").cast("Q")

    def until(self, sandbox: str) -> float:
        """Until when a worker keeps quiet about it; 0: nobody does."""
        hashed = hash(sandbox)
        cell = self._cells[hashed % CLAIMS]
        return (cell & 0xFFFFFFFF) / 16 if cell >> 32 == (hashed >> 32) & 0xFFFFFFFF else 0.0

    def claim(self, sandbox: str, until: float) -> None:
        """Keep the others quiet about it until then; a time that is over sets it free."""
        hashed = hash(sandbox)
        self._cells[hashed % CLAIMS] = ((hashed >> 32) & 0xFFFFFFFF) << 32 | (int(until * 16) & 0xFFFFFFFF)


class Intents:
    """What waits to be sent. interval: seconds between two intents of a sandbox; 0: every note is one."""

    def __init__(self, interval: float, claims: Claims | None = None) -> None:
        self.quiet: dict[str, float] = {}
        """Sandbox -> until when another note of it says nothing new."""
        self._interval = interval
        self._claims = claims
        self._waiting: dict[str | int, Intent] = {}
        self._taken = 0
        self._serial = 0
        self._tidy_at = _FIRST_TIDY

    def __len__(self) -> int:
        return len(self._waiting) + self._taken

    @property
    def waiting(self) -> bool:
        return bool(self._waiting)

    def offer(self, sandbox: str, port: int, request_uri: str, now: float, observed: int) -> bool:
        """A sandbox that is not quiet is in use. False: the queue is full, and the intent is dropped."""
        key: str | int = sandbox
        if self._interval > 0:
            if self._claims is not None and (until := self._claims.until(sandbox)) > now:
                self._hush(sandbox, now, until)
                return True
        else:
            self._serial += 1
            key = self._serial
        if key not in self._waiting and len(self) >= QUEUE:
            self._hush(sandbox, now, now + min(AGAIN, self._interval))
            return False
        self._hush(sandbox, now, now + self._interval)
        if self._claims is not None:
            self._claims.claim(sandbox, now + self._interval)
        self._waiting.pop(key, None)  # the latest goes to the end: they stand in the order of their age
        self._waiting[key] = Intent(sandbox, port, request_uri[:LONGEST_URI], observed, now)
        return True

    def take(self, most: int) -> list[Intent]:
        """The oldest, to be sent now; what became of them is told by `sent` or `put_back` before the next are taken."""
        keys = list(self._waiting)[:most]
        taken = [self._waiting.pop(key) for key in keys]
        self._taken = len(taken)
        return taken

    def sent(self) -> None:
        """What was taken is with Redis."""
        self._taken = 0

    def put_back(self, taken: list[Intent], now: float) -> int:
        """What was taken could not be sent. Says how many intents were given up, of these and of those that wait."""
        self._taken = 0
        before = self._waiting
        self._waiting = {}
        for intent in taken:
            self._serial += 1
            key = intent.sandbox if self._interval > 0 else -self._serial
            if key not in before:
                self._waiting[key] = intent
        self._waiting.update(before)
        old = [key for key, intent in self._waiting.items() if now - intent.since > KEEP]
        for key in old:
            sandbox = self._waiting.pop(key).sandbox
            self._hush(sandbox, now, now + min(AGAIN, self._interval))
            if self._claims is not None:
                self._claims.claim(sandbox, 0.0)
        return len(old)

    def _hush(self, sandbox: str, now: float, until: float) -> None:
        if until <= now:
            return
        if len(self.quiet) >= self._tidy_at and sandbox not in self.quiet:
            self.quiet = {name: end for name, end in self.quiet.items() if end > now}
            if len(self.quiet) >= SEEN:
                self.quiet.clear()  # at worst each of them is sent once more
            self._tidy_at = min(SEEN, max(_FIRST_TIDY, 2 * len(self.quiet)))
        self.quiet[sandbox] = until
