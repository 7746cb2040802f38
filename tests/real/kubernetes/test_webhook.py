"""The webhook over TLS, asked as an API server asks: bounds, certificates that change, and how it ends."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from egress.kubernetes.certificate import Certificate, CertificateError
from egress.kubernetes.review import judge
from egress.kubernetes.server import Limits, Server
from egress.kubernetes.settings import Settings
from egress.log import Log
from tests.pure.kubernetes.pods import pod

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

MAKE = Path(__file__).resolve().parents[3] / "deploy" / "kubernetes" / "own-certificate" / "make-certificate"
NAME = "sallyport-webhook.sallyport.svc"
WITHIN = 20.0


class Pair(NamedTuple):
    """A certificate as `make-certificate` makes it, and who believes it."""

    certificate: Path
    key: Path
    authority: str


def make(folder: Path) -> Pair:
    folder.mkdir(exist_ok=True)
    shutil.copy(MAKE, folder)
    subprocess.run([folder / "make-certificate"], check=True, capture_output=True)
    patch = json.loads((folder / "ca-bundle.json").read_text())
    return Pair(folder / "tls.crt", folder / "tls.key", base64.b64decode(patch[0]["value"]).decode())


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Pair, Pair]:
    folder = tmp_path_factory.mktemp("pairs")
    return make(folder / "one"), make(folder / "two")


@pytest.fixture
def mounted(tmp_path: Path, pairs: tuple[Pair, Pair]) -> Path:
    """A Secret's folder as a kubelet mounts it: the files are links through `..data`."""
    folder = tmp_path / "tls"
    folder.mkdir()
    swap(folder, pairs[0])
    for name in ("tls.crt", "tls.key"):
        (folder / name).symlink_to(f"..data/{name}")
    return folder


def swap(folder: Path, pair: Pair, key: Path | None = None) -> None:
    """What a kubelet does with a new version: a new folder, and one rename."""
    fresh = folder / f"..{len(list(folder.iterdir()))}"
    fresh.mkdir()
    shutil.copy(pair.certificate, fresh / "tls.crt")
    shutil.copy(key or pair.key, fresh / "tls.key")
    (folder / "..data_tmp").symlink_to(fresh.name)
    (folder / "..data_tmp").rename(folder / "..data")


def believing(pair: Pair) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=pair.authority)


def review(document: Any, **members: Any) -> bytes:
    request = {"uid": "u-1", "resource": {"group": "", "version": "v1", "resource": "pods"}, "operation": "CREATE",
               "namespace": "n", "object": document, **members}  # fmt: skip
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()


class Running(NamedTuple):
    server: Server
    port: int
    stop: asyncio.Event
    task: asyncio.Task[None]
    pair: Pair

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with asyncio.timeout(WITHIN):
            return await asyncio.open_connection("127.0.0.1", self.port, ssl=believing(self.pair), server_hostname=NAME)

    async def ask(self, text: bytes) -> bytes:
        """One request on a connection of its own, and all that comes until its end."""
        reader, writer = await self.open()
        try:
            writer.write(text)
            async with asyncio.timeout(WITHIN):
                return await reader.read()
        finally:
            await closed(writer)


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


