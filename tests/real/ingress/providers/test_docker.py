"""The docker provider against a daemon's API on a unix socket that the test controls; the real one is in blackbox."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Self

import pytest
from aiohttp import web

from ingress.providers import ProviderError, ProviderSettings, build
from ingress.routes import Routes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from ingress.providers.base import Provider, Say


class FakeDocker:
    """Containers as `docker inspect` shows them, and their events."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.containers: dict[str, dict[str, Any]] = {}
        self.answers: dict[str, web.Response] = {}  # by the beginning of a path, once
        self.inspected: list[str] = []
        self._streams: dict[asyncio.Queue[bytes | None], web.Request] = {}
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.UnixSite(self._runner, str(self.path)).start()

    async def stop(self) -> None:
        for request in self._streams.values():
            if request.transport is not None:
                request.transport.abort()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
            self.path.unlink(missing_ok=True)

    @property
    def listening(self) -> int:
        return len(self._streams)

    def run(self, identity: str, address: str = "172.17.0.2", action: str = "start", **labels: str) -> None:
        """A container that runs, its sandbox's id that of the container less its zeros."""
        labels = {"sallyport.sandbox": identity.rstrip("0"), **labels}
        self.containers[identity] = {
            "Id": identity,
            "Name": f"/name-{identity.rstrip('0')}",
            "Config": {"Labels": labels},
            "State": {"Status": "running", "Running": True, "StartedAt": "2026-01-01T00:00:00Z"},
            "HostConfig": {"NetworkMode": "bridge"},
            "NetworkSettings": {"Networks": {"bridge": {"IPAddress": address}}, "Ports": {}},
        }
        self.event(action, identity, labels)

    def remove(self, identity: str) -> None:
        labels = self.containers.pop(identity)["Config"]["Labels"]
        self.event("destroy", identity, labels)

    def event(self, action: str, identity: str, attributes: dict[str, str], kind: str = "container") -> None:
        self.send(json.dumps({"Type": kind, "Action": action, "Actor": {"ID": identity, "Attributes": attributes}}))

    def send(self, line: str) -> None:
        for queue in self._streams:
            queue.put_nowait(line.encode() + b"\n")

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        for beginning in self.answers:
            if request.path.startswith(beginning):
                return self.answers.pop(beginning)
        if request.path == "/events":
            return await self._events(request)
        if request.path == "/containers/json":
            label = json.loads(request.query["filters"])["label"][0]
            labelled = [each for each in self.containers.values() if label in each["Config"]["Labels"]]
            return web.json_response([{"Id": each["Id"]} for each in labelled])
        identity = request.path.split("/")[2]
        self.inspected.append(identity)
        if identity not in self.containers:
            return web.json_response({"message": "No such container"}, status=404)
        return web.json_response(self.containers[identity])

    async def _events(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._streams[queue] = request
        try:
            while (line := await queue.get()) is not None:
                await response.write(line)
        except ConnectionError:
            pass
        finally:
            del self._streams[queue]
        return response


ONE, TWO = "a1".ljust(64, "0"), "b2".ljust(64, "0")


def docker(path: Path, keep: float = 0) -> Callable[[Routes, Say], Provider]:
    settings = ProviderSettings(docker_host=f"unix://{path}", keep=keep)
    return lambda routes, say: build("docker", settings, routes, say)


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Callable[[FakeDocker], Awaitable[None]]], None]:
    def start(scenario: Callable[[FakeDocker], Awaitable[None]]) -> None:
        async def run() -> None:
            async with FakeDocker(tmp_path / "docker.sock") as daemon:
                await scenario(daemon)

        asyncio.run(run())

    return start


def test_containers_are_listed_and_followed(following: Any, play: Any) -> None:
    async def scenario(daemon: FakeDocker) -> None:
        daemon.run(ONE)
        async with following(docker(daemon.path)) as followed:
            await following.until(lambda: followed.ids() == ["a1"])
            assert followed.provider.health() == (True, "", f"unix://{daemon.path}")
            daemon.run(TWO, "172.17.0.3")
            await following.until(lambda: followed.ids() == ["a1", "b2"])
            daemon.remove(ONE)
            await following.until(lambda: followed.ids() == ["b2"])

    play(scenario)


