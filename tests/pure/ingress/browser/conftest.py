from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.pure.ingress.gate.asking import House

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def house() -> Iterator[House]:
    """A gate in every mode, with fresh counters."""
    made = House()
    yield made
    made.throttle.close()


@pytest.fixture
def cookie_house() -> Iterator[House]:
    """The same with the route cookie."""
    made = House(route_cookie=True)
    yield made
    made.throttle.close()
