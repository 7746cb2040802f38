"""What every connection of a worker shares: the gate, endpoints, limits, counters, and the second's tick."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any, Protocol, cast
from weakref import WeakSet

from ingress.http1.client import Client
from ingress.http1.connection import plain_address
from ingress.http1.endpoint import Endpoint, Load, same_owner
from ingress.http1.headers import WRITTEN, Outside
from ingress.http1.upstream import Upstream
from ingress.routes import Entry, Sandbox, sandboxes
from policies.address import AddressError, Network, parse_address

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from ingress.admission.gate import Gate
    from ingress.admission.targets import Targets
    from ingress.http1.head import Fields
    from ingress.http1.tunnel import Tunnel
    from ingress.refusal import Refusal
    from ingress.routes import Routes
    from ingress.settings.limits import Limits
    from ingress.telemetry.stats import Stats

LAST_REQUEST = 1.0
"""Seconds that a client's idle connection is left open when draining: to close it at once could cross a request that is
on its way (RFC 9112 section 9.6); who is busy asks within that time, and is told in the answer."""


class Renews(Protocol):
    """Who is told that a sandbox is in use."""

    def note(self, sandbox: str, port: int, request_uri: str) -> None:
        """At once, never blocking."""


class Accesses(Protocol):
    """Who is told of each request, where there is an access log."""

    def request(self, client: Client, address: str, code: str, status: int, seconds: float) -> None:
        """`client` still holds the request's head and admission."""


