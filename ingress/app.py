"""What a worker is made of: the one place that knows every part of the gateway.

    provider asked ─▶ answered, or two seconds ─▶ listening ─▶ told to leave ─▶ not ready ─▶ not listening ─▶ drained

Everything here runs in a worker, after the fork; what comes before it is in prepare.py.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import time
from functools import cache
from typing import TYPE_CHECKING

import uvloop

from ingress.admission.gate import AGENT, Gate, GateSettings
from ingress.admission.targets import Targets
from ingress.http1.core import Gateway
from ingress.process.listeners import BACKLOG
from ingress.process.prepare import read_keys, stamp
from ingress.providers import build
from ingress.refusal import Refusal
from ingress.routes import Routes
from ingress.settings.flags import ConfigError
from ingress.telemetry.admin import Admin
from ingress.telemetry.log import Access, Log
from ingress.telemetry.metrics import Publisher, gather, render
from ingress.telemetry.rally import Rally
from ingress.telemetry.stats import Stats
from ingress.telemetry.usage import usage

if TYPE_CHECKING:
    from ingress.admission.verdict import Admission, Reply
    from ingress.http1.head import RequestHead
    from ingress.process.accept import Acceptor
    from ingress.process.master import Seat
    from ingress.process.prepare import Plan, Shared
    from ingress.providers.base import Provider
    from ingress.renewal.renew import Renewer

TICK = 1.0
"""Seconds between two ticks: time-outs, files, published counters."""
LISTEN_ANYWAY = 2.0
"""Seconds after which a worker listens although its provider has not answered yet; requests are told so meanwhile."""


def work(plan: Plan, seat: Seat, memory: Shared) -> int:
    """Serve until told to leave; returns the exit code."""
    gc.enable()  # the master has it off, and what it imported is frozen
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(Worker(plan, seat, memory).run())


class Starting:
    """The gate as long as nobody knows which sandboxes there are: a 404 would be a guess."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.stripped = gate.stripped

    def admit(self, head: RequestHead, client: str, secure: bool, now: float) -> Admission | Reply:
        """Health as ever; all else 503."""
        if head.target.partition(b"?")[0] in (b"/status.ok", b"/healthz"):
            return self.gate.admit(head, client, secure, now)
        raise Refusal(503, "starting", "the gateway does not know yet which sandboxes there are", retry_after=1)


