"""Pushing metrics: what is said of trouble, however the collector's answer and the interval fall."""

from __future__ import annotations

import queue
import socket
from typing import TYPE_CHECKING

from egress.exporter import Exporter
from egress.literals import Url

if TYPE_CHECKING:
    from collections.abc import Callable


class Turns:
    """The loop, turned by hand: timers go off when the test says so, and a thread's word is waited for."""

    def __init__(self) -> None:
        self.timers: list[Callable[[], None]] = []
        self.told: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self.timers.append(callback)

    def call_threadsafe(self, callback: Callable[[], None]) -> None:
        self.told.put(callback)

    def interval(self) -> None:
        """Another interval is over."""
        self.timers.pop()()

    def outcome(self) -> None:
        """What was under way has ended."""
        self.told.get(timeout=20)()


class Collector:
    """Takes each export, and answers when the test says so."""

    def __init__(self) -> None:
        self._under_way: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()

    def connect(self, host: str, port: int) -> socket.socket:
        ours, theirs = socket.socketpair()
        self._under_way.put(ours)
        return theirs

    def answer(self, status: int) -> None:
        with self._under_way.get(timeout=20) as sock:
            sock.settimeout(20)
            sock.recv(1 << 16)
            sock.sendall(f"HTTP/1.1 {status} So\r\nContent-Length: 0\r\n\r\n".encode())


def test_a_failure_that_takes_longer_than_the_interval_is_still_said() -> None:
    turns, collector, said = Turns(), Collector(), list[str]()
    url = Url(False, "192.0.2.1", 4318, "/v1/metrics", "")
    exporter = Exporter(url, 1.0, (), list, collector.connect, turns, said.append)
    exporter.start()
    turns.interval()
    turns.interval()  # the first is still under way
    assert (exporter.failed, said) == (1, [])
    collector.answer(503)
    turns.outcome()
    assert (exporter.failed, said) == (2, ["metrics are not delivered to 192.0.2.1:4318: status 503"])
    turns.interval()
    collector.answer(503)
    turns.outcome()
    assert (exporter.failed, len(said)) == (3, 1), "once until one arrives"
    for status in (200, 500):
        turns.interval()
        collector.answer(status)
        turns.outcome()
    assert (exporter.failed, exporter.sent) == (4, 1)
    assert said[1:] == ["metrics are not delivered to 192.0.2.1:4318: status 500"]


def test_a_slow_collector_has_some_skipped_and_counted() -> None:
    turns, collector, said = Turns(), Collector(), list[str]()
    exporter = Exporter(Url(False, "192.0.2.1", 4318, "/", ""), 1.0, (), list, collector.connect, turns, said.append)
    exporter.start()
    for _ in range(3):
        turns.interval()
    collector.answer(200)
    turns.outcome()
    assert (exporter.sent, exporter.failed, said) == (1, 2, [])
    assert len(turns.timers) == 1
