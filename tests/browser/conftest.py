"""Tests with a real browser: run by `make test-browser`, or by naming them; a run of everything leaves them out."""

from __future__ import annotations

from pathlib import Path

import pytest

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What they need takes a minute to install: deselected, not skipped, unless somebody asks for them."""
    ours = [item for item in items if item.path.is_relative_to(_HERE)]
    for item in ours:
        item.add_marker("browser")
        item.add_marker(pytest.mark.timeout(300))  # a notebook server and a browser, on two busy cores
    asked = any(Path(argument.partition("::")[0]).resolve().is_relative_to(_HERE) for argument in config.args)
    if asked or "browser" in config.getoption("markexpr"):
        return
    config.hook.pytest_deselected(items=ours)
    items[:] = [item for item in items if item not in ours]
