"""The deny webhook: denied names, told to an URL, without the guard ever waiting for it.

    denied(name) ─▶ told within REPEAT seconds? ─▶ queue of 256 (full: dropped, counted) ─▶ thread ─▶ POST

The thread is started by the first denial. It sends one at a time: 5 s for an attempt in all, three more attempts with
growing pauses on 5xx and on transport errors, none on 4xx; redirects are not followed, because only the configured
endpoint may be reached. Sockets come from a `connect` that is handed in: it resolves the name with the sidecar's own
resolver and gives the socket the exemption that lets it pass the sidecar's own rules.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Protocol

from egress.log import timestamp
from egress.post import Poster, told

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from queue import SimpleQueue
    from threading import Event

    from egress.literals import Url

QUEUE = 256
"""Denials that may wait."""
RETRIES = 3
PAUSES = (0.5, 1.0, 2.0)
"""Seconds before each retry."""
REPEAT = 10.0
"""Seconds within which the same name is not told again."""

_REMEMBERED = 4096
_QUIET = 60.0  # seconds between reports of trouble


class Turn(Protocol):
    """The part of the loop that this module needs."""

    def now(self) -> float: ...
    def call_threadsafe(self, callback: Callable[[], None]) -> None: ...


class Webhook:
    """Tells denied names. `denied` is for the loop's thread and returns at once.

    `connect(host, port)` is called on the webhook's thread, may take its time, and returns a connected stream socket
    or raises OSError; `host` is a name or an address literal. `report(text)` is called on the loop.
    """

    def __init__(
        self,
        url: Url,
        sandbox_id: str,
        connect: Callable[[str, int], socket.socket],
        loop: Turn,
        report: Callable[[str], None],
    ) -> None:
        self._poster = Poster(url, connect)
        self._sandbox_id = sandbox_id
        self._loop = loop
        self._report = report
        self._told: dict[str, float] = {}  # name -> when; oldest first
        self._queue: SimpleQueue[bytes | None] | None = None
        self._stop: Event | None = None
        self._quiet_until = {"full": 0.0, "undelivered": 0.0}
        self.dropped = 0
        self.sent = 0
        self.failed = 0

    def denied(self, name: str) -> None:
        """Tell that `name`, canonical, was denied just now; never waits, never raises."""
        now = self._loop.now()
        last = self._told.get(name)
        if last is not None:
            if now - last < REPEAT:
                return
            del self._told[name]
        elif len(self._told) >= _REMEMBERED:
            del self._told[next(iter(self._told))]
        try:
            queue = self._queue or self._start()
        except RuntimeError:  # no thread to be had
            queue = None
        if queue is None or queue.qsize() >= QUEUE:
            self.dropped += 1
            self._trouble("full", f"deny webhook: the queue is full, {self.dropped} denials were not told so far")
            return
        self._told[name] = now
        document = {
            "hostname": name,
            "timestamp": timestamp(time.time()),
            "source": "opensandbox-egress",
            "sandboxId": self._sandbox_id,
        }
        queue.put(json.dumps(document).encode())

    def close(self) -> None:
        """Stop telling; what waits is lost."""
        if self._queue is not None and self._stop is not None:
            self._stop.set()
            self._queue.put(None)

    def _start(self) -> SimpleQueue[bytes | None]:
        from queue import SimpleQueue
        from threading import Event, Thread

        queue: SimpleQueue[bytes | None] = SimpleQueue()
        stop = Event()
        Thread(target=self._run, args=(queue, stop), name="webhook", daemon=True).start()
        self._queue, self._stop = queue, stop
        return queue

    def _trouble(self, kind: str, text: str) -> None:
        """Report on the loop, but not more than once a minute for each kind."""
        now = self._loop.now()
        if now >= self._quiet_until[kind]:
            self._quiet_until[kind] = now + _QUIET
            self._report(text)

    # -- on the thread ---------------------------------------------------------------------------------------------
    def _run(self, queue: SimpleQueue[bytes | None], stop: Event) -> None:
        while True:
            body = queue.get()
            if body is None or stop.is_set():
                return
            problem = self._deliver(body, stop)
            if problem is None:
                self.sent += 1
            else:
                self.failed += 1
                if stop.is_set():
                    return
                text = f"deny webhook: not delivered: {problem}"
                self._loop.call_threadsafe(lambda text=text: self._trouble("undelivered", text))  # type: ignore[misc]

    def _deliver(self, body: bytes, stop: Event) -> str | None:
        """POST until it is taken, refused or given up; None when it was taken."""
        problem = ""
        for attempt in range(RETRIES + 1):
            if attempt and stop.wait(PAUSES[attempt - 1]):
                return "stopped"
            try:
                status = self._poster.post(body)
            except Exception as error:  # noqa: BLE001 - whatever it is, the thread must live to tell the next one
                problem = told(error)
                continue
            if 200 <= status < 300:
                return None
            problem = f"status {status}"
            if status < 500:
                break
        return problem
