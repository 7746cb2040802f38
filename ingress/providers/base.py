"""What every provider is to the gateway."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

Say = Callable[[str, str], None]
"""Takes a log line: its level (`debug`, `info`, `warn`, `error`) and a finished sentence."""


class Health(NamedTuple):
    """How a provider does, for `/readyz`, logs and `ingress routes`."""

    loaded: bool
    """It has filled the table at least once: before that the gateway is not ready."""
    degraded: str = ""
    """What is wrong in words; the last known routes go on meanwhile. "": nothing."""
    source: str = ""
    """Where it looks, for people: a file's path, a socket, an API server and its kind."""


class Provider(Protocol):
    """Keeps a `Routes` table true until it is closed. Made with its table and settings; starts nothing before `run`."""

    async def run(self) -> None:
        """Fill the table and follow changes until cancelled. Faults from outside are retried, never raised."""

    async def close(self) -> None:
        """Give back connections and watches; after it `run` has ended."""

    def health(self) -> Health:
        """At once, from memory."""
