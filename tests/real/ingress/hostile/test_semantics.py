"""What HTTP users send, through the running gateway: every case that a proxy is known to get wrong."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from typing import TYPE_CHECKING

import pytest

from tests.real.ingress.hostile import lies, strict
from tests.real.ingress.hostile.corpus import HELLO, get, head, post
from tests.real.ingress.hostile.gateway import Gateway
from tests.real.ingress.hostile.ground import Link, saying, settled, soon

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.real.ingress.hostile.conftest import OriginFactory
    from tests.real.ingress.hostile.ground import Ground, Origin

MEGA = 1 << 20


def to(origin: Origin, raw: bytes) -> bytes:
    return raw.replace(b"PORT", str(origin.port).encode())


def test_connections_are_kept_on_both_sides(gate: Gateway, start_origin: OriginFactory) -> None:
    origin = start_origin()
    with gate.client() as client:
        for number in range(5):
            target = b"GET /%d" % number
            assert client.ask(to(origin, head(target + b" HTTP/1.1"))).body == target + b" 0"
    with gate.client() as client:
        assert client.ask(to(origin, get())).status == 200
    assert origin.connections() == 1


def test_connection_close_is_kept_too(gate: Gateway, start_origin: OriginFactory) -> None:
    origin = start_origin()
    with gate.client() as client:
        answer = client.ask(to(origin, get(b"Connection: close")))
        assert answer.one("connection") == "close"
        assert client.rest() == b""
        assert client.ended == "eof"


def test_http10(gate: Gateway, start_origin: OriginFactory) -> None:
    origin = start_origin()
    with gate.client() as client:
        client.send(to(origin, head(b"GET /in HTTP/1.0")))
        assert client.answer().body == b"GET /in 0"
        assert client.rest() == b""
    with gate.client() as client:
        for _ in range(2):
            answer = client.ask(to(origin, head(b"GET /in HTTP/1.0", b"Connection: keep-alive")))
            assert answer.one("connection") == "keep-alive"


def test_an_http10_client_is_sent_no_chunks(gate: Gateway, start_origin: OriginFactory) -> None:
    origin = start_origin(saying(lies.answer(lies.TE, body=HELLO)))
    with gate.client() as client:
        client.send(to(origin, head(b"GET /in HTTP/1.0", b"Connection: keep-alive")))
        heard = client.rest()
        assert client.ended == "eof"
    assert heard.endswith(b"\r\n\r\nhello")
    assert b"chunked" not in heard.lower()


def test_a_body_until_close_is_framed_for_a_client_that_stays(gate: Gateway, start_origin: OriginFactory) -> None:
    for line in (b"HTTP/1.1 200 OK", b"HTTP/1.0 200 OK"):
        origin = start_origin(saying(lies.answer(line=line, body=b"hello"), close=True))
        with gate.client() as client:
            assert client.ask(to(origin, get())).body == b"hello"
            other = start_origin()
            assert client.ask(to(other, get())).status == 200


def test_head_has_the_length_and_no_body(gate: Gateway, start_origin: OriginFactory) -> None:
    origin = start_origin(saying(lies.answer(lies.CL), lies.PLAIN))
    with gate.client() as client:
        answer = client.ask(to(origin, head(b"HEAD /in HTTP/1.1")))
        assert (answer.one("content-length"), answer.body) == ("5", b"")
        assert client.ask(to(origin, get())).body == b"hello"
    assert origin.connections() == 1


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
def test_bodyless_answers(status: bytes, gate: Gateway, start_origin: OriginFactory) -> None:
    origin = start_origin(saying(lies.answer(b'ETag: "x"', line=b"HTTP/1.1 " + status), lies.PLAIN))
    with gate.client() as client:
        answer = client.ask(to(origin, get()))
        assert (answer.body, answer.one("etag"), answer.one("transfer-encoding")) == (b"", '"x"', None)
        assert client.ask(to(origin, get())).body == b"hello"


def test_trailers_cross_in_both_directions(gate: Gateway, start_origin: OriginFactory) -> None:
    origin = start_origin(saying(lies.answer(lies.TE, b"Trailer: X-Sum", body=b"5\r\nhello\r\n0\r\nX-Sum: 9\r\n\r\n")))
    with gate.client() as client:
        body = b"3\r\nabc\r\n0\r\nX-Sum: 7\r\n\r\n"
        answer = client.ask(to(origin, post(b"Transfer-Encoding: chunked", b"Trailer: X-Sum", body=body)))
        assert (answer.body, answer.trailers) == (b"hello", [(b"x-sum", b"9")])
    (seen,) = origin.requests()
    assert (seen.body, seen.trailers) == (b"abc", [(b"x-sum", b"7")])


# -- Expect --------------------------------------------------------------------------------------------------------
async def _continues(link: Link) -> None:
    await link.until(b"\r\n\r\n")
    await link.send(lies.answer(line=b"HTTP/1.1 100 Continue"))
    await link.exactly(5)
    await link.send(lies.PLAIN)
    await link.end()


async def _declines(link: Link) -> None:
    await link.until(b"\r\n\r\n")
    await link.send(lies.answer(b"Content-Length: 2", line=b"HTTP/1.1 413 Too Large", body=b"no"))
    await link.end()


def test_expect_the_sandboxs_100_is_relayed(gate: Gateway, start_origin: OriginFactory) -> None:
    """The client waits for it before it sends its body; so it has to be the sandbox's own, and at once."""
    origin = start_origin(_continues)
    with gate.client() as client:
        client.send(to(origin, post(b"Content-Length: 5", b"Expect: 100-continue", body=b"")))
        assert client.head().startswith(b"HTTP/1.1 100")
        client.send(b"hello")
        assert client.answer().body == b"hello"
    (seen,) = origin.requests()
    assert (seen.one("expect"), seen.body) == ("100-continue", b"hello")


