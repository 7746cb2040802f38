"""The deny webhook against real servers on loopback."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from egress import post
from egress import webhook as limits
from egress.literals import Url, parse_url
from egress.webhook import Webhook
from tests.real.control.threaded import ThreadedLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Receiver(ThreadingHTTPServer):
    """Keeps what it is sent and answers the statuses it is told to, then 204."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.statuses: list[int] = []
        self.got: list[tuple[str, dict[str, str], Any]] = []
        self.held = threading.Event()
        self.held.set()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self._thread = threading.Thread(target=lambda: self.serve_forever(0.02), daemon=True)
        self._thread.start()

    def end(self) -> None:
        self.held.set()
        self.shutdown()
        self._thread.join(10)
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.held.wait(60)
        self.server.got.append((self.path, dict(self.headers.items()), json.loads(body)))
        status = self.server.statuses.pop(0) if self.server.statuses else 204
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        """Not on the tests' output."""


class Hook:
    """A webhook whose loop runs in a thread."""

    def __init__(self, url: str) -> None:
        self._thread = ThreadedLoop()
        self.loop = self._thread.loop
        self.reports: list[str] = []
        self.dialled: list[tuple[str, int]] = []
        self.instead: tuple[str, int] | None = None
        self.times = sys.maxsize  # that `instead` is dialled, from the first on
        self.hook = Webhook(self.parsed(url), "sandbox-1", self._connect, self.loop, self.reports.append)
        self._thread.start()

    @staticmethod
    def parsed(url: str) -> Url:
        return parse_url("OPENSANDBOX_EGRESS_DENY_WEBHOOK", url)

    def _connect(self, host: str, port: int) -> socket.socket:
        self.dialled.append((host, port))
        led = self.instead if len(self.dialled) <= self.times else None
        return socket.create_connection(led or (host, port), timeout=5)

    def deny(self, *names: str) -> None:
        def tell() -> None:
            for name in names:
                self.hook.denied(name)

        self._thread.do(tell)

    def close(self) -> None:
        self.hook.close()
        self._thread.close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.end()


