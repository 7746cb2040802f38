"""How a source at the end of a connection does: what is said of it, when to try again, how long its word holds."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from ingress.providers.base import Health

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingress.providers.base import Say


class Backoff:
    """Delays in seconds before the next try: doubled each time up to `most`, each shortened by chance to half at most.

    Chance keeps a fleet of gateways from knocking at a server that has just come back all at the same moment.
    """

    def __init__(self, first: float = 0.1, most: float = 4.0, chance: Callable[[], float] = random.random) -> None:
        self._first = first
        self._most = most
        self._chance = chance
        self._next = first

    def delay(self) -> float:
        """How long to wait now."""
        full, self._next = self._next, min(self._next * 2, self._most)
        return full * (1 - self._chance() / 2)

    def reset(self) -> None:
        """It went well."""
        self._next = self._first


class Standing:
    """Keeps a source's health, says each change of it once, and decides when its last word has held long enough.

    keep: seconds for which the routes hold without their source, 0 for good. now: monotonic seconds.
    count: how many sandboxes there are, for the words.
    """

    def __init__(
        self, say: Say, source: str, keep: float, count: Callable[[], int], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._say = say
        self._source = source
        self._keep = keep
        self._count = count
        self._now = now
        self._loaded = False
        self._words = ""
        self._since: float | None = None
        self._expired = False

    def good(self) -> None:
        """The table is as the source says."""
        if not self._loaded or self._words:
            again = " again" if self._loaded else ""
            count = self._count()
            self._say("info", f"{self._source}: followed{again}, {count} sandbox{'' if count == 1 else 'es'}")
        self._loaded, self._words, self._since, self._expired = True, "", None, False

    def bad(self, words: str) -> bool:
        """The source can't be followed just now; to be called at each try that fails. True: its routes are to go."""
        now = self._now()
        if self._since is None:
            self._since = now
        if words != self._words:
            self._words = words
            self._say("warn", f"{self._source}: {words}; {self._rest()}")
        if not self._keep or now - self._since < self._keep or self._expired or not self._loaded:
            return False
        self._expired = True
        self._say("error", f"{self._source}: lost for {self._keep:g} s: its routes are dropped")
        return True

    def _rest(self) -> str:
        count = self._count()
        return f"the last routes go on ({count})" if count else "there are no routes"

    def health(self) -> Health:
        """At once."""
        return Health(self._loaded, f"{self._words}; {self._rest()}" if self._words else "", self._source)
