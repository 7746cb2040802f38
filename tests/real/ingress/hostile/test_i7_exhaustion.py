"""I7: slow clients, and too many of them. Time-outs and caps end it; memory stands still; others are served."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from tests.real.ingress.hostile import lies, strict
from tests.real.ingress.hostile.client import Client, wait
from tests.real.ingress.hostile.corpus import get, head, post
from tests.real.ingress.hostile.gateway import Gateway
from tests.real.ingress.hostile.ground import Link, soon

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.real.ingress.hostile.conftest import OriginFactory
    from tests.real.ingress.hostile.ground import Origin

MANY = int(os.environ.get("SALLYPORT_CONNECTIONS", "300"))
"""Connections at once; the file descriptors of this machine are the bound (10,000 need some 20,000)."""
MEGA = 1 << 20
HEAD_BYTES = 65_536  # the default
LIMITS = [
    *("--head-timeout", "500ms", "--idle-timeout", "2s", "--body-timeout", "2s"),
    *("--inflight-per-sandbox", "5", "--body-bytes", "100000"),
]


@pytest.fixture(scope="module")
def strict_gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway that waits for nobody long."""
    sandboxes = {name: {"host": "127.0.0.1"} for name in ("box", "other", "third")}
    with Gateway(tmp_path_factory.mktemp("limits"), *LIMITS, sandboxes=sandboxes) as made:
        yield made


def to(origin: Origin, raw: bytes, box: bytes = b"box") -> bytes:
    return raw.replace(b"box-PORT", b"%s-%d" % (box, origin.port))


def still_served(gate: Gateway, origin: Origin) -> None:
    assert gate.ask(to(origin, get(), b"third")).status == 200


def crowd(gate: Gateway, raw: bytes, number: int = MANY) -> list[Client]:
    clients = []
    for _ in range(number):
        client = gate.client()
        client.send(raw)
        clients.append(client)
    return clients


def leave(clients: list[Client]) -> None:
    for client in clients:
        client.reset()  # an ordinary close could be that of one half: the gateway would go on for some seconds