def test_expect_a_final_answer_instead(gate: Gateway, start_origin: OriginFactory) -> None:
    """The body is never sent. What the client sends next on that connection, if anything, is not taken for it."""
    origin = start_origin(_declines)
    with gate.client() as client:
        client.send(to(origin, post(b"Content-Length: 5", b"Expect: 100-continue", body=b"")))
        answer = client.answer()
        assert (answer.status, answer.body, answer.interim) == (413, b"no", ())
        assert answer.one("connection") == "close"
        assert client.rest() == b""
    assert soon(lambda: origin.links[0].ended), "a connection that still waits for a body can't be used again"


def test_expect_no_100_is_made_up(gate: Gateway, start_origin: OriginFactory) -> None:
    async def mute(link: Link) -> None:
        await link.exactly(10)
        await link.end()

    origin = start_origin(mute)
    with gate.client() as client:
        client.send(to(origin, post(b"Content-Length: 5", b"Expect: 100-continue", body=b"")))
        assert client.quiet(0.15)


# -- streams -------------------------------------------------------------------------------------------------------
def test_events_arrive_one_by_one(ground: Ground, gate: Gateway, start_origin: OriginFactory) -> None:
    """The sandbox sends the next event only when the client has seen the last one: whatever is held back, hangs."""
    go = asyncio.Event()

    async def events(link: Link) -> None:
        await link.request()
        await link.send(lies.answer(b"Content-Type: text/event-stream", lies.TE))
        for number in range(20):
            await go.wait()
            go.clear()
            text = b"data: %d\n\n" % number
            await link.send(b"%x\r\n%s\r\n" % (len(text), text))
        await link.send(b"0\r\n\r\n")
        await link.end()

    origin = start_origin(events)
    with gate.client() as client:
        client.send(to(origin, get(b"Accept: text/event-stream")))
        assert b"text/event-stream" in client.head()
        for number in range(20):
            ground.do(go.set)
            assert b"data: %d\n\n" % number in client.until(b"\n\n")
        client.until(b"0\r\n\r\n")


def test_a_request_body_leaves_as_it_comes(gate: Gateway, start_origin: OriginFactory) -> None:
    """The other way round: an upload in pieces isn't gathered first."""

    async def script(link: Link) -> None:
        await link.until(b"\r\n\r\n")
        await link.send(lies.answer(lies.TE))
        for number in range(10):
            await link.until(b"part%d" % number)
            await link.send(b"3\r\ngot\r\n")
        await link.send(b"0\r\n\r\n")
        await link.end()

    origin = start_origin(script)
    with gate.client() as client:
        client.send(to(origin, post(b"Transfer-Encoding: chunked", body=b"")))
        client.head()
        for number in range(10):
            client.send(b"5\r\npart%d\r\n" % number)
            client.until(b"got\r\n")


