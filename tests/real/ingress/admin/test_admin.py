"""The admin port over real sockets, under clients that behave and under clients that do not."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING

import h11
import pytest
import uvloop

from ingress.telemetry.admin import CONNECTIONS, HEAD_BYTES, Admin, Timeouts
from ingress.telemetry.metrics import SLOT, Board, Publisher, gather, render
from ingress.telemetry.stats import Stats
from tests.pure.ingress.metrics.exposition import read

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]

GET = b"GET /readyz HTTP/1.1\r\nHost: gateway\r\n\r\n"
PATIENCE = 10.0


class Place:
    """An admin port on loopback."""

    def __init__(self, timeouts: Timeouts) -> None:
        self.state = (True, "ok")
        self.text = b"numbers\n"
        self.late = False
        self.called: list[Callable[[], None]] = []
        self.admin = Admin(lambda: self.state, lambda: self.text, self.rally, timeouts)
        self.port = 0

    def rally(self, done: Callable[[], None]) -> bool:
        if self.late:
            self.called.append(done)
        return self.late

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        server = await asyncio.get_running_loop().create_server(self.admin.protocol, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()
            self.admin.close()
            await until(lambda: not self.admin.open)

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield reader, writer
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def exchange(self, data: bytes) -> bytes:
        """Everything that comes back until the server closes."""
        async with self.client() as (reader, writer):
            writer.write(data)
            return await reader.read()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for knows of no event
        await asyncio.sleep(0.001)


def play(scene: Callable[[Place], Awaitable[None]], **timeouts: float) -> None:
    async def all_of_it() -> None:
        place = Place(Timeouts(**timeouts))
        async with asyncio.timeout(PATIENCE), place.serving():
            await scene(place)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(all_of_it())


def responses(data: bytes, *methods: str) -> list[tuple[int, dict[str, str], bytes]]:
    """The responses to these requests, read by h11; nothing may be left over."""
    found = []
    for method in methods:
        connection = h11.Connection(h11.CLIENT)
        connection.send(h11.Request(method=method, target="/", headers=[("Host", "x")]))
        connection.send(h11.EndOfMessage())
        connection.receive_data(data)
        head = connection.next_event()
        assert isinstance(head, h11.Response)
        body = b""
        while isinstance(event := connection.next_event(), h11.Data):
            body += bytes(event.data)
        assert isinstance(event, h11.EndOfMessage)
        headers = {bytes(name).decode(): bytes(value).decode() for name, value in head.headers}
        found.append((head.status_code, headers, body))
        data = connection.trailing_data[0]
    assert data == b""
    return found


def statuses(data: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"^HTTP/1\.1 (\d{3}) ", data, re.MULTILINE)]


def test_one_connection_serves_many_requests() -> None:
    async def scene(place: Place) -> None:
        async with place.client() as (reader, writer):
            for _ in range(3):
                writer.write(GET)
                data = await reader.readuntil(b"\r\n\r\nok\n")
                ((status, headers, body),) = responses(data, "GET")
                assert (status, body) == (200, b"ok\n")
                assert "connection" not in headers

    play(scene)


def test_pipelined_requests_are_answered_in_order() -> None:
    async def scene(place: Place) -> None:
        head = GET.replace(b"GET", b"HEAD")
        last = b"GET /nowhere HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\n\r\n"
        data = await place.exchange(GET + b"\r\n" + head + GET.replace(b"/readyz", b"/metrics") + last + GET)
        found = responses(data, "GET", "HEAD", "GET", "GET")
        assert [status for status, _, _ in found] == [200, 200, 200, 404]
        assert found[1][2] == b""
        assert found[1][1]["content-length"] == "3"
        assert found[2][2] == b"numbers\n"

    play(scene)


def test_what_is_behind_a_request_for_numbers_waits_until_they_are_in() -> None:
    async def scene(place: Place) -> None:
        place.late = True
        metrics = GET.replace(b"/readyz", b"/metrics")
        async with place.client() as (reader, writer):
            writer.write(metrics + GET + metrics)
            writer.write_eof()
            await until(lambda: bool(place.called))
            place.text = b"newer\n"
            place.called.pop()()
            place.text = b"newest\n"
            await until(lambda: bool(place.called))
            place.called.pop()()
            data = await reader.read()
        found = responses(data, "GET", "GET", "GET")
        assert [body for _, _, body in found] == [b"newer\n", b"ok\n", b"newest\n"]

    play(scene)


def test_who_left_before_the_numbers_were_in_harms_nobody() -> None:
    async def scene(place: Place) -> None:
        place.late = True
        async with place.client() as (_, writer):
            writer.write(GET.replace(b"/readyz", b"/metrics"))
            await until(lambda: bool(place.called))
            next(iter(place.admin.open)).abort()
        place.called.pop()()
        assert not place.admin.open
        assert (await place.exchange(b"GET /readyz HTTP/1.0\r\n\r\n")).endswith(b"ok\n")

    play(scene)


def test_an_answer_that_waits_for_numbers_outlives_the_closing() -> None:
    async def scene(place: Place) -> None:
        place.late = True
        async with place.client() as (reader, writer):
            writer.write(GET.replace(b"/readyz", b"/metrics"))
            await until(lambda: bool(place.called))
            place.admin.close()
            place.called.pop()()
            ((status, headers, body),) = responses(await reader.read(), "GET")
            assert (status, headers["connection"], body) == (200, "close", b"numbers\n")

    play(scene)


def test_a_head_in_pieces() -> None:
    async def scene(place: Place) -> None:
        async with place.client() as (reader, writer):
            for octet in GET:
                writer.write(bytes([octet]))
                await writer.drain()
                await asyncio.sleep(0)
            assert (await reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200 ")

    play(scene)


def test_readiness_follows_the_state() -> None:
    async def scene(place: Place) -> None:
        once = GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        for state, status in (((False, "starting: x"), 503), ((True, "degraded: y"), 200), ((False, "draining"), 503)):
            place.state = state
            ((found, headers, body),) = responses(await place.exchange(once), "GET")
            assert (found, body.decode()) == (status, state[1] + "\n")
            assert headers["connection"] == "close"

    play(scene)


def test_metrics_of_a_board_are_in_the_format() -> None:
    async def scene(place: Place) -> None:
        board = Board(1, bytearray(SLOT))
        stats = Stats()
        stats.answered(503, "not_ready", 0.2)
        Publisher(board, 0, stats).publish(1.0, {})
        place.text = render(gather(board, 1.0), "1", 1.0)
        ask = b"GET /metrics HTTP/1.0\r\n\r\n"
        ((status, headers, body),) = responses(await place.exchange(ask), "GET")
        assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert read(body)["sallyport_ingress_requests_total"].value(code="503", reason="not_ready") == 1

    play(scene)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /readyz HTTP/1.0\r\n\r\n", 200),
        (b"GET /readyz HTTP/1.1\r\n\r\n", 400),
        (b"GET /readyz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET /readyz\r\n\r\n", 400),
        (b"GET /readyz HTTP/2.0\r\n\r\n", 505),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"N" * 65 + b" /readyz HTTP/1.1\r\nHost: a\r\n\r\n", 501),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
        (b"GET /readyz HTTP/1.1\r\nHost: a\r\nX: " + b"x" * HEAD_BYTES, 431),
        (b"x" * 100_000, 431),
        (b"POST /readyz HTTP/1.1\r\nHost: a\r\nContent-Length: 43\r\n\r\n" + GET, 405),
        (b"GET /readyz HTTP/1.1\r\nHost: a\r\nContent-Length: 43\r\n\r\n" + GET, 200),
        (b"GET /readyz HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + GET, 200),
        (b"GET /readyz HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n" + GET, 400),
    ],
)
def test_what_cannot_go_on_gets_one_answer_and_a_close(request_bytes: bytes, status: int) -> None:
    async def scene(place: Place) -> None:
        data = await place.exchange(request_bytes)
        assert statuses(data) == [status]
        assert b"\r\nConnection: close\r\n" in data
        assert (b"\r\nAllow: GET, HEAD\r\n" in data) == (status == 405)

    play(scene)


@pytest.mark.parametrize("said", [b"", b"\r\n", b"GET /rea"])
def test_a_silent_client_is_let_go(said: bytes) -> None:
    async def scene(place: Place) -> None:
        async with place.client() as (reader, writer):
            if begun:
                await until(lambda: bool(place.admin.open))
                place.admin.timeouts = Timeouts(head=0.05)  # no sooner: the time must not be over before it speaks
            writer.write(said)
            data = await reader.read()
        assert statuses(data) == ([408] if begun else [])

    begun = bool(said.strip())
    play(scene, head=PATIENCE if begun else 0.05)


async def heard(reader: asyncio.StreamReader) -> bytes:
    """All that comes; a client that goes on writing may meet a reset behind it."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while part := await reader.read(1 << 16):
            data += part
    return data


