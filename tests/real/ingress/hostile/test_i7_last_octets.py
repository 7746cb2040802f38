"""I7: connections that are on their way out. Who reads slowly gets all of its answer; who doesn't holds nothing for
ever."""

from __future__ import annotations

import socket
import subprocess
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest

from tests.real.ingress.hostile.client import Client, wait
from tests.real.ingress.hostile.gateway import Gateway
from tests.real.ingress.hostile.ground import PATIENCE, soon
from tests.real.ingress.hostile.slow import ROOM, SIZE, broken_off, slow

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.real.ingress.hostile.conftest import OriginFactory
    from tests.real.ingress.hostile.ground import Link, Origin


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("pair")
    request = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    subprocess.run([*request.split(), "-keyout", "key", "-out", "crt"], cwd=folder, check=True, capture_output=True)
    return str(folder / "crt"), str(folder / "key")


@pytest.fixture(scope="module", params=["plain", "tls"])
def roomy(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, pair: tuple[str, str]
) -> Iterator[tuple[Gateway, bool]]:
    """A gateway that keeps much for a slow client, with TLS or without it."""
    tls = request.param == "tls"
    flags = ["--tls-cert", pair[0], "--tls-key", pair[1]] if tls else []
    with Gateway(tmp_path_factory.mktemp("roomy"), *ROOM, *flags) as made:
        yield made, tls


async def much(link: Link) -> None:
    """Answers at once, with as much as nobody holds who doesn't read; until its end where that is what ends it."""
    while True:
        seen = await link.request()
        length = b"" if b"until-close" in seen.target else b"Content-Length: %d\r\n" % SIZE
        await link.send(b"HTTP/1.1 200 OK\r\n%b\r\n" % length + b"x" * SIZE)
        if not length:
            return


ENDING = [
    "GET /in HTTP/1.1\r\nHost: app.test\r\nConnection: close\r\n",
    "GET /in HTTP/1.0\r\nHost: app.test\r\n",
    "GET /until-close HTTP/1.0\r\nHost: app.test\r\n",
]


def test_i7_a_slow_reader_gets_the_end_of_an_answer_that_ends_its_connection(
    roomy: tuple[Gateway, bool], start_origin: OriginFactory
) -> None:
    gate, tls = roomy
    origin = start_origin(much)
    with ExitStack() as stack:
        heads = (
            ENDING[:1] if tls else ENDING
        )  # a connection with TLS has half a minute for its end, whatever the machine
        socks = [stack.enter_context(slow(gate.port, tls)) for _ in heads]
        for head, sock in zip(heads, socks, strict=True):
            sock.sendall(f"{head}OpenSandbox-Ingress-To: box-{origin.port}\r\n\r\n".encode())
        wait(6)  # longer than somebody is lingered for who only has to close
        for sock in socks:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            heard = b""
            while chunk := sock.recv(1 << 20):
                heard += chunk
            assert len(heard.partition(b"\r\n\r\n")[2]) == SIZE


def test_i7_a_reader_that_never_takes_the_end_is_broken_off(tmp_path: Path, start_origin: OriginFactory) -> None:
    origin = start_origin(much)
    with Gateway(tmp_path, *ROOM, "--body-timeout", "1s") as gate, slow(gate.port, tls=False) as sock:
        sock.sendall(f"{ENDING[2]}OpenSandbox-Ingress-To: box-{origin.port}\r\n\r\n".encode())
        assert soon(lambda: broken_off(sock))


def says_on(client: Client) -> bool:
    """One more octet; is the connection still held?"""
    try:
        client.sock.send(b"x")
    except OSError:
        return False
    return True


def test_i7_who_is_refused_and_talks_on_is_not_listened_to_for_ever(gate: Gateway) -> None:
    with gate.client() as client:
        client.send(b"\0\r\n\r\n")
        assert client.answer().status == 400
        began = time.monotonic()
        while says_on(client):
            assert time.monotonic() - began < 2 * PATIENCE, "a word a second keeps it open"
            wait(0.5)


def test_i7_those_who_are_too_many_do_not_take_the_sandboxes_descriptors(
    tmp_path: Path, start_origin: OriginFactory
) -> None:
    """They talk on, so that they are lingered for; a new sandbox can be reached all the same."""
    first, second = start_origin(), start_origin()

    def to(origin: Origin) -> bytes:
        return b"GET /in HTTP/1.1\r\nHost: app.test\r\nOpenSandbox-Ingress-To: box-%d\r\n\r\n" % origin.port

    with Gateway(tmp_path, "--connections", "8") as gate, gate.client() as inside:
        assert inside.ask(to(first)).status == 200
        before = gate.descriptors()
        crowd: list[Client] = []
        try:
            for _ in range(400):
                with suppress(ConnectionResetError):  # broken off before it knew that it was connected
                    crowd.append(gate.client())

            def few() -> bool:
                for client in crowd:
                    says_on(client)
                return gate.descriptors() - before <= 160

            assert soon(few), gate.descriptors()
            told = [client for client in crowd[8:] if client.answer().one("sallyport-error") == "connections"]
            assert len(told) == len(crowd[8:]), "all of them are told why"
            assert len(crowd) > 300
            assert inside.ask(to(second)).status == 200
        finally:
            for client in crowd:
                client.reset()