async def _digests(link: Link) -> None:
    """Reads a body of the length its head says and answers with its SHA-256; in bounded memory."""
    head_bytes = await link.until(b"\r\n\r\n")
    left = int(head_bytes.lower().split(b"content-length:")[1].split()[0])
    digest = hashlib.sha256()
    while left:
        while len(link.data) == link.taken:
            await link.more()
        fresh = bytes(link.data[link.taken :])
        digest.update(fresh)
        left -= len(fresh)
        del link.data[:]
        link.taken = 0
    text = digest.hexdigest().encode()
    await link.send(lies.answer(b"Content-Length: %d" % len(text), body=text))
    await link.end()


def test_sixty_four_megabytes_up(gate: Gateway, start_origin: OriginFactory) -> None:
    origin = start_origin(_digests)
    block = bytes(range(256)) * 4096
    digest = hashlib.sha256()
    with gate.client() as client:
        client.send(to(origin, post(b"Content-Length: %d" % (64 * MEGA), body=b"")))
        for number in range(64):
            part = bytes([number]) + block[1:]
            digest.update(part)
            client.send(part)
        assert client.answer().body == digest.hexdigest().encode()


@pytest.mark.parametrize("framing", ["length", "chunked", "until-close"])
def test_sixty_four_megabytes_down_to_a_reader_that_pauses(
    framing: str, gate: Gateway, start_origin: OriginFactory
) -> None:
    """While the client doesn't read, the sandbox is held up and the gateway's memory stands still."""
    block = bytes(range(256)) * 4096
    fields = {"length": (b"Content-Length: %d" % (64 * MEGA),), "chunked": (lies.TE,), "until-close": ()}[framing]

    async def script(link: Link) -> None:
        await link.request()
        await link.send(lies.answer(*fields))
        for _ in range(64):
            await link.send(b"%x\r\n%s\r\n" % (len(block), block) if framing == "chunked" else block)
            link.progress += 1
        await link.send(b"0\r\n\r\n" if framing == "chunked" else b"")

    origin = start_origin(script)
    before = gate.memory()
    with gate.client() as client:
        client.send(to(origin, get()))
        client.head()
        assert settled(lambda: origin.links[0].progress) < 60, "the sandbox was let go on"
        assert gate.memory() - before < 12 * MEGA
        size, digest = 0, hashlib.sha256()
        if framing == "length":
            while size < 64 * MEGA:
                part = client.exactly(min(1 << 20, 64 * MEGA - size))
                size += len(part)
                digest.update(part)
                del client.heard[: client.taken]
                client.taken = 0
            assert digest.hexdigest() == hashlib.sha256(block * 64).hexdigest()
        else:
            while client.pull(1 << 20):
                size += len(client.heard)
                tail = bytes(client.heard[-5:])
                client.heard.clear()
                if tail == b"0\r\n\r\n":
                    break
            assert size > 63 * MEGA


def test_pipelined_downloads_wait_for_their_reader(gate: Gateway, start_origin: OriginFactory) -> None:
    """A reader that pauses with many requests under way: only what it has room for is fetched."""

    async def script(link: Link) -> None:
        while True:
            await link.request()
            await link.send(lies.answer(b"Content-Length: 300000", body=bytes(300_000)))
            link.origin.links[0].progress += 1

    origin = start_origin(script)
    before = gate.memory()
    with gate.client() as client:
        client.send(to(origin, get()) * 300)
        assert settled(lambda: origin.links[0].progress if origin.links else 0) < 100
        assert gate.memory() - before < 12 * MEGA
        for _ in range(300):
            assert b"300000" in client.head()
            client.exactly(300_000)
            del client.heard[: client.taken]
            client.taken = 0


def test_an_answer_before_the_upload_is_finished_is_relayed_at_once(gate: Gateway, start_origin: OriginFactory) -> None:
    origin = start_origin(_declines)
    for framing in (b"Content-Length: 1000000", b"Transfer-Encoding: chunked"):
        with gate.client() as client:
            client.send(to(origin, post(framing, body=b"5\r\nhello\r\n")))
            answer = client.answer()
            assert (answer.status, answer.body) == (413, b"no")
            client.send(b"more that nobody wants")
            client.rest()
    assert origin.connections() == 2
    assert soon(lambda: all(link.ended for link in origin.links))


