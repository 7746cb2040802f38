"""I9: an address changes hands, an id changes address. Nothing of the old owner's reaches the new one, and no client
hears what was meant for another."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import TYPE_CHECKING

import pytest

from tests.real.ingress.hostile import frames, lies, strict
from tests.real.ingress.hostile.corpus import get, head
from tests.real.ingress.hostile.gateway import Gateway
from tests.real.ingress.hostile.ground import Link, soon

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.real.ingress.hostile.conftest import OriginFactory
    from tests.real.ingress.hostile.ground import Origin, Script

HERE, THERE = "127.0.0.1", "127.0.0.2"


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gateway]:
    """A gateway of its own, because its routes change; idle connections are kept longer than a test takes."""
    with Gateway(tmp_path, "--upstream-idle", "60s", sandboxes={"box": {"host": HERE}}) as made:
        yield made


def owner(name: bytes) -> Script:
    """Answers with its own name, and who asked."""

    async def script(link: Link) -> None:
        while True:
            seen = await link.request()
            text = name + b" " + seen.target
            await link.send(lies.answer(b"Content-Length: %d" % len(text), body=text))

    return script


def pair(start_origin: OriginFactory) -> tuple[Origin, Origin]:
    """Two servers at two addresses, on the same port."""
    while True:
        first = start_origin(owner(b"old"), host=HERE)
        try:
            return first, start_origin(owner(b"new"), host=THERE, port=first.port)
        except OSError:
            continue  # taken by somebody else


def to(origin: Origin, raw: bytes, box: bytes = b"box") -> bytes:
    return raw.replace(b"box-PORT", b"%s-%d" % (box, origin.port))


def fill(gate: Gateway, origin: Origin, number: int) -> None:
    """Leave that many idle connections to the origin in the pool."""
    clients = [gate.client() for _ in range(number)]
    asked: list[Link] = []
    hold = asyncio.Event()
    script = origin.script

    async def held(link: Link) -> None:
        await link.request()
        asked.append(link)
        await hold.wait()
        await link.send(lies.answer(b"Content-Length: 3", body=b"old"))
        await script(link)

    origin.script = held
    for client in clients:
        client.send(to(origin, get()))
    assert soon(lambda: len(asked) == number)  # all run this script; a connection that has only come runs none yet
    origin.script = script
    origin.ground.do(hold.set)
    for client in clients:
        assert client.answer().body == b"old"
        client.sock.close()


def test_i9_a_sandbox_that_moved(gate: Gateway, start_origin: OriginFactory) -> None:
    """Its old connections are closed at once, and not one request goes to the old address any more."""
    old, new = pair(start_origin)
    fill(gate, old, 8)
    gate.route({"box": {"host": THERE}})
    assert soon(lambda: gate.ask(to(new, get())).body.startswith(b"new"))
    before = len(old.requests())
    assert soon(lambda: all(link.ended for link in old.links))
    for number in range(20):
        assert gate.ask(to(new, head(b"GET /%d HTTP/1.1" % number))).body == b"new /%d" % number
    assert len(old.requests()) == before


def test_i9_an_answer_under_way_when_it_moves(gate: Gateway, start_origin: OriginFactory) -> None:
    """It may be finished, or cut; its connection is not kept."""
    old, new = pair(start_origin)
    go = asyncio.Event()

    async def slow(link: Link) -> None:
        await link.request()
        await link.send(lies.answer(b"Content-Length: 6", body=b"old"))
        await go.wait()
        await link.send(b"old")
        await owner(b"old")(link)

    old.script = slow
    with gate.client() as client:
        client.send(to(old, get()))
        client.head()
        gate.route({"box": {"host": THERE}})
        assert soon(lambda: gate.ask(to(new, get())).body.startswith(b"new"))
        old.ground.do(go.set)
        try:
            assert client.exactly(6) == b"oldold"
            assert client.ask(to(new, get())).body == b"new /in"
        except strict.Unclear:
            pass
    assert soon(lambda: all(link.ended for link in old.links))


def test_i9_an_address_that_changed_hands(gate: Gateway, start_origin: OriginFactory) -> None:
    """The next owner of an address is another sandbox: it gets connections of its own."""
    origin = start_origin(owner(b"one"))
    for number in range(3):
        assert gate.ask(to(origin, head(b"GET /%d HTTP/1.1" % number))).body == b"one /%d" % number
    assert origin.connections() == 1
    gate.route({"heir": {"host": HERE}})
    assert soon(lambda: gate.ask(to(origin, get(), b"heir")).status == 200)
    assert soon(lambda: origin.links[0].ended)
    assert origin.connections() == 2
    assert gate.ask(to(origin, get())).status == 404


def test_i9_two_sandboxes_at_one_address_share_no_connection(gate: Gateway, start_origin: OriginFactory) -> None:
    gate.route({"box": {"host": HERE}, "twin": {"host": HERE}})
    origin = start_origin(owner(b"both"))
    assert soon(lambda: gate.ask(to(origin, get(), b"twin")).status == 200)
    for _ in range(3):
        assert gate.ask(to(origin, head(b"GET /box HTTP/1.1"))).body == b"both /box"
        assert gate.ask(to(origin, head(b"GET /twin HTTP/1.1"), b"twin")).body == b"both /twin"
    targets = [{message.target for message in strict.requests(bytes(link.data)).messages} for link in origin.links]
    assert all(not {b"/box", b"/twin"} <= seen for seen in targets)


def test_i9_a_sandbox_that_was_deleted_and_made_again(gate: Gateway, start_origin: OriginFactory) -> None:
    """Same name, same address, another life."""
    origin = start_origin(owner(b"life"))
    assert gate.ask(to(origin, get())).status == 200
    gate.route({})
    assert soon(lambda: gate.ask(to(origin, get())).status == 404)
    assert soon(lambda: origin.links[0].ended)
    gate.route({"box": {"host": HERE}})
    assert soon(lambda: gate.ask(to(origin, get())).status == 200)
    assert origin.connections() == 2


def test_i9_what_is_open_to_a_deleted_sandbox_is_closed(gate: Gateway, start_origin: OriginFactory) -> None:
    """Tunnels with a close frame (1001), answers by a cut, requests without an answer by a refusal."""
    echo, stream, silent = start_origin(frames.echoing), start_origin(_endless), start_origin(_silent)
    with gate.client() as tunnel, gate.client() as download, gate.client() as waiting:
        tunnel.send(frames.opening(echo))
        assert tunnel.head().startswith(b"HTTP/1.1 101")
        download.send(to(stream, get()))
        download.head()
        waiting.send(to(silent, get()))
        assert soon(silent.connections)
        gate.route({})
        assert tunnel.rest() == b"\x88\x02\x03\xe9"
        download.taken = 0
        with pytest.raises(strict.Unclear):
            download.answer()
        assert waiting.answer().status in (404, 502)
    for origin in (echo, stream, silent):
        assert soon(lambda origin=origin: all(link.ended for link in origin.links))  # type: ignore[misc]


def test_i9_what_others_have_open_stays(gate: Gateway, start_origin: OriginFactory) -> None:
    """The control: a neighbour comes and goes, and our tunnel, our stream and our pooled connection don't notice."""
    echo, plain = start_origin(frames.echoing), start_origin(owner(b"mine"))
    assert gate.ask(to(plain, get())).status == 200
    with gate.client() as tunnel:
        tunnel.send(frames.opening(echo))
        tunnel.head()
        gate.route({"box": {"host": HERE}, "neighbour": {"host": THERE}})
        assert soon(lambda: gate.ask(to(plain, get(), b"neighbour")).status != 404)
        gate.route({"box": {"host": HERE}})
        assert soon(lambda: gate.ask(to(plain, get(), b"neighbour")).status == 404)
        tunnel.send(b"still here")
        assert tunnel.exactly(10) == b"still here"
    assert gate.ask(to(plain, get())).status == 200
    assert plain.connections() == 1


