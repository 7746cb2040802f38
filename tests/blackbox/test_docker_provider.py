"""The docker provider against a real daemon: containers that come, stop, pause, fall ill and share a sidecar's network.

Left out where no Docker daemon answers (tools/with-docker starts one). The image is made here, of a shell.
"""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import subprocess
import tarfile
import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from ingress.providers import ProviderSettings, build
from ingress.routes import Ambiguous, Routes, Sandbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from ingress.providers.base import Provider

IMAGE = "sallyport-shell:test"
PROGRAMS = ("sh", "sleep", "test")


def docker(*arguments: str, data: bytes = b"", check: bool = True) -> str:
    done = subprocess.run(["docker", *arguments], input=data, capture_output=True, timeout=120)
    assert not check or done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


def shell_image() -> bytes:
    """A tar of a shell, sleep and test with their libraries: all that these containers do."""
    files = set()
    for program in PROGRAMS:
        path = shutil.which(program)
        assert path
        files.add((f"/bin/{program}", path))
        for line in subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout.splitlines():
            for word in line.split():
                if word.startswith("/"):
                    files.add((word, word))
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", dereference=True) as tar:
        for inside, outside in sorted(files):
            tar.add(outside, arcname=inside)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    if not shutil.which("docker"):
        pytest.skip("no docker client (Debian: docker.io)")
    if not docker("info", "--format", "{{.ID}}", check=False):
        pytest.skip("no Docker daemon answers (tools/with-docker starts one)")
    docker("import", "-", IMAGE, data=shell_image())
    yield IMAGE
    docker("rmi", "-f", IMAGE, check=False)


class Containers:
    """Starts containers of this test, and takes them away."""

    def __init__(self) -> None:
        self.tag = f"sp-test-{uuid.uuid4().hex[:8]}"
        self.networks: list[str] = []

    def start(self, name: str, labels: dict[str, str], *options: str) -> str:
        """Run one in the background; its full name."""
        flags = [f"--label={key}={value}" for key, value in ({self.tag: ""} | labels).items()]
        full = f"{self.tag}-{name}"
        docker("run", "-d", "--name", full, *flags, *options, IMAGE, "/bin/sleep", "600")
        return full

    def network(self, name: str, *options: str) -> str:
        full = f"{self.tag}-{name}"
        docker("network", "create", *options, full)
        self.networks.append(full)
        return full

    def address(self, name: str, network: str = "bridge") -> str:
        return docker("inspect", "-f", f'{{{{(index .NetworkSettings.Networks "{network}").IPAddress}}}}', name)

    def clear(self) -> None:
        found = docker("ps", "-aq", "--filter", f"label={self.tag}").split()
        if found:
            docker("rm", "-f", *found)
        for network in self.networks:
            docker("network", "rm", network)


@pytest.fixture
def containers(image: str) -> Iterator[Containers]:
    made = Containers()
    yield made
    made.clear()


class Followed(NamedTuple):
    routes: Routes
    provider: Provider
    said: list[str]

    def sandbox(self, sandbox_id: str) -> Sandbox:
        entry = self.routes.find(sandbox_id)
        assert isinstance(entry, Sandbox), entry
        return entry

    async def until(self, true: Callable[[], object], within: float = 30.0) -> None:
        """Wait for something to become true: by an event, since all is looked at again after minutes only."""
        loop = asyncio.get_running_loop()
        end = loop.time() + within
        while not true():
            assert loop.time() < end, (self.routes.entries(), self.said)
            await asyncio.sleep(0.005)


