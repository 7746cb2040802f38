"""A browser, and applications for it to reach through a gateway."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.browser.ingress import applications
from tests.browser.ingress.webdriver import Driver
from tests.real.ingress.conftest import StartGateway, start_gateway

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.browser.ingress.applications import Application
    from tests.browser.ingress.webdriver import Browser
    from tests.real.ingress.conftest import Gateway

    OpenGateway = Callable[..., Gateway]

__all__ = ["start_gateway"]


@pytest.fixture(scope="session")
def driver() -> Iterator[Driver]:
    program = shutil.which("chromedriver")
    if program is None or not (applications.TOOLS / ".setup").exists():
        pytest.fail("what browser tests need is not installed: make test-browser", pytrace=False)
    made = Driver(program)
    yield made
    made.stop()


@pytest.fixture
def browser(driver: Driver) -> Iterator[Browser]:
    """A browser with nothing in it."""
    made = driver.session()
    yield made
    made.close()


@pytest.fixture
def gate(start_gateway: StartGateway) -> OpenGateway:
    """A gateway in header, host and path mode; its sandboxes `box` and `other` are both this machine.

    Arguments: further flags; by name: more of the sandboxes' entries in the routes file.
    """

    def start(*args: str, **entry: object) -> Gateway:
        return start_gateway({name: {"host": "127.0.0.1", **entry} for name in ("box", "other")}, args)

    return start


def _running(factory: Callable[[], Application]) -> Iterator[Application]:
    made = factory()
    yield made
    made.stop()


@pytest.fixture
def vite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    """One of its own for each test: tests edit its files."""
    yield from _running(lambda: applications.vite(tmp_path_factory.mktemp("vite") / "app"))


@pytest.fixture(scope="session")
def jupyter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    """JupyterLab that takes any Host."""
    yield from _running(lambda: applications.jupyter(tmp_path_factory.mktemp("jupyter") / "work", remote=True))


@pytest.fixture(scope="session")
def local_jupyter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    """JupyterLab as it starts by default: it refuses a Host that isn't local."""
    yield from _running(lambda: applications.jupyter(tmp_path_factory.mktemp("jupyter") / "work", remote=False))


@pytest.fixture(scope="session")
def desktop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    yield from _running(lambda: applications.desktop(tmp_path_factory.mktemp("desktop") / "screen"))
