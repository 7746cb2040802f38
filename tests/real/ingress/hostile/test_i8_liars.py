"""I8: a sandbox that lies. The client sees the truth or an answer that is visibly cut, never a clean wrong one; what
one answer left behind is never part of another."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingress.refusal import SOURCE_HEADER
from tests.real.ingress.hostile import lies, strict
from tests.real.ingress.hostile.corpus import head
from tests.real.ingress.hostile.gateway import Gateway
from tests.real.ingress.hostile.ground import Link, soon

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.real.ingress.hostile.client import Client
    from tests.real.ingress.hostile.conftest import OriginFactory
    from tests.real.ingress.hostile.ground import Ground, Origin, Script
    from tests.real.ingress.hostile.lies import Lie

SOURCE = SOURCE_HEADER.decode()
AGAIN = lies.answer(b"Content-Length: 5", body=b"again")


def lying(raw: bytes, after: str) -> Script:
    """Answers a connection's first request with the lie, every other one honestly."""

    async def script(link: Link) -> None:
        first = len(link.origin.links) == 1
        await link.request()
        if first:
            await link.send(raw)
            if after == "reset":
                link.reset()
            if after != "stay":
                return
        while True:
            if not first:
                await link.send(AGAIN)
            await link.request()
            first = False

    return script


def ask(origin: Origin, method: bytes = b"GET", *fields: bytes, version: bytes = b"HTTP/1.1") -> bytes:
    return head(method + b" /in " + version, *fields).replace(b"PORT", str(origin.port).encode())


def hear(client: Client, method: bytes) -> tuple[str, strict.Message | None]:
    """How the answer ended: "refused", "whole" or "cut"."""
    try:
        answer = client.answer(method)
    except strict.Unclear:
        return "cut", None
    return ("refused" if answer.one(SOURCE) else "whole"), answer


@pytest.mark.parametrize("version", [b"HTTP/1.1", b"HTTP/1.0"], ids=["client-11", "client-10"])
@pytest.mark.parametrize(
    "lie",
    [*lies.heads(), *lies.bodies(), *lies.leftovers(), *lies.honest()],
    ids=lambda lie: lie.name,
)
def test_i8_the_truth_or_a_cut(lie: Lie, version: bytes, gate: Gateway, start_origin: OriginFactory) -> None:
    origin = start_origin(lying(lie.raw, lie.after))
    with gate.client() as client:
        client.send(ask(origin, lie.method, version=version))
        how, answer = hear(client, lie.method)
        if lie.wanted == "cut" and version == b"HTTP/1.0":
            # Without chunks only the way in which the connection ends can say that something is missing.
            assert how == "cut" or (how == "refused") or client.ended == "reset"
        else:
            assert how == lie.wanted, (client.ended, answer, bytes(client.heard[:500]))
        if how == "refused":
            assert answer is not None
            assert answer.status == 502
            assert b"hello" not in answer.body
        elif how == "whole" and lie.wanted == "whole":
            assert answer is not None
            assert answer.body == lie.body
        assert b"evil" not in client.heard
        assert b"junk" not in client.heard
    with gate.client() as client:
        answer = client.ask(ask(origin))
        assert answer.status == 200
        if not lie.reused:
            assert answer.body == b"again", "what the first answer left behind was taken for the second one"
    assert origin.connections() == (1 if lie.reused else 2)


def test_i8_a_cut_http10_answer_ends_in_a_reset(gate: Gateway, start_origin: OriginFactory) -> None:
    """An HTTP/1.0 client reads until the end: the end of a cut answer must not look like one."""
    for raw in (
        lies.answer(lies.TE, body=b"5\r\nhello\r\n"),
        lies.answer(lies.TE, body=b"5\r\nhello\r\nxyz\r\n"),
    ):
        origin = start_origin(lying(raw, "close"))
        with gate.client() as client:
            client.send(ask(origin, version=b"HTTP/1.0"))
            heard = client.rest()
            assert client.ended == "reset" or b"Sallyport-Error" in heard


