"""The shared slots: no reader sees half a write, and no counter goes back when a worker dies."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingress.telemetry.metrics import FRESH, SLOT, Board, Publisher, gather
from ingress.telemetry.stats import Stats


def busy(requests: int, connections: int = 0, sandboxes: int = 0) -> Stats:
    stats = Stats()
    for _ in range(requests):
        stats.answered(200, "", 0.01)
    stats.connections = connections
    stats.sandboxes = sandboxes
    return stats


def test_slots_are_summed_and_shared_facts_are_not() -> None:
    board = Board(3, bytearray(3 * SLOT))
    Publisher(board, 0, busy(2, connections=4, sandboxes=7)).publish(1.0, {"cpu_seconds": 0.5, "open_fds": 3})
    Publisher(board, 2, busy(3, connections=5, sandboxes=7)).publish(1.0, {"cpu_seconds": 0.25, "open_fds": 4})
    total = gather(board, 1.0)
    assert total["labelled"]["answers"] == {"200 ": 5}
    assert sum(total["buckets"]) == 5
    assert total["counters"]["cpu_seconds"] == 0.75
    assert total["gauges"]["connections"] == 9
    assert total["gauges"]["open_fds"] == 7
    assert total["gauges"]["sandboxes"] == 7
    assert total["gauges"]["workers"] == 2


def test_an_empty_board() -> None:
    total = gather(Board(2, bytearray(2 * SLOT)), 0.0)
    assert total["gauges"] == {"workers": 0}
    assert sum(total["buckets"]) == 0


def test_the_next_worker_of_a_slot_goes_on_from_the_last_ones_totals() -> None:
    board = Board(1, bytearray(SLOT))
    Publisher(board, 0, busy(2, connections=4)).publish(1.0, {"cpu_seconds": 0.5})
    restarted = Publisher(board, 0, fresh := Stats())
    restarted.publish(2.0, {"cpu_seconds": 0.125})
    assert gather(board, 2.0)["gauges"]["connections"] == 0  # the dead worker's are gone
    fresh.answered(200, "", 0.01)
    restarted.publish(3.0, {"cpu_seconds": 0.25})
    total = gather(board, 3.0)
    assert total["labelled"]["answers"] == {"200 ": 3}
    assert total["counters"]["cpu_seconds"] == 0.75
    assert Publisher(board, 0, Stats()).publish(4.0, {})
    assert gather(board, 4.0)["labelled"]["answers"] == {"200 ": 3}


def test_a_worker_that_went_silent_has_nothing_open_but_has_counted() -> None:
    board = Board(1, bytearray(SLOT))
    Publisher(board, 0, busy(2, connections=4)).publish(1.0, {})
    assert gather(board, 1.0 + FRESH)["gauges"]["connections"] == 4
    late = gather(board, 1.1 + FRESH)
    assert late["gauges"] == {"workers": 0}
    assert late["labelled"]["answers"] == {"200 ": 2}


@given(st.data())
def test_half_a_write_is_never_read(data: st.DataObject) -> None:
    memory = bytearray(SLOT)
    board = Board(1, memory)
    payloads = data.draw(st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=5))
    for payload in payloads:
        assert board.write(0, payload)
    assert board.read(0) == payloads[-1]
    before = bytes(memory)
    board.write(0, data.draw(st.binary(min_size=1, max_size=200)))
    after = bytes(memory)
    changed = [at for at in range(SLOT) if before[at] != after[at]]
    # The worker dies with any part of its octets stored, in any order.
    stored = data.draw(st.sets(st.sampled_from(changed)))
    memory[:] = before
    for at in stored:
        memory[at] = after[at]
    whole = board.read(0)
    assert whole in (payloads[-1], Board(1, bytearray(after)).read(0))
    assert len(stored) == len(changed) or whole == payloads[-1]
    assert board.write(0, b"the next worker")
    assert board.read(0) == b"the next worker"


class Overtaken(bytearray):
    """Memory whose writer comes by twice during each of a reader's first looks, so that neither half is read whole."""

    times = 0

    def __getitem__(self, key: Any) -> Any:
        if self.times:
            self.times -= 1
            writer = Board(1, bytearray(self))
            writer.write(0, b"newer than with %d to come" % self.times)
            writer.write(0, b"newest with %d to come" % self.times)
            self[:] = writer._memory
        return super().__getitem__(key)


@pytest.mark.parametrize("times", range(9))
def test_a_reader_that_is_overtaken_looks_again(times: int) -> None:
    memory = Overtaken(SLOT)
    board = Board(1, memory)
    assert board.write(0, b"older")
    assert board.write(0, b"old")
    memory.times = times
    assert board.read(0) == (b"newest with 0 to come" if times else b"old")


def test_what_does_not_fit_leaves_the_last_one() -> None:
    board = Board(2, bytearray(2 * SLOT))
    assert board.write(1, b"other")
    assert board.write(0, b"first")
    assert not board.write(0, b"x" * SLOT)
    assert board.read(0) == b"first"
    assert board.read(1) == b"other"
    assert board.write(0, b"x" * (SLOT // 2 - 16))
    assert board.read(1) == b"other"


def test_the_fullest_snapshot_fits() -> None:
    stats = Stats()
    for status in range(1000):
        stats.answered(status, "", 0.1)
        for number in range(10):
            stats.answered(status, f"a_code_as_long_as_any_that_there_is_{number}", 0.1)
    for number in range(1000):
        stats.upstream_error(f"a_cause_as_long_as_any_that_there_is_{number}")
        stats.throttled(f"a_kind_as_long_as_any_that_there_is_{number}")
        stats.reloaded(f"a_thing_as_long_as_any_that_there_is_{number}", ok=True)
    board = Board(1, bytearray(SLOT))
    assert Publisher(board, 0, stats).publish(1.0, {})


@pytest.mark.parametrize("rounds", [20])
def test_a_killed_process_leaves_a_whole_snapshot(rounds: int) -> None:
    """Real processes on real shared memory: one publishes without pause and is killed at no moment of its choosing."""
    board = Board(1)
    least = 0
    for _ in range(rounds):
        pid = os.fork()
        if not pid:
            try:
                publisher = Publisher(board, 0, stats := Stats())
                while True:
                    stats.answered(200, "", 0.01)
                    publisher.publish(1.0, {})
            finally:
                os._exit(1)
        seen = least
        while seen < least + 20:
            now = sum(gather(board, 1.0)["buckets"])
            assert now >= seen  # never back, across deaths as well
            seen = now
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        total = gather(board, 1.0)
        least = sum(total["buckets"])
        assert total["labelled"]["answers"]["200 "] == least >= seen
