"""Metrics pushed to a collector: OTLP over HTTP, in its JSON encoding, without the guard ever waiting for it.

    every interval: snapshot (loop) ─▶ encoded ─▶ a thread of its own for this one POST ─▶ counted (loop)

Values are cumulative, so nothing is queued or sent again: what did not arrive is in the next export. A collector that
takes longer than the interval has the ones meanwhile skipped: that is counted, and what becomes of the one under way is
what is said. Failures are said once until one arrives.
"""

from __future__ import annotations

import _thread
import time
from typing import TYPE_CHECKING, Protocol

from egress.metrics import otlp
from egress.post import Poster, told

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from egress.literals import Url
    from egress.metrics import Metric


class Turn(Protocol):
    """The part of the loop that this module needs."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> object: ...
    def call_threadsafe(self, callback: Callable[[], None]) -> None: ...


class Exporter:
    """Sends what `collect` says every `interval` seconds; `failed` counts what did not arrive, `sent` what did.

    `connect` is called on a thread (see `Poster`), everything else on the loop's; `report(text)` is told of trouble.
    """

    def __init__(
        self,
        url: Url,
        interval: float,
        attributes: Sequence[tuple[str, str]],
        collect: Callable[[], Sequence[Metric]],
        connect: Callable[[str, int], socket.socket],
        loop: Turn,
        report: Callable[[str], None],
    ) -> None:
        self._poster = Poster(url, connect)
        self._where = f"{url.host}:{url.port}"
        self._interval = interval
        self._attributes = attributes
        self._collect = collect
        self._loop = loop
        self._report = report
        self._started = time.time_ns()
        self._busy = False
        self._troubled = False
        self.sent = 0
        self.failed = 0

    def start(self) -> None:
        """The first export is an interval away: a start has better things to do."""
        self._loop.call_later(self._interval, self._tick)

    def _tick(self) -> None:
        self._loop.call_later(self._interval, self._tick)
        if self._busy:
            self.failed += 1  # why, the one under way will tell, when it is over
            return
        body = otlp(self._collect(), self._attributes, self._started, time.time_ns())
        try:
            _thread.start_new_thread(self._send, (body,))
            self._busy = True
        except RuntimeError:  # no thread to be had
            self._done("no thread can be started")

    def _send(self, body: bytes) -> None:
        """On the thread."""
        problem = ""
        try:
            status = self._poster.post(body)
            if not 200 <= status < 300:
                problem = f"status {status}"
        except Exception as error:  # noqa: BLE001 - whatever it is, the loop must hear that this one is over
            problem = told(error)
        self._loop.call_threadsafe(lambda: self._ended(problem))

    def _ended(self, problem: str) -> None:
        self._busy = False
        self._done(problem)

    def _done(self, problem: str) -> None:
        if not problem:
            self.sent += 1
            self._troubled = False
            return
        self.failed += 1
        if not self._troubled:
            self._troubled = True
            self._report(f"metrics are not delivered to {self._where}: {problem}")