def test_i8_an_answer_nobody_asked_for_is_nobodys(gate: Gateway, start_origin: OriginFactory) -> None:
    """Response splitting by patience: the second answer comes while the connection lies idle."""

    async def script(link: Link) -> None:
        await link.request()
        await link.send(lies.PLAIN)
        await asyncio.sleep(0.02)
        await link.send(lies.EVIL)
        while True:
            await link.request()
            await link.send(AGAIN)

    origin = start_origin(script)
    for number in range(1, 6):
        assert gate.ask(ask(origin)).body == b"hello"
        assert soon(lambda: all(link.ended for link in origin.links)), "a connection that speaks unasked is closed"
        assert origin.connections() == number


def test_i8_a_connection_that_closes_while_idle_is_missed(gate: Gateway, start_origin: OriginFactory) -> None:
    """Every server closes idle connections; the next request, of whatever method, must not suffer from it."""

    async def script(link: Link) -> None:
        await link.request()
        await link.send(lies.PLAIN)
        await asyncio.sleep(0.01)

    origin = start_origin(script)
    for method in (b"GET", b"POST", b"PUT", b"DELETE") * 3:
        assert gate.ask(ask(origin, method)).body == b"hello"
        assert soon(lambda: all(link.ended for link in origin.links))
        origin.ground.do(lambda: None)  # a link is told of its end first, then its socket is closed, in one turn


@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"OPTIONS"])
def test_i8_a_request_that_met_a_closing_connection_is_sent_anew(
    method: bytes, gate: Gateway, start_origin: OriginFactory
) -> None:
    """The server closes just as the next request arrives: nobody has seen it, so it goes to a new connection."""

    async def script(link: Link) -> None:
        await link.request()
        await link.send(lies.answer(b"Content-Length: 0"))
        await link.until(b"\r\n\r\n")  # and closes

    origin = start_origin(script)
    for _ in range(4):
        assert gate.ask(ask(origin, method)).status == 200


def test_i8_what_must_not_be_sent_twice_is_not(gate: Gateway, start_origin: OriginFactory) -> None:
    async def script(link: Link) -> None:
        await link.request()
        await link.send(lies.answer(b"Content-Length: 0"))
        await link.until(b"/once")  # and closes

    origin = start_origin(script)
    assert gate.ask(ask(origin)).status == 200
    once = ask(origin, b"POST", b"Content-Length: 5").replace(b"/in", b"/once") + b"hello"
    with gate.client() as client:
        client.send(once)
        assert client.answer().status in (200, 502)
    assert sum(bytes(link.data).count(b"/once") for link in origin.links) == 1


def test_i8_the_same_client_is_not_given_a_second_answer(gate: Gateway, start_origin: OriginFactory) -> None:
    origin = start_origin(lying(lies.PLAIN + lies.EVIL, "stay"))
    with gate.client() as client:
        client.send(ask(origin) * 2)
        assert [client.answer().body for _ in range(2)] == [b"hello", b"again"]
        assert client.quiet()


def test_i8_a_server_that_speaks_first_hangs_nobody(gate: Gateway, start_origin: OriginFactory) -> None:
    """As SSH and SMTP do: not to be told from a quick answer, or refused; but never waited for."""

    async def script(link: Link) -> None:
        await link.send(lies.EVIL)
        while True:
            await link.request()
            await link.send(AGAIN)

    origin = start_origin(script)
    for _ in range(20):
        with gate.client() as client:
            client.send(ask(origin) * 2)
            assert {client.answer().status for _ in range(2)} <= {200, 502}
            assert client.quiet(0.01)


def test_i8_a_reset_in_the_middle_of_much(gate: Gateway, start_origin: OriginFactory) -> None:
    """What was promised doesn't come: the client must not take what it has for all of it."""

    async def script(link: Link) -> None:
        await link.request()
        await link.send(lies.answer(b"Content-Length: 10000000"))
        for _ in range(50):
            await link.send(bytes(65536))
        link.reset()

    origin = start_origin(script)
    with gate.client() as client:
        client.send(ask(origin))
        with pytest.raises(strict.Unclear):
            client.answer()