def test_a_client_that_dribbles_is_let_go() -> None:
    async def scene(place: Place) -> None:
        for dribble in (b"\r\n", b"X"):
            async with place.client() as (reader, writer):
                until_closed = asyncio.ensure_future(heard(reader))
                while not until_closed.done():
                    writer.write(dribble)
                    await asyncio.sleep(0.01)
                assert set(statuses(until_closed.result())) <= {408}

    play(scene, head=0.1, idle=0.1)


def test_an_idle_connection_ends_after_its_time() -> None:
    async def scene(place: Place) -> None:
        assert statuses(await place.exchange(GET + GET)) == [200, 200]

    play(scene, idle=0.05)


def test_a_client_that_does_not_read_is_held_back_and_let_go() -> None:
    async def scene(place: Place) -> None:
        place.text = b"x" * 1_000_000
        async with place.client() as (reader, writer):
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(GET.replace(b"/readyz", b"/metrics") * 200)
            await until(lambda: bool(place.admin.open))
            await until(lambda: not place.admin.open)  # the server gives up on it by itself
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            got = 0
            with contextlib.suppress(ConnectionError):
                while part := await reader.read(1 << 20):
                    got += len(part)
            assert got < 100_000_000  # most of the answers were never made

    play(scene, write=0.2)


def test_a_slow_reader_gets_every_answer() -> None:
    async def scene(place: Place) -> None:
        place.text = b"x" * 500_000 + b"\n"
        async with place.client() as (reader, writer):
            ask = GET.replace(b"/readyz", b"/metrics")
            writer.write(ask * 19 + ask.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            data = b""
            while part := await reader.read(65536):
                data += part
                await asyncio.sleep(0)
            assert [len(body) for _, _, body in responses(data, *["GET"] * 20)] == [500_001] * 20

    play(scene)


def test_a_probe_gets_in_when_the_port_is_full() -> None:
    async def scene(place: Place) -> None:
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(place.client()) for _ in range(CONNECTIONS)]
            for reader, writer in clients:
                writer.write(GET)
                await reader.readuntil(b"ok\n")
            assert len(place.admin.open) == CONNECTIONS
            reader, writer = clients[0]  # used again, so not the one that was silent longest
            writer.write(GET)
            await reader.readuntil(b"ok\n")
            late_reader, late_writer = await stack.enter_async_context(place.client())
            late_writer.write(GET)
            assert (await late_reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200 ")
            with contextlib.suppress(ConnectionError):
                assert await clients[1][0].read() == b""
            writer.write(GET)
            await reader.readuntil(b"ok\n")
            assert len(place.admin.open) == CONNECTIONS

    play(scene)


def test_closing_ends_idle_connections() -> None:
    async def scene(place: Place) -> None:
        async with place.client() as (reader, writer):
            writer.write(GET)
            await reader.readuntil(b"ok\n")
            place.admin.close()
            assert await reader.read() == b""
        data = await place.exchange(GET)  # the listener is still there: told, and let go
        assert statuses(data) == [200]
        assert b"\r\nConnection: close\r\n" in data

    play(scene)
