"""What the guard counts, under the names that OpenSandbox's dashboards know, and the two forms it is shown in.

Counting is a plain addition where the thing happens. How long the resolvers took is noted in rounds, a number for each
question, and sorted into its buckets a few thousand at a time: an order of magnitude cheaper than one by one.

No metric tells a name or an address: the log does that (`events.py`).
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right

from policies.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any, Protocol

    class Question(Protocol):
        """The part of `egress.dns.question` that this module needs."""

        asked: float


METER = "opensandbox/egress"
BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper ends of the duration's buckets, in seconds and inclusive; the last bucket has none."""
_NOTED = 4096  # durations that may wait for their buckets
_CUMULATIVE = 2  # AGGREGATION_TEMPORALITY_CUMULATIVE, opentelemetry/proto/metrics/v1/metrics.proto


class Metric(NamedTuple):
    """One metric at one moment."""

    name: str
    unit: str  # UCUM, as OpenTelemetry writes it; "" for a mere number
    description: str
    kind: str  # "sum" (it only grows), "gauge" or "histogram"
    value: int | float | Histogram


class Histogram:
    """Durations in buckets; `note` is cheap."""

    def __init__(self) -> None:
        self.total = 0.0  # seconds
        self._counts = [0] * (len(BOUNDS) + 1)
        self._noted: list[float] = []

    def note(self, finished: Iterable[tuple[Question, object]], now: float) -> None:
        """The questions that a round has finished, whatever with."""
        noted = self._noted
        noted += [now - question.asked for question, _ in finished]
        if len(noted) >= _NOTED:
            self._sort()

    def counts(self) -> list[int]:
        """How many lie in each bucket."""
        self._sort()
        return self._counts

    def _sort(self) -> None:
        noted = self._noted
        noted.sort()
        self.total += sum(noted)
        below = 0
        for place, bound in enumerate(BOUNDS):
            end = bisect_right(noted, bound)
            self._counts[place] += end - below
            below = end
        self._counts[-1] += len(noted) - below
        noted.clear()


class Counters:
    """What happened since this worker started."""

    def __init__(self) -> None:
        self.durations = Histogram()
        self.denied = 0  # look-ups refused, those over their budget among them
        self.expansions = 0  # the same that only a search domain had made
        self.over_budget = 0
        self.connections = 0  # refused by the name guard
        self.untold = 0  # denials that the webhook's full queue did not take


class Machine:
    """Memory and processors of the machine, as the kernel tells them to everybody on it."""

    def __init__(self, read: Callable[[str], str]) -> None:
        """`read` gives a file's text, and raises OSError."""
        self._read = read
        self._ticks = (0, 0)

    def memory(self) -> int:
        """Bytes in use; 0 where that is not known."""
        try:
            found = dict(re.findall(r"^(Mem\w+): +(\d+) kB$", self._read("/proc/meminfo"), re.MULTILINE))
            return (int(found["MemTotal"]) - int(found["MemAvailable"])) * 1024
        except (OSError, KeyError):
            return 0

    def busy(self) -> float:
        """The share of processor time that was used since the last call, 0 to 1; 0 the first time."""
        try:
            ticks = [int(word) for word in self._read("/proc/stat").split("\n", 1)[0].split()[1:9]]
        except (OSError, ValueError):
            return 0.0
        whole, idle = sum(ticks), sum(ticks[3:5])  # idle and iowait (proc_stat(5))
        before, self._ticks = self._ticks, (whole, idle)
        passed = whole - before[0]
        if not before[0] or passed <= 0:
            return 0.0
        return min(1.0, max(0.0, 1 - (idle - before[1]) / passed))


