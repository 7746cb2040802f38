"""An origin that keeps what arrives, for the lines of the wire contract tried one by one on the running gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.real.ingress.hostile.ground import Ground, Origin, echo

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    """The loop that origins live on."""
    with Ground() as made:
        yield made


@pytest.fixture(scope="module")
def echoing(ground: Ground) -> Iterator[Origin]:
    """An origin that answers each request with its method, target and body's size; its log grows."""
    made = ground.origin(echo)
    yield made
    made.close()
    assert made.errors == []