def test_i8_an_interim_answer_is_relayed_and_is_not_the_answer(gate: Gateway, start_origin: OriginFactory) -> None:
    hints = lies.answer(b"Link: </a.css>; rel=preload", line=b"HTTP/1.1 103 Early Hints")
    origin = start_origin(lying(hints + hints + lies.PLAIN, "stay"))
    with gate.client() as client:
        answer = client.ask(ask(origin))
        assert answer.body == b"hello"
        assert answer.interim in ((), (103, 103))
    with gate.client() as client:  # HTTP/1.0 knows no interim answers (RFC 9110 section 15.2)
        assert client.ask(ask(origin, version=b"HTTP/1.0")).interim == ()


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Short of patience."""
    flags = ["--response-timeout", "2s", "--stream-timeout", "2s", "--body-timeout", "2s"]
    with Gateway(tmp_path_factory.mktemp("hasty"), *flags) as made:
        yield made


def test_i8_what_never_comes_is_not_waited_for(hasty: Gateway, start_origin: OriginFactory) -> None:
    """No answer, half a head, half a body: 504, or a cut; and the connection is given up."""
    silent = start_origin(lying(b"", "stay"))
    halting = start_origin(lying(b"HTTP/1.1 200 OK\r\nContent-Len", "stay"))
    stuck = start_origin(lying(lies.answer(b"Content-Length: 10", body=b"hello"), "stay"))
    origins = (silent, halting, stuck)
    clients = [hasty.client() for _ in origins]
    for client, origin in zip(clients, origins, strict=True):
        client.send(ask(origin))
    try:
        assert [client.answer().status for client in clients[:2]] == [504, 504]
        assert hear(clients[2], b"GET")[0] == "cut"
    finally:
        for client in clients:
            client.sock.close()
    for origin in origins:
        assert soon(lambda origin=origin: origin.links[0].ended)  # type: ignore[misc]
        assert hasty.ask(ask(origin)).body == b"again"
        assert origin.connections() == 2


def test_i8_a_sandbox_that_does_not_read(hasty: Gateway, start_origin: OriginFactory) -> None:
    """The upload stands still, in bounded memory, and ends."""

    async def script(link: Link) -> None:
        link.transport.pause_reading()
        await link.end()

    origin = start_origin(script, keep=False)
    before = hasty.memory()
    with hasty.client() as client:
        client.send(ask(origin, b"POST", b"Content-Length: 100000000"))
        client.sock.settimeout(5)
        try:
            for _ in range(1000):
                client.sock.sendall(bytes(100_000))
            stopped = False
        except OSError:
            stopped = True
        assert stopped, "a hundred megabytes went somewhere"
        assert hasty.memory() - before < 16 << 20


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    raw = draw(st.sampled_from([lie.raw for lie in lies.honest() if lie.method == b"GET"]))
    pieces = st.sampled_from((
        b"\r", b"\n", b"\r\n", b"\r\n\r\n", b" ", b"\t", b"\x00", b":", b";", b"0", b"5", b"9", b"-", b"0x", b"\xff",
        b"Content-Length: 3\r\n", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n",
        b"Connection: Content-Length\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", b"0\r\n\r\n",
    ))  # fmt: skip
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(raw)))
        kind = draw(st.sampled_from(("insert", "delete", "line")))
        if kind == "insert":
            raw = raw[:at] + draw(pieces) + raw[at:]
        elif kind == "delete":
            raw = raw[:at] + raw[at + draw(st.integers(1, 8)) :]
        else:
            line = raw.find(b"\r\n", at)
            raw = raw[: line + 2] + draw(pieces) + raw[line + 2 :] if line >= 0 else raw
    return raw


@pytest.fixture(scope="module")
def liar(ground: Ground) -> Iterator[Origin]:
    """Says what `liar.script` is set to."""
    made = ground.origin()
    yield made
    made.close()


@given(raw=mutated())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_i8_what_is_heard_is_what_was_said(raw: bytes, gate: Gateway, liar: Origin) -> None:
    """Faults made at random: the client hears exactly what h11 reads in the answer, or sees that it can't."""

    async def script(link: Link) -> None:
        await link.request()
        await link.send(raw)  # and the connection closes

    liar.script = script
    with gate.client() as client:
        client.send(ask(liar, b"GET", b"Connection: close"))
        heard = client.rest()
        reset = client.ended == "reset"
    try:
        said = strict.responses(raw, [b"GET"], closed=True).messages
    except strict.Unclear:
        said = []
    try:
        found = strict.responses(heard, [b"GET"], closed=True)
    except strict.Unclear:
        return  # visibly cut
    if reset:
        return
    assert found.partial == b""
    (message,) = found.messages
    if message.one(SOURCE):
        return
    assert said, f"the gateway made {message} of {raw!r}"
    assert (message.status, message.body) == (said[0].status, said[0].body)
