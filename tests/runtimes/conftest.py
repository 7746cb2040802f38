"""Tests with other container runtimes: run by `make test-runtimes`, or by naming them; a run of all leaves them out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """gVisor takes minutes to build: deselected, not skipped, unless somebody asks for them."""
    ours = [item for item in items if item.path.is_relative_to(_HERE)]
    if any(Path(argument.partition("::")[0]).resolve().is_relative_to(_HERE) for argument in config.args):
        return
    config.hook.pytest_deselected(items=ours)
    items[:] = [item for item in items if item not in ours]
