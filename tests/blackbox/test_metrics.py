"""Metrics of the running sidecar: pushed to a collector that the sandbox cannot reach, and shown on the control API."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from lab.errors import LabError
from tests.blackbox.place import DENY_ALL, REJECTED, allow, soon
from tests.pure.control.test_metrics import CONTRACT, check_attributes, check_request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lab import Lab, Sidecar

    Start = Callable[..., Sidecar]

ADDRESS, PORT = "198.51.100.80", 4318
EVERY = {"OTEL_METRIC_EXPORT_INTERVAL": "200"}


class Collector:
    """A web server in the internet namespace that takes exports."""

    def __init__(self, lab: Lab) -> None:
        self.heard: list[tuple[str, dict[str, str], Any]] = []
        self.status = 200
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                fields = {key.lower(): value for key, value in self.headers.items()}
                collector.heard.append((self.path, fields, json.loads(body)))
                self.send_response(collector.status)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: object) -> None:
                pass

        with lab.internet.namespace.entered():
            self.server = HTTPServer(("0.0.0.0", PORT), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05})
        self.thread.start()

    def last(self) -> dict[str, Any]:
        """The last export, checked against OTLP: name to point."""
        return check_request(self.heard[-1][2])

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def collector(lab: Lab) -> Iterator[Collector]:
    made = Collector(lab)
    yield made
    made.close()


def test_metrics_are_pushed_as_otlp_with_the_sandbox_s_identity(
    lab: Lab, collector: Collector, start_sidecar: Start
) -> None:
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{ADDRESS}:{PORT}/base/",
        "SANDBOX_ID": "sbx-9",
        "METRICS_EXTRA_ATTRS": "team=red,tier=free",
        **EVERY,
    }
    sidecar = start_sidecar(policy=allow("ok.example.com", "*.example.net"), env=env)
    lab.dns.a("ok.example.com", "198.51.100.10")
    for _ in range(3):
        assert lab.query("ok.example.com").addresses
        assert lab.query("bad.example.org").rcode == "NXDOMAIN"

    def counted() -> bool:
        return bool(collector.heard) and collector.last()["egress.policy.denied_total"]["asInt"] == "3"

    assert soon(counted)
    path, headers, _ = collector.heard[-1]
    assert path == "/base/v1/metrics"
    assert headers["content-type"] == "application/json"
    found = collector.last()
    assert set(CONTRACT) <= set(found)
    for name, (kind, unit) in CONTRACT.items():
        assert (found[name]["kind"], found[name]["unit"]) == (kind, unit)
    for point in found.values():
        assert check_attributes(point["attributes"]) == {"sandbox_id": "sbx-9", "team": "red", "tier": "free"}
    assert found["egress.dns.query.duration"]["count"] == "1", "what was cached did not ask the resolvers"
    assert 0 < found["egress.dns.query.duration"]["sum"] < 5
    assert found["egress.nftables.rules.count"]["asInt"] == "2"
    assert int(found["egress.nftables.updates.count"]["asInt"]) >= 2, "a ruleset and an address"
    assert int(found["egress.system.memory.usage_bytes"]["asInt"]) > 1 << 20
    assert 0 <= found["egress.system.cpu.utilization"]["asDouble"] <= 1
    assert "ok.example.com" not in json.dumps(collector.heard), "no names"
    assert sidecar.api("GET", "/policy").status == 200


def test_the_endpoint_is_the_sidecar_s_alone(lab: Lab, collector: Collector, start_sidecar: Start) -> None:
    """By its name, which no rule allows; the exact endpoint is used as it is written."""
    lab.dns.a("collector.example.net", ADDRESS)
    assert lab.connect(ADDRESS, PORT) == "connected", "the control: nothing guards yet"
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://other.example.net/",
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"http://collector.example.net:{PORT}/in?a=b",
        **EVERY,
    }
    start_sidecar(policy=DENY_ALL, env=env)
    assert soon(lambda: len(collector.heard) >= 2)
    assert {path for path, _, _ in collector.heard} == {"/in?a=b"}
    assert lab.connect(ADDRESS, PORT) in REJECTED
    assert lab.query("collector.example.net").rcode == "NXDOMAIN"
    assert lab.connect(ADDRESS, 80) in REJECTED


def test_trouble_is_said_once_counted_and_disturbs_nothing(
    lab: Lab, collector: Collector, start_sidecar: Start
) -> None:
    lab.dns.a("ok.example.com", "198.51.100.10")
    collector.status = 503
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{ADDRESS}:{PORT}", **EVERY}
    sidecar = start_sidecar(policy=allow("ok.example.com"), env=env)
    assert soon(lambda: len(collector.heard) >= 4)
    assert lab.query("ok.example.com").addresses
    assert sidecar.api("GET", "/healthz").status == 200
    assert sidecar.log.count("metrics are not delivered") == 1
    assert "status 503" in sidecar.log
    collector.status = 200
    assert soon(lambda: int(collector.last()["egress.metrics.export.failed_total"]["asInt"]) >= 4)


def test_without_an_endpoint_nothing_is_sent(lab: Lab, collector: Collector, start_sidecar: Start) -> None:
    sidecar = start_sidecar(policy=DENY_ALL, env=EVERY)
    assert not soon(lambda: bool(collector.heard), 1.0)
    assert sidecar.api("GET", "/metrics", token=None).status == 200


@pytest.mark.parametrize("value", ["0", "fast"])
def test_an_interval_that_is_none_is_said(lab: Lab, start_sidecar: Start, value: str) -> None:
    with pytest.raises(LabError, match="OTEL_METRIC_EXPORT_INTERVAL"):
        start_sidecar(policy=DENY_ALL, env={"OTEL_METRIC_EXPORT_INTERVAL": value})


def test_the_control_api_shows_them_without_a_token_and_without_names(lab: Lab, start_sidecar: Start) -> None:
    lab.dns.a("ok.example.com", "198.51.100.10")
    sidecar = start_sidecar(policy=allow("ok.example.com"), env={"SANDBOX_ID": "sbx-9"})
    assert lab.query("ok.example.com").addresses
    assert lab.query("bad.example.org").rcode == "NXDOMAIN"
    answer = sidecar.api("GET", "/metrics", token=None)
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "\negress_policy_denied_total 1\n" in answer.text
    assert "\negress_dns_query_duration_seconds_count 1\n" in answer.text
    assert "\negress_nftables_rules_count 1\n" in answer.text
    for secret in ("example", "198.51", "sbx-9"):
        assert secret not in answer.text
    assert sidecar.api("POST", "/metrics", b"").status == 405


def test_denials_that_the_webhook_was_not_told_are_counted(lab: Lab, start_sidecar: Start) -> None:
    """Nobody listens there: each denial takes seconds of trying, and 256 may wait."""
    sidecar = start_sidecar(policy=DENY_ALL, env={"DENY_WEBHOOK": "http://198.51.100.80:9/"})

    def untold() -> int:
        text = sidecar.api("GET", "/metrics").text
        return next(
            int(line.split()[1]) for line in text.splitlines() if line.startswith("egress_webhook_dropped_total ")
        )

    assert untold() == 0
    for number in range(400):
        lab.query(f"n{number}.example.com")
    assert soon(lambda: 0 < untold() <= 400 - 256)
    assert "denials were not told" in sidecar.wait_for_log("the queue is full")
