"""Renew intents to a real Redis, and to one that is down, comes back, hangs or refuses."""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING, Self
from urllib.parse import quote

import pytest
import uvloop

from ingress.renewal import renew
from ingress.renewal.intents import KEEP, QUEUE, Claims
from ingress.renewal.renew import Renewer, RenewSettings, check_dsn
from ingress.telemetry.stats import Stats
from tests.real.ingress.renew.conftest import PASSWORD, PATIENCE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.real.ingress.renew.conftest import RealRedis

KEY = "opensandbox:renew:intent"


class Desk:
    """A renewer with its counters and what it said."""

    def __init__(self, url: str, *, max_len: int = 0, interval: float = 60.0, claims: Claims | None = None) -> None:
        self.stats = Stats()
        self.said: list[tuple[str, str]] = []
        settings = RenewSettings(check_dsn(url), KEY, max_len, interval)
        self.renewer = Renewer(settings, self.stats, lambda level, words: self.said.append((level, words)), claims)

    async def __aenter__(self) -> Self:
        self.renewer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.renewer.close()

    def note(self, sandbox: str, port: int = 8080, uri: str = "") -> None:
        self.renewer.note(sandbox, port, uri)

    async def sent(self, count: int) -> None:
        await until(lambda: self.stats.renewals_sent >= count)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - what is waited for knows of no event
            await asyncio.sleep(0.005)


