"""I10, and what WebSockets need: the opening is checked, then octets pass as they are; a refused one is plain HTTP."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.real.ingress.hostile import frames, lies, strict
from tests.real.ingress.hostile.client import wait
from tests.real.ingress.hostile.corpus import get
from tests.real.ingress.hostile.corpus_lines import HIGH
from tests.real.ingress.hostile.gateway import Gateway
from tests.real.ingress.hostile.ground import Link, saying, settled, soon

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.real.ingress.hostile.client import Client
    from tests.real.ingress.hostile.conftest import OriginFactory

MEGA = 1 << 20
IDLE = 1000


def opened(gate: Gateway, raw: bytes) -> Client:
    client = gate.client()
    client.send(raw)
    assert client.head().startswith(b"HTTP/1.1 101")
    return client


@pytest.mark.parametrize("connection", [b"Upgrade", b"keep-alive, Upgrade", b"upgrade", b"Keep-Alive,UPGRADE"])
def test_the_opening_crosses_whole(connection: bytes, gate: Gateway, start_origin: OriginFactory) -> None:
    fields = [
        (b"authorization", b"Bearer abc"),
        (b"cookie", b"a=b"),
        (b"origin", b"https://app.test"),
        (b"sec-websocket-protocol", b"chat, v2.chat"),
        (b"sec-websocket-extensions", b"permessage-deflate; client_max_window_bits"),
        (b"sec-websocket-version", b"13"),
        (b"sec-websocket-key", frames.KEY),
    ]
    agreed = frames.agreement(b"Sec-WebSocket-Protocol: v2.chat", b"Sec-WebSocket-Extensions: permessage-deflate")
    origin = start_origin(saying(agreed))
    raw = frames.opening(origin, *[name + b": " + value for name, value in fields[:-2]], connection=connection)
    with gate.client() as client:
        client.send(raw)
        head = client.head()
    answer = strict.responses(head, [b"GET"], closed=False).messages[0]
    assert answer.one("sec-websocket-accept") == frames.accept().decode()
    assert answer.one("sec-websocket-protocol") == "v2.chat"
    assert answer.one("sec-websocket-extensions") == "permessage-deflate"
    assert answer.one("upgrade") == "websocket"
    assert (answer.one("connection") or "").lower() == "upgrade"
    (seen,) = origin.requests()
    assert sorted(field for field in seen.headers if field in fields) == sorted(fields)
    assert seen.one("upgrade") == "websocket"
    assert (seen.one("connection") or "").lower() == "upgrade"
    assert seen.one("host") == "app.test"


@pytest.mark.parametrize("target", HIGH.values(), ids=HIGH.keys())
def test_an_openings_target_crosses_as_it_was_typed(target: bytes, gate: Gateway, start_origin: OriginFactory) -> None:
    origin = start_origin(frames.echoing)
    with opened(gate, frames.opening(origin, line=b"GET " + target + b" HTTP/1.1")) as client:
        said = frames.frame(frames.TEXT, b"hello", mask=True)
        client.send(said)
        assert client.exactly(len(said)) == said
    assert bytes(origin.links[0].data).startswith(b"GET " + target + b" HTTP/1.1\r\n")


def test_only_get_opens_a_websocket(gate: Gateway, start_origin: OriginFactory) -> None:
    """Of another method it is an ordinary request, whose Upgrade ends here (RFC 6455 section 4.1)."""
    origin = start_origin()
    with gate.client() as client:
        for method in (b"get", b"FROB"):
            answer = client.ask(frames.opening(origin, line=method + b" /ws HTTP/1.1"))
            assert (answer.status, answer.body) == (200, method + b" /ws 0")
    assert [(seen.one("upgrade"), seen.one("connection")) for seen in origin.requests()] == [(None, None)] * 2


SPEECH = [
    frames.frame(frames.TEXT, b"hello", mask=True),
    frames.frame(frames.TEXT, b"frag", mask=True, fin=False),
    frames.frame(frames.PING, b"between", mask=True),
    frames.frame(0, b"ment", mask=True, fin=False),
    frames.frame(0, b"", mask=True),
    frames.frame(frames.BINARY, bytes(range(256)), mask=True, rsv=4),
    frames.frame(frames.BINARY, bytes(200_000), mask=True, rsv=7),
    frames.frame(frames.PONG, b"unasked", mask=True),
    frames.frame(15, b"reserved", mask=True),
    frames.frame(frames.CLOSE, (4321).to_bytes(2) + "adieu, café".encode(), mask=True),
]


@pytest.mark.parametrize("pieces", [0, 1000, 7])
def test_octets_pass_as_they_are(pieces: int, gate: Gateway, start_origin: OriginFactory) -> None:
    """Masks, reserved bits, fragments, pings, close codes and reasons: nothing is read into, nothing made anew."""
    origin = start_origin(frames.echoing)
    speech = b"".join(SPEECH)
    if pieces == 7:
        speech = speech.replace(bytes(1000), b"")
    with opened(gate, frames.opening(origin)) as client:
        client.send(speech, pieces=pieces)
        assert client.exactly(len(speech)) == speech
    link = origin.links[0]
    assert bytes(link.data).split(b"\r\n\r\n", 1)[1] == speech


def test_what_comes_with_the_101_and_what_came_before_it(gate: Gateway, start_origin: OriginFactory) -> None:
    """A server may speak in the same breath; a hasty client's first frames wait for the agreement and follow it."""
    hello = frames.frame(frames.TEXT, b"welcome")

    async def script(link: Link) -> None:
        await link.until(b"\r\n\r\n")
        await asyncio.sleep(0.05)
        link.progress = len(link.data) - link.taken
        await link.send(frames.agreement() + hello)
        await link.end()

    origin = start_origin(script)
    early = frames.frame(frames.TEXT, b"hasty", mask=True)
    with gate.client() as client:
        client.send(frames.opening(origin) + early)
        client.head()
        assert client.exactly(len(hello)) == hello
        assert soon(lambda: bytes(origin.links[0].data).endswith(early))
        assert origin.links[0].progress == 0, "what isn't HTTP must not reach a server that hasn't agreed"


