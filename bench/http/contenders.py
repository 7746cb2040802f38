"""Who is measured: ours, the programs of others, two of our own few lines on libraries, and nobody."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import ClassVar

from bench.http.contender import SANDBOX, Contender
from bench.http.peers import PYTHON
from bench.http.place import Nobody
from bench.http.programs import Caddy, Haproxy, Nginx, NginxBig, NodeProxy, Traefik

_HERE = Path(__file__).parent


class Direct(Contender):
    """No proxy: how far the load and the origin come on their core."""

    key = "direct"
    name = "no proxy"
    memory = False
    quick = False

    def start(self) -> None:
        self.program = Nobody()

    def address(self, port: int) -> int:
        return port

    def prefix(self, port: int) -> str:  # noqa: ARG002
        return ""


class Sallyport(Contender):
    key = "sallyport"
    name = "sallyport"
    mode = "uri"

    def argv(self) -> list[str]:
        routes = self.folder / "routes.json"
        routes.write_text(json.dumps({"sandboxes": {SANDBOX: {"host": "127.0.0.1"}}}))
        return [
            sys.executable, "-m", "ingress", "serve", "--provider-type", "static", "--routes", str(routes),
            "--port", str(self.port), "--mode", self.mode, "--allow-target", "127.0.0.0/8", "--workers", "1",
            "--admin-port", "0",
        ]  # fmt: skip


class SallyportHeader(Sallyport):
    key = "sallyport-header"
    name = "sallyport, by header"
    mode = "header"
    bodies = False
    websockets = False
    memory = False

    def prefix(self, port: int) -> str:  # noqa: ARG002
        return ""

    def headers(self, port: int) -> dict[str, str]:
        return {"OpenSandbox-Ingress-To": f"{SANDBOX}-{port}"}


class _OwnLines(Contender):
    """A proxy of our own few lines on a library, in the peers' venv."""

    needs = (PYTHON,)
    file = ""
    parts: ClassVar[tuple[str, ...]] = ()

    def argv(self) -> list[str]:
        return [self.path, "-P", str(_HERE / self.file), str(self.port)]

    def versions(self) -> list[str]:
        return [f"{part} {self.peers.version(part)}" for part in self.parts]


class Aiohttp(_OwnLines):
    key = "aiohttp"
    name = "aiohttp"
    file = "aiohttp_proxy.py"
    parts = ("aiohttp", "uvloop")


class FastAPI(_OwnLines):
    key = "fastapi"
    name = "FastAPI + httpx"
    websockets = False
    file = "fastapi_proxy.py"
    parts = ("fastapi", "httpx", "uvicorn", "uvloop", "httptools")


KINDS: tuple[type[Contender], ...] = (
    Sallyport, SallyportHeader, Nginx, NginxBig, Haproxy, Caddy, Traefik, NodeProxy, Aiohttp, FastAPI,
    Direct,
)  # fmt: skip
BY_KEY = {kind.key: kind for kind in KINDS}