def play(scene: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scene())  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No exchange is given up because a machine is busy: what was pushed without an answer would be pushed again."""
    monkeypatch.setattr(renew, "EXCHANGE", PATIENCE)


def test_an_intent_arrives_as_the_server_reads_it(redis: RealRedis) -> None:
    async def scene() -> None:
        async with Desk(redis.url) as desk:
            before = time.time()
            desk.note("box-1", 8080, "/app/\u00e9?")
            desk.note("box-2", 80)
            await desk.sent(2)
            newest, oldest = redis.intents()
            assert list(oldest) == ["sandbox_id", "observed_at", "port", "request_uri"]
            assert (oldest["sandbox_id"], oldest["port"], oldest["request_uri"]) == ("box-1", 8080, "/app/\u00e9?")
            assert list(newest) == ["sandbox_id", "observed_at", "port"]
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z", newest["observed_at"])
            assert oldest["observed_at"][:16] in {
                time.strftime("%Y-%m-%dT%H:%M", time.gmtime(moment)) for moment in (before, time.time())
            }

    play(scene)


def test_the_list_is_capped(redis: RealRedis) -> None:
    async def scene() -> None:
        async with Desk(redis.url, max_len=3) as desk:
            for number in range(10):
                desk.note(f"box-{number}")
            await desk.sent(10)
            assert [intent["sandbox_id"] for intent in redis.intents()] == ["box-9", "box-8", "box-7"]
        async with Desk(redis.url) as desk:  # the control: without a cap the list grows
            for number in range(10):
                desk.note(f"box-{number}")
            await desk.sent(10)
            assert len(redis.intents()) == 13

    play(scene)


def test_at_most_one_for_each_interval(redis: RealRedis) -> None:
    async def scene() -> None:
        async with Desk(redis.url, interval=0.3) as desk:
            began = time.monotonic()
            while desk.stats.renewals_sent < 3:
                desk.note("box")
                await asyncio.sleep(0.001)
            assert time.monotonic() - began >= 0.6
        async with Desk(redis.url, interval=0.0) as desk:  # the control
            for _ in range(50):
                desk.note("box")
            await desk.sent(50)
        assert len(redis.intents()) >= 53

    play(scene)


def test_workers_send_one_between_them(redis: RealRedis) -> None:
    async def scene() -> None:
        claims = Claims()
        async with Desk(redis.url, claims=claims) as one, Desk(redis.url, claims=claims) as other:
            for number in range(100):
                one.note(f"box-{number}")
                other.note(f"box-{number}")
            other.note("last")
            await one.sent(100)
            await other.sent(1)
            assert len(redis.intents()) == 101

    play(scene)


@pytest.mark.parametrize("socket", [False, True])
def test_a_password_and_a_unix_socket(guarded_redis: RealRedis, socket: bool) -> None:
    async def scene() -> None:
        place = f"@{guarded_redis.path}?db=0" if socket else f"@127.0.0.1:{guarded_redis.port}/0"
        url = f"{'unix' if socket else 'redis'}://:{quote(PASSWORD, safe='')}{place}"
        async with Desk(url) as desk:
            desk.note("box")
            await desk.sent(1)
            assert len(guarded_redis.intents()) == 1

    play(scene)


def test_a_wrong_password_is_said_and_not_repeated(guarded_redis: RealRedis) -> None:
    async def scene() -> None:
        async with Desk(guarded_redis.url.replace("//", "//:wr0ng@")) as desk:
            desk.note("box")
            await until(lambda: bool(desk.renewer.health()))
            assert f"127.0.0.1:{guarded_redis.port}" in desk.renewer.health()
            assert "wr0ng" not in repr(desk.said) + desk.renewer.health()

    play(scene)


def test_over_tls_only_to_whom_the_operator_trusts(encrypted_redis: RealRedis) -> None:
    async def scene() -> None:
        url = f"rediss://localhost:{encrypted_redis.port}"
        for trusted in (f"?ssl_ca_certs={encrypted_redis.certificate}", "?skip_verify=true"):
            async with Desk(url + trusted) as desk:
                desk.note("box")
                await desk.sent(1)
        async with Desk(url) as desk:
            desk.note("box")
            await until(lambda: "certificate" in desk.renewer.health().lower())
        assert len(encrypted_redis.intents()) == 2

    play(scene)


def test_what_waits_at_the_end_is_sent(redis: RealRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renew, "FLUSH", PATIENCE)

    async def scene() -> None:
        async with Desk(redis.url) as desk:
            for number in range(500):
                desk.note(f"box-{number}")
        assert desk.stats.renewals_sent == len(redis.intents()) == 500
        assert desk.stats.renewals_dropped == 0
        desk.note("late")
        assert desk.stats.renewals_dropped == 0

    play(scene)


def test_a_key_of_another_type_is_trouble_and_no_end(redis: RealRedis) -> None:
    async def scene() -> None:
        redis.ask("SET", KEY, "text")
        async with Desk(redis.url) as desk:
            desk.note("box")
            await until(lambda: "WRONGTYPE" in desk.renewer.health())
            redis.ask("DEL", KEY)
            await desk.sent(1)
            assert desk.renewer.health() == ""
            assert len(redis.intents()) == 1

    play(scene)


# I11: Redis is gone. Nothing waits for it, what is lost is counted, and when it is back intents go on.


async def busy(desk: Desk, seconds: float) -> float:
    """Requests of twenty sandboxes for so long, and of each at least; the longest that a note took, with the loop's
    next turn, in seconds."""
    longest, number, end = 0.0, 0, time.monotonic() + seconds
    while number < 40 or time.monotonic() < end:
        began = time.monotonic()
        desk.note(f"box-{number % 20}")
        await asyncio.sleep(0)
        longest = max(longest, time.monotonic() - began)
        number += 1
        if number % 50 == 0:
            await asyncio.sleep(0.001)
    return longest


def test_i11_redis_down_at_start_and_back(redis: RealRedis) -> None:
    async def scene() -> None:
        redis.kill()
        async with Desk(redis.url, interval=0.2) as desk:
            assert await busy(desk, 0.5) < 5
            await until(lambda: "connect" in desk.renewer.health().lower())
            assert desk.stats.renewals_sent == 0
            redis.start()
            await desk.sent(20)  # what was noted meanwhile
            assert desk.renewer.health() == ""
            assert {intent["sandbox_id"] for intent in redis.intents()} == {f"box-{number}" for number in range(20)}
            assert [level for level, _ in desk.said] == ["warn", "info"]

    play(scene)


def test_i11_redis_killed_and_back(redis: RealRedis) -> None:
    async def scene() -> None:
        async with Desk(redis.url, interval=0.1) as desk:
            await busy(desk, 0.3)
            await desk.sent(20)
            assert desk.renewer.health() == ""  # the control
            redis.kill()
            assert await busy(desk, 0.5) < 5
            await until(lambda: bool(desk.renewer.health()))
            redis.start()
            before = desk.stats.renewals_sent
            await busy(desk, 0.3)
            await desk.sent(before + 20)
            assert len(redis.intents()) >= 20

    play(scene)


@pytest.mark.parametrize("seconds", [0.1])
def test_i11_redis_that_hangs(redis: RealRedis, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(renew, "EXCHANGE", seconds)

    async def scene() -> None:
        async with Desk(redis.url, interval=0.1) as desk:
            await busy(desk, 0.2)
            await desk.sent(20)
            redis.freeze()
            assert await busy(desk, 0.6) < 5
            await until(lambda: bool(desk.renewer.health()))
            redis.thaw()
            before = desk.stats.renewals_sent
            await busy(desk, 0.2)
            await desk.sent(before + 20)
            await until(lambda: not desk.renewer.health())

    play(scene)


def test_i11_a_hung_redis_does_not_hold_up_the_end(redis: RealRedis) -> None:
    async def scene() -> None:
        redis.freeze()
        desk = Desk(redis.url)
        desk.renewer.start()
        for number in range(7):
            desk.note(f"box-{number}")
        await asyncio.sleep(0.05)
        began = time.monotonic()
        await desk.renewer.close()
        assert time.monotonic() - began < 5
        assert desk.stats.renewals_dropped == 7
        assert desk.stats.renewals_sent == 0

    play(scene)


def test_i11_drops_are_counted_and_memory_is_bounded(redis: RealRedis) -> None:
    async def scene() -> None:
        redis.kill()
        async with Desk(redis.url) as desk:
            for number in range(3 * QUEUE):
                desk.note(f"box-{number}")
            assert desk.stats.renewals_dropped == 2 * QUEUE
            redis.start()
            await desk.sent(QUEUE)
            assert len(redis.intents()) == QUEUE

    play(scene)


def test_i11_what_is_kept_too_long_is_counted_as_failed(redis: RealRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingress.renewal.intents.KEEP", 0.2)

    async def scene() -> None:
        redis.kill()
        async with Desk(redis.url) as desk:
            desk.note("box")
            await until(lambda: desk.stats.renewals_failed == 1)
            monkeypatch.setattr("ingress.renewal.intents.KEEP", KEEP)  # the next is not too old on a busy machine
            redis.start()
            desk.note("other")
            await desk.sent(1)
            assert [intent["sandbox_id"] for intent in redis.intents()] == ["other"]

    play(scene)


def test_i11_a_server_that_talks_nonsense(redis: RealRedis) -> None:
    async def scene() -> None:
        async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(100)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(nonsense, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with Desk(f"redis://127.0.0.1:{port}") as desk:
            desk.note("box")
            await until(lambda: bool(desk.renewer.health()))
        assert desk.stats.renewals_dropped == 1
        server.close()
        await server.wait_closed()

    play(scene)