def test_half_closed(gate: Gateway, start_origin: OriginFactory) -> None:
    """Each direction ends by itself."""

    async def script(link: Link) -> None:
        await link.until(b"\r\n\r\n")
        await link.send(frames.agreement())
        await link.end()
        await link.send(frames.frame(frames.TEXT, b"after your end"))

    origin = start_origin(script)
    with opened(gate, frames.opening(origin)) as client:
        client.send(b"last words")
        client.half_close()
        assert client.rest() == frames.frame(frames.TEXT, b"after your end")
        assert client.ended == "eof"
    assert bytes(origin.links[0].data).endswith(b"last words")


def test_a_sandbox_that_ends_first(gate: Gateway, start_origin: OriginFactory) -> None:
    goodbye = frames.frame(frames.CLOSE, (1000).to_bytes(2) + b"done")

    async def script(link: Link) -> None:
        await link.until(b"\r\n\r\n")
        await link.send(frames.agreement() + goodbye)

    origin = start_origin(script)
    with opened(gate, frames.opening(origin)) as client:
        assert client.rest() == goodbye


def test_a_client_that_vanishes(gate: Gateway, start_origin: OriginFactory) -> None:
    origin = start_origin(frames.echoing)
    client = opened(gate, frames.opening(origin))
    client.reset()
    assert soon(lambda: origin.links[0].ended)


def test_i10_huge_frames_pass_in_bounded_memory(gate: Gateway, start_origin: OriginFactory) -> None:
    """A frame of 32 MiB is never held; a reader that pauses holds up the writer."""
    size = 32 * MEGA

    async def script(link: Link) -> None:
        await link.until(b"\r\n\r\n")
        await link.send(frames.agreement())
        head = frames.frame(frames.BINARY, bytes(1 << 16))[:2] + size.to_bytes(8)
        await link.send(head)
        for _ in range(32):
            await link.send(bytes(MEGA))
            link.progress += 1
        await link.end()

    origin = start_origin(script)
    before = gate.memory()
    with opened(gate, frames.opening(origin)) as client:
        assert settled(lambda: origin.links[0].progress) < 30
        assert gate.memory() - before < 12 * MEGA
        left = size + 10 - (len(client.heard) - client.taken)
        while left:
            left -= len(client.pull(MEGA))
            client.heard.clear()