async def _endless(link: Link) -> None:
    await link.request()
    await link.send(lies.answer(lies.TE))
    while not link.ended:
        await link.send(b"5\r\nhello\r\n")
        await asyncio.sleep(0.01)


async def _silent(link: Link) -> None:
    await link.request()
    await link.end()


async def _erratic(link: Link) -> None:
    """Answers in pieces and at its own pace; sometimes it closes."""
    while True:
        seen = await link.request()
        text = seen.target * 50
        if random.random() < 0.3:
            await asyncio.sleep(random.random() * 0.01)
        await link.send(lies.answer(b"Content-Length: %d" % len(text), body=text[:20]))
        if random.random() < 0.3:
            await asyncio.sleep(random.random() * 0.01)
        await link.send(text[20:])
        if random.random() < 0.1:
            return


def test_i9_nobody_hears_what_was_meant_for_another(gate: Gateway, start_origin: OriginFactory) -> None:
    """Clients that ask, pipeline, and leave in the middle, all through one pool: each hears its own answers only."""
    origin = start_origin(_erratic)
    wrong: list[object] = []

    def play(player: int) -> None:
        for game in range(25):
            targets = [b"/%d-%d-%d" % (player, game, number) for number in range(3)]
            with gate.client() as client:
                client.send(b"".join(to(origin, head(b"GET " + target + b" HTTP/1.1")) for target in targets))
                if game % 3 == 2:
                    client.pull(100)
                    client.reset()
                    continue
                for target in targets:
                    answer = client.answer()
                    if (answer.status, answer.body) != (200, target * 50):
                        wrong.append((target, answer))

    threads = [threading.Thread(target=play, args=(player,)) for player in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
    assert origin.connections() < 8 * 25, "the pool was used"


def test_i9_a_request_that_is_sent_again_goes_where_the_sandbox_is_now(
    gate: Gateway, start_origin: OriginFactory
) -> None:
    """An idle connection dies under a request while the sandbox moves: its old address is dialled no more."""
    old, new = pair(start_origin)
    asked, moved = threading.Event(), asyncio.Event()

    async def dying(link: Link) -> None:
        await link.request()
        asked.set()
        await moved.wait()
        link.close()

    old.script = dying
    fill(gate, old, 1)
    before = old.connections()
    with gate.client() as client:
        client.send(to(old, head(b"GET /again HTTP/1.1")))
        assert asked.wait(20)
        gate.route({"box": {"host": THERE}})
        assert soon(lambda: gate.ask(to(new, get())).body.startswith(b"new"))
        old.ground.do(moved.set)
        assert client.answer().body == b"new /again"
    assert old.connections() == before