BEGINNINGS = [b"", b"G", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: x\r\nX-A: b\r\n", b"\r\n"]


def test_i7_slow_heads(strict_gate: Gateway, start_origin: OriginFactory) -> None:
    """Hundreds that begin and never end: all are ended, with 408 where a request had begun."""
    origin = start_origin()
    before = strict_gate.memory()
    crowds = {beginning: crowd(strict_gate, beginning, MANY // len(BEGINNINGS)) for beginning in BEGINNINGS}
    try:
        still_served(strict_gate, origin)
        assert strict_gate.memory() - before < MANY * 16 * 1024
        for beginning, clients in crowds.items():
            for client in clients:
                heard = client.rest()
                assert heard == b"" or heard.startswith(b"HTTP/1.1 408 ")
                assert heard or beginning in (b"", b"\r\n")
    finally:
        for clients in crowds.values():
            leave(clients)


def test_i7_a_head_that_trickles(strict_gate: Gateway) -> None:
    """An octet now and then doesn't prolong it: the time counts from the first one."""
    with strict_gate.client() as client:
        client.send(b"GET / HTTP/1.1\r\n")
        client.sock.settimeout(0.1)
        for _ in range(100):
            client.send(b"X")
            try:
                client.pull()
            except TimeoutError:
                continue
            break
        assert client.heard.startswith(b"HTTP/1.1 408 ")


def test_i7_slow_bodies(strict_gate: Gateway, start_origin: OriginFactory) -> None:
    origin = start_origin()
    clients = crowd(strict_gate, to(origin, post(b"Content-Length: 100")), 2)
    clients += crowd(strict_gate, to(origin, post(b"Transfer-Encoding: chunked", body=b"5\r\nhe")), 2)
    try:
        still_served(strict_gate, origin)
        for client in clients:
            assert client.answer().status == 408
    finally:
        leave(clients)
    assert soon(lambda: all(link.ended for link in origin.links if b"POST" in link.data))


def test_i7_slow_readers(strict_gate: Gateway, start_origin: OriginFactory) -> None:
    """Who doesn't read what he asked for holds neither memory nor a connection to the sandbox for long."""

    async def much(link: Link) -> None:
        await link.request()
        await link.send(lies.answer(b"Content-Length: %d" % (100 * MEGA)))
        for _ in range(100):
            await link.send(bytes(MEGA))

    origin, other = start_origin(much), start_origin()
    before = strict_gate.memory()
    clients = crowd(strict_gate, to(origin, get()), 5)
    try:
        assert soon(lambda: origin.connections() == 5)
        still_served(strict_gate, other)
        assert strict_gate.memory() - before < 5 * 4 * MEGA
        assert soon(lambda: all(link.ended for link in origin.links))
        for client in clients:
            with pytest.raises(strict.Unclear):
                client.answer()
    finally:
        leave(clients)


def test_i7_idle_connections(strict_gate: Gateway, start_origin: OriginFactory) -> None:
    """After an answer, a connection may stay for a while, not for ever."""
    origin = start_origin()
    clients = crowd(strict_gate, b"", 0)
    try:
        for _ in range(MANY):
            client = strict_gate.client()
            assert client.ask(to(origin, get())).status == 200
            clients.append(client)
        for client in clients:
            assert client.rest() == b""
    finally:
        leave(clients)


def test_i7_more_connections_than_allowed(tmp_path: Path, start_origin: OriginFactory) -> None:
    """Over the cap: told so at once, and those inside go on. A gateway that lets them be idle: they are to stay."""
    origin = start_origin()
    with Gateway(tmp_path, "--connections", str(MANY + 50)) as gate:
        with gate.client() as inside:
            assert inside.ask(to(origin, get())).status == 200
            clients = crowd(gate, b"", MANY + 80)
            try:
                inside.send(to(origin, get()))
                assert inside.answer().status == 200
                with gate.client() as late:
                    answer = late.answer()
                    assert (answer.status, answer.one("sallyport-error")) == (503, "connections")
                    assert late.rest() == b""
            finally:
                leave(clients)
        assert soon(lambda: _serves(gate, to(origin, get()))), "when they are gone there is room again"


def _serves(gate: Gateway, raw: bytes) -> bool:
    return gate.ask(raw).status == 200


def test_i7_one_busy_sandbox_does_not_starve_the_others(strict_gate: Gateway, start_origin: OriginFactory) -> None:
    async def waits(link: Link) -> None:
        await link.request()
        await link.end()

    busy, other = start_origin(waits), start_origin()
    clients = crowd(strict_gate, to(busy, get()), 5)
    try:
        assert soon(lambda: busy.connections() == 5)
        answer = strict_gate.ask(to(busy, get()))
        assert (answer.status, answer.one("sallyport-error")) == (429, "sandbox_busy")
        assert answer.one("retry-after")
        assert strict_gate.ask(to(other, get(), b"other")).status == 200
    finally:
        leave(clients)
    assert soon(lambda: _serves(strict_gate, to(other, get()))), "what is over no longer counts"


@pytest.mark.parametrize("slowly", [False, True], ids=["at-once", "in-two"])
def test_i7_a_head_at_the_limit_and_one_octet_over(slowly: bool, gate: Gateway, start_origin: OriginFactory) -> None:
    """The whole head counts, to the last octet of its empty line; a request line that is too long alone says so."""
    origin = start_origin()
    room = HEAD_BYTES - len(to(origin, get(b"X-A: ")))
    for raw, status in (
        (to(origin, get(b"X-A: " + b"a" * room)), 200),
        (to(origin, get(b"X-A: " + b"a" * (room + 1))), 431),
        (b"GET /" + b"a" * HEAD_BYTES + b" HTTP/1.1\r\nHost: h\r\n\r\n", 414),
    ):
        with gate.client() as client:
            if slowly:
                client.send(raw[:-1])
                assert gate.ask(to(origin, get())).status == 200  # what was sent before has been read by now
            client.send(raw[-1:] if slowly else raw)
            assert client.answer().status == status


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (post(b"Content-Length: 100000", body=bytes(100_000)), 200),
        (post(b"Content-Length: 100001", body=b""), 413),
        (post(b"Content-Length: 99999999999999999", body=b""), 413),
        (post(b"Transfer-Encoding: chunked", body=b"f000\r\n" + bytes(0xF000) + b"\r\n0\r\n\r\n"), 200),
        (post(b"Transfer-Encoding: chunked", body=(b"f000\r\n" + bytes(0xF000) + b"\r\n") * 3), 413),
        (post(b"Transfer-Encoding: chunked", body=b"186a0\r\n" + bytes(100_000) + b"\r\n0\r\n\r\n"), 200),
        (post(b"Transfer-Encoding: chunked", body=b"186a1\r\n" + bytes(100_001) + b"\r\n0\r\n\r\n"), 413),
        (post(b"Transfer-Encoding: chunked", body=b"1\r\nx\r\n" * 60_000), 413),
    ],
    ids=[
        "at-limit",
        "over",
        "far-over",
        "chunked",
        "chunked-over",
        "chunked-at-limit",
        "chunked-one-over",
        "chunked-in-crumbs",
    ],
)
def test_i7_bodies_over_the_limit(raw: bytes, status: int, strict_gate: Gateway, start_origin: OriginFactory) -> None:
    origin = start_origin()
    with strict_gate.client() as client:
        client.send(to(origin, raw))
        answer = client.answer()
        assert answer.status == status
        if status == 413:
            assert answer.one("connection") == "close"
            client.rest()
    if status == 413:
        assert origin.requests() == []


LONG = 35
"""Tenths of a second: longer than any time-out of the strict gateway, to the tick after it."""


def test_i7_what_moves_is_not_cut(strict_gate: Gateway, start_origin: OriginFactory) -> None:
    """The control: an upload, a download and a long poll that each take longer than any of the time-outs above."""

    async def slowly(link: Link) -> None:
        await link.request()
        await link.send(lies.answer(lies.TE))
        for _ in range(LONG):
            await link.send(b"1\r\nx\r\n")
            await asyncio.sleep(0.1)
        await link.send(b"0\r\n\r\n")
        await link.end()

    async def late(link: Link) -> None:
        await link.request()
        await asyncio.sleep(LONG / 10)
        await link.send(lies.PLAIN)
        await link.end()

    with strict_gate.client() as upload, strict_gate.client() as download, strict_gate.client() as poll:
        upload.send(to(start_origin(), post(b"Content-Length: %d" % LONG, body=b"")))
        download.send(to(start_origin(slowly), get()))
        poll.send(to(start_origin(late), get(), b"other"))
        for _ in range(LONG):
            upload.send(b"x")
            wait(0.1)
        assert upload.answer().body == b"POST /in %d" % LONG
        assert download.answer().body == b"x" * LONG
        assert poll.answer().body == b"hello"


def test_i7_a_fresh_connection_is_not_taken_for_an_idle_one(strict_gate: Gateway, start_origin: OriginFactory) -> None:
    """Time is looked at once a second: whenever that is, who has just come is served."""
    origin = start_origin()
    for _ in range(80):
        assert strict_gate.ask(to(origin, get())).status == 200
        wait(0.01)


def test_i7_many_at_once_are_all_answered(gate: Gateway, start_origin: OriginFactory) -> None:
    """The control of the caps: with room for them, hundreds of clients are served side by side."""
    origin = start_origin()
    raw = [to(origin, head(b"GET /%d HTTP/1.1" % number)) for number in range(MANY)]
    clients = []
    try:
        for text in raw:
            client = gate.client()
            client.send(text)
            clients.append(client)
        assert [client.answer().body for client in clients] == [b"GET /%d 0" % number for number in range(MANY)]
    finally:
        leave(clients)
