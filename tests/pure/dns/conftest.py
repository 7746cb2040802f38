"""Resolvers and upstreams that end with their test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.pure.dns.resolvers import Resolver, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator


class Theatre:
    """Makes resolvers and stages."""

    def __init__(self) -> None:
        self._made: list[Resolver | Stage] = []

    def resolvers(self, count: int) -> list[Resolver]:
        made = [Resolver() for _ in range(count)]
        self._made += made
        return made

    def stage(self, *resolvers: Resolver, timeout: float = 5.0) -> Stage:
        stage = Stage(*(resolver.server for resolver in resolvers), timeout=timeout)
        self._made.append(stage)
        return stage

    def close(self) -> None:
        for made in self._made:
            made.close()


@pytest.fixture
def theatre() -> Iterator[Theatre]:
    built = Theatre()
    yield built
    built.close()
