"""A Kubernetes API server that knows list and watch of custom resources, over real HTTP, and can misbehave on request.

What it does follows the API conventions: one resourceVersion for everything, lists in pages whose continue tokens grow
old, watches that replay what came after a version, 410 below the compacted one, bookmarks.
"""

from __future__ import annotations

import asyncio
import json
import socket
from typing import TYPE_CHECKING, Any, Self

from aiohttp import web

if TYPE_CHECKING:
    import ssl


def status(code: int, message: str = "") -> dict[str, object]:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message}


class FakeKubernetes:
    """Holds objects by (group, version, plural) path; started with `async with`."""

    def __init__(
        self,
        served: tuple[str, ...] = ("sandbox.opensandbox.io/v1alpha1/batchsandboxes",),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.served = served
        self.tls = tls
        self.version = 100
        self.compacted = 0
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.stale: dict[str, dict[str, Any]] = {}  # what who asks for one object by name is told instead
        self.history: list[tuple[int, str, dict[str, Any]]] = []
        self.refusals: list[tuple[str, int, str]] = []  # ("list" or "watch", status, message), one for one request
        self.down: int = 0  # a status that everything is answered with
        self.hang = False  # requests are taken and never answered
        self.pages_until_old = 0  # the page number whose continue token is answered with 410; 0: never
        self.bookmarks = False  # one at the start of each watch
        self.token = ""
        self.lists: list[dict[str, str]] = []
        self.watches: list[dict[str, str]] = []
        self._streams: dict[asyncio.Queue[bytes | None], web.Request] = {}
        self._runner: web.AppRunner | None = None
        self._place: socket.socket | None = None
        self.port = 0

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen; after `pause` on the same port as before."""
        if self._place is None:
            # Bound and never listening: during a pause the port is given to nobody else.
            self._place = socket.socket()
            self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            self._place.bind(("127.0.0.1", 0))
            self.port = self._place.getsockname()[1]
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_port=True, ssl_context=self.tls).start()

    async def pause(self) -> None:
        """Everything is cut, nothing listens."""
        self.cut()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def stop(self) -> None:
        """The end."""
        await self.pause()
        if self._place is not None:
            self._place.close()
            self._place = None

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def kubeconfig(self, **user: object) -> str:
        """A kubeconfig for this server, as JSON (which is YAML)."""
        return json.dumps(
            {
                "current-context": "fake",
                "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "me"}}],
                "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
                "users": [{"name": "me", "user": user}],
            }
        )

    def put(self, name: str, namespace: str = "default", uid: str = "", **item: Any) -> dict[str, Any]:
        """Create or change an object; `annotations` and `deletionTimestamp` go into its metadata."""
        self.version += 1
        key = (namespace, name)
        meta = {
            "name": name,
            "namespace": namespace,
            "uid": uid or f"uid-{namespace}-{name}",
            "resourceVersion": str(self.version),
        }
        for inner in ("annotations", "deletionTimestamp"):
            if inner in item:
                meta[inner] = item.pop(inner)
        kind = "MODIFIED" if key in self.objects else "ADDED"
        self.objects[key] = {"metadata": meta, **item}
        self._happened(kind, self.objects[key])
        return self.objects[key]

    def ready(self, name: str, address: str = "10.0.0.7", namespace: str = "default", **more: Any) -> dict[str, Any]:
        """A BatchSandbox that is ready at an address."""
        annotations = {"sandbox.opensandbox.io/endpoints": json.dumps([address]), **more.pop("annotations", {})}
        return self.put(name, namespace, annotations=annotations, status={"replicas": 1, "ready": 1}, **more)

    def delete(self, name: str, namespace: str = "default") -> None:
        self.version += 1
        item = self.objects.pop((namespace, name))
        item["metadata"]["resourceVersion"] = str(self.version)
        self._happened("DELETED", item)

    def quietly_delete(self, name: str, namespace: str = "default") -> None:
        """Delete, and let no watch ever tell: as when a gateway was away for long."""
        self.version += 1
        del self.objects[namespace, name]
        self.compact()

    def compact(self) -> None:
        """Forget the history: watches from before now are answered with 410."""
        self.compacted = self.version
        self.history.clear()

    def send(self, line: bytes) -> None:
        """Bytes as they are into every watch."""
        for queue in self._streams:
            queue.put_nowait(line)

    def event(self, kind: str, item: object) -> None:
        """An event into every watch, unrecorded."""
        self.send(json.dumps({"type": kind, "object": item}).encode() + b"\n")

    def finish(self) -> None:
        """End every watch in order."""
        for queue in self._streams:
            queue.put_nowait(None)

    def cut(self, half: bytes = b"") -> None:
        """Reset the connection of every watch, after half a line."""
        for request in self._streams.values():
            transport = request.transport
            if transport is not None:
                if half:
                    transport.write(b"%x\r\n%s\r\n" % (len(half), half))
                transport.abort()

    @property
    def watching(self) -> int:
        return len(self._streams)

    def _happened(self, kind: str, item: dict[str, Any]) -> None:
        copy = json.loads(json.dumps(item))
        self.history.append((self.version, kind, copy))
        self.event(kind, copy)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        what = "watch" if "watch" in request.query else "list"
        (self.watches if what == "watch" else self.lists).append(dict(request.query))
        if self.hang:
            await asyncio.sleep(60)
        if self.down:
            return web.json_response(status(self.down, "no"), status=self.down)
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.json_response(status(401, "Unauthorized"), status=401)
        for index, (kind, code, message) in enumerate(self.refusals):
            if kind == what:
                del self.refusals[index]
                return web.json_response(status(code, message), status=code)
        parts = request.path.split("/")
        namespace = ""
        if "namespaces" in parts:
            at = parts.index("namespaces")
            namespace = parts[at + 1]
            del parts[at : at + 2]
        if parts[1] == "apis" and namespace and "/".join(parts[2:-1]) in self.served:
            item = self.stale.get(parts[-1]) or self.objects.get((namespace, parts[-1]))
            return web.json_response(item or status(404, "not found"), status=200 if item else 404)
        if parts[1] != "apis" or "/".join(parts[2:]) not in self.served:
            return web.json_response(status(404, "the server could not find the requested resource"), status=404)
        return await (self._watch(request, namespace) if what == "watch" else self._list(request, namespace))

    async def _list(self, request: web.Request, namespace: str) -> web.StreamResponse:
        keys = sorted(key for key in self.objects if namespace in ("", key[0]))
        limit = int(request.query.get("limit", "0"))
        version, _, start = request.query.get("continue", f"{self.version}/0").partition("/")
        first = int(start)
        if limit and self.pages_until_old and first // limit >= self.pages_until_old:
            self.pages_until_old = 0
            return web.json_response(status(410, "The provided continue parameter is too old"), status=410)
        last = first + limit if limit else len(keys)
        meta = {"resourceVersion": version}
        if last < len(keys):
            meta["continue"] = f"{version}/{last}"
        return web.json_response({"metadata": meta, "items": [self.objects[key] for key in keys[first:last]]})

    async def _watch(self, request: web.Request, namespace: str) -> web.StreamResponse:
        since = int(request.query["resourceVersion"])
        if since < self.compacted:
            return web.json_response(status(410, "too old resource version"), status=410)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        for version, kind, item in self.history:
            if version > since and namespace in ("", item["metadata"]["namespace"]):
                queue.put_nowait(json.dumps({"type": kind, "object": item}).encode() + b"\n")
        if self.bookmarks:
            bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(self.version)}}}
            queue.put_nowait(json.dumps(bookmark).encode() + b"\n")
        self._streams[queue] = request
        try:
            while (line := await queue.get()) is not None:
                await response.write(line)
        except ConnectionError:
            pass
        finally:
            del self._streams[queue]
        return response