@contextlib.asynccontextmanager
async def running(folder: Path, pair: Pair, delay: float = 0.0, **limits: Any) -> AsyncIterator[Running]:
    import socket

    fd = os.open(folder.parent / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    log = Log(fd)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    certificate = Certificate(str(folder / "tls.crt"), str(folder / "tls.key"))
    server = Server(certificate, lambda body: judge(body, Settings()), log, Limits(**{"follow": 0.02, **limits}))
    stop = asyncio.Event()
    task = asyncio.create_task(server.serve(listener, stop, delay, drain=WITHIN))
    try:
        yield Running(server, port, stop, task, pair)
        assert "fault of ours" not in (folder.parent / "log").read_text()
        stop.set()
        if delay:
            task.cancel()
        async with asyncio.timeout(WITHIN):
            await asyncio.gather(task, return_exceptions=bool(delay))
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        listener.close()
        os.close(fd)


async def until(true: Any) -> None:
    async with asyncio.timeout(WITHIN):
        while not true():  # noqa: ASYNC110 - files, and a server that tells nobody
            await asyncio.sleep(0.01)


def get(path: str, *fields: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: x", "Connection: close", *fields, "", ""]).encode()


def post(body: bytes, path: str = "/mutate?timeout=10s", *fields: str) -> bytes:
    head = [f"POST {path} HTTP/1.1", f"Host: {NAME}", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*head, *fields, "", ""]).encode() + body


POST = b"POST /mutate HTTP/1.1\r\nHost: x\r\n"


def test_many_reviews_on_one_connection(mounted: Path, pairs: tuple[Pair, Pair]) -> None:
    async def scenario() -> None:
        async with running(mounted, pairs[0]) as made:
            reader, writer = await made.open()
            for number in range(3):
                body = review(pod(), uid=f"u-{number}")
                writer.write(post(body, "/mutate?timeout=10s", "Accept: application/json, */*"))
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200 ")
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                response = json.loads(await reader.readexactly(length))["response"]
                assert (response["uid"], response["allowed"]) == (f"u-{number}", True)
                assert response["patchType"] == "JSONPatch"
            assert writer.get_extra_info("ssl_object").version() in ("TLSv1.2", "TLSv1.3")
            await closed(writer)
        lines = [json.loads(line) for line in (mounted.parent / "log").read_text().splitlines()]
        assert [line["msg"] for line in lines] == ["pod guarded"] * 3
        assert {line["pod"] for line in lines} == {"n/box"}

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (get("/healthz"), 200),
        (get("/readyz"), 200),
        (get("/healthz").replace(b"GET", b"HEAD"), 200),
        (get("/"), 404),
        (get("/mutate"), 405),
        (post(b"{}", "/healthz", "Connection: close"), 405),
        (post(b"{}", "/mutate", "Connection: close"), 400),
        (post(b'{"kind": "Pod"}', "/mutate", "Connection: close"), 400),
        (POST + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 400),
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000, 431),
        (post(b"x" * (9 << 20)), 413),
        (POST + b"Content-Length: 99999999999\r\nExpect: 100-continue\r\n\r\n" + b"x" * (9 << 20), 413),
    ],
)  # fmt: skip
def test_every_request_has_an_answer(mounted: Path, pairs: tuple[Pair, Pair], text: bytes, status: int) -> None:
    async def scenario() -> None:
        # What is still on its way is waited for: else it resets the connection before a slow client has the answer.
        async with running(mounted, pairs[0], linger=4.0) as made:
            answer = await made.ask(text)
            final = answer.partition(b"\r\n\r\n")[2] if answer.startswith(b"HTTP/1.1 100 ") else answer
            assert final.startswith(b"HTTP/1.1 %d " % status)

    asyncio.run(scenario())


@pytest.mark.parametrize("text", [b"", b"POST /mut", post(b"x" * 100)[:-50]])
def test_who_does_not_go_on_is_let_go(mounted: Path, pairs: tuple[Pair, Pair], text: bytes) -> None:
    async def scenario() -> None:
        async with running(mounted, pairs[0], request=0.3) as made:
            assert await made.ask(text) == b""

    asyncio.run(scenario())