@pytest.fixture
def hooked(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    monkeypatch.setattr(limits, "PAUSES", (0.05, 0.1, 0.15))
    made = Hook(f"{receiver.url}/denied?from=egress")
    yield made
    made.close()


def wait(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_request(hooked: Hook, receiver: Receiver) -> None:
    hooked.deny("bad.example.com")
    wait(lambda: hooked.hook.sent == 1)
    ((path, headers, body),) = receiver.got
    assert path == "/denied?from=egress"
    assert headers["Content-Type"] == "application/json"
    assert headers["Host"] == receiver.url.removeprefix("http://")
    timestamp = body.pop("timestamp")
    assert body == {"hostname": "bad.example.com", "source": "opensandbox-egress", "sandboxId": "sandbox-1"}
    assert timestamp.endswith("Z")
    assert abs(time.mktime(time.strptime(timestamp[:19], "%Y-%m-%dT%H:%M:%S")) - time.timezone - time.time()) < 60


def test_credentials_in_the_url_become_a_header(receiver: Receiver) -> None:
    hooked = Hook(receiver.url.replace("//", "//us%65r:p%40ss@"))
    hooked.deny("bad.example.com")
    wait(lambda: hooked.hook.sent == 1)
    assert receiver.got[0][1]["Authorization"] == "Basic dXNlcjpwQHNz"
    hooked.close()


def test_5xx_is_tried_again(hooked: Hook, receiver: Receiver) -> None:
    receiver.statuses = [500, 503, 502]
    hooked.deny("bad.example.com")
    wait(lambda: hooked.hook.sent == 1)
    assert len(receiver.got) == 4
    assert len({json.dumps(body) for _, _, body in receiver.got}) == 1


def test_5xx_three_times_again_and_no_more(hooked: Hook, receiver: Receiver) -> None:
    receiver.statuses = [500] * 9
    hooked.deny("bad.example.com")
    wait(lambda: hooked.hook.failed == 1)
    assert len(receiver.got) == 4
    wait(lambda: bool(hooked.reports))
    assert "status 500" in hooked.reports[0]


@pytest.mark.parametrize("status", [400, 401, 404, 429, 302])
def test_4xx_and_redirects_are_not_tried_again(hooked: Hook, receiver: Receiver, status: int) -> None:
    receiver.statuses = [status]
    hooked.deny("bad.example.com", "next.example.com")
    wait(lambda: hooked.hook.sent == 1)
    assert hooked.hook.failed == 1
    assert [body["hostname"] for _, _, body in receiver.got] == ["bad.example.com", "next.example.com"]


def test_transport_errors_are_tried_again(hooked: Hook, receiver: Receiver) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        hooked.instead, hooked.times = nobody.getsockname(), 2
        hooked.deny("bad.example.com")
        wait(lambda: hooked.hook.sent == 1)
    assert len(hooked.dialled) == 3
    assert len(receiver.got) == 1


@pytest.mark.parametrize(
    "answer", [b"", b"SSH-2.0-x\r\n", b"HTTP/1.1 2000 x\r\n\r\n", b"\0" * 70_000, b"HTTP/1.1 \r\n\r\n"]
)
def test_answers_that_are_not_http(hooked: Hook, answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        hooked.instead = server.getsockname()

        def serve() -> None:
            for _ in range(4):
                connection, _ = server.accept()
                with connection, contextlib.suppress(OSError):  # it may have heard enough
                    connection.recv(65536)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        hooked.deny("bad.example.com")
        wait(lambda: hooked.hook.failed == 1)
        thread.join(10)
    assert len(hooked.dialled) == 4
    hooked.instead = None
    hooked.deny("next.example.com")
    wait(lambda: hooked.hook.sent == 1)


def test_an_interim_answer_is_passed_over(hooked: Hook) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        hooked.instead = server.getsockname()
        hooked.deny("bad.example.com")
        connection, _ = server.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\n\r\n")
            wait(lambda: hooked.hook.sent == 1)


def test_an_attempt_ends_in_time_even_against_a_trickle(hooked: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post, "TIMEOUT", 0.4)
    monkeypatch.setattr(limits, "RETRIES", 0)
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        hooked.instead = server.getsockname()

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                while not stop.wait(0.05):
                    try:
                        connection.sendall(b"H")
                    except OSError:
                        return

        thread = threading.Thread(target=serve)
        thread.start()
        hooked.deny("bad.example.com")
        wait(lambda: hooked.hook.failed == 1)
        stop.set()
        thread.join(10)


def test_the_same_name_is_not_repeated(hooked: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REPEAT", 60.0)
    hooked.deny(*["bad.example.com"] * 100, "other.example.com")
    wait(lambda: hooked.hook.sent == 2)
    monkeypatch.setattr(limits, "REPEAT", 0.2)
    time.sleep(0.3)
    hooked.deny("bad.example.com")
    wait(lambda: hooked.hook.sent == 3)


def test_a_slow_receiver_costs_denials_not_time(hooked: Hook, receiver: Receiver) -> None:
    receiver.held.clear()
    hooked.deny(*[f"n{number}.example.com" for number in range(1000)])
    assert hooked.hook.sent == 0  # it did not wait for the first to be received
    assert hooked.hook.dropped >= 1000 - limits.QUEUE - 2
    assert hooked.hook.dropped < 1000
    assert len(hooked.reports) == 1
    assert "not told" in hooked.reports[0]


def test_memory_is_bounded(hooked: Hook) -> None:
    for start in range(0, 20_000, 1000):
        hooked.deny(*[f"n{number}.example.com" for number in range(start, start + 1000)])
    assert len(hooked.hook._told) <= 4096


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A key and a certificate for hooks.example.com, signed by itself."""
    path = tmp_path / "server.pem"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
            "-nodes", "-days", "2",
            "-subj", "/CN=hooks.example.com", "-addext", "subjectAltName=DNS:hooks.example.com",
            "-keyout", str(path), "-out", str(tmp_path / "certificate.pem"),
        ],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    path.write_bytes(path.read_bytes() + (tmp_path / "certificate.pem").read_bytes())
    return path


@pytest.mark.parametrize("trusted", [True, False])
def test_https(certificate: Path, monkeypatch: pytest.MonkeyPatch, *, trusted: bool) -> None:
    monkeypatch.setattr(limits, "PAUSES", (0.01, 0.01, 0.01))
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    receiver = Receiver()
    receiver.socket = context.wrap_socket(receiver.socket, server_side=True)
    receiver.handle_error = lambda *_: None  # type: ignore[method-assign]
    hooked = Hook("https://hooks.example.com/denied")
    hooked.instead = ("127.0.0.1", int(receiver.server_address[1]))
    hooked.deny("bad.example.com")
    wait(lambda: hooked.hook.sent + hooked.hook.failed == 1)
    assert hooked.dialled[0] == ("hooks.example.com", 443)
    assert (hooked.hook.sent, len(receiver.got)) == ((1, 1) if trusted else (0, 0))
    hooked.close()
    receiver.end()
