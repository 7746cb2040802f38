"""What a gateway that leaves waits for: connections that it has taken, whether they have come up yet or not."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

from ingress.http1 import core as core_module
from tests.pure.ingress.memory.pair import Pair, Wire

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import pytest

LONG = 60.0  # seconds, that no test takes
TURNS = 20


def draining(steps: Callable[[Pair, asyncio.Task[None], Any], Awaitable[None]], seconds: float = LONG) -> None:
    """A pair whose first connection is closed, told to drain; the task ends by what `steps` does."""

    async def main() -> None:
        pair = Pair()
        pair.client.connection_lost(None)
        newcomer = pair.core.protocol()
        task = asyncio.ensure_future(pair.core.drain(seconds))
        await steps(pair, task, newcomer)
        del newcomer
        await asyncio.wait_for(task, LONG)

    asyncio.run(main())


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


def test_who_was_accepted_a_moment_ago_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop makes the protocol when it accepts, and tells it of its connection a turn later, after a TLS handshake
    much later. A gateway that left between would have taken a connection and dropped it."""
    monkeypatch.setattr(core_module, "LAST_REQUEST", LONG)

    async def steps(_: Pair, task: asyncio.Task[None], newcomer: Any) -> None:
        await turns()
        assert not task.done()
        wire = Wire()
        newcomer.connection_made(wire)
        await turns()
        assert not task.done()
        newcomer.data_received(b"GET /status.ok HTTP/1.1\r\nHost: x\r\n\r\n")
        assert wire.written.startswith(b"HTTP/1.1 200 ")
        assert b"\r\nConnection: close\r\n" in wire.written
        newcomer.connection_lost(None)

    draining(steps)


def test_who_never_comes_up_is_not_waited_for_longer_than_who_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_module, "LAST_REQUEST", 0.01)

    async def steps(_: Pair, task: asyncio.Task[None], newcomer: Any) -> None:
        await asyncio.wait_for(asyncio.shield(task), LONG)
        assert newcomer.transport is None

    draining(steps)


def test_who_has_failed_on_the_way_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_module, "LAST_REQUEST", LONG)

    async def main() -> None:
        pair = Pair()
        pair.client.connection_lost(None)
        pair.core.protocol()  # and nobody keeps it
        gc.collect()
        await asyncio.wait_for(pair.core.drain(LONG), LONG)

    asyncio.run(main())
