"""One Docker daemon for all of these tests, in a namespace of the lab; left out where none can be started."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from lab import Lab
from lab.lacking import lacking as lab_lacking
from tests.docker.daemon import Daemon, lacking
from tests.docker.watching import Watching

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lab import Internet


@pytest.fixture(scope="session")
def daemon(internet: Internet) -> Iterator[Daemon]:
    """dockerd, with the lab's internet behind it."""
    reason = lab_lacking() or lacking()
    if reason:
        if os.environ.get("CI"):
            pytest.fail(f"continuous integration has to run this: {reason}", pytrace=False)
        pytest.skip(reason)
    with Lab(internet) as lab, Daemon(lab) as started:
        yield started


@pytest.fixture
def host(daemon: Daemon, internet: Internet) -> Iterator[Daemon]:
    """The same daemon, tidy: an empty zone with api and other in it, and no container afterwards."""
    internet.reset()
    for name, site in (("api", "web"), ("other", "other")):
        daemon.lab.dns.a(f"{name}.example.com", daemon.lab.site(site))
    yield daemon
    daemon.clear()


@pytest.fixture(scope="module")
def watched(daemon: Daemon) -> Iterator[Watching]:
    """`egress docker watch`, started once for a module's tests."""
    with Watching(daemon) as started:
        yield started


@pytest.fixture
def watching(host: Daemon, watched: Watching) -> Iterator[Watching]:
    """The same, following the daemon and with nothing to guard; what it said before doesn't count."""
    watched.begin()
    yield watched
    host.clear()
    if watched.running:
        watched.eventually(lambda: not watched.ports())


@pytest.fixture(scope="session")
def compose() -> str:
    """The docker-compose command."""
    found = shutil.which("docker-compose")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("docker-compose is missing (tools/test-docker installs it)", pytrace=False)
        pytest.skip("docker-compose is not installed (tools/test-docker installs it)")
    return found
