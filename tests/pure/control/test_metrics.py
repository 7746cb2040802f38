"""Metrics: counted, and shown as the OTLP and Prometheus formats say, field by field."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from egress.metrics import BOUNDS, Counters, Histogram, Machine, Metric, otlp, prometheus, snapshot

MEMINFO = "MemTotal:       16000 kB\nMemFree:         1000 kB\nMemAvailable:    6000 kB\nBuffers: 1 kB\n"
CONTRACT = {
    "egress.dns.query.duration": ("histogram", "s"),
    "egress.policy.denied_total": ("sum", ""),
    "egress.nftables.rules.count": ("gauge", "{element}"),
    "egress.nftables.updates.count": ("sum", ""),
    "egress.system.memory.usage_bytes": ("gauge", "By"),
    "egress.system.cpu.utilization": ("gauge", "1"),
}


class Asked:
    def __init__(self, asked: float) -> None:
        self.asked = asked


class Files:
    """/proc as a test says it is."""

    def __init__(self) -> None:
        self.texts = {"/proc/meminfo": MEMINFO, "/proc/stat": "cpu  10 0 10 70 10 0 0 0 0 0\ncpu0 1\n"}

    def read(self, path: str) -> str:
        if path not in self.texts:
            raise FileNotFoundError(path)
        return self.texts[path]


def some() -> tuple[Counters, tuple[Metric, ...]]:
    counters = Counters()
    counters.denied, counters.expansions, counters.over_budget = 7, 3, 2
    counters.durations.note([(Asked(10.0), None), (Asked(10.997), None), (Asked(-50.0), None)], 11.0)
    return counters, snapshot(counters, Machine(Files().read), 5, 9, 1)


# -- counting ----------------------------------------------------------------------------------------------------------
def test_durations_fall_into_the_buckets_that_opentelemetry_says() -> None:
    """The upper bound belongs to its bucket; what is beyond all of them has the last."""
    histogram = Histogram()
    histogram.note([(Asked(100 - bound), None) for bound in (0.25, 0.5, 60.0)], 100.0)
    counts = histogram.counts()
    assert counts[BOUNDS.index(0.25)] == counts[BOUNDS.index(0.5)] == counts[-1] == 1
    assert sum(counts) == 3
    assert histogram.total == 60.75
    assert histogram.counts() == counts


@given(st.lists(st.lists(st.floats(0, 100)), max_size=5))
def test_rounds_come_to_the_same_as_one_by_one(rounds: list[list[float]]) -> None:
    histogram = Histogram()
    for durations in rounds:
        histogram.note([(Asked(-duration), None) for duration in durations], 0.0)
    wanted = [0] * (len(BOUNDS) + 1)
    for duration in (duration for durations in rounds for duration in durations):
        wanted[sum(duration > bound for bound in BOUNDS)] += 1
    assert histogram.counts() == wanted


def test_what_waits_for_its_bucket_is_bounded() -> None:
    histogram = Histogram()
    for _ in range(30):
        histogram.note([(Asked(0.0), None)] * 1000, 1.0)
        assert len(histogram._noted) < 5096
    assert sum(histogram.counts()) == 30_000


def test_the_machine() -> None:
    files = Files()
    machine = Machine(files.read)
    assert machine.memory() == 10_000 * 1024
    assert machine.busy() == 0.0, "nothing to compare with"
    files.texts["/proc/stat"] = "cpu  25 0 10 140 15 10 0 0 0 0\n"  # of 100 more ticks 70 and 5 were idle
    assert machine.busy() == 0.25
    assert machine.busy() == 0.0, "no time has passed"
    files.texts.clear()
    assert (machine.memory(), machine.busy()) == (0, 0.0)


# -- OTLP --------------------------------------------------------------------------------------------------------------
NANOSECONDS = re.compile(r"[1-9][0-9]{18}")
NUMBER = re.compile(r"0|[1-9][0-9]*")


def check_attributes(found: Any) -> dict[str, str]:
    """KeyValue, AnyValue of opentelemetry/proto/common/v1/common.proto."""
    for attribute in found:
        assert set(attribute) == {"key", "value"}
        assert set(attribute["value"]) == {"stringValue"}
        assert isinstance(attribute["value"]["stringValue"], str)
    keys = [attribute["key"] for attribute in found]
    assert len(keys) == len(set(keys))
    assert all(keys)
    return {attribute["key"]: attribute["value"]["stringValue"] for attribute in found}


def check_point(point: Any, kind: str) -> None:
    """NumberDataPoint, HistogramDataPoint of opentelemetry/proto/metrics/v1/metrics.proto."""
    assert NANOSECONDS.fullmatch(point["startTimeUnixNano"])
    assert NANOSECONDS.fullmatch(point["timeUnixNano"])
    assert int(point["startTimeUnixNano"]) <= int(point["timeUnixNano"])
    rest = set(point) - {"attributes", "startTimeUnixNano", "timeUnixNano"}
    if kind == "histogram":
        assert rest == {"count", "sum", "bucketCounts", "explicitBounds"}
        assert all(NUMBER.fullmatch(count) for count in [point["count"], *point["bucketCounts"]])
        assert int(point["count"]) == sum(map(int, point["bucketCounts"]))
        assert len(point["bucketCounts"]) == len(point["explicitBounds"]) + 1
        assert point["explicitBounds"] == sorted(set(point["explicitBounds"]))
        assert isinstance(point["sum"], float)
    else:
        assert rest in ({"asInt"}, {"asDouble"})
        assert NUMBER.fullmatch(point["asInt"]) if "asInt" in point else isinstance(point["asDouble"], float)


def check_request(document: Any) -> dict[str, Any]:
    """ExportMetricsServiceRequest, strictly: no field that OTLP does not have, all that a collector needs."""
    assert set(document) == {"resourceMetrics"}
    (resource_metrics,) = document["resourceMetrics"]
    assert set(resource_metrics) == {"resource", "scopeMetrics"}
    assert set(resource_metrics["resource"]) == {"attributes"}
    assert check_attributes(resource_metrics["resource"]["attributes"])["service.name"]
    (scope,) = resource_metrics["scopeMetrics"]
    assert set(scope) == {"scope", "metrics"}
    assert scope["scope"] == {"name": "opensandbox/egress"}
    found = {}
    for metric in scope["metrics"]:
        (kind,) = set(metric) - {"name", "description", "unit"}
        assert kind in ("sum", "gauge", "histogram")
        assert isinstance(metric["name"], str)
        data = metric[kind]
        wanted = {"dataPoints"}
        if kind != "gauge":
            wanted |= {"aggregationTemporality"}
            assert data["aggregationTemporality"] == 2  # cumulative
        if kind == "sum":
            wanted |= {"isMonotonic"}
            assert data["isMonotonic"] is True
        assert set(data) == wanted
        (point,) = data["dataPoints"]
        check_point(point, kind)
        assert metric["name"] not in found
        found[metric["name"]] = {"kind": kind, "unit": metric.get("unit", ""), **point}
    return found


def test_the_request_is_otlp_and_has_the_names_of_the_contract() -> None:
    counters, metrics = some()
    attributes = (("sandbox_id", "sbx-9"), ("team", 'a "quoted" one, ünïcode'))
    body = otlp(metrics, attributes, 1_700_000_000_000_000_000, 1_700_000_030_000_000_000)
    found = check_request(json.loads(body))
    for name, (kind, unit) in CONTRACT.items():
        assert (found[name]["kind"], found[name]["unit"]) == (kind, unit)
    for point in found.values():
        assert check_attributes(point["attributes"]) == dict(attributes)
    assert found["egress.policy.denied_total"]["asInt"] == "7"
    assert found["egress.dns.search.denied_total"]["asInt"] == "3"
    assert found["egress.dns.budget.denied_total"]["asInt"] == "2"
    assert found["egress.nftables.rules.count"]["asInt"] == "5"
    assert found["egress.nftables.updates.count"]["asInt"] == "9"
    assert found["egress.system.memory.usage_bytes"]["asInt"] == str(10_000 * 1024)
    assert found["egress.system.cpu.utilization"]["asDouble"] == 0.0
    assert found["egress.dns.query.duration"]["count"] == "3"
    assert [int(count) for count in found["egress.dns.query.duration"]["bucketCounts"]] == counters.durations.counts()


# -- Prometheus --------------------------------------------------------------------------------------------------------
def test_the_text_format() -> None:
    text = prometheus(some()[1]).decode()
    assert text.endswith("\n")
    samples: dict[str, float] = {}
    types: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            types[name] = kind
        elif not line.startswith("# HELP "):
            assert re.fullmatch(r'[a-z_]+(\{le="(\+Inf|[0-9.]+)"\})? [0-9.e+-]+', line), line
            name, value = line.rsplit(" ", 1)
            samples[name] = float(value)
    assert types["egress_dns_query_duration_seconds"] == "histogram"
    assert types["egress_policy_denied_total"] == types["egress_nftables_updates_count_total"] == "counter"
    assert types["egress_nftables_rules_count"] == "gauge"
    assert samples["egress_policy_denied_total"] == 7
    buckets = [value for name, value in samples.items() if "_bucket" in name]
    assert buckets == sorted(buckets)
    assert buckets[-1] == samples["egress_dns_query_duration_seconds_count"] == 3
    assert samples['egress_dns_query_duration_seconds_bucket{le="+Inf"}'] == 3
    for kind in types.values():
        assert kind in ("counter", "gauge", "histogram")
