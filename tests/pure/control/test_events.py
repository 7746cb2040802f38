"""Events: their fields, and that a sandbox cannot make them a flood. Time is the test's."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from egress.config import PREFIX, from_env
from egress.control.rulefiles import Targets
from egress.events import KINDS, WINDOW, Events, identity
from egress.log import Log
from policies.model import Action
from policies.parser import parse_rule_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Clock:
    """A loop's time, moved by hand."""

    def __init__(self) -> None:
        self.time = 100.0
        self.calls: list[tuple[float, Callable[[], None]]] = []

    def now(self) -> float:
        return self.time

    def call_later(self, seconds: float, callback: Callable[[], None]) -> object:
        self.calls.append((self.time + seconds, callback))
        return None

    def advance(self, seconds: float) -> None:
        until = self.time + seconds
        while self.calls and min(when for when, _ in self.calls) <= until:
            due = min(self.calls, key=lambda call: call[0])
            self.calls.remove(due)
            self.time = due[0]
            due[1]()
        self.time = until


class Desk:
    """Events, their clock, and what they wrote."""

    def __init__(self, path: Path, level: str = "info", fields: dict[str, object] | None = None) -> None:
        self.clock = Clock()
        self._read = os.open(path, os.O_RDONLY | os.O_CREAT, 0o600)
        self._write = os.open(path, os.O_WRONLY | os.O_APPEND)
        self.log = Log(self._write, level, fields)
        self.events = Events(self.log, self.clock)

    def lines(self) -> list[dict[str, Any]]:
        """What was written since the last call."""
        data = b""
        while part := os.read(self._read, 1 << 16):
            data += part
        return [json.loads(line) for line in data.splitlines()]

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path / "log", fields={"sandbox_id": "s1", "team": "red"})
    yield made
    made.close()


def test_policy_events(desk: Desk) -> None:
    rules = [{"action": "allow", "target": "api.example.com"}]
    desk.events.loaded("deny", rules, mode="enforcing")
    desk.events.updated("deny", rules)
    desk.events.update_failed("$: broken")
    loaded, updated, failed = desk.lines()
    assert loaded["opensandbox.event"] == "egress.loaded"
    assert (loaded["egress.default"], loaded["rules"], loaded["mode"]) == ("deny", rules, "enforcing")
    assert (loaded["sandbox_id"], loaded["team"]) == ("s1", "red")
    assert updated["opensandbox.event"] == "egress.updated"
    assert (failed["opensandbox.event"], failed["error"]) == ("egress.update_failed", "$: broken")
    assert failed["time"].endswith("Z")
    assert failed["time"][10] == "T"


def test_a_large_policy_is_one_bounded_line(desk: Desk) -> None:
    desk.events.loaded("deny", [{"action": "allow", "target": f"{'a' * 60}.example.com", "comment": "x" * 200}] * 4096)
    (line,) = desk.lines()
    assert line["opensandbox.event"] == "egress.loaded"
    assert line["rules.count"] == 4096


def test_denied_name(desk: Desk) -> None:
    desk.events.denied_name("bad.example.com", "no rule matches", "default")
    (line,) = desk.lines()
    assert line["opensandbox.event"] == "egress.outbound"
    assert line["target.host"] == "bad.example.com"
    assert (line["action"], line["reason"], line["rule"]) == ("deny", "no rule matches", "default")


def test_denied_packet(desk: Desk) -> None:
    desk.events.denied_packet("192.0.2.1", "tcp", 443, "cdn.example.com", "no rule")
    desk.events.denied_packet("2001:db8::1", "icmpv6", None)
    tcp, icmp = desk.lines()
    assert tcp["target.ips"] == ["192.0.2.1"]
    assert (tcp["target.port"], tcp["target.protocol"], tcp["target.host"]) == (443, "tcp", "cdn.example.com")
    assert "target.port" not in icmp
    assert "target.host" not in icmp


def test_repetitions_become_one_line_with_a_count(desk: Desk) -> None:
    for _ in range(500):
        desk.events.denied_name("bad.example.com", "no rule")
    assert len(desk.lines()) == 1
    desk.clock.advance(WINDOW + 1)
    (line,) = desk.lines()
    assert (line["target.host"], line["count"]) == ("bad.example.com", 499)
    desk.clock.advance(2 * WINDOW)
    assert desk.lines() == []
    assert desk.clock.calls == []  # nothing is left to wait for
    desk.events.denied_name("bad.example.com", "no rule")
    assert len(desk.lines()) == 1


