"""The worker's counters: what is counted where, and that no answer of a sandbox can make them grow without end."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingress.telemetry.stats import BOUNDS, MAX_LABELS, MAX_REFUSALS, Stats


def test_a_fresh_one_is_all_zero() -> None:
    snapshot = Stats().snapshot()
    assert set(snapshot["counters"].values()) == {0}
    assert set(snapshot["gauges"].values()) == {0}
    assert snapshot["buckets"] == [0] * (len(BOUNDS) + 1)
    assert snapshot["labelled"]["answers"] == {}


def test_answers_are_counted_by_status_and_reason() -> None:
    stats = Stats()
    for status, code in ((200, ""), (200, ""), (404, "unknown_sandbox"), (404, ""), (499, "client_gone"), (101, "")):
        stats.answered(status, code, 0.1)
    assert stats.snapshot()["labelled"]["answers"] == {
        "200 ": 2,
        "404 unknown_sandbox": 1,
        "404 ": 1,
        "499 client_gone": 1,
        "101 ": 1,
    }


@pytest.mark.parametrize(
    ("seconds", "bucket"), [(0.0, 0), (0.001, 0), (0.0011, 1), (1.0, 9), (300.0, 15), (300.1, 16), (1e9, 16)]
)
def test_a_bound_belongs_to_its_bucket(seconds: float, bucket: int) -> None:
    stats = Stats()
    stats.answered(200, "", seconds)
    assert stats.snapshot()["buckets"].index(1) == bucket
    assert stats.snapshot()["counters"]["seconds"] == seconds


def test_statuses_without_a_name_count_as_their_class() -> None:
    stats = Stats()
    for status in (299, 298, 999, 42):
        stats.answered(status, "", 0.0)
        stats.answered(status, "", 0.0)
    assert stats.snapshot()["labelled"]["answers"] == {"2xx ": 4, "9xx ": 2, "0xx ": 2}


def test_labels_are_counted() -> None:
    stats = Stats()
    stats.upstream_error("reset")
    stats.throttled("client")
    stats.throttled("client")
    stats.reloaded("tls", ok=True)
    stats.reloaded("tls", ok=False)
    stats.renewals_sent += 3
    labelled = stats.snapshot()["labelled"]
    assert labelled["upstream_errors"] == {"reset": 1}
    assert labelled["throttled"] == {"client": 2}
    assert labelled["reloads"] == {"tls ok": 1, "tls failed": 1}
    assert labelled["renewals"] == {"sent": 3, "dropped": 0, "failed": 0}


def test_a_snapshot_is_not_changed_by_what_follows() -> None:
    stats = Stats()
    stats.throttled("client")
    before = stats.snapshot()
    text = json.dumps(before)
    stats.throttled("client")
    stats.answered(200, "", 0.1)
    assert json.dumps(before) == text


@given(st.lists(st.tuples(st.integers(0, 999), st.text(max_size=3), st.floats(0, 1e6)), max_size=50))
def test_nothing_is_lost(answers: list[tuple[int, str, float]]) -> None:
    stats = Stats()
    for status, code, seconds in answers:
        stats.answered(status, code, seconds)
    snapshot = stats.snapshot()
    assert sum(snapshot["labelled"]["answers"].values()) == sum(snapshot["buckets"]) == len(answers)
    assert json.loads(json.dumps(snapshot)) == snapshot


def test_the_sets_of_labels_are_bounded() -> None:
    stats = Stats()
    for status in range(1000):
        for code in ("", "a", "b", "c", "d", "e", "f"):
            stats.answered(status, code, 0.0)
    for number in range(1000):
        stats.upstream_error(f"cause_{number}")
        stats.throttled(f"kind_{number}")
    labelled = stats.snapshot()["labelled"]
    assert sum(labelled["answers"].values()) == 7000
    assert len(labelled["answers"]) <= MAX_REFUSALS + 100  # named statuses answered by sandboxes, and a class each
    assert len(labelled["upstream_errors"]) == MAX_LABELS + 1
    assert sum(labelled["throttled"].values()) == 1000
    assert labelled["throttled"]["other"] == 1000 - MAX_LABELS
