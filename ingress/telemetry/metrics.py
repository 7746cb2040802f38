"""The workers' counters, summed and written as Prometheus reads them. Pure but for the shared buffer.

Each worker publishes its snapshot about once a second, and when it is called (rally.py), into a slot of its own in
memory that the master made before it forked; whoever is asked for `/metrics` sums the slots. No reader holds up a
writer:

    slot:  [ half 0: sequence length crc | JSON ][ half 1: sequence length crc | JSON ]

A worker writes the half that isn't the newest, so one that is killed in the middle leaves the other whole, and the
checksum tells a reader what is half written. A worker that takes over a dead one's slot begins with its totals: a
counter never goes back.
"""

from __future__ import annotations

import json
import math
import mmap
import platform
import struct
import zlib
from typing import TYPE_CHECKING, Any

from ingress.telemetry.stats import BOUNDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ingress.telemetry.stats import Stats

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
SLOT = 131_072
"""Octets for each worker, of which only what is written takes memory."""
FRESH = 5.0
"""Seconds after which a worker that published nothing is taken for dead: what it had open is open no more."""

_HALF = SLOT // 2
_HEADER = struct.Struct("<QII")  # sequence, length, CRC-32 of both and of the payload; sequence 0: never written
_LARGEST = _HALF - _HEADER.size
_LOOKS = 64
"""Times that a reader looks at a slot before it takes the newest it has seen."""
# Known by every worker alike, so the sum would say nothing.
_SHARED = ("sandboxes", "degraded")

Snapshot = dict[str, Any]


class Board:
    """The shared memory: made by the master before it forks, written and read by the workers."""

    def __init__(self, workers: int, buffer: mmap.mmap | bytearray | None = None) -> None:
        self.workers = workers
        self._memory = mmap.mmap(-1, workers * SLOT) if buffer is None else buffer

    def write(self, slot: int, payload: bytes) -> bool:
        """Put a payload into a slot, by its one writer. False: too large, and the one before still stands."""
        if len(payload) > _LARGEST:
            return False
        base = slot * SLOT
        sequences = [self._half(base), self._half(base + _HALF)]
        newest = max(sequences)
        at = base + (_HALF if sequences[0] == newest else 0)
        sequence = newest + 1
        self._memory[at + _HEADER.size : at + _HEADER.size + len(payload)] = payload
        _HEADER.pack_into(self._memory, at, sequence, len(payload), _check(sequence, payload))
        return True

    def read(self, slot: int) -> bytes | None:
        """The newest whole payload of a slot; None: there is none yet."""
        base = slot * SLOT
        best = (0, b"")
        for _ in range(_LOOKS):
            found = max(self._whole(base), self._whole(base + _HALF))
            if found[0] == best[0] and (best[0] or not self._begun(base)):
                break
            # Looked at once more: were the writer to come by twice meanwhile, an older half could look like the newest,
            # or neither half would look whole.
            best = max(best, found)
        return best[1] if best[0] else None

    def _begun(self, base: int) -> bool:
        """Whether anything was ever written to a slot, be it half."""
        return any(_HEADER.unpack_from(self._memory, at)[0] for at in (base, base + _HALF))

    def _half(self, at: int) -> int:
        """The sequence of a half if it is whole, else 0."""
        return self._whole(at)[0]

    def _whole(self, at: int) -> tuple[int, bytes]:
        sequence, length, crc = _HEADER.unpack_from(self._memory, at)
        if not sequence or length > _LARGEST:
            return 0, b""
        payload = bytes(self._memory[at + _HEADER.size : at + _HEADER.size + length])
        return (sequence, payload) if _check(sequence, payload) == crc else (0, b"")


def _check(sequence: int, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(struct.pack("<QI", sequence, len(payload))))


class Publisher:
    """Puts one worker's numbers on the board, on top of what earlier workers of its slot have counted."""

    def __init__(self, board: Board, slot: int, stats: Stats) -> None:
        self._board = board
        self._slot = slot
        self._stats = stats
        payload = board.read(slot)
        self._base = _empty() if payload is None else json.loads(payload)["snapshot"]
        self._base["gauges"] = {}

    def publish(self, now: float, used: Mapping[str, float]) -> bool:
        """now: the system's monotonic clock in seconds. used: as process.usage() says. False: it didn't fit."""
        snapshot = self._stats.snapshot()
        for name, value in used.items():
            snapshot["counters" if name == "cpu_seconds" else "gauges"][name] = value
        payload = json.dumps({"at": now, "snapshot": _sum((self._base, snapshot))}, separators=(",", ":"))
        return self._board.write(self._slot, payload.encode())


def published(board: Board, slot: int) -> float:
    """When a slot was published last, on the system's monotonic clock; -inf: never."""
    payload = board.read(slot)
    return -math.inf if payload is None else float(json.loads(payload)["at"])


def gather(board: Board, now: float) -> Snapshot:
    """All workers' numbers in the shape of Stats.snapshot(), with a further gauge `workers`; `now` as above."""
    parts = []
    workers = 0
    for slot in range(board.workers):
        payload = board.read(slot)
        if payload is None:
            continue
        entry = json.loads(payload)
        if abs(now - entry["at"]) > FRESH:
            entry["snapshot"]["gauges"] = {}
        else:
            workers += 1
        parts.append(entry["snapshot"])
    total = _sum(parts)
    total["gauges"]["workers"] = workers
    return total


