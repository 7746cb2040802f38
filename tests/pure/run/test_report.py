"""The last words: counts, order, the rule that would help, and bounds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from egress.isolation import report as report_module
from egress.isolation.report import Report, place


def name(text: str, rule: str = "default") -> dict[str, Any]:
    return {"kind": "name", "name": text, "reason": "no rule allows it", "rule": rule}


def packet(address: str, protocol: str, port: int, *names: str) -> dict[str, Any]:
    return {"kind": "packet", "address": address, "protocol": protocol, "port": port, "names": list(names)}


def test_nothing_refused_is_nothing_said() -> None:
    assert Report().to_text() == ""
    report = Report()
    report.take({"kind": "ready"})
    assert report.to_text() == ""


def test_counts_and_order() -> None:
    report = Report()
    for message in [name("a.example.com"), name("b.example.com"), name("b.example.com")]:
        report.take(message)
    names = report.to_document(0)["deniedNames"]
    assert [(entry["name"], entry["count"]) for entry in names] == [("b.example.com", 2), ("a.example.com", 1)]


@pytest.mark.parametrize(
    ("message", "allow"),
    [
        (name("api.example.com"), "--allow api.example.com"),
        (name("api.example.com", rule="--deny api.example.com"), ""),  # another --allow would not win over it
        (name("bad name.example.com", rule=""), ""),  # no rule opens what is refused for its form
        (packet("192.0.2.1", "tcp", 443), "--allow 192.0.2.1:443"),
        (packet("2001:db8::1", "udp", 443), "--allow [2001:db8::1]:443"),
        (packet("192.0.2.1", "tcp", 8443, "api.example.com"), "--allow api.example.com:8443"),
        (packet("192.0.2.1", "icmp", 0), "--allow 192.0.2.1"),
        (packet("192.0.2.1", "sctp", 0), ""),  # no rule opens other protocols
        (packet("192.0.2.53", "tcp", 53), ""),  # nor a resolver
    ],
)
def test_the_rule_that_would_allow_it(message: dict[str, Any], allow: str) -> None:
    report = Report()
    report.take(message)
    document = report.to_document(0)
    (entry,) = document["deniedNames"] + document["deniedPackets"]
    assert entry["allow"] == allow
    assert (f"to allow it: {allow}" in report.to_text()) == bool(allow)


def test_a_flood_is_bounded_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_module, "MOST", 10)
    report = Report()
    for number in range(100):
        report.take(name(f"n{number}.example.com"))
    assert len(report.to_document(0)["deniedNames"]) == 10
    assert report.more == 90
    assert "and 90 more" in report.to_text()


def test_json_is_one_line_of_ascii() -> None:
    report = Report()
    report.take(name("a.example.com"))
    text = report.to_json(3)
    assert text.isascii()
    assert text.count("\n") == 1
    assert json.loads(text)["exitCode"] == 3


def test_place() -> None:
    assert place("192.0.2.1", 0) == "192.0.2.1"
    assert place("2001:db8::1", 443) == "[2001:db8::1]:443"
