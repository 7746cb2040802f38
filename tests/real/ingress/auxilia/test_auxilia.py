"""What auxilia's sandbox backend does, as its SDK (opensandbox 1.1.1) puts it on the wire, through the gateway.

It connects to a sandbox's execd on port 44772: `ping`, a command in the background as an event stream, its status until
it has ended, its logs, an interruption, files down and up. With `use_server_proxy`, its default, OpenSandbox's server
stands in between: it adds X-Forwarded headers, and where it has a gateway configured, the gateway's route.
"""

from __future__ import annotations

import http.client
import http.server
import json
import queue
import threading
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

BOX: dict[str, Any] = {"box": {"host": "127.0.0.1"}}
SDK = {
    "User-Agent": "OpenSandbox-Python-SDK/1.1.1",
    "Accept": "*/*",
    "Accept-Encoding": "gzip, deflate",
    "Connection": "keep-alive",
    "OPEN-SANDBOX-CLIENT-IP": "192.0.2.2",
}
SERVER = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "sandboxes.example.com", "X-Forwarded-For": "192.0.2.2"}
BOUNDARY = "488f43deda71c687b4b551bc88b4b291"
UPLOAD = (
    f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="metadata"; filename="metadata"\r\n'
    'Content-Type: application/json\r\n\r\n{"path": "/tmp/x", "owner": null, "group": null, "mode": 755}\r\n'
    f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="/tmp/x"\r\n'
    f"Content-Type: application/octet-stream\r\n\r\ndata\r\n--{BOUNDARY}--\r\n"
).encode()


class Execd:
    """What answers in the sandbox: enough of execd for these calls, and a record of them."""

    def __init__(self) -> None:
        self.calls: queue.Queue[tuple[str, str, dict[str, str], bytes]] = queue.Queue()
        self.go_on = threading.Event()
        execd = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                execd.calls.put((self.command, self.path, headers, body))
                if (self.command, self.path) == ("POST", "/command"):
                    return self.stream()
                if self.path.startswith("/command/status/"):
                    return self.whole(b'{"id": "cmd-1", "running": false, "exit_code": 0}')
                if self.path.endswith("/logs"):
                    return self.whole(b"hello\n", "text/plain")
                return self.whole(b"content" if self.path.startswith("/files/download") else b"{}")

            do_GET = do_POST = do_DELETE = answer  # noqa: N815 - http.server's names

            def whole(self, data: bytes, kind: str = "application/json") -> None:
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def stream(self) -> None:
                """The first event at once, the second when the test has seen the first."""
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Connection", "close")
                self.end_headers()
                self.wfile.write(b'data: {"type": "init", "text": "cmd-1"}\n\n')
                self.wfile.flush()
                execd.go_on.wait(20)
                self.wfile.write(b'data: {"type": "execution_complete"}\n\n')
                self.close_connection = True

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def last(self) -> tuple[str, str, dict[str, str], bytes]:
        return self.calls.get(timeout=20)

    def close(self) -> None:
        self.go_on.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def execd() -> Iterator[Execd]:
    started = Execd()
    yield started
    started.close()


class Way:
    """How a client comes to the gateway: what is added in front of the path, and which headers."""

    def __init__(self, port: int, prefix: str, headers: dict[str, str]) -> None:
        self.port, self.prefix, self.headers = port, prefix, headers

    def ask(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, self.prefix + path, body, {**SDK, **self.headers, **more})
        return connection, connection.getresponse()

    def whole(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
        connection, response = self.ask(method, path, body, **headers)
        try:
            return response.status, response.read()
        finally:
            connection.close()


@pytest.fixture(params=["the SDK, header mode", "the SDK, path mode", "the server's proxy, header mode"])
def way(request: pytest.FixtureRequest, start_gateway: Any, execd: Execd) -> Way:
    if "path" in request.param:
        return Way(start_gateway(BOX, ["--mode", "uri"]).port, f"/box/{execd.port}", {})
    route = {"OpenSandbox-Ingress-To": f"box-{execd.port}"}
    return Way(start_gateway(BOX).port, "", {**route, **(SERVER if "server" in request.param else {})})


def test_every_call_of_its_backend_arrives_as_it_was_sent(way: Way, execd: Execd) -> None:
    assert way.whole("GET", "/ping", Content_Length="0") == (200, b"{}")
    assert execd.last()[:2] == ("GET", "/ping")
    assert json.loads(way.whole("GET", "/command/status/cmd-1")[1])["exit_code"] == 0
    assert execd.last()[1] == "/command/status/cmd-1"
    assert way.whole("GET", "/command/cmd-1/logs") == (200, b"hello\n")
    assert execd.last()[1] == "/command/cmd-1/logs"
    assert way.whole("DELETE", "/command?id=cmd-1")[0] == 200
    assert execd.last()[:2] == ("DELETE", "/command?id=cmd-1")
    assert way.whole("GET", "/files/download?path=%2Ftmp%2Fa+b.txt") == (200, b"content")
    assert execd.last()[1] == "/files/download?path=%2Ftmp%2Fa+b.txt"  # no escape is changed
    kind = f"multipart/form-data; boundary={BOUNDARY}"
    assert way.whole("POST", "/files/upload", UPLOAD, Content_Type=kind)[0] == 200
    method, path, headers, body = execd.last()
    assert (method, path, body) == ("POST", "/files/upload", UPLOAD)
    assert headers["content-type"] == kind
    assert "opensandbox-ingress-to" not in headers
    assert headers["user-agent"] == SDK["User-Agent"]


def test_a_command_in_the_background_tells_its_id_before_it_has_ended(way: Way, execd: Execd) -> None:
    body = b'{"command":"echo hi","background":true}'
    connection, response = way.ask(
        "POST", "/command", body, Accept="text/event-stream", Content_Type="application/json"
    )
    assert response.status == 200
    assert b'"cmd-1"' in response.readline()
    assert not execd.go_on.is_set()  # the stream is still open in the sandbox
    execd.go_on.set()
    assert b"execution_complete" in response.read()
    assert execd.last()[3] == body
    connection.close()