def _empty() -> Snapshot:
    return {"counters": {}, "gauges": {}, "labelled": {}, "buckets": [0] * (len(BOUNDS) + 1)}


def _sum(parts: Iterable[Snapshot]) -> Snapshot:
    total = _empty()
    for part in parts:
        _add(total["counters"], part["counters"])
        for name, value in part["gauges"].items():
            before = total["gauges"].get(name, 0)
            total["gauges"][name] = max(before, value) if name in _SHARED else before + value
        for kind, counts in part["labelled"].items():
            _add(total["labelled"].setdefault(kind, {}), counts)
        total["buckets"] = [one + other for one, other in zip(total["buckets"], part["buckets"], strict=True)]
    return total


def _add(total: dict[str, float], more: Mapping[str, float]) -> None:
    for name, value in more.items():
        total[name] = total.get(name, 0) + value


_COUNTERS = (
    ("connections", "sallyport_ingress_connections_accepted_total", "Client connections accepted."),
    ("tunnels", "sallyport_ingress_tunnels_opened_total", "WebSocket tunnels opened."),
    ("bytes_in", "sallyport_ingress_received_bytes_total", "Bytes of request bodies received from clients."),
    ("bytes_out", "sallyport_ingress_sent_bytes_total", "Bytes of responses sent to clients, heads included."),
    ("log_dropped", "sallyport_ingress_log_lines_dropped_total", "Log lines that the log's reader was too slow for."),
    ("cpu_seconds", "process_cpu_seconds_total", "User and system CPU time of the workers, in seconds."),
)
_GAUGES = (
    ("connections", "sallyport_ingress_connections", "Client connections open now."),
    ("tunnels", "sallyport_ingress_tunnels", "WebSocket tunnels open now."),
    ("inflight", "sallyport_ingress_inflight_requests", "Requests under way now."),
    ("sandboxes", "sallyport_ingress_sandboxes", "Sandboxes in the route table."),
    (
        "degraded",
        "sallyport_ingress_provider_degraded",
        "1 while the provider can't be read and the last known routes go on.",
    ),
    ("workers", "sallyport_ingress_workers", "Workers alive."),
    (
        "resident_bytes",
        "process_resident_memory_bytes",
        "Resident memory of the workers in bytes; pages that they share count in each.",
    ),
    ("open_fds", "process_open_fds", "Open file descriptors of the workers."),
)
_LABELLED = (
    (
        "answers",
        "sallyport_ingress_requests_total",
        ("code", "reason"),
        "Requests answered, by status and by the gateway's reason to answer itself; empty where the sandbox did.",
    ),
    (
        "upstream_errors",
        "sallyport_ingress_upstream_errors_total",
        ("cause",),
        "Sandboxes that could not be reached or broke off.",
    ),
    ("throttled", "sallyport_ingress_throttled_total", ("kind",), "Requests turned away for their number."),
    (
        "renewals",
        "sallyport_ingress_renew_intents_total",
        ("result",),
        "Renew intents: taken by Redis, dropped before it, or not taken in time.",
    ),
    ("reloads", "sallyport_ingress_reloads_total", ("what", "result"), "Files read again while running."),
)


def render(snapshot: Snapshot, version: str, started: float) -> bytes:
    """A gathered snapshot in Prometheus' text format 0.0.4. started: when the gateway began, Unix time in seconds."""
    lines: list[str] = []
    for kind, name, labels, help_text in _LABELLED:
        _family(lines, name, "counter", help_text)
        for label, count in sorted(snapshot["labelled"].get(kind, {}).items()):
            pairs = zip(labels, label.split(" ", len(labels) - 1), strict=True)
            lines.append(f"{name}{_braces(pairs)} {_number(count)}")
    _histogram(lines, snapshot)
    for key, name, help_text in _COUNTERS:
        _single(lines, name, "counter", help_text, snapshot["counters"].get(key, 0))
    for key, name, help_text in _GAUGES:
        _single(lines, name, "gauge", help_text, snapshot["gauges"].get(key, 0))
    _single(lines, "process_start_time_seconds", "gauge", "Unix time at which the gateway began, in seconds.", started)
    name = "sallyport_ingress_build_info"
    _family(lines, name, "gauge", "Always 1; what runs.")
    lines.append(f"{name}{_braces((('version', version), ('python', platform.python_version())))} 1")
    return ("\n".join(lines) + "\n").encode(errors="replace")


def _histogram(lines: list[str], snapshot: Snapshot) -> None:
    name = "sallyport_ingress_request_duration_seconds"
    help_text = "From a request's first byte to the end of its answer; a tunnel's end is its close."
    _family(lines, name, "histogram", help_text)
    count = 0
    for bound, more in zip([format(bound, "g") for bound in BOUNDS] + ["+Inf"], snapshot["buckets"], strict=True):
        count += more
        lines.append(f"{name}_bucket{_braces((('le', bound),))} {count}")
    lines.append(f"{name}_sum {_number(snapshot['counters'].get('seconds', 0))}")
    lines.append(f"{name}_count {count}")


def _single(lines: list[str], name: str, kind: str, help_text: str, value: float) -> None:
    _family(lines, name, kind, help_text)
    lines.append(f"{name} {_number(value)}")


def _family(lines: list[str], name: str, kind: str, help_text: str) -> None:
    lines.append(f"# HELP {name} {help_text}")
    lines.append(f"# TYPE {name} {kind}")


def _braces(pairs: Iterable[tuple[str, str]]) -> str:
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in pairs) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))
