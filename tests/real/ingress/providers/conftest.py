"""Providers run for real: on an event loop, against files, sockets and servers that the test controls."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

import pytest

from ingress.routes import Routes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from ingress.providers.base import Provider, Say
    from ingress.routes import Entry


class Followed(NamedTuple):
    """A provider that runs, its table, what it logged and the changes it made."""

    provider: Provider
    routes: Routes
    said: list[tuple[str, str]]
    changes: list[tuple[str, Entry | None, Entry | None]]

    def ids(self) -> list[str]:
        """The ids in the table."""
        return [entry.id for entry in self.routes.entries()]


class Following:
    """Starts providers and waits for what they do."""

    @asynccontextmanager
    async def __call__(self, make: Callable[[Routes, Say], Provider]) -> AsyncIterator[Followed]:
        """The provider that `make` makes, running; ended with the block."""
        routes = Routes()
        said: list[tuple[str, str]] = []
        changes: list[tuple[str, Entry | None, Entry | None]] = []
        routes.watch(lambda *change: changes.append(change))
        provider = make(routes, lambda level, words: said.append((level, words)))
        task = asyncio.create_task(provider.run())
        try:
            yield Followed(provider, routes, said, changes)
            assert not task.done(), "the provider gave up"
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await provider.close()
            for _ in range(50):  # transports close in the loop's next rounds: rounds count here, not time
                await asyncio.sleep(0.001)

    async def until(self, true: Callable[[], object], within: float = 30.0) -> None:
        """Wait until `true` says so; a failure after so many seconds."""
        loop = asyncio.get_running_loop()
        end = loop.time() + within
        while not true():
            if loop.time() > end:
                pytest.fail("it did not happen in time")
            await asyncio.sleep(0.005)


@pytest.fixture
def following() -> Following:
    """Runs a provider: `async with following(make) as followed`."""
    return Following()