@asynccontextmanager
async def following(**settings: Any) -> AsyncIterator[Followed]:
    routes, said = Routes(), []
    settings["docker_host"] = os.environ.get("DOCKER_HOST", "")  # the one that `docker` speaks to
    provider = build("docker", ProviderSettings(**settings), routes, lambda _, words: said.append(words))
    task = asyncio.create_task(provider.run())
    followed = Followed(routes, provider, said)
    try:
        await followed.until(lambda: provider.health().loaded)
        yield followed
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_a_container_comes_pauses_and_goes(containers: Containers) -> None:
    async def scenario() -> None:
        async with following() as followed:
            name = containers.start("one", {"opensandbox.io/id": "box", "sallyport.ports": "8080, 3000"})
            await followed.until(lambda: followed.routes.find("box") and followed.sandbox("box").ready)
            box = followed.sandbox("box")
            assert box.host == containers.address(name)
            assert box.ports == frozenset({8080, 3000})
            docker("pause", name)
            await followed.until(lambda: followed.sandbox("box").reason == "its container is paused")
            docker("unpause", name)
            await followed.until(lambda: followed.sandbox("box") == box)
            docker("restart", "-t", "0", name)
            await followed.until(lambda: followed.sandbox("box").incarnation != box.incarnation)
            await followed.until(lambda: followed.sandbox("box").ready)
            docker("kill", name)
            await followed.until(lambda: "exited, exit code 137" in followed.sandbox("box").reason)
            docker("rm", name)
            await followed.until(lambda: followed.routes.find("box") is None)

    asyncio.run(scenario())


def test_a_health_check_is_waited_for(containers: Containers) -> None:
    async def scenario() -> None:
        async with following() as followed:
            name = containers.start(
                "one", {"sallyport.sandbox": "box"}, "--health-cmd=test -f /well", "--health-interval=200ms"
            )
            await followed.until(lambda: followed.routes.find("box"))
            assert "health check" in followed.sandbox("box").reason
            docker("exec", name, "/bin/sh", "-c", ": > /well")
            await followed.until(lambda: followed.sandbox("box").ready)

    asyncio.run(scenario())


def test_beside_a_sidecar_the_address_is_the_sidecars(containers: Containers) -> None:
    async def scenario() -> None:
        sidecar = containers.start("sidecar", {"opensandbox.io/egress-sidecar-for": "box"})
        containers.start("sandbox", {"opensandbox.io/id": "box"}, f"--network=container:{sidecar}")
        async with following() as followed:
            assert followed.sandbox("box").ready
            assert followed.sandbox("box").host == containers.address(sidecar)
            docker("pause", sidecar)
            await followed.until(lambda: "paused" in followed.sandbox("box").reason)
            docker("unpause", sidecar)
            await followed.until(lambda: followed.sandbox("box").ready)
            docker("rm", "-f", sidecar)
            await followed.until(lambda: "is gone" in followed.sandbox("box").reason)

    asyncio.run(scenario())


def test_published_ports_are_used_where_there_is_no_common_network(containers: Containers) -> None:
    async def scenario() -> None:
        containers.start("one", {"sallyport.sandbox": "box"}, "-p", "127.0.0.1::8080", "-p", "127.0.0.1::53/udp")
        outside = int(docker("port", f"{containers.tag}-one", "8080/tcp").rpartition(":")[2])
        async with following(docker_published="127.0.0.1") as followed:
            box = followed.sandbox("box")
            assert box.port_map == ((8080, "127.0.0.1", outside),)
            assert box.ports == frozenset({8080})

    asyncio.run(scenario())


def test_the_network_asked_for_is_used(containers: Containers) -> None:
    async def scenario() -> None:
        network = containers.network("net")
        name = containers.start("one", {"sallyport.sandbox": "box"})
        async with following(docker_network=network) as followed:
            assert "has no address on the network" in followed.sandbox("box").reason
            docker("network", "connect", network, name)
            await followed.until(lambda: followed.sandbox("box").ready)
            assert followed.sandbox("box").host == containers.address(name, network)
            docker("network", "disconnect", network, name)
            await followed.until(lambda: not followed.sandbox("box").ready)

    asyncio.run(scenario())


def test_two_that_run_with_one_id_are_ambiguous(containers: Containers) -> None:
    async def scenario() -> None:
        containers.start("one", {"sallyport.sandbox": "box"})
        containers.start("two", {"sallyport.sandbox": "box"})
        async with following() as followed:
            assert isinstance(followed.routes.find("box"), Ambiguous)
            docker("stop", f"{containers.tag}-one")
            await followed.until(lambda: isinstance(followed.routes.find("box"), Sandbox))
            assert followed.sandbox("box").host == containers.address(f"{containers.tag}-two")

    asyncio.run(scenario())
