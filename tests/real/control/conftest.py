"""A control API on real sockets, its loop in a thread, before a service that lives in memory."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any, NamedTuple

import h11
import pytest

from egress.control.api import Api
from egress.control.server import Server
from tests.pure.control.fake_service import FakeService
from tests.real.control.threaded import ThreadedLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

TOKEN = "correct horse"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Control:
    """One running API; `call` speaks to it like any client, the sockets are there for what clients should not do."""

    def __init__(self, folder: Path, token: str = TOKEN, max_rules: int = 4096) -> None:
        self._thread = ThreadedLoop()
        self.loop, self.errors = self._thread.loop, self._thread.errors
        self.service = FakeService(self.loop)
        self.api = Api(self.loop, self.service, token, max_rules)
        self.server = Server(self.loop, self.api, self.errors.append)
        tcp = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        tcp.bind(("127.0.0.1", 0))
        self.address: tuple[str, int] = tcp.getsockname()
        unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.path = str(folder / ("token" if token else "open"))
        unix.bind(self.path)
        self.server.listen(tcp)
        self.server.listen(unix)
        self._thread.start()

    def close(self) -> None:
        self.on_loop(self.server.close)
        self._thread.close()

    def on_loop(self, work: Callable[[], None]) -> None:
        """Run `work` on the loop's thread and wait for it."""
        self._thread.do(work)

    def connect(self, *, local: bool = False) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX if local else socket.AF_INET, socket.SOCK_STREAM)
        sock.settimeout(20)
        sock.connect(self.path if local else self.address)
        return sock

    def call(
        self,
        method: str,
        path: str = "/policy",
        body: bytes | str | object = None,
        *,
        token: str | None = TOKEN,
        local: bool = False,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> Answer:
        """One request on a connection of its own."""
        data = _encoded(body)
        every = [("Host", "x"), *headers]
        if token is not None:
            every.append(("OPENSANDBOX-EGRESS-AUTH", token))
        if data:
            every.append(("Content-Length", str(len(data))))
        with self.connect(local=local) as sock:
            client = Client(sock)
            client.send(
                h11.Request(method=method, target=path, headers=every), *([h11.Data(data=data)] if data else [])
            )
            return client.answer()


def _encoded(body: object) -> bytes:
    if body is None:
        return b""
    if isinstance(body, bytes):
        return body
    return body.encode() if isinstance(body, str) else json.dumps(body).encode()


class Client:
    """h11's client half over a socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.http = h11.Connection(h11.CLIENT)

    def send(self, *events: h11.Request | h11.Data) -> None:
        data = b"".join(self.http.send(event) or b"" for event in (*events, h11.EndOfMessage()))
        self.sock.sendall(data)

    def answer(self) -> Answer:
        status, headers, body = 0, {}, b""
        while True:
            event = self.http.next_event()
            if event is h11.NEED_DATA:
                self.http.receive_data(self.sock.recv(65536))
            elif isinstance(event, h11.Response):
                status = event.status_code
                headers = {name.decode().lower(): value.decode() for name, value in event.headers}
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                return Answer(status, headers, body)
            else:
                raise AssertionError(event)


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    running = Control(tmp_path)
    yield running
    running.close()


@pytest.fixture
def open_control(tmp_path: Path) -> Iterator[Control]:
    """Without a token configured."""
    running = Control(tmp_path, token="", max_rules=3)
    yield running
    running.close()
