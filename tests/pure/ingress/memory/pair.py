"""A client's connection and idle ones to two sandboxes, on transports that keep what is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ingress.admission.access import KeyRing
from ingress.admission.gate import Gate, GateSettings
from ingress.admission.throttle import Throttle
from ingress.http1.core import Gateway
from ingress.http1.upstream import Upstream
from ingress.routes import Routes, Sandbox
from ingress.settings.limits import Limits
from ingress.telemetry.stats import Stats

if TYPE_CHECKING:
    from ingress.http1.client import Client

TOKEN = "right"


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def get_extra_info(self, name: str) -> Any:
        return ("192.0.2.7", 1) if name == "peername" else None

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True

    abort = close


class Targets:
    """Never asked: the connection is there already."""


class Pair:
    """A client's connection and an idle one to its sandbox."""

    def __init__(self) -> None:
        routes = Routes()
        routes.put(Sandbox("box", "198.51.100.1"))
        routes.put(Sandbox("safe", "198.51.100.2", token=TOKEN))
        gate = Gate(GateSettings(frozenset(("header", "uri"))), routes, KeyRing(), Throttle())
        self.stats = Stats()
        targets: Any = Targets()
        core = self.core = Gateway(gate, targets, routes, Limits(), self.stats, stripped=gate.stripped)
        self.client: Client = core.protocol()
        self.outer, self.inner = Wire(), Wire()
        self.client.connection_made(self.outer)  # type: ignore[arg-type]
        self.upstreams = []
        for sandbox in ("box", "safe"):
            for port in (8080, 8081):
                endpoint = core.endpoint(routes.find(sandbox), port)  # type: ignore[arg-type]
                upstream = Upstream(endpoint)
                upstream.connection_made(self.inner)  # type: ignore[arg-type]
                endpoint.give_back(upstream)
                self.upstreams.append(upstream)

    def ask(self, raw: bytes) -> tuple[bytes, bytes]:
        """What the sandbox and the client are sent when this request comes."""
        self.inner.written = self.outer.written = b""
        self.client.data_received(raw)
        return self.inner.written, self.outer.written

    def answer(self, raw: bytes) -> tuple[bytes, bool, bool]:
        """What the client is sent for this answer, and whether each side was closed."""
        self.outer.written = b""
        for upstream in self.upstreams:
            if upstream.client is not None:
                upstream.data_received(raw)
        return self.outer.written, self.outer.closed, self.inner.closed
