"""A scrape's numbers are of now: whoever is asked for them has the other workers publish theirs first.

    asked ──▶ own numbers out, the others' bells rung ──▶ all of them out, or PATIENCE ──▶ done

The bells are eventfds that the master made before it forked, so the worker that takes a dead one's place hears it.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from ingress.telemetry.metrics import FRESH, published

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from ingress.telemetry.metrics import Board

PATIENCE = 1.0
"""Seconds after which a worker that stands still is no longer waited for: what it published last is its numbers."""
_LOOK = 0.001


class Rally:
    """One worker's: it hears its own bell from now on."""

    def __init__(
        self,
        board: Board,
        bells: Sequence[int],
        own: int,
        publish: Callable[[], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._board = board
        self._bells = bells
        self._own = own
        self._publish = publish
        self._loop = loop
        loop.add_reader(bells[own], self._heard)

    def call(self, done: Callable[[], None]) -> bool:
        """Whether `done()` is called later, when every worker's numbers are of this moment; False: they are already."""
        self._publish()
        asked = time.monotonic()
        others = [slot for slot in range(len(self._bells)) if slot != self._own]
        others = [slot for slot in others if asked - published(self._board, slot) <= FRESH]
        for slot in others:
            os.eventfd_write(self._bells[slot], 1)
        if others:
            self._loop.call_later(_LOOK, self._look, others, asked, done)
        return bool(others)

    def _look(self, others: list[int], asked: float, done: Callable[[], None]) -> None:
        late = [slot for slot in others if published(self._board, slot) < asked]
        if late and time.monotonic() < asked + PATIENCE:
            self._loop.call_later(_LOOK, self._look, late, asked, done)
        else:
            done()

    def _heard(self) -> None:
        os.eventfd_read(self._bells[self._own])
        self._publish()
