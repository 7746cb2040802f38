"""What one worker counts. Pure, one thread, no locks; metrics.py publishes and sums it.

The numbers are plain attributes that the data path adds to, and a method stands only where a label is counted. The sets
of labels are bounded whatever a sandbox answers: a snapshot always fits its slot, and a scrape stays small.
"""

from __future__ import annotations

from bisect import bisect_left
from http import HTTPStatus
from typing import Any

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds in seconds of the histogram's buckets, each inclusive; one more bucket holds what is slower."""
MAX_REFUSALS = 256
"""Pairs of status and reason that are counted apart; later ones count as `4xx other`."""
MAX_LABELS = 64
"""Labels of each other kind that are counted apart; later ones are `other`."""

_KNOWN = frozenset(int(status) for status in HTTPStatus) | {499}  # 499: the client left first, as nginx logs it


class Stats:
    """One worker's counters and gauges.

    connections, tunnels, inflight: open or under way now. sandboxes: entries in the route table. degraded: the provider
    can't be read at present. *_total, bytes_*, renewals_*, log_dropped: since the worker began, never less than before.
    bytes_in: bodies from clients. bytes_out: answers to clients, heads included.
    """

    __slots__ = (
        "_buckets",
        "_plain",
        "_refused",
        "_seconds",
        "bytes_in",
        "bytes_out",
        "connections",
        "connections_total",
        "degraded",
        "inflight",
        "log_dropped",
        "reloads",
        "renewals_dropped",
        "renewals_failed",
        "renewals_sent",
        "sandboxes",
        "throttles",
        "tunnels",
        "tunnels_total",
        "upstream_errors",
    )

    def __init__(self) -> None:
        self.connections = 0
        self.tunnels = 0
        self.inflight = 0
        self.sandboxes = 0
        self.degraded = False
        self.connections_total = 0
        self.tunnels_total = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.renewals_sent = 0
        self.renewals_dropped = 0
        """The queue was full: Redis is slower than the sandboxes are busy, or gone."""
        self.renewals_failed = 0
        """Handed to Redis and not taken in time."""
        self.log_dropped = 0
        """Lines, access log included, that whoever reads the log was too slow for."""
        self.upstream_errors: dict[str, int] = {}
        self.throttles: dict[str, int] = {}
        self.reloads: dict[str, int] = {}
        """`<what> ok` or `<what> failed` -> count"""
        self._plain: dict[int, int] = {}
        self._refused: dict[tuple[int, str], int] = {}
        self._buckets = [0] * (len(BOUNDS) + 1)
        self._seconds = 0.0

    def answered(self, status: int, code: str, seconds: float) -> None:
        """A request is over. `code`: "" where the sandbox answered, else the refusal's, or why it was broken off."""
        self._buckets[bisect_left(BOUNDS, seconds)] += 1
        self._seconds += seconds
        if not code:
            try:
                self._plain[status] += 1  # the ordinary case without a tuple to make and to hash
                return
            except KeyError:
                pass
        self._count_answer(status, code)

    def _count_answer(self, status: int, code: str) -> None:
        if status not in _KNOWN:
            status //= 100  # its class: a sandbox may send any three digits
        if not code:
            self._plain[status] = self._plain.get(status, 0) + 1
            return
        key = (status, code)
        if key not in self._refused and len(self._refused) >= MAX_REFUSALS:
            key = (status if status < 10 else status // 100, "other")
        self._refused[key] = self._refused.get(key, 0) + 1

    def upstream_error(self, cause: str) -> None:
        """A sandbox could not be used: connect, timeout, reset, protocol, truncated ..."""
        _count(self.upstream_errors, cause)

    def throttled(self, kind: str) -> None:
        """A request was turned away for its number: client, sandbox, inflight, connections ..."""
        _count(self.throttles, kind)

    def reloaded(self, what: str, ok: bool) -> None:
        """Something was read again while running: routes, tls, keys."""
        _count(self.reloads, f"{what} {'ok' if ok else 'failed'}")

    def snapshot(self) -> dict[str, Any]:
        """Everything as a value for JSON.

        counters: name -> number. gauges: name -> number now. labelled: kind -> label -> count; an answer's label is
        `404 unknown_sandbox`, or `200 ` where the sandbox made it, and a status without a name of its own is `4xx`.
        buckets: counts by BOUNDS, each for itself and not summed up.
        """
        answers: dict[str, int] = {f"{_status(status)} ": n for status, n in self._plain.items()}
        answers.update((f"{_status(status)} {code}", n) for (status, code), n in self._refused.items())
        return {
            "counters": {
                "connections": self.connections_total,
                "tunnels": self.tunnels_total,
                "bytes_in": self.bytes_in,
                "bytes_out": self.bytes_out,
                "seconds": self._seconds,
                "log_dropped": self.log_dropped,
            },
            "gauges": {
                "connections": self.connections,
                "tunnels": self.tunnels,
                "inflight": self.inflight,
                "sandboxes": self.sandboxes,
                "degraded": int(self.degraded),
            },
            "labelled": {
                "answers": answers,
                "upstream_errors": dict(self.upstream_errors),
                "throttled": dict(self.throttles),
                "renewals": {
                    "sent": self.renewals_sent,
                    "dropped": self.renewals_dropped,
                    "failed": self.renewals_failed,
                },
                "reloads": dict(self.reloads),
            },
            "buckets": list(self._buckets),
        }


def _status(status: int) -> str:
    return str(status) if status > 9 else f"{status}xx"


def _count(counts: dict[str, int], label: str) -> None:
    if label not in counts and len(counts) >= MAX_LABELS:
        label = "other"
    counts[label] = counts.get(label, 0) + 1