class Worker:
    """One worker process."""

    def __init__(self, plan: Plan, seat: Seat, memory: Shared) -> None:
        self._plan = plan
        self._seat = seat
        self._memory = memory
        config = self._config = plan.config
        self._log = Log(level=config.log_level, fields={"worker": seat.number})
        self._chief = seat.number == 0
        """One worker speaks for all where all would say the same."""
        self._keys_seen = stamp(config.secure_access_keys_file)
        self._servers: list[asyncio.Server | Acceptor] = []
        self._admin: Admin | None = None
        self._admin_server: asyncio.Server | None = None
        self._leaving = asyncio.Event()
        self._retired = False
        """A successor has the sockets."""
        self._draining = False
        self._renewer: Renewer | None = None
        self._access: Access | None = None
        self._code = 0

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._unexpected)
        config = self._config
        self._stats = Stats()
        self._publisher = Publisher(self._memory.board, self._seat.number, self._stats)
        routes = self._routes = Routes()
        self._provider: Provider = build(config.provider_type, config.provider, routes, self._say)
        self._gate = Gate(self._gate_settings(), routes, self._plan.keys, self._memory.throttle)
        if self._plan.renewal is not None:
            from ingress.renewal.renew import Renewer

            self._renewer = Renewer(self._plan.renewal, self._stats, self._say, self._memory.claims)
            self._renewer.start()
        if config.access_log:
            self._access = Access(self._log, config.access_log_sample, query=config.access_log_query)
        self._gateway = Gateway(
            self._gate,
            Targets(config.allow_target, self._seat.own),
            routes,
            config.limits,
            self._stats,
            stripped=self._gate.stripped,
            renewer=self._renewer,
            access=self._access,
            upstream_host=config.upstream_host.encode(),
            trusted=config.trusted_proxies,
            detail=config.agent is not None,
        )
        self._listen_to_signals(loop)
        following = loop.create_task(self._follow())
        ready = loop.create_task(self._loaded())
        leaving = loop.create_task(self._leaving.wait())
        patience = None if self._seat.successor else LISTEN_ANYWAY
        await asyncio.wait({ready, leaving}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        if not self._leaving.is_set():
            if not ready.done():
                self._gateway.gate = Starting(self._gate)  # type: ignore[assignment]
            await self._listen(loop)
            self._seat.started()
            ticking = loop.create_task(self._tick())
            await leaving
            await self._leave()
            ticking.cancel()
        ready.cancel()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await self._provider.close()
        if self._renewer is not None:
            await self._renewer.close()
        self._publish()
        return self._code

    # -- parts -----------------------------------------------------------------------------------------------------
    def _gate_settings(self) -> GateSettings:
        config = self._config
        agent = config.agent
        if agent is None:
            return GateSettings(config.ways, not config.admin_only, config.route_cookie)
        return GateSettings(
            frozenset((AGENT,)), not config.admin_only, False, agent.token, agent.timeout, agent.cluster_domain
        )

    def _listen_to_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        from ingress.process.master import DRAIN, NOW, RELOAD, RETIRE

        loop.add_signal_handler(DRAIN, self._on_leave, DRAIN)
        loop.add_signal_handler(RETIRE, self._on_leave, RETIRE)
        loop.add_signal_handler(NOW, os._exit, 0)
        loop.add_signal_handler(RELOAD, self._reload)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._seat.signals)

    async def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        config = self._config
        self._rally = Rally(self._memory.board, self._memory.bells, self._seat.number, self._publish, loop)
        context = self._plan.certificate.context if self._plan.certificate else None
        for sock in self._seat.main:
            if config.proxy_protocol_from or context is not None:
                from ingress.process.accept import Acceptor

                acceptor = Acceptor(
                    sock,
                    config.proxy_protocol_from,
                    lambda: self._gateway.protocol("", context is not None),
                    timeout=config.limits.head_timeout,
                    most=config.limits.connections,
                    complain=lambda peer, words: self._log.warn(f"connection refused: {words}", peer=peer),
                    tls=context,
                )
                acceptor.start(BACKLOG)
                self._servers.append(acceptor)
            else:
                self._servers.append(
                    await loop.create_server(
                        self._gateway.protocol,
                        sock=sock,
                        backlog=BACKLOG,
                    )
                )
        if self._seat.admin:
            self._admin = Admin(self._state, self._metrics, self._rally.call)
            self._admin_server = await loop.create_server(self._admin.protocol, sock=self._seat.admin[0], backlog=64)

    # -- the provider ----------------------------------------------------------------------------------------------
    async def _follow(self) -> None:
        """The provider, for as long as the worker lives."""
        while True:
            try:
                await self._provider.run()
            except Exception as error:  # noqa: BLE001 - whatever it was, routes have to be followed again
                self._log.error("the provider stopped and is started again", error=_where(error))
            await asyncio.sleep(1.0)

    async def _loaded(self) -> None:
        """Until the provider has filled the table; then say what it found."""
        while not self._provider.health().loaded:  # noqa: ASYNC110 - a look costs nothing, and there is no event
            await asyncio.sleep(0.01)
        self._gateway_open()
        if self._chief:
            health = self._provider.health()
            count = len(self._routes)
            found = f"{count} sandbox{'' if count == 1 else 'es'}" if count else "no sandbox yet"
            self._log.info(f"found {found}", provider=self._config.provider_type, source=health.source, sandboxes=count)

    def _gateway_open(self) -> None:
        self._gateway.gate = self._gate

    def _say(self, level: str, message: str) -> None:
        """What a provider has to say; one worker says it for all."""
        if self._chief:
            self._log.write(level, message, {})

    # -- every second ----------------------------------------------------------------------------------------------
    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._gateway.tick(loop.time())
            self._publish()
            self._follow_files()
            await asyncio.sleep(TICK)

    def _publish(self) -> None:
        stats = self._stats
        stats.sandboxes = len(self._routes)
        stats.degraded = bool(self._provider.health().degraded)
        stats.log_dropped = self._log.dropped
        self._publisher.publish(time.monotonic(), usage())
        if self._access is not None:
            self._access.flush()

    def _follow_files(self, *, force: bool = False) -> None:
        if self._plan.certificate is not None:
            self._count("certificate", self._plan.certificate.follow(self._say, force=force))
        path = self._config.secure_access_keys_file
        if path:
            seen = stamp(path)
            if force or seen != self._keys_seen:
                self._keys_seen = seen
                self._count("keys", self._load_keys())

    def _load_keys(self) -> str:
        try:
            keys = read_keys(self._config)
        except ConfigError as error:
            self._say("error", f"the new keys are not used, those from before go on: {error}")
            return "failed"
        if keys != self._gate.keys:
            self._gate.keys = keys
            self._say("info", f"keys loaded: {', '.join(keys.ids)}")
        return "ok"

    def _count(self, what: str, outcome: str) -> None:
        if outcome:
            name = f"{what} {outcome}"
            self._stats.reloads[name] = self._stats.reloads.get(name, 0) + 1

    def _reload(self) -> None:
        self._follow_files(force=True)

    # -- the admin port --------------------------------------------------------------------------------------------
    def _state(self) -> tuple[bool, str]:
        if self._draining and not self._retired:  # of the port it asks, a probe hears what the successor would say
            return False, "draining"
        health = self._provider.health()
        if not health.loaded:
            return False, f"starting: {health.degraded or 'the provider has not answered yet'} ({health.source})"
        troubles = [health.degraded, self._renewer.health() if self._renewer is not None else ""]
        degraded = "; ".join(filter(None, troubles))
        return True, f"degraded: {degraded}" if degraded else "ok"

    def _metrics(self) -> bytes:
        return render(gather(self._memory.board, time.monotonic()), _version(), self._plan.began)

    # -- the end ---------------------------------------------------------------------------------------------------
    def _on_leave(self, number: signal.Signals) -> None:
        from ingress.process.master import RETIRE

        self._retired = self._retired or number == RETIRE
        self._draining = True
        self._leaving.set()

    async def _leave(self) -> None:
        """Readiness is gone already; then no new connections; then what is open gets its time."""
        if self._retired and self._admin is not None and self._admin_server is not None:
            self._admin_server.close()  # the successor answers there now
            self._admin.closing = True  # and who is connected here already, after one more answer
        if not self._retired and self._config.drain_delay:
            await asyncio.sleep(self._config.drain_delay)
        if not self._retired:
            # What the kernel has taken for us is served: after a turn of the loop the queue is as good as empty.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        for server in self._servers:
            server.close()
        began = time.monotonic()
        await self._gateway.drain(self._config.limits.drain)
        self._log.debug("drained", seconds=round(time.monotonic() - began, 3))
        if self._admin is not None:
            if self._admin_server is not None:
                self._admin_server.close()
            self._admin.close()

    def _unexpected(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:  # noqa: ARG002
        """What nobody caught: one line, and the rest of the worker goes on."""
        error = context.get("exception")
        words = _where(error) if isinstance(error, BaseException) else ""
        self._log.error("unexpected", what=str(context.get("message", "")), error=words)


@cache
def _version() -> str:
    """Ours, as it is installed: by the name of the folder, since importlib.metadata would cost 3 MB."""
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            if name.startswith("sallyport-") and name.endswith(".dist-info"):
                return name.removeprefix("sallyport-").removesuffix(".dist-info")
    return "unknown"


def _where(error: BaseException) -> str:
    """Kind, words and place of an exception, in one line."""
    trace = error.__traceback__
    place = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        place = f" ({os.path.basename(code.co_filename)}:{trace.tb_lineno} {code.co_name})"
        trace = trace.tb_next
    return f"{type(error).__name__}: {error}{place}"