def test_what_concerns_no_sandbox_is_not_looked_at(following: Any, play: Any) -> None:
    async def scenario(daemon: FakeDocker) -> None:
        daemon.run(ONE)
        async with following(docker(daemon.path)) as followed:
            await following.until(lambda: followed.ids() == ["a1"])
            daemon.inspected.clear()
            daemon.event("start", "c3", {"image": "other"})
            daemon.event("exec_start: sh -c probe", ONE, {"sallyport.sandbox": "a1"})
            daemon.event("connect", "net", {"container": "c3"}, "network")
            daemon.run(TWO)
            await following.until(lambda: followed.ids() == ["a1", "b2"])
            assert daemon.inspected == [TWO]

    play(scenario)


def test_i11_the_last_routes_go_on_while_the_daemon_is_gone(following: Any, play: Any) -> None:
    async def scenario(daemon: FakeDocker) -> None:
        daemon.run(ONE)
        async with following(docker(daemon.path)) as followed:
            await following.until(lambda: followed.ids() == ["a1"])
            assert not followed.provider.health().degraded  # the control
            await daemon.stop()
            await following.until(lambda: "the last routes go on (1)" in followed.provider.health().degraded)
            assert followed.ids() == ["a1"]
            daemon.remove(ONE)
            daemon.run(TWO)
            await daemon.start()
            await following.until(lambda: followed.ids() == ["b2"])
            assert not followed.provider.health().degraded

    play(scenario)


def test_i11_routes_that_no_daemon_vouches_for_are_dropped_in_the_end(following: Any, play: Any) -> None:
    async def scenario(daemon: FakeDocker) -> None:
        daemon.run(ONE)
        async with following(docker(daemon.path, keep=0.5)) as followed:
            await following.until(lambda: followed.ids() == ["a1"])
            await daemon.stop()
            await following.until(lambda: followed.ids() == [])
            await daemon.start()
            await following.until(lambda: followed.ids() == ["a1"])

    play(scenario)


@pytest.mark.parametrize(
    ("line", "words"), [("{{", "a line that isn't JSON"), ("[]", "a line that holds no object"), ('{"Type": 1}', "")]
)
def test_garbage_among_the_events_is_survived(following: Any, play: Any, line: str, words: str) -> None:
    async def scenario(daemon: FakeDocker) -> None:
        daemon.run(ONE)
        async with following(docker(daemon.path)) as followed:
            await following.until(lambda: followed.ids() == ["a1"])
            daemon.send(line)
            if words:
                await following.until(lambda: any(words in said for _, said in followed.said))
                await following.until(lambda: daemon.listening and not followed.provider.health().degraded)
            daemon.run(TWO)
            await following.until(lambda: followed.ids() == ["a1", "b2"])

    play(scenario)


@pytest.mark.parametrize(
    ("path", "status", "body", "words"),
    [
        ("/events", 500, '{"message": "no luck"}', "the daemon answered 500: no luck"),
        ("/events", 403, "plain", "the daemon answered 403;"),
        ("/containers/json", 200, "{", "the daemon's answer isn't JSON"),
        ("/containers/json", 200, "{}", "no list of containers"),
        ("/containers/a1", 500, "", "the daemon answered 500;"),
    ],
)
def test_an_answer_that_cannot_be_used_is_told_and_tried_again(
    following: Any, play: Any, path: str, status: int, body: str, words: str
) -> None:
    async def scenario(daemon: FakeDocker) -> None:
        daemon.run(ONE)
        daemon.answers[path] = web.Response(status=status, text=body)
        async with following(docker(daemon.path)) as followed:
            await following.until(lambda: any(words in said for _, said in followed.said))
            await following.until(lambda: followed.ids() == ["a1"])
            assert not followed.provider.health().degraded

    play(scenario)


def test_without_a_socket_it_waits_for_one(following: Any, tmp_path: Path) -> None:
    async def scenario() -> None:
        daemon = FakeDocker(tmp_path / "docker.sock")
        async with following(docker(daemon.path)) as followed:
            await following.until(lambda: followed.provider.health().degraded)
            assert not followed.provider.health().loaded
            assert "can't be reached: no such file" in followed.provider.health().degraded
            daemon.run(ONE)
            await daemon.start()
            await following.until(lambda: followed.ids() == ["a1"])
        await daemon.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("host", ["ssh://me@host", "unix://relative", "tcp://", "tcp://[::1", "docker", "tcp://a b:1"])
def test_an_address_that_is_none_is_refused_at_once(host: str) -> None:
    with pytest.raises(ProviderError, match=r"write|absolute|neither"):
        build("docker", ProviderSettings(docker_host=host), Routes(), lambda *_: None)