def snapshot(counters: Counters, machine: Machine, rules: int, updates: int, undelivered: int) -> tuple[Metric, ...]:
    """Every metric as it is now.

    `rules` of the policy are in force in the kernel, `updates` were written to it, and as many exports as
    `undelivered` says failed.
    """
    return (
        Metric("egress.dns.query.duration", "s", "How long the resolvers took for an allowed name", "histogram",
               counters.durations),
        Metric("egress.policy.denied_total", "", "Look-ups denied", "sum", counters.denied),
        Metric("egress.dns.search.denied_total", "", "Look-ups denied that a search domain had made", "sum",
               counters.expansions),
        Metric("egress.dns.budget.denied_total", "", "Look-ups denied because names had carried too much", "sum",
               counters.over_budget),
        Metric("egress.sni.denied_total", "", "Connections refused for their name, or for having none", "sum",
               counters.connections),
        Metric("egress.webhook.dropped_total", "", "Denials that the webhook was not told, its queue being full", "sum",
               counters.untold),
        Metric("egress.nftables.rules.count", "{element}", "Rules in force in the kernel", "gauge", rules),
        Metric("egress.nftables.updates.count", "", "Rulesets and batches of addresses written to the kernel", "sum",
               updates),
        Metric("egress.system.memory.usage_bytes", "By", "Memory in use on the machine", "gauge", machine.memory()),
        Metric("egress.system.cpu.utilization", "1", "Share of the machine's processor time in use", "gauge",
               machine.busy()),
        Metric("egress.metrics.export.failed_total", "", "Exports that did not arrive", "sum", undelivered),
    )  # fmt: skip


# -- OTLP --------------------------------------------------------------------------------------------------------------
def otlp(metrics: Sequence[Metric], attributes: Sequence[tuple[str, str]], started: int, now: int) -> bytes:
    """An ExportMetricsServiceRequest in OTLP's JSON encoding; the times are nanoseconds since the Unix epoch.

    64-bit integers are strings there, enumerations numbers, field names in lowerCamelCase (OTLP 1.x, "JSON Protobuf
    Encoding"). `attributes` stand at the resource and at each point, where most back ends look for them.
    """
    listed = [{"key": key, "value": {"stringValue": value}} for key, value in attributes]
    times = {"startTimeUnixNano": str(started), "timeUnixNano": str(now)}
    resource = [{"key": "service.name", "value": {"stringValue": "opensandbox-egress"}}, *listed]
    scope = {"scope": {"name": METER}, "metrics": [_otlp_metric(metric, listed, times) for metric in metrics]}
    document = {"resourceMetrics": [{"resource": {"attributes": resource}, "scopeMetrics": [scope]}]}
    return json.dumps(document, separators=(",", ":")).encode()


def _otlp_metric(metric: Metric, attributes: list[dict[str, Any]], times: dict[str, str]) -> dict[str, Any]:
    point: dict[str, Any] = {"attributes": attributes, **times}
    value = metric.value
    data: dict[str, Any] = {"dataPoints": [point]}
    if isinstance(value, Histogram):
        counts = value.counts()
        point |= {"count": str(sum(counts)), "sum": value.total, "bucketCounts": [str(count) for count in counts]}
        point["explicitBounds"] = list(BOUNDS)
        data["aggregationTemporality"] = _CUMULATIVE
    elif isinstance(value, int):
        point["asInt"] = str(value)
    else:
        point["asDouble"] = value
    if metric.kind == "sum":
        data |= {"aggregationTemporality": _CUMULATIVE, "isMonotonic": True}
    shown: dict[str, Any] = {"name": metric.name, "description": metric.description, metric.kind: data}
    if metric.unit:
        shown["unit"] = metric.unit
    return shown


# -- Prometheus --------------------------------------------------------------------------------------------------------
_SUFFIXES = {"s": "_seconds", "1": "_ratio"}


def prometheus(metrics: Sequence[Metric]) -> bytes:
    """The text format 0.0.4, under the names that OpenTelemetry's own translation gives."""
    lines: list[str] = []
    for metric in metrics:
        name = metric.name.replace(".", "_") + _SUFFIXES.get(metric.unit, "")
        if metric.kind == "sum" and not name.endswith("_total"):
            name += "_total"
        lines.append(f"# HELP {name} {metric.description}")
        lines.append(f"# TYPE {name} {'counter' if metric.kind == 'sum' else metric.kind}")
        value = metric.value
        if isinstance(value, Histogram):
            running = 0
            for bound, count in zip((*BOUNDS, "+Inf"), value.counts(), strict=True):
                running += count
                lines.append(f'{name}_bucket{{le="{bound}"}} {running}')
            lines += [f"{name}_sum {value.total}", f"{name}_count {running}"]
        else:
            lines.append(f"{name} {value}")
    return "\n".join([*lines, ""]).encode()
