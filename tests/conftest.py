"""Fixtures and rules for every test.

Where a test lies says what it needs: `tests/pure` nothing but Python, `tests/real` and `tests/blackbox` the real kernel
(root, namespaces, nftables). What this machine cannot run is skipped with the reason, except in continuous integration:
there a machine that cannot run the tests is a failure, or a green run would prove nothing.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from lab import Internet, Lab, Sidecar
from lab.lacking import lacking

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Protocol

    class SidecarFactory(Protocol):
        """Starts a sidecar in the test's lab; the arguments are those of `lab.Sidecar`."""

        def __call__(self, **arguments: Any) -> Sidecar: ...


_HERE = Path(__file__).parent
_EXAMPLES = 100

# `make fuzz` multiplies; a test that sets max_examples of its own opts out of that.
settings.register_profile(
    "sallyport",
    max_examples=_EXAMPLES * max(1, int(os.environ.get("SALLYPORT_FUZZ", "1"))),
    deadline=None,  # two cores, and other tests' processes on them
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("sallyport")


class _AtOnce:
    """Tells a failure when it happens: where several processes share the tests, the report comes at the very end."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and reporter is not None:
            reporter.write_line(f"\nfailed just now: {report.nodeid}")  # tools/parts reads it


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_AtOnce(config))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark by folder, and let the quick ones go first: a slip in the parser should not take minutes to show.

    Where several processes share them the quick ones go last: they fill what the long ones leave.
    """
    order = {"pure": 0, "real": 1, "blackbox": 2}
    if hasattr(config, "workerinput"):  # pytest-xdist's
        order = {"blackbox": 0, "real": 1, "pure": 2}
    for item in items:
        layer = _layer(item)
        if layer in ("real", "blackbox"):
            item.add_marker(layer)
    items.sort(key=lambda item: order.get(_layer(item), 0))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("real"):
        _need_the_kernel()


def _need_the_kernel() -> None:
    if not lacking():
        return
    if os.environ.get("CI"):
        pytest.fail(f"continuous integration has to run this: {lacking()}", pytrace=False)
    pytest.skip(lacking())


def _layer(item: pytest.Item) -> str:
    parts = item.path.relative_to(_HERE).parts if item.path.is_relative_to(_HERE) else ()
    return parts[0] if len(parts) > 1 else ""


@pytest.fixture(scope="session")
def internet() -> Iterator[Internet]:
    """The peers' namespace, shared by all tests; `lab` hands it out cleaned."""
    _need_the_kernel()
    with Internet() as shared:
        yield shared


@pytest.fixture
def lab(internet: Internet) -> Iterator[Lab]:
    """A fresh sandbox namespace with the shared internet behind it: empty zone, empty logs."""
    internet.reset()
    with Lab(internet) as fresh:
        yield fresh


@pytest.fixture
def start_sidecar(lab: Lab) -> Iterator[SidecarFactory]:
    """Starts sidecars in `lab`; they end with the test."""
    started: list[Sidecar] = []

    def start(**arguments: Any) -> Sidecar:
        sidecar = Sidecar(lab, **arguments)
        started.append(sidecar)
        sidecar.start()
        return sidecar

    yield start
    for sidecar in started:
        sidecar.close()
