"""OpenSandbox's real server and SDK, on a Docker daemon of the test's own: run by `make test-e2e`, or by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.blackbox.test_image import image as egress_image
from tests.e2e.daemon import Daemon
from tests.e2e.images import SANDBOX, UNHURRIED, build_beside
from tests.e2e.server import ENVIRONMENT, Sdk, Server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lab import Internet

__all__ = ["egress_image"]

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What they need takes a while to install: deselected, not skipped, unless somebody asks for them."""
    ours = [item for item in items if item.path.is_relative_to(_HERE)]
    for item in ours:
        item.add_marker(pytest.mark.timeout(1200))
    if any(Path(argument.partition("::")[0]).resolve().is_relative_to(_HERE) for argument in config.args):
        return
    config.hook.pytest_deselected(items=ours)
    items[:] = [item for item in items if item not in ours]


@pytest.fixture(scope="module")
def daemon(internet: Internet, egress_image: str) -> Iterator[Daemon]:
    """A daemon with our image, and one for sandboxes; at its end nothing of a sandbox may be left."""
    if not ENVIRONMENT.exists():
        pytest.fail("the server and the SDK are not installed: make test-e2e", pytrace=False)
    build_beside(egress_image)
    internet.reset()
    with Daemon(internet, [egress_image, SANDBOX, UNHURRIED]) as running:
        before = running.things()
        yield running
        assert running.things() == before, "what a sandbox brought went with it"
    assert not running.folder.exists()
    left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(running.folder) in _text(path)]
    assert not left, left


def _text(path: Path) -> str:
    try:
        return path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


@pytest.fixture(scope="module")
def servers(daemon: Daemon, egress_image: str) -> Iterator[dict[str, Server]]:
    """The server with our image, in each of its modes; both start at once."""
    started = {
        mode: Server(daemon, port=port, egress=egress_image, execd=SANDBOX, mode=mode, patience=45)
        for port, mode in ((8180, "dns+nft"), (8181, "dns"))
    }
    with started["dns+nft"], started["dns"]:
        yield started


@pytest.fixture(scope="module")
def server(servers: dict[str, Server]) -> Server:
    """The one that has everything guarded."""
    return servers["dns+nft"]


@pytest.fixture(scope="module")
def sdk(server: Server) -> Iterator[Sdk]:
    with Sdk(server) as running:
        yield running


@pytest.fixture
def unhurried(daemon: Daemon) -> Iterator[Sdk]:
    """The SDK of a server whose sidecars' health is checked an hour after their start."""
    with Server(daemon, port=8182, egress=UNHURRIED, execd=SANDBOX, patience=45) as server, Sdk(server) as running:
        yield running


@pytest.fixture(scope="module")
def gateway(daemon: Daemon) -> Iterator[str]:
    """Our gateway, which finds the sandboxes by itself; its address."""
    log = daemon.folder / "gateway.log"
    with log.open("wb") as writing:
        process = daemon.lab.sandbox.popen(
            [
                str(Path(sys.prefix, "bin", "ingress")), "serve", "--provider-type", "docker",
                "--docker-host", daemon.host, "--mode", "header+uri", "--port", "28888", "--workers", "1",
            ],
            env={"HOME": "/nonexistent"},
            stdout=writing,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
    yield "127.0.0.1:28888"
    process.terminate()
    assert process.wait(60) == 0, log.read_text()