# -- upgrades that are none ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "answer",
    [
        lies.answer(b"Content-Length: 2", line=b"HTTP/1.1 403 Forbidden", body=b"no"),
        lies.answer(lies.TE, line=b"HTTP/1.1 200 OK", body=b"2\r\nno\r\n0\r\n\r\n"),
        lies.answer(b"Content-Length: 2", b"Upgrade: websocket", line=b"HTTP/1.1 426 Upgrade Required", body=b"no"),
    ],
    ids=["403", "200", "426"],
)
def test_i10_a_refused_upgrade_is_an_ordinary_answer(answer: bytes, gate: Gateway, start_origin: OriginFactory) -> None:
    """And what is pipelined behind it is a request like any other: routed, checked, stripped."""
    origin, other = start_origin(saying(answer, lies.PLAIN)), start_origin()
    smuggled = get(b"OpenSandbox-Secure-Access: secret", b"X-Forwarded-For: 6.6.6.6")
    smuggled = smuggled.replace(b"box-PORT", b"locked-%d" % other.port)
    with gate.client() as client:
        client.send(frames.opening(origin) + smuggled + b"GARBAGE\r\n\r\n")
        first = client.answer()
        assert first.body == b"no"
        assert client.answer().body == b"GET /in 0"
        assert client.answer().status in (400, 501)
        assert client.rest() == b""
    assert len(origin.requests()) == 1
    assert b"GARBAGE" not in bytes(origin.links[0].data)
    (seen,) = other.requests()
    assert seen.one("x-forwarded-for") == "127.0.0.1"
    assert b"secret" not in bytes(other.links[0].data)


NO_AGREEMENT = {
    "wrong-accept": frames.agreement(key=b"AAAAAAAAAAAAAAAAAAAAAA=="),
    "no-accept": b"HTTP/1.1 101 S\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    "two-accepts": frames.agreement(b"Sec-WebSocket-Accept: " + frames.accept()),
    "no-upgrade": frames.agreement().replace(b"Upgrade: websocket\r\n", b""),
    "other-upgrade": frames.agreement().replace(b"websocket", b"h2c"),
    "no-connection": frames.agreement().replace(b"Connection: Upgrade\r\n", b""),
    "http10": frames.agreement().replace(b"HTTP/1.1", b"HTTP/1.0"),
    "with-nul": frames.agreement(b"X-A: \x00"),
}


@pytest.mark.parametrize("name", NO_AGREEMENT)
def test_i10_a_wrong_101_is_not_relayed(name: str, gate: Gateway, start_origin: OriginFactory) -> None:
    origin = start_origin(saying(NO_AGREEMENT[name] + b"raw octets"))
    with gate.client() as client:
        client.send(frames.opening(origin))
        answer = client.answer()
        assert answer.status == 502
        assert b"raw octets" not in client.heard
    assert soon(lambda: origin.links[0].ended)


class Attempt(NamedTuple):
    """An opening with something about it that makes it none."""

    line: bytes = b"GET /ws HTTP/1.1"
    fields: tuple[bytes, ...] = ()
    body: bytes = b""
    connection: bytes = b"Upgrade"
    upgrade: bytes = b"websocket"


NOT_WEBSOCKETS = {
    "post": Attempt(b"POST /ws HTTP/1.1", (b"Content-Length: 0",)),
    "post-with-body": Attempt(b"POST /ws HTTP/1.1", (b"Content-Length: 5",), b"hello"),
    "get-with-body": Attempt(fields=(b"Content-Length: 5",), body=b"hello"),
    "get-with-chunks": Attempt(fields=(b"Transfer-Encoding: chunked",), body=b"5\r\nhello\r\n0\r\n\r\n"),
    "http10": Attempt(b"GET /ws HTTP/1.0"),
    "no-connection": Attempt(connection=b"keep-alive"),
    "h2c": Attempt(upgrade=b"h2c"),
    "two-protocols": Attempt(upgrade=b"h2c, websocket"),
    "head": Attempt(b"HEAD /ws HTTP/1.1"),
}


