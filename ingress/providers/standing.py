"""How a source at the end of a connection does: what is said of it, when to try again, how long its word holds."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from ingress.providers.base import Health

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingress.providers.base import Say
    from ingress.routes import Routes


class Backoff:
    """Delays in seconds before the next try: doubled each time up to `most`, each shortened by chance to half at most.

    Chance keeps a fleet of gateways from knocking at a server that has just come back all at the same moment.
    """

    def __init__(self, first: float = 0.1, most: float = 5.0, chance: Callable[[], float] = random.random) -> None:
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
    """Keeps a provider's health, says each change of it once, and lets the routes go when nobody vouches for them.

    keep: seconds for which the routes hold without their source, 0 for good. now: monotonic seconds.
    """

    def __init__(
        self, routes: Routes, say: Say, source: str, keep: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._routes = routes
        self._say = say
        self._source = source
        self._keep = keep
        self._now = now
        self._loaded = False
        self._words = ""
        self._since: float | None = None
        self._dropped = False

    def good(self) -> None:
        """The table is as the source says."""
        was, self._words, self._since = self._words, "", None
        if not self._loaded or was:
            count = len(self._routes)
            verb = "followed again" if self._loaded else "followed"
            self._say("info", f"{self._source}: {verb}, {count} sandbox{'' if count == 1 else 'es'}")
        self._loaded = True
        self._dropped = False

    def bad(self, words: str) -> None:
        """The source can't be followed just now. To be called at each try that fails."""
        now = self._now()
        if self._since is None:
            self._since = now
        if self._keep and now - self._since >= self._keep and not self._dropped:
            self._dropped = True
            self._routes.replace(())
            self._say("error", f"{self._source}: gone for {self._keep:g} s, its routes are dropped")
        if words != self._words:
            self._words = words
            self._say("warn", f"{self._source}: {words}; {self._rest()}")

    def _rest(self) -> str:
        return f"the last routes go on ({len(self._routes)})" if len(self._routes) else "there are no routes"

    def health(self) -> Health:
        """At once."""
        if not self._words:
            return Health(self._loaded, "", self._source)
        return Health(self._loaded, f"{self._words}; {self._rest()}", self._source)
