"""A Docker daemon as far as `Register` knows one: HTTP on a unix socket, with containers that are what a test says they
are. A real one cannot be made to stop between two of its answers."""

from __future__ import annotations

import json
import queue
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import UnixStreamServer
from typing import TYPE_CHECKING, Any

from egress.docker.containers import LABEL

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Self

    Answer = tuple[int, Any]

NETWORK = "sallyport"


class _Server(ThreadingHTTPServer):
    address_family = UnixStreamServer.address_family
    daemon_threads = True

    def server_bind(self) -> None:
        UnixStreamServer.server_bind(self)


class Daemon:
    """A context manager. `containers` by their ids, as they are inspected; `instead` answers in the place of the
    daemon, by "METHOD /path", with a status and a document, or with octets and no more; `asked` is every such call."""

    def __init__(self, folder: Path) -> None:
        self.host = f"unix://{folder}/docker.sock"
        self.containers: dict[str, dict[str, Any]] = {}
        self.instead: dict[str, Callable[[], Answer | bytes]] = {}
        self.asked: list[str] = []
        self.events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        daemon = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def address_string(self) -> str:
                return "unix"

            def do_POST(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path = self.path.partition("?")[0]
                if path == "/events":
                    self.follow()
                    return
                call = f"{self.command} {path}"
                daemon.asked.append(call)
                said = daemon.instead.get(call, lambda: daemon.answer(self.command, path))()
                self.close_connection = True
                if isinstance(said, bytes):
                    self.wfile.write(said)
                    return
                status, document = said
                data = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def follow(self) -> None:
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                while (event := daemon.events.get()) is not None:
                    line = json.dumps(event).encode() + b"\n"
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                self.close_connection = True

        self._server = _Server(f"{folder}/docker.sock", Handler)  # type: ignore[arg-type]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.events.put(None)
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def run(self, name: str, pid: int, *, label: str | None = "web-only", **host: Any) -> str:
        """Have a container whose first process that is; its id. `sandbox` is the daemon's file of its network."""
        sandbox = host.pop("sandbox", "")
        identity = f"{name}-{'0' * 60}"
        mode = host.get("NetworkMode", NETWORK)
        self.containers[identity] = {
            "Id": identity,
            "Name": f"/{name}",
            "State": {"Running": True, "Pid": pid, "StartedAt": f"life 1 of {name}"},
            "Config": {"Labels": {} if label is None else {LABEL: label}},
            "HostConfig": {"NetworkMode": mode, **host},
            "NetworkSettings": {"Networks": {NETWORK: {}} if mode == NETWORK else {}, "SandboxKey": sandbox},
        }
        return identity

    def tell(self, action: str, identity: str) -> None:
        """An event."""
        self.events.put({"Type": "container", "Action": action, "Actor": {"ID": identity}})

    def answer(self, method: str, path: str) -> Answer:
        """What it says by itself."""
        if path == "/containers/json":
            return 200, [_listed(document) for document in self.containers.values()]
        found = re.fullmatch(r"/containers/([^/]+)/(json|kill)", path)
        document = self.containers.get(found[1]) if found is not None else None
        if found is None or document is None:
            return 404, {"message": f"No such container: {found[1] if found is not None else path}"}
        return (200, document) if method == "GET" else (204, None)


def _listed(document: dict[str, Any]) -> dict[str, Any]:
    return {
        "Id": document["Id"],
        "Labels": document["Config"]["Labels"],
        "HostConfig": {"NetworkMode": document["HostConfig"]["NetworkMode"]},
        "NetworkSettings": {"Networks": document["NetworkSettings"]["Networks"]},
    }
