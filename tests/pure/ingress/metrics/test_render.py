"""The text that Prometheus reads, read back by a strict reader of its format."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingress.telemetry.metrics import SLOT, Board, Publisher, gather, render
from ingress.telemetry.stats import Stats
from tests.pure.ingress.metrics.exposition import Family, Wrong, read

PREFIX = "sallyport_ingress_"


def scrape(stats: Stats, version: str = "1.2.3") -> dict[str, Family]:
    board = Board(1, bytearray(SLOT))
    assert Publisher(board, 0, stats).publish(10.0, {"cpu_seconds": 0.25, "resident_bytes": 4096, "open_fds": 7})
    return read(render(gather(board, 10.0), version, 1_700_000_000.5))


def test_a_gateway_that_did_nothing() -> None:
    families = scrape(Stats())
    assert families[f"{PREFIX}requests_total"].samples == {}
    assert families[f"{PREFIX}request_duration_seconds"].samples[f"{PREFIX}request_duration_seconds_count", ()] == 0
    assert families[f"{PREFIX}renew_intents_total"].value(result="dropped") == 0
    assert families[f"{PREFIX}workers"].value() == 1
    assert families["process_cpu_seconds_total"].value() == 0.25
    assert families["process_resident_memory_bytes"].value() == 4096
    assert families["process_open_fds"].value() == 7
    assert families["process_start_time_seconds"].value() == 1_700_000_000.5
    ((_, labels),) = families[f"{PREFIX}build_info"].samples
    assert dict(labels)["version"] == "1.2.3"


def test_what_was_counted_is_said() -> None:
    stats = Stats()
    stats.answered(200, "", 0.003)
    stats.answered(200, "", 2.0)
    stats.answered(404, "unknown_sandbox", 0.0001)
    stats.answered(299, "", 0.0001)
    stats.upstream_error("connect")
    stats.throttled("client")
    stats.reloaded("tls", ok=False)
    stats.connections, stats.connections_total, stats.bytes_in, stats.bytes_out = 3, 9, 100, 200
    stats.tunnels, stats.tunnels_total, stats.inflight, stats.sandboxes, stats.degraded = 1, 2, 4, 5, True
    stats.renewals_sent, stats.log_dropped = 6, 8
    families = scrape(stats)
    requests = families[f"{PREFIX}requests_total"]
    assert requests.value(code="200", reason="") == 2
    assert requests.value(code="404", reason="unknown_sandbox") == 1
    assert requests.value(code="2xx", reason="") == 1
    duration = families[f"{PREFIX}request_duration_seconds"].samples
    assert duration[f"{PREFIX}request_duration_seconds_bucket", (("le", "0.001"),)] == 2
    assert duration[f"{PREFIX}request_duration_seconds_bucket", (("le", "1"),)] == 3
    assert duration[f"{PREFIX}request_duration_seconds_bucket", (("le", "+Inf"),)] == 4
    assert duration[f"{PREFIX}request_duration_seconds_sum", ()] == pytest.approx(2.0032)
    assert families[f"{PREFIX}upstream_errors_total"].value(cause="connect") == 1
    assert families[f"{PREFIX}throttled_total"].value(kind="client") == 1
    assert families[f"{PREFIX}reloads_total"].value(what="tls", result="failed") == 1
    assert families[f"{PREFIX}renew_intents_total"].value(result="sent") == 6
    for name, value in {
        "connections": 3,
        "connections_accepted_total": 9,
        "tunnels": 1,
        "tunnels_opened_total": 2,
        "inflight_requests": 4,
        "received_bytes_total": 100,
        "sent_bytes_total": 200,
        "sandboxes": 5,
        "provider_degraded": 1,
        "log_lines_dropped_total": 8,
    }.items():
        assert families[PREFIX + name].value() == value, name


@given(st.text(max_size=20))
def test_any_label_is_escaped(text: str) -> None:
    stats = Stats()
    stats.upstream_error(text)
    stats.answered(502, text, 0.0)
    families = scrape(stats, version=text)
    readable = text.encode(errors="replace").decode()
    assert families[f"{PREFIX}upstream_errors_total"].value(cause=readable) == 1
    assert families[f"{PREFIX}requests_total"].value(code="502", reason=readable) == 1


GOOD = "# HELP a_total x\n# TYPE a_total counter\n"


@pytest.mark.parametrize(
    "text",
    [
        "a_total 1\n",
        GOOD + "a_total 1",
        GOOD + "a_total  1\n",
        GOOD + "a_total one\n",
        GOOD + "a_total 1\na_total 1\n",
        GOOD + 'a_total{b="x",} 1\n',
        GOOD + 'a_total{b="x\\y"} 1\n',
        GOOD + 'a_total{b="x",b="x"} 1\n',
        GOOD + "b_total 1\n",
        GOOD + GOOD,
        GOOD + "a_total -1\n",
        "# TYPE a_total counter\na_total 1\n",
        "# HELP a x\n# TYPE a counter\na 1\n",
        '# HELP h x\n# TYPE h histogram\nh_bucket{le="1"} 2\nh_bucket{le="+Inf"} 1\nh_sum 1\nh_count 1\n',
        '# HELP h x\n# TYPE h histogram\nh_bucket{le="1"} 1\nh_sum 1\nh_count 1\n',
    ],
)
def test_the_reader_can_say_no(text: str) -> None:
    with pytest.raises(Wrong):
        read(text.encode())


def test_the_reader_can_say_yes() -> None:
    families = read((GOOD + 'a_total{b="x\\\\\\"\\n,"} 1.5e+3\n').encode())
    assert families["a_total"].value(b='x\\"\n,') == 1500