def test_an_early_answer_can_be_long(gate: Gateway, start_origin: OriginFactory) -> None:
    """The answer streams while the upload goes on: both directions at once."""

    async def script(link: Link) -> None:
        await link.until(b"\r\n\r\n")
        await link.send(lies.answer(b"Content-Length: 2000000"))
        for _ in range(20):
            await link.exactly(100_000)
            await link.send(bytes(100_000))
        await link.end()

    origin = start_origin(script)
    with gate.client() as client:
        client.send(to(origin, post(b"Content-Length: 2000000", body=b"")))
        client.head()
        for _ in range(20):
            client.send(bytes(100_000))
            client.exactly(100_000)


def test_a_client_that_leaves_is_missed(gate: Gateway, start_origin: OriginFactory) -> None:
    """In the middle of an answer, of an upload, and before any answer: the sandbox's work is called off."""

    async def endless(link: Link) -> None:
        await link.until(b"\r\n\r\n")
        if b"/wait" in link.data:
            await link.end()
        await link.send(lies.answer(lies.TE))
        while not link.ended:
            await link.send(b"5\r\nhello\r\n")
            await asyncio.sleep(0.01)

    origin = start_origin(endless)
    for raw in (get(), post(b"Content-Length: 100"), head(b"GET /wait HTTP/1.1")):
        origin.links.clear()
        with gate.client() as client:
            client.send(to(origin, raw))
            assert soon(origin.connections)
            client.reset()
        assert soon(lambda: origin.links[-1].ended)


def test_a_client_that_has_said_all_it_will_is_answered(gate: Gateway, start_origin: OriginFactory) -> None:
    """`nc -N`: the client's half is closed behind the request, and the answer still comes."""

    async def slow(link: Link) -> None:
        await link.request()
        await asyncio.sleep(0.1)
        await link.send(lies.PLAIN)
        await link.end()

    origin = start_origin(slow)
    with gate.client() as client:
        client.send(to(origin, get()))
        client.half_close()
        assert client.answer().body == b"hello"
        assert client.rest() == b""


def test_encodings_are_the_two_ends_business(gate: Gateway, start_origin: OriginFactory) -> None:
    packed = gzip.compress(b"hello" * 100)
    fields = (b"Content-Encoding: gzip", b"Vary: Accept-Encoding", b"Content-Length: %d" % len(packed))
    origin = start_origin(saying(*[lies.answer(*fields, body=packed)] * 2))
    with gate.client() as client:
        answer = client.ask(to(origin, get()))
        assert (answer.body, answer.one("content-encoding")) == (packed, "gzip")
        assert client.ask(to(origin, get(b"Accept-Encoding: br;q=0.5, zstd"))).body == packed
    assert [message.one("accept-encoding") for message in origin.requests()] == [None, "br;q=0.5, zstd"]


def test_answers_cross_as_they_are(gate: Gateway, start_origin: OriginFactory) -> None:
    """Odd statuses, odd reasons, doubled fields, cookies: the client's to judge."""
    lines = [b"Set-Cookie: a=1; Path=/", b"Set-Cookie: b=2", b"X-Latin: caf\xe9", b"Content-Length: 0", b"Via: 1.1 x"]
    for status in (b"299 Odd", b"418 I'm a teapot", b"599 Beyond", b"200 caf\xe9", b"301 Moved"):
        origin = start_origin(saying(lies.answer(*lines, line=b"HTTP/1.1 " + status)))
        answer = gate.ask(to(origin, get()))
        assert answer.start == b"HTTP/1.1 " + status
        assert answer.all("set-cookie") == ["a=1; Path=/", "b=2"]
        assert answer.one("x-latin") == "caf\xe9"


@pytest.fixture(scope="module")
def renaming(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(tmp_path_factory.mktemp("renaming"), "--upstream-host", "localhost:3000") as made:
        yield made


def test_host_is_as_sent_or_as_the_operator_says(gate: Gateway, renaming: Gateway, start_origin: OriginFactory) -> None:
    origin = start_origin()
    raw = to(origin, get(host=b"Host: App.Test:8443"))
    gate.ask(raw)
    renaming.ask(raw)
    sent, told = (strict.requests(bytes(link.data)).messages[0] for link in origin.links)
    assert sent.one("host") == sent.one("x-forwarded-host") == "App.Test:8443"
    assert (told.one("host"), told.one("x-forwarded-host")) == ("localhost:3000", "App.Test:8443")


def test_a_sandbox_that_is_not_there(gate: Gateway) -> None:
    answer = gate.ask(get().replace(b"PORT", b"1"))
    assert (answer.status, answer.one("sallyport-error")) == (502, "connect_failed")
    assert gate.ask(get().replace(b"box-PORT", b"nobody-80")).status == 404
