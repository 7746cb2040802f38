"""A cluster of agent-sandbox on loopback: an API server that knows Sandbox objects, and pods that run its runtime.

A pod has an address of its own in 127.0.0.0/8, so that who asks for an address can be told from who asks for a name.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import http.server
import json
import random
import shlex
import subprocess
import sys
import threading
import time
import urllib.parse
from email.parser import BytesParser
from email.policy import HTTP
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.real.ingress.providers.fake_kubernetes import FakeKubernetes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PORT = 8888
"""Where the runtime listens, in each pod."""
WITHIN = 20.0


class Seen(NamedTuple):
    """A request as it came to a pod."""

    method: str
    target: str
    headers: list[tuple[str, str]]  # names in lower case
    body: bytes

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]


class Pod:
    """The runtime that the SDK expects: execute, upload, download, list, exists, over files in a folder.

    Beside it: /headers, /slow?s, /stream (as the test says), /gzip, /broken, and a WebSocket that says what it hears.
    """

    def __init__(self, folder: Path, address: str = "", port: int = PORT) -> None:
        self.folder = folder
        self.seen: list[Seen] = []
        self.release = threading.Event()  # lets /slow and /stream go on
        pod = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def _any(self) -> None:
                pod._answer(self)

            do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = do_OPTIONS = _any  # noqa: N815

            def log_message(self, *args: Any) -> None:
                pass

        self._server = _listen(Handler, address, port)
        self.address = str(self._server.server_address[0])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """It is gone, with its address."""
        self.release.set()
        self._server.shutdown()
        self._thread.join(WITHIN)
        self._server.server_close()

    @property
    def last(self) -> Seen:
        return self.seen[-1]

    # -- what it answers -------------------------------------------------------------------------------------------
    def _answer(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        body = _body(handler)
        headers = [(name.lower(), value) for name, value in handler.headers.items()]
        self.seen.append(Seen(handler.command, handler.path, headers, body))
        if handler.headers.get("Upgrade"):
            self._websocket(handler)
            return
        path = handler.path.partition("?")[0]
        first, _, rest = path[1:].partition("/")
        name = urllib.parse.unquote(rest)
        if first == "execute":
            self._json(handler, self._execute(json.loads(body)))
        elif first == "upload":
            part = next(_parts(handler.headers["Content-Type"], body))
            target = self.folder / str(part.get_filename())
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(part.get_payload(decode=True))
            self._json(handler, {"message": "uploaded"})
        elif first == "download":
            file = self.folder / name
            if file.is_file():
                self._send(handler, 200, file.read_bytes(), "application/octet-stream")
            else:
                self._json(handler, {"message": "File not found"}, 404)
        elif first == "list":
            self._json(handler, [_entry(file) for file in sorted((self.folder / name).iterdir())])
        elif first == "exists":
            self._json(handler, {"path": name, "exists": (self.folder / name).exists()})
        elif first == "slow":
            self.release.wait(WITHIN)
            self._json(handler, {"slow": True})
        elif first == "stream":
            self._stream(handler)
        elif first == "gzip":
            self._send(handler, 200, ZIPPED, "text/plain", ("Content-Encoding", "gzip"))
        elif first == "status":
            self._json(handler, {"status": name}, int(name))
        elif first == "broken":
            handler.close_connection = True
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        else:
            self._json(handler, {"target": handler.path})

    def _execute(self, asked: dict[str, Any]) -> dict[str, Any]:
        done = subprocess.run(shlex.split(asked["command"]), capture_output=True, text=True, cwd=self.folder)
        return {"stdout": done.stdout, "stderr": done.stderr, "exit_code": done.returncode}

    def _stream(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.wfile.write(b"6\r\nfirst\n\r\n")
        self.release.wait(WITHIN)
        handler.wfile.write(b"5\r\nlast\n\r\n0\r\n\r\n")

    def _websocket(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        key = handler.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        handler.close_connection = True
        handler.wfile.write(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Accept: " + accept.encode() + b"\r\n\r\n"
        )
        while data := handler.rfile.read1(65536):
            handler.wfile.write(data)

    def _json(self, handler: http.server.BaseHTTPRequestHandler, value: object, status: int = 200) -> None:
        self._send(handler, status, json.dumps(value).encode(), "application/json")

    def _send(
        self, handler: http.server.BaseHTTPRequestHandler, status: int, body: bytes, kind: str, *more: tuple[str, str]
    ) -> None:
        handler.send_response(status)
        for name, value in (("Content-Type", kind), ("Content-Length", str(len(body))), *more):
            handler.send_header(name, value)
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(body)


ZIPPED = gzip.compress(b"zipped once", mtime=0)


def _listen(handler: type[http.server.BaseHTTPRequestHandler], address: str, port: int) -> http.server.HTTPServer:
    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, request: Any, client_address: Any) -> None:
            if not isinstance(sys.exception(), OSError):  # who asked has left: many tests end so
                super().handle_error(request, client_address)

    if address:
        return Server((address, port), handler)
    while True:  # an address that nobody else here has taken
        try:
            parts = [random.randrange(1, 250) for _ in range(3)]
            return Server((f"127.{parts[0]}.{parts[1]}.{parts[2]}", port), handler)
        except OSError:
            continue


def _body(handler: http.server.BaseHTTPRequestHandler) -> bytes:
    if handler.headers.get("Transfer-Encoding", "").lower() != "chunked":
        return handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
    whole = b""
    while size := int(handler.rfile.readline(), 16):
        whole += handler.rfile.read(size)
        handler.rfile.readline()
    handler.rfile.readline()
    return whole


def _parts(content_type: str, body: bytes) -> Any:
    message = BytesParser(policy=HTTP).parsebytes(b"Content-Type: " + content_type.encode() + b"\r\n\r\n" + body)
    return message.iter_parts()


def _entry(file: Path) -> dict[str, object]:
    told = file.stat()
    kind = "directory" if file.is_dir() else "file"
    return {"name": file.name, "size": told.st_size, "type": kind, "mod_time": told.st_mtime}


class Cluster:
    """The API server, on a loop and thread of its own; Sandbox objects are put into it from the test's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.api = FakeKubernetes(("agents.x-k8s.io/v1beta1/sandboxes",))
        self.pods: list[Pod] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over = asyncio.Event()
        self._up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()), daemon=True)
        self._thread.start()
        assert self._up.wait(WITHIN)
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(self.api.kubeconfig())

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with self.api:
            self._up.set()
            await self._over.wait()

    def close(self) -> None:
        self._do(self._over.set)
        self._thread.join(WITHIN)
        for pod in self.pods:
            pod.close()

    def pod(self, name: str) -> Pod:
        """A pod with its own files, that no Sandbox object speaks of yet."""
        folder = self.folder / f"{name}-{len(self.pods)}"
        folder.mkdir()
        made = Pod(folder)
        self.pods.append(made)
        return made

    def ends(self, pod: Pod) -> None:
        """The pod is gone."""
        self.pods.remove(pod)
        pod.close()

    def put(
        self, name: str, *addresses: str, namespace: str = "default", ready: bool = True, fqdn: str = "", **more: Any
    ) -> None:
        """Create or change a Sandbox object."""
        condition = {"type": "Ready", "status": "True" if ready else "False", "reason": "Test"}
        status: dict[str, Any] = {"conditions": [condition], "podIPs": list(addresses)}
        if fqdn:
            status["serviceFQDN"] = fqdn
        self._do(lambda: self.api.put(name, namespace, status=status, **more))

    def delete(self, name: str, namespace: str = "default") -> None:
        self._do(lambda: self.api.delete(name, namespace))

    def sandbox(self, name: str = "box", **more: Any) -> Pod:
        """A Sandbox that is ready, and its pod."""
        made = self.pod(name)
        self.put(name, made.address, **more)
        return made

    def watched(self) -> None:
        """Until the gateway follows."""
        deadline = time.monotonic() + WITHIN
        while not self.api.watching:
            assert time.monotonic() < deadline, "nobody watches"
            time.sleep(0.01)

    def _do(self, change: Callable[[], object]) -> None:
        async def on_the_loop() -> None:
            change()

        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(on_the_loop(), self._loop).result(WITHIN)