def test_a_steady_stream_is_told_once_per_window(desk: Desk) -> None:
    for _ in range(300):
        desk.events.denied_packet("192.0.2.1", "udp", 443)
        desk.clock.advance(0.1)
    lines = desk.lines()
    assert len(lines) == 3
    assert sum(line.get("count", 1) for line in lines) > 200


def test_many_different_ones_are_summed(desk: Desk) -> None:
    for number in range(KINDS + 5000):
        desk.events.denied_name(f"n{number}.example.com", "no rule")
    assert len(desk.lines()) == KINDS
    desk.clock.advance(WINDOW + 1)
    (line,) = desk.lines()
    assert (line["opensandbox.event"], line["count"]) == ("egress.outbound", 5000)


def test_allowed_names_do_not_hide_denials(desk: Desk) -> None:
    for number in range(KINDS + 100):
        desk.events.allowed_name(f"n{number}.example.com", ["192.0.2.1"])
    desk.lines()
    desk.events.denied_name("bad.example.com", "no rule")
    (line,) = desk.lines()
    assert line["action"] == "deny"


def test_allowed_names_can_be_switched_off(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "log", "warn")
    desk.events.allowed_name("a.example.com", [])
    desk.events.denied_name("b.example.com", "no rule")
    assert [line["target.host"] for line in desk.lines()] == ["b.example.com"]
    desk.close()


def test_silence(desk: Desk) -> None:
    text = "telemetry.example.com\n*.noise.example\n198.51.100.0/24\n2001:db8::1 # one\n"
    desk.events.silence(Targets(parse_rule_file(text, Action.ALLOW, "log_skip.always")))
    for name in ("telemetry.example.com", "a.noise.example", "b.a.noise.example"):
        desk.events.denied_name(name, "no rule")
        desk.events.allowed_name(name, [])
        desk.events.denied_packet("192.0.2.1", "tcp", 1, name)
    desk.events.denied_packet("198.51.100.77", "tcp", 1)
    desk.events.denied_packet("2001:db8::1", "tcp", 1)
    assert desk.lines() == []
    desk.events.denied_name("noise.example", "no rule")
    desk.events.denied_name("x.telemetry.example.com", "no rule")
    desk.events.denied_packet("198.51.101.1", "tcp", 1)
    desk.events.denied_packet("2001:db8::2", "tcp", 1)
    assert len(desk.lines()) == 4


def test_identity() -> None:
    config = from_env(
        {PREFIX + "METRICS_EXTRA_ATTRS": "team=red,sandbox_id=forged", PREFIX + "SANDBOX_ID": "s1"},
        "nameserver 192.0.2.1",
    )
    assert identity(config) == {"team": "red", "sandbox_id": "s1"}


def test_attributes_cannot_stand_in_for_what_happened(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "log", fields={"target.host": "forged", "level": "forged", "msg": "forged"})
    desk.events.denied_name("bad.example.com", "no rule")
    (line,) = desk.lines()
    assert line["target.host"] == "bad.example.com"
    assert line["level"] == "warn"
    assert line["msg"] != "forged"
    desk.close()


def test_a_budget_is_told_once_a_window_with_the_count_of_the_rest(desk: Desk) -> None:
    desk.events.silence(Targets(parse_rule_file("*.example.com\n", Action.ALLOW, "log_skip.always")))
    for number in range(500):
        told = desk.events.over_budget(f"n{number}.example.com", "example.com", "over its budget: 9 bytes", "egress[0]")
        assert told is (number == 0), "the webhook is told as often as the log"
    assert desk.events.over_budget("x.example.net", "example.net", "over its budget: 9 bytes", "egress[1]")
    first, second = desk.lines()
    assert first["opensandbox.event"] == second["opensandbox.event"] == "egress.outbound"
    assert (first["target.host"], first["action"], first["rule"]) == ("n0.example.com", "deny", "egress[0]")
    assert first["reason"] == "over its budget: 9 bytes"
    assert first["msg"] == "names below example.com are over their budget"
    desk.clock.advance(WINDOW + 1)
    (again,) = desk.lines()
    assert (again["count"], again["target.host"]) == (499, "n0.example.com")
    desk.clock.advance(2 * WINDOW)
    assert desk.lines() == []
    assert desk.events.over_budget("x.example.com", "example.com", "over its budget: 9 bytes", "egress[0]")


def test_a_flood_of_denied_names_does_not_hide_a_budget(desk: Desk) -> None:
    for number in range(KINDS + 10):
        desk.events.denied_name(f"n{number}.example.org", "default deny")
    desk.lines()
    assert desk.events.over_budget("x.example.com", "example.com", "over its budget: 9 bytes", "egress[0]")
    assert len(desk.lines()) == 1