class Gateway:
    """One worker's data path. Made once; `protocol` makes a connection's protocol; `tick` is called every second."""

    def __init__(
        self,
        gate: Gate,
        targets: Targets,
        routes: Routes,
        limits: Limits,
        stats: Stats,
        *,
        stripped: frozenset[bytes],
        renewer: Renews | None = None,
        access: Accesses | None = None,
        upstream_host: bytes = b"",
        trusted: Sequence[Network] = (),
        detail: bool = False,
    ) -> None:
        """stripped: request fields (lower case) that never reach a sandbox. upstream_host: the Host to show instead of
        the client's. trusted: the proxies whose forwarded fields count. detail: as agent-sandbox's router: refusals in
        its shape, and sandboxes are not told the host that the caller asked for."""
        self.gate = gate
        self.targets = targets
        self.limits = whole_ticks(limits)
        self.stats = stats
        self.stripped = stripped | WRITTEN
        self.fixed = (self.stripped | gate.looks_at | {b"cookie", b"origin"}) - {b"content-length"}
        """Request fields that something is derived from; see `Fields.followed_by`."""
        self.renewer = renewer
        self.access = access
        self.upstream_host = upstream_host
        self.detail = detail
        self.draining = False
        self.now = 0.0
        """Seconds, as of the last tick: what pools are aged by."""
        self.clients: set[Client] = set()
        self._arriving: WeakSet[Client] = WeakSet()
        """Accepted and not among `clients` yet: for a turn of the loop, or until a TLS handshake or a PROXY header is
        through. Who fails at that is simply forgotten."""
        self.tunnels: set[Tunnel] = set()
        self._trusted = tuple(trusted)
        self._endpoints: dict[tuple[tuple[str, str], str, int], Endpoint] = {}
        """((namespace, id), address, port) -> endpoint: agent-sandbox's clients may choose among addresses."""
        self._loads: dict[tuple[str, str], Load] = {}
        self._waiting: dict[str, dict[Client, tuple[float, Refusal]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        routes.watch(self._changed)

    def protocol(self, address: str = "", secure: bool = False) -> Client:
        """For a new connection. address: the client's where a PROXY header named it; secure: it comes by TLS."""
        client = Client(self, address, secure)
        self._arriving.add(client)
        return client

    def arrived(self, client: Client) -> None:
        """Its connection stands."""
        self._arriving.discard(client)
        self.clients.add(client)

    # what connections ask

    def outside(self, address: str, secure: bool) -> Outside:
        """The client's side as seen on the connection itself."""
        return Outside(address, secure, self._is_trusted(address), names_host=not self.detail)

    def behind(self, outside: Outside, fields: Fields) -> Outside:
        """The client's side as the trusted proxies before us tell it: the last address that isn't one of them."""
        known = cast("tuple[Outside, Outside] | None", fields.memo.get("outside"))
        if known is not None and known[0] is outside:
            return known[1]
        address = outside.address
        for text in reversed(b",".join(fields.all(b"x-forwarded-for")).decode("latin-1").split(",")):
            hop = plain_address(text.strip().strip("[]"))
            try:
                parse_address(hop)
            except AddressError:
                break  # `unknown`, an obfuscated name or junk: the last address that could be read stands
            address = hop
            if not self._is_trusted(hop):
                break
        scheme = fields.get(b"x-forwarded-proto")
        secure = scheme.lower() == b"https" if scheme else outside.secure
        found = Outside(address, secure, True, outside.address, names_host=outside.names_host)
        fields.memo["outside"] = (outside, found)
        return found

    def _is_trusted(self, address: str) -> bool:
        if not self._trusted:
            return False
        try:
            packed = parse_address(address)
        except AddressError:
            return False
        return any(network.contains(packed) for network in self._trusted)

    def endpoint(self, sandbox: Sandbox, port: int) -> Endpoint:
        """Where requests for this port go; made when first used."""
        place = (sandbox.namespace, sandbox.id)
        key = (place, sandbox.host, port)
        endpoint = self._endpoints.get(key)
        if endpoint is not None and not endpoint.retired and same_owner(endpoint.sandbox, sandbox):
            endpoint.sandbox = sandbox
            return endpoint
        if endpoint is not None:
            endpoint.retire()
        load = self._loads.get(place)
        if load is None:
            load = self._loads[place] = Load()
        endpoint = self._endpoints[key] = Endpoint(self, sandbox, port, load)
        return endpoint

    async def connect(self, endpoint: Endpoint, address: str) -> Upstream:
        """A connection to a checked address; OSError where there is none."""
        _, upstream = await self._loop.create_connection(lambda: Upstream(endpoint), address, endpoint.port)
        return upstream

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it beside; it is kept until it ends."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def wait(self, client: Client, refusal: Refusal) -> None:
        """Hold a request until its sandbox changes, `wait_ready` at most."""
        held = self._waiting.setdefault(refusal.sandbox, {})
        if client not in held:
            held[client] = (self._loop.time() + self.limits.wait_ready, refusal)

    def log_access(self, client: Client, code: str, status: int, seconds: float) -> None:
        """One line, where that is wanted."""
        if self.access is not None:
            self.access.request(client, client.address, code, status, seconds)

    # changes and time

    def _changed(self, sandbox_id: str, before: Entry | None, after: Entry | None) -> None:
        """The table's entry for an id has changed: connections follow it."""
        there = {(sandbox.namespace, sandbox.id): sandbox for sandbox in sandboxes(after)}
        for old in sandboxes(before):
            place = (old.namespace, old.id)
            new = there.get(place)
            if new is not None and same_owner(old, new):
                continue
            self.targets.forget(old.host)
            for key in [key for key in self._endpoints if key[0] == place]:
                self._endpoints.pop(key).retire()
            if new is None:
                self._loads.pop(place, None)
                self._forget(old)
        for client, (deadline, refusal) in self._waiting.pop(sandbox_id, {}).items():
            client.retry()
            held = self._waiting.get(sandbox_id, {})
            if client in held:
                held[client] = (deadline, refusal)

    def _forget(self, sandbox: Sandbox) -> None:
        """A sandbox is gone: so is what was open to it."""
        for tunnel in [tunnel for tunnel in self.tunnels if tunnel.endpoint.leads_to(sandbox)]:
            tunnel.going_away()
        for client in list(self.clients):
            client.sandbox_gone(sandbox)

    def tick(self, now: float) -> None:
        """Time-outs, the pool's ages and renewals. now: seconds of a monotonic clock."""
        self.now = now
        before = now - self.limits.upstream_idle
        for key, endpoint in list(self._endpoints.items()):
            endpoint.close_idle(before)
            if not endpoint.idle and not endpoint.load.inflight:
                # Made anew when it is used again: a scan of ports leaves nothing behind.
                self._endpoints.pop(key).retire()
        for client in list(self.clients):
            client.tick()
        for tunnel in list(self.tunnels):
            tunnel.tick()
        time = self._loop.time()
        for sandbox_id, held in list(self._waiting.items()):
            for client, (deadline, refusal) in list(held.items()):
                if time >= deadline or not client.waits():
                    del held[client]
                    client.give_up(refusal)
            if not held:
                self._waiting.pop(sandbox_id, None)

    async def drain(self, seconds: float) -> None:
        """Let what is open finish, for so many seconds; then break it off. No new connection may come meanwhile.

        One that was accepted a moment ago is open too, though it is not among the clients yet.
        """
        self.draining = True
        for endpoint in self._endpoints.values():
            endpoint.close_idle(math.inf)
        for client in list(self.clients):
            client.drain()
        for tunnel in list(self.tunnels):
            tunnel.going_away()
        began = self._loop.time()
        while (self.clients or self.tunnels or self._arriving) and self._loop.time() < began + seconds:
            await asyncio.sleep(0.05)
            if self._loop.time() > began + LAST_REQUEST:
                self._arriving.clear()
                for client in list(self.clients):
                    client.close_idle()
        for client in list(self.clients):
            client.abort()
        for tunnel in list(self.tunnels):
            tunnel.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.sleep(0)


def whole_ticks(limits: Limits) -> Limits:
    """The limits with every time that is counted in ticks at least one long: the first tick may come at once."""
    times = ("idle_timeout", "body_timeout", "response_timeout", "stream_timeout", "tunnel_timeout")
    return limits._replace(**{name: max(1.0, value) for name in times if (value := getattr(limits, name))})
