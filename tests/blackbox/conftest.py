"""One sidecar for a module's many small questions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.blackbox.place import Place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lab import Internet


@pytest.fixture(scope="module")
def place(internet: Internet) -> Iterator[Place]:
    """A sandbox whose sidecar denies everything until the test gives it a policy."""
    with Place(internet) as made:
        yield made