def test_who_does_not_shake_hands_is_let_go(mounted: Path, pairs: tuple[Pair, Pair]) -> None:
    async def scenario() -> None:
        async with running(mounted, pairs[0], handshake=0.3) as made:
            for text in (b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"):
                reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
                writer.write(text)
                async with asyncio.timeout(WITHIN):
                    assert not (await reader.read()).startswith(b"HTTP")
                await closed(writer)

    asyncio.run(scenario())


def test_connections_beyond_the_limit_wait_their_turn(mounted: Path, pairs: tuple[Pair, Pair]) -> None:
    async def scenario() -> None:
        async with running(mounted, pairs[0], connections=2) as made:
            quiet = [await made.open() for _ in range(2)]
            waiting = asyncio.create_task(made.ask(get("/healthz")))
            await asyncio.wait({waiting}, timeout=0.3)
            assert not waiting.done()
            assert len(made.server._open) == 2
            await closed(quiet[0][1])
            assert (await waiting).startswith(b"HTTP/1.1 200 ")
            await closed(quiet[1][1])

    asyncio.run(scenario())


def test_a_new_certificate_is_served_and_a_broken_one_is_not(mounted: Path, pairs: tuple[Pair, Pair]) -> None:
    one, two = pairs
    log = mounted.parent / "log"

    async def scenario() -> None:
        async with running(mounted, one) as made:
            assert (await made.ask(get("/healthz"))).startswith(b"HTTP/1.1 200 ")
            with pytest.raises(ssl.SSLCertVerificationError):
                await made._replace(pair=two).ask(get("/healthz"))
            swap(mounted, two, key=one.key)
            await until(lambda: "do not belong together" in log.read_text())
            assert (await made.ask(get("/healthz"))).startswith(b"HTTP/1.1 200 ")
            swap(mounted, two)
            await until(lambda: "certificate loaded" in log.read_text())
            assert (await made._replace(pair=two).ask(get("/healthz"))).startswith(b"HTTP/1.1 200 ")
            shutil.rmtree(mounted)
            await until(lambda: "no such file" in log.read_text())
            assert (await made._replace(pair=two).ask(get("/healthz"))).startswith(b"HTTP/1.1 200 ")

    asyncio.run(scenario())


def test_after_a_renewal_the_certificate_before_is_still_believed(mounted: Path, tmp_path: Path) -> None:
    """Until every replica has the new one, the API server meets both."""
    first = make(tmp_path / "renewed")
    swap(mounted, first)
    again = make(tmp_path / "renewed")
    assert again.authority.count("BEGIN CERTIFICATE") == 2

    async def scenario() -> None:
        async with running(mounted, again) as made:  # serves the first, and is believed by who has the second's word
            assert (await made.ask(get("/healthz"))).startswith(b"HTTP/1.1 200 ")
            swap(mounted, again)
            await until(lambda: "certificate loaded" in (mounted.parent / "log").read_text())
            assert (await made.ask(get("/healthz"))).startswith(b"HTTP/1.1 200 ")
            with pytest.raises(ssl.SSLCertVerificationError):
                await made._replace(pair=first).ask(get("/healthz"))

    asyncio.run(scenario())


def test_a_pair_that_cannot_serve_is_told(pairs: tuple[Pair, Pair], tmp_path: Path) -> None:
    one, two = pairs
    with pytest.raises(CertificateError, match="do not belong together"):
        Certificate(str(one.certificate), str(two.key))
    with pytest.raises(CertificateError, match="no such file"):
        Certificate(str(one.certificate), str(tmp_path / "missing"))
    locked = tmp_path / "locked.key"
    subprocess.run(["openssl", "pkey", "-in", one.key, "-aes256", "-passout", "pass:x", "-out", locked], check=True)
    with pytest.raises(CertificateError, match="encrypted"):
        Certificate(str(one.certificate), str(locked))
    (tmp_path / "half").write_text(one.certificate.read_text()[:300])
    with pytest.raises(CertificateError, match="cannot be used"):
        Certificate(str(tmp_path / "half"), str(one.key))
    assert Certificate(str(one.certificate), str(one.key)).context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_while_it_ends_it_is_not_ready_and_what_came_before_is_answered(
    mounted: Path, pairs: tuple[Pair, Pair]
) -> None:  # fmt: skip
    async def scenario() -> None:
        async with running(mounted, pairs[0], delay=60.0) as made:
            reader, writer = await made.open()
            body = post(review(pod()))
            writer.write(body[:200])
            await until(lambda: False in made.server._open.values())
            made.stop.set()
            await until(lambda: made.server._stopping)
            assert (await made.ask(get("/readyz"))).startswith(b"HTTP/1.1 503 ")
            assert (await made.ask(get("/healthz"))).startswith(b"HTTP/1.1 200 ")
            writer.write(body[200:])
            async with asyncio.timeout(WITHIN):
                answer = await reader.read()
            assert b"connection: close" in answer.lower()
            assert b'"allowed": true' in answer
            await closed(writer)

    asyncio.run(scenario())


@pytest.fixture
def program(mounted: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    egress = Path(sys.prefix, "bin", "egress")
    process = subprocess.Popen(
        [egress, "webhook", "--listen", "127.0.0.1:0", "--drain-delay", "0", "--policy-for", "n=web-only", "--image",
         "i.example.com/e:1", "--tls-cert", mounted / "tls.crt", "--tls-key", mounted / "tls.key"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    yield process, json.loads(process.stdout.readline())["port"]
    process.kill()
    process.communicate()


def test_the_program_serves_until_it_is_told_to_stop(
    program: tuple[subprocess.Popen[str], int], pairs: tuple[Pair, Pair]
) -> None:
    process, port = program
    # By its address: the certificate's name is checked by `test_many_reviews_on_one_connection`.
    context = believing(pairs[0])
    context.check_hostname = False
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=WITHIN, context=context)
    connection.request("POST", "/mutate", review(pod(None)), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    patch = json.loads(base64.b64decode(json.loads(answer.read())["response"]["patch"]))
    assert "i.example.com/e:1" in json.dumps(patch)
    assert '\\"comment\\":\\"web\\"' in json.dumps(patch)
    process.send_signal(signal.SIGTERM)  # with a quiet connection still open
    assert process.wait(WITHIN) == 0
    connection.close()
