"""The relay alone, on loopback: clients that count as redirected, a server, and a worker that does what it is told."""

from __future__ import annotations

import errno
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from egress.sni import connection, messages, relay
from egress.sni.messages import Message, decode
from egress.sni.post import SOCKETS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ORIGINAL = relay._original
RESET = struct.pack("=ii", 1, 0)


class Worker:
    """Answers the relay's questions: by default each connection is allowed, and goes to `server`."""

    def __init__(self, channel: socket.socket, server: tuple[str, int]) -> None:
        self.channel = channel
        self.server = server
        self.heard: list[Message] = []
        self.silent = False  # to questions
        self.mean = False  # with sockets
        self.denied: set[str] = set()  # names
        self.cut: set[str] = set()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                data = self.channel.recv(messages.LONGEST)
            except OSError:
                return
            if not data:
                return
            message = decode(data)
            self.heard.append(message)
            if message.kind == messages.ASK and not self.silent:
                self.answer(message)
            elif message.kind == messages.NEED and not self.mean:
                self.supply()
            elif message.kind == messages.CHECK and message.texts[0] in self.cut:
                self.channel.send(Message(messages.CUT, message.number).encode())

    def answer(self, message: Message) -> None:
        if message.texts[0] in self.denied:
            self.channel.send(Message(messages.DENIED, message.number).encode())
            return
        self.channel.send(Message(messages.ALLOWED, message.number, texts=("link",)).encode())

    def supply(self) -> None:
        socks = [socket.socket(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK) for _ in range(SOCKETS)]
        message = Message(messages.SPARE, 0, port=socket.AF_INET).encode()
        socket.send_fds(self.channel, [message], [sock.fileno() for sock in socks])
        for sock in socks:
            sock.close()

    def said(self, kind: int) -> list[Message]:
        return [message for message in self.heard if message.kind == kind]


class Ground:
    """A relay with one listener; `port` is what the next clients count as having wanted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.port = 80
        self.origin = socket.create_server(("127.0.0.1", 0))
        self.origin.settimeout(10)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        monkeypatch.setattr(connection, "_dial", self._dial)
        monkeypatch.setattr(relay, "PATIENCE", 60.0)  # else whoever a busy machine keeps waiting is refused
        monkeypatch.setattr(relay, "_original", lambda _: (b"\xc6\x33\x64\x0a", self.port))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.errors: list[BaseException] = []
        self.relay = relay.Relay([self.listener], ours, passes_encrypted=False, report=self.errors.append)
        self.worker: Worker = Worker(theirs, self.origin.getsockname())
        self._ours = ours
        self.opened: list[socket.socket] = []
        self._thread = threading.Thread(target=self.relay.run, daemon=True)
        self._thread.start()

    def _dial(self, sock: socket.SocketType, *_: object) -> bool:
        return sock.connect_ex(self.worker.server) in (0, errno.EINPROGRESS)

    def client(self) -> socket.socket:
        """Connected, and not heard yet."""
        sock = socket.create_connection(self.listener.getsockname(), 10)
        self.opened.append(sock)
        return sock

    def server(self) -> socket.socket:
        """The next connection that arrives at the origin."""
        sock, _ = self.origin.accept()
        sock.settimeout(10)
        self.opened.append(sock)
        return sock

    def pair(self, say: bytes = b"") -> tuple[socket.socket, socket.socket]:
        """A relayed connection, whose request (a long POST) the server has read."""
        request = say or b"POST / HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 999999999999\r\n\r\n"
        client = self.client()
        client.sendall(request)
        server = self.server()
        read = b""
        while len(read) < len(request):
            read += server.recv(65536)
        assert read == request
        return client, server

    def calm(self) -> bool:
        """No connection is left."""
        return soon(lambda: not self.relay._connections)

    def stocked(self) -> bool:
        """It has sockets, so that the next server is connected to before the verdict."""
        return soon(lambda: bool(self.relay.spares.some[socket.AF_INET]))

    def out_of_patience(self) -> None:
        """Have PATIENCE be over for everybody who waits."""

        def end() -> None:
            times = self.relay._times
            times.extend([(0.0, times.popleft()[1]) for _ in range(len(times))])

        self.on_loop(end)

    def on_loop(self, work: Callable[[], Any]) -> Any:
        """What `work` returns, run by the relay's thread."""
        found: list[Any] = []
        self.relay.loop.call_threadsafe(lambda: found.append(work()))
        assert soon(lambda: bool(found))
        return found[0]

    def close(self) -> None:
        self.relay.loop.call_threadsafe(self.relay.loop.stop)
        self._thread.join(10)
        for sock in (*self.opened, self.origin, self.listener, self._ours, self.worker.channel):
            sock.close()
        for one in list(self.relay._connections.values()):
            one.close(reset=True)
        for family in self.relay.spares.some:
            self.relay.spares.close(family)
        for pipe in self.relay.pipes._spare:
            self.relay.pipes.give(pipe, empty=False)
        self.relay.loop.close()


def soon(check: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not (found := check()) and time.monotonic() < deadline:
        time.sleep(0.005)
    return found


def ending(sock: socket.socket) -> str:
    """How it ends for whoever reads."""
    try:
        while sock.recv(1 << 20):
            pass
    except ConnectionResetError:
        return "reset"
    return "closed"


@pytest.fixture
def ground(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
    made = Ground(monkeypatch)
    yield made
    made.close()
    assert not made.errors, made.errors