@pytest.mark.parametrize("attempt", NOT_WEBSOCKETS.values(), ids=NOT_WEBSOCKETS)
def test_i10_what_only_looks_like_an_upgrade(attempt: Attempt, gate: Gateway, start_origin: OriginFactory) -> None:
    """Refused, or served as the request that it is without its Upgrade; a 101 to it would never be relayed."""
    origin = start_origin(saying(frames.agreement() + b"raw octets"))
    raw = frames.opening(origin, *attempt.fields, line=attempt.line, connection=attempt.connection)
    raw = raw.replace(b"Upgrade: websocket", b"Upgrade: " + attempt.upgrade)
    with gate.client() as client:
        client.send(raw + attempt.body)
        client.send(b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = client.answer(raw.split(b" ")[0])
        assert answer.status in (400, 502)
        client.half_close()
        client.rest()
        assert b" 101 " not in client.heard
        assert b"raw octets" not in client.heard
    for link in origin.links:
        reading = strict.requests(bytes(link.data))
        assert all(message.one("upgrade") is None for message in reading.messages)
        assert b"smuggled" not in link.data


def test_i10_access_is_checked_before_the_tunnel(gate: Gateway, start_origin: OriginFactory) -> None:
    origin = start_origin(frames.echoing)
    with gate.client() as client:
        client.send(frames.opening(origin, box=b"locked"))
        assert client.answer().status == 401
    assert origin.links == []
    with opened(gate, frames.opening(origin, b"OpenSandbox-Secure-Access: secret", box=b"locked")):
        assert b"secret" not in bytes(origin.links[0].data)


# -- many, and idle ------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(tmp_path_factory.mktemp("short"), "--tunnel-timeout", "1s") as made:
        yield made


def test_i10_an_idle_tunnel_ends_and_a_busy_one_does_not(short: Gateway, start_origin: OriginFactory) -> None:
    """Octets in one direction are enough to be busy. Who is idle is told: going away (1001)."""

    async def speaks(link: Link) -> None:
        await link.until(b"\r\n\r\n")
        await link.send(frames.agreement())
        while not link.ended:
            await link.send(frames.frame(frames.PING))
            await asyncio.sleep(0.1)

    origin = start_origin(frames.echoing)
    with (
        opened(short, frames.opening(origin)) as idle,
        opened(short, frames.opening(origin)) as busy,
        opened(short, frames.opening(start_origin(speaks))) as listening,
    ):
        idle.sock.setblocking(False)
        for _ in range(200):
            busy.send(b"x" * 10)
            assert busy.exactly(10)
            assert listening.exactly(2) == frames.frame(frames.PING)
            wait(0.05)
            try:
                idle.pull()
            except BlockingIOError:
                continue
            break
        assert bytes(idle.heard)[-4:] == b"\x88\x02\x03\xe9"
        idle.sock.setblocking(True)
        idle.send(frames.frame(frames.CLOSE, (1001).to_bytes(2), mask=True))
        idle.half_close()
        assert idle.rest() == b"\x88\x02\x03\xe9"
        busy.send(b"still here")
        assert busy.exactly(10) == b"still here"
    assert soon(lambda: all(link.ended for link in origin.links))


def test_i10_a_thousand_idle_tunnels(gate: Gateway, start_origin: OriginFactory) -> None:
    """They cost little, they hinder nobody, and when they are gone, they are gone."""
    origin = start_origin(frames.echoing)
    memory, descriptors = gate.memory(), gate.descriptors()
    raw = frames.opening(origin)
    clients = []
    try:
        for _ in range(IDLE):
            client = gate.client()
            client.send(raw)
            clients.append(client)
        for client in clients:
            assert client.head().startswith(b"HTTP/1.1 101")
        assert gate.memory() - memory < IDLE * 24 * 1024
        assert gate.ask(get().replace(b"PORT", str(start_origin().port).encode())).status == 200
        for client in clients[:: IDLE // 10]:
            client.send(b"still there")
            assert client.exactly(11) == b"still there"
    finally:
        for client in clients:
            client.sock.close()
    assert soon(lambda: all(link.ended for link in origin.links))
    assert soon(lambda: gate.descriptors() <= descriptors + 50)
