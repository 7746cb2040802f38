"""Whoever is asked for numbers has the others publish theirs first, and waits for nobody for ever."""

from __future__ import annotations

import asyncio
import os
import time

import pytest
import uvloop

from ingress.telemetry import rally
from ingress.telemetry.metrics import FRESH, SLOT, Board, Publisher, gather
from ingress.telemetry.rally import Rally
from ingress.telemetry.stats import Stats


class Member:
    """A worker, as far as a rally goes; several share this process's loop."""

    def __init__(self, board: Board, bells: list[int], slot: int) -> None:
        self.stats = Stats()
        self._publisher = Publisher(board, slot, self.stats)
        self.publish()
        self.rally = Rally(board, bells, slot, self.publish, asyncio.get_running_loop())

    def publish(self) -> None:
        self._publisher.publish(time.monotonic(), {})


@pytest.fixture
def bells() -> list[int]:
    return [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(3)]


def run(scene: object) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scene)  # type: ignore[arg-type]


def test_everybodys_numbers_are_of_now(bells: list[int]) -> None:
    async def scene() -> None:
        board = Board(3, bytearray(3 * SLOT))
        members = [Member(board, bells, slot) for slot in range(3)]
        done = asyncio.Event()
        for _ in range(3):
            for member in members:
                member.stats.answered(200, "", 0.1)
            done.clear()
            assert members[1].rally.call(done.set)
            await asyncio.wait_for(done.wait(), 10)
            seen = gather(board, time.monotonic())["labelled"]["answers"]["200 "]
            assert seen == sum(member.stats.snapshot()["labelled"]["answers"]["200 "] for member in members)

    run(scene())


def test_who_has_been_silent_for_long_is_not_waited_for(bells: list[int]) -> None:
    async def scene() -> None:
        board = Board(3, bytearray(3 * SLOT))
        Publisher(board, 0, Stats()).publish(time.monotonic() - FRESH - 1, {})
        member = Member(board, bells, 2)  # and slot 1 has never been anybody's
        assert not member.rally.call(lambda: None)

    run(scene())


def test_who_does_not_hear_is_waited_for_a_while(bells: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        board = Board(3, bytearray(3 * SLOT))
        Publisher(board, 0, Stats()).publish(time.monotonic(), {})
        member = Member(board, bells, 2)
        monkeypatch.setattr(rally, "PATIENCE", 0.05)
        done = asyncio.Event()
        assert member.rally.call(done.set)
        await asyncio.wait_for(done.wait(), 10)

    run(scene())
