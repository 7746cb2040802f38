"""Connections to one port of one sandbox: opened, kept, counted and given up. Nothing here knows HTTP.

A pool belongs to an incarnation: when the sandbox moves or goes, its endpoint is retired, idle connections are closed
at once and busy ones are not taken back, so that nothing of the old owner's is ever handed to the new one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ingress.refusal import Refusal

if TYPE_CHECKING:
    from ingress.http1.core import Gateway
    from ingress.http1.upstream import Upstream
    from ingress.routes import Sandbox

FRESH = 2.0
"""Seconds for which an idle connection is trusted with a request that must not be sent twice."""


class Load:
    """What one sandbox has under way in this worker, all its ports together."""

    __slots__ = ("connections", "inflight")

    def __init__(self) -> None:
        self.connections = 0
        self.inflight = 0


class Endpoint:
    """One port of one incarnation of a sandbox."""

    __slots__ = ("core", "host", "idle", "load", "port", "retired", "route_port", "sandbox")

    def __init__(self, core: Gateway, sandbox: Sandbox, port: int, load: Load) -> None:
        self.core = core
        self.sandbox = sandbox
        self.route_port = port
        self.host, self.port = published(sandbox, port)
        self.load = load
        self.idle: list[Upstream] = []
        self.retired = False

    def leads_to(self, sandbox: Sandbox) -> bool:
        """Is this an endpoint of that sandbox, whichever incarnation."""
        return self.sandbox.id == sandbox.id and self.sandbox.namespace == sandbox.namespace

    def authority(self) -> bytes:
        """What to call it in a Host header where the client has sent none."""
        host = self.host.encode("ascii", "replace")
        return b"[%b]:%d" % (host, self.port) if b":" in host else b"%b:%d" % (host, self.port)

    def take(self, idempotent: bool) -> Upstream | None:
        """The idle connection used last, or None. One that has been idle for long is kept for requests that may be
        sent again: it may be closing at this very moment (RFC 9112 section 9.3.1)."""
        idle = self.idle
        if not idle:
            return None
        if not idempotent and self.core.now - idle[-1].idle_since > FRESH:
            return None
        return idle.pop()

    def give_back(self, upstream: Upstream) -> None:
        """Keep a connection for the next request, or close it where it isn't wanted."""
        core = self.core
        idle = self.idle
        if self.retired or len(idle) >= core.limits.idle_per_endpoint or core.draining:
            upstream.close()
            return
        upstream.idle_since = core.now
        idle.append(upstream)

    async def open(self) -> Upstream:
        """A new connection to an address that was checked. Refusal (502, 503, 504) where there is none."""
        core = self.core
        if self.load.connections >= core.limits.connections_per_sandbox:
            raise Refusal(
                503,
                "sandbox_connections",
                f"this sandbox has {core.limits.connections_per_sandbox} connections open, which is the limit",
                sandbox=self.sandbox.id,
                retry_after=1,
            )
        self.load.connections += 1
        try:
            return await self._open()
        finally:
            self.load.connections -= 1  # the opening's own place; a connection counts itself from its first to its last

    async def _open(self) -> Upstream:
        core = self.core
        cause, error = "connect", ""
        try:
            async with asyncio.timeout(core.limits.connect_timeout):
                literal = core.targets.literal(self.host, self.port)
                addresses = [literal] if literal is not None else await core.targets.resolve(self.host, self.port)
                for address in addresses:
                    try:
                        return await core.connect(self, address)
                    except OSError as fault:
                        error = fault.strerror or str(fault)
        except TimeoutError:
            core.stats.upstream_error("timeout")
            raise Refusal(
                504,
                "connect_timeout",
                f"port {self.route_port} of the sandbox did not take a connection within "
                f"{core.limits.connect_timeout:g} s: is something listening there?",
                sandbox=self.sandbox.id,
            ) from None
        except Refusal as refusal:
            core.stats.upstream_error("target")
            refusal.sandbox = self.sandbox.id
            raise
        core.stats.upstream_error(cause)
        raise Refusal(
            502,
            "connect_failed",
            f"port {self.route_port} of the sandbox could not be reached ({error.lower() or 'no address'}): "
            "is something listening there, on all addresses and not only on localhost?",
            sandbox=self.sandbox.id,
        )

    def retire(self) -> None:
        """Nothing may be sent here any more that isn't under way."""
        self.retired = True
        idle, self.idle = self.idle, []
        for upstream in idle:
            upstream.close()

    def close_idle(self, before: float) -> None:
        """Close what has been idle since before this time (of `core.now`)."""
        idle = self.idle
        if idle and idle[0].idle_since < before:
            self.idle = [upstream for upstream in idle if upstream.idle_since >= before]
            for upstream in idle:
                if upstream.idle_since < before:
                    upstream.close()


def published(sandbox: Sandbox, port: int) -> tuple[str, int]:
    """Where a port of a sandbox is to be dialled."""
    for inner, host, outer in sandbox.port_map:
        if inner == port:
            return host, outer
    return sandbox.host, port


def same_owner(before: Sandbox, after: Sandbox) -> bool:
    """Do the connections of `before` lead to `after`?"""
    return (
        before.host == after.host
        and before.incarnation == after.incarnation
        and before.port_map == after.port_map
        and before.addresses == after.addresses  # a pod made anew behind the name it had
    )
