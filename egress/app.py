"""The composition root: what `egress serve` is made of, and in which order it comes up.

In the supervisor, once: `prepare` (everything that a fork shares). In each worker: `work`.

    policy (file, else the last accepted, else the variable) ─▶ guard.start: the first ruleset
      ─▶ DNS answers ─▶ the control API is imported, its port listens ─▶ ready

With a policy or rule file that cannot be used the worker stays up, locked down: no ruleset, no DNS, `/healthz` 503
with the reason, and another look twice a second.
"""

from __future__ import annotations

import gc
import sys

from egress.config import ConfigError
from egress.control.files import FileError, PolicyFile
from egress.control.rulefiles import RuleFiles
from egress.control.sources import read_variables, starting_policy
from egress.control.store import PolicyStore
from egress.dns.budget import Budget
from egress.dns.listener import TcpListener
from egress.dns.upstream import Ports, Server, Upstream
from egress.events import identity
from egress.firewall import FirewallError
from egress.firewall.xdp import Places, take
from egress.guard import Guard
from egress.listeners import dns_ports, family_ports
from egress.log import Log
from egress.loop import Loop
from egress.placement import Placement
from egress.privileges import give_up, take_up
from egress.state import Handover
from egress.telemetry import Telemetry
from policies.matcher import compile_policy
from policies.model import PolicyError
from policies.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from egress.config import Config
    from egress.control.api import Api
    from egress.control.files import Stamp
    from egress.control.rulefiles import AlwaysRules
    from egress.control.server import Server as ApiServer
    from egress.control.sources import Always, Variables
    from egress.firewall.guardhouse import Firewall
    from egress.firewall.nflog import Denied
    from egress.firewall.redirects import Redirect
    from egress.listeners import Sockets
    from egress.own import Own
    from egress.privileges import Held

LISTEN = 128  # connections that may wait to be accepted
HEAD_START = 0.01  # seconds that the first questions have before everything else that a start has to do
LOOK = 0.5  # seconds between looks at files that changed
STILL = 0.1  # seconds that one must have kept still


class Plan(NamedTuple):
    """What every worker starts from."""

    config: Config
    firewall: Firewall
    sockets: Sockets
    variables: Variables
    file: PolicyFile | None
    handover: Handover
    places: Places = Places()  # of XDP sockets, held for as long as we live
    held: Held | None = None  # what the supervisor gave up; None where it kept all


def prepare(config: Config, firewall: Firewall, sockets: Sockets) -> Plan:
    """Check what can be checked before the first fork. Raises ConfigError."""
    if "raw" in config.require and _raw(firewall) == "none":
        raise ConfigError("OPENSANDBOX_EGRESS_REQUIRE", "asks for raw, but this kernel has no netdev egress hook")
    places = take(firewall.namespace, stock=True) if config.mode != "dns" else Places()
    if "raw" in config.require and places.problem:
        raise ConfigError("OPENSANDBOX_EGRESS_REQUIRE", f"asks for raw, but of XDP sockets {places.problem}")
    variables = read_variables(config)
    if config.rules:
        try:
            compile_policy(variables.policy, *variables.always)
        except PolicyError as error:
            raise ConfigError("OPENSANDBOX_EGRESS_RULES", str(error)) from error
    if config.sni:  # here, so that every process that is forked has it
        from egress.sni import desk, relay  # noqa: F401
    file = PolicyFile(config.policy_file) if config.policy_file else None
    if file is not None:
        try:
            file.check()
        except FileError as error:
            raise ConfigError("OPENSANDBOX_EGRESS_POLICY_FILE", f"cannot be kept up to date: {error}") from error
    return Plan(config, firewall, sockets, variables, file, Handover(), places)


def _raw(firewall: Firewall) -> str:
    firewall.lock()  # a ruleset tells what the kernel can hold
    return firewall.capabilities().raw


def work(plan: Plan) -> int:
    """Be a worker until stopped."""
    if plan.held is not None:
        take_up()
    gc.enable()
    # Each question in flight is a few objects that go by themselves; at the default of 700 they only set it off.
    gc.set_threshold(20_000, 20, 20)
    sys.setswitchinterval(0.0005)  # the helper thread's Python must not hold up answers
    return Worker(plan).run()


def relay(plan: Plan) -> int:
    """Be the name guard's relay until stopped: with nothing of the sidecar's but the two listeners and the channel."""
    names, log = plan.sockets.names, Log(1, plan.config.log_level, identity(plan.config))
    assert names is not None
    give_up()
    plan.firewall.close()
    plan.handover.close()
    plan.places.forsake()
    for sock in (*plan.sockets.udp, *plan.sockets.tcp, plan.sockets.api, plan.sockets.unix, names.worker):
        if sock is not None:
            sock.close()
    gc.enable()
    gc.set_threshold(20_000, 20, 20)  # as in the worker: a connection's objects go by themselves
    from egress.sni.relay import Relay

    report = lambda error: log.error("unexpected", error=f"{type(error).__name__}: {error}")  # noqa: E731
    return Relay(names.listeners, names.relay, passes_encrypted=plan.config.sni_ech, report=report).run()


class Worker:
    """One life of the serving process."""

    def __init__(self, plan: Plan) -> None:
        config = plan.config
        self.config = config
        self.plan = plan
        self.log = Log(1, config.log_level, identity(config))
        self.loop = Loop(self._unexpected)
        self.telemetry = Telemetry(config, self.log, self.loop, lambda: (self.guard.rules, self.guard.updates))
        self.events = self.telemetry.events
        self.firewall = plan.firewall
        self.firewall.reopen()
        self.guard = Guard(
            self.loop,
            self.firewall,
            placement(config, plan.sockets),
            plan.handover,
            self.telemetry.denied_name,
            self.log.warn,
            self.telemetry.opened if self.log.enabled("info") else None,
            Budget(config.name_budget, config.search) if config.name_budget.octets else None,
        )
        self.store = PolicyStore(self.loop, self.guard, plan.file)
        self.rule_files = RuleFiles(self.loop, self._rules_changed, self.log.warn)
        self._api_started = False
        self._api_lacking = False
        self._settled = False  # ready, or locked down and waiting for what would change that
        self._failed = False
        self._shut_once = False
        self._starting = False  # a first ruleset is being loaded
        self._looking = False  # the policy file is looked at again
        self._mended: list[Stamp | None] = []  # what stood in its place then, where that was another one
        self._rules_used = self.rule_files.rules  # the rule files' content that it is loaded with
        self._own: Own | None = None

    def run(self) -> int:
        self.rule_files.load()
        self.rule_files.start()
        self.loop.call_soon(self._begin)
        self.loop.run()
        return int(self._failed)

    def _unexpected(self, error: BaseException) -> None:
        self.log.error("unexpected", error=f"{type(error).__name__}: {error}")
        if not self._settled:  # half of a start would stay half: the next worker makes a whole one
            self._failed = True
            self.loop.stop()

    # -- coming up -----------------------------------------------------------------------------------------------
    def _begin(self) -> None:
        if self._starting or self.guard.loaded:
            return
        self._settled = False
        if self.rule_files.fault is not None:
            self._shut()
            self._locked(self.rule_files.fault)  # `_rules_changed` begins again
            return
        try:
            policy = starting_policy(self.plan.variables, self.plan.file, self.plan.handover)
            self._starting, self._rules_used = True, self.rule_files.rules
            self.store.start(policy, self._always(), self._started)
        except (FileError, PolicyError) as error:
            self._starting = False
            self._shut()
            self._locked(str(error))
            if not self._looking:
                self._looking = True
                self.loop.call_later(LOOK, self._look_again)

    def _started(self, error: Exception | None) -> None:
        self._starting = False
        if error is None:
            self._open()
            if self.rule_files.rules is not self._rules_used:
                self._rules_changed(self.rule_files.rules)  # they changed while the first ruleset was being loaded
        else:
            self._shut()
            self.firewall.deny()
            self._locked(str(error))
            self.loop.call_later(LOOK, self._begin)

    def _look_again(self) -> None:
        self._looking = False
        file = self.plan.file
        if self._starting or self.guard.loaded:
            return
        changed = file is not None and file.changed_since()
        stands = [file.stamp()] if file is not None and changed else []
        if stands and stands == self._mended:
            self._begin()
        else:  # one that is being written is empty for a moment, or not there: another policy, and a valid one
            self._mended = stands
            self._looking = True
            self.loop.call_later(STILL if stands else LOOK, self._look_again)

    def _shut(self) -> None:
        """What an earlier life left standing may be laxer than what can't be read or loaded: deny-all in its place."""
        if self._shut_once or self.guard.loaded or self.plan.handover.policy() is not None:
            return
        self._shut_once = True
        try:
            self.firewall.lock(anew=True)
        except (OSError, FirewallError) as error:
            self.log.write("error", "the lock-down could not be renewed", {"error": str(error)})

    def _locked(self, problem: str) -> None:
        if problem != self.store.problem:
            self.log.error("locked down", error=problem)
        self.store.problem = problem
        self._start_api()
        self._settled = True

    def _always(self) -> Always:
        rules = self.rule_files.rules
        self.events.silence(rules.silent)
        return self.plan.variables.always.over(rules.deny, rules.allow)

    def _rules_changed(self, _: AlwaysRules) -> None:
        if not self.guard.loaded:
            self._begin()
            return
        always = self._always()

        def done(error: Exception | None) -> None:
            if error is None:
                self.log.info("rule files applied", **{"rules.count": len(always.deny) + len(always.allow)})
            else:
                self.events.update_failed(str(error), source="rule files")

        self.store.change_always(always, done)

    def _open(self) -> None:
        """The ruleset stands: answer."""
        service = self.guard.service
        assert service is not None
        firewall, exemption, config, telemetry = self.firewall, self.guard.exemption, self.config, self.telemetry
        ports = Ports(
            lambda server: firewall.udp(server.packed, server.port, exemption),
            lambda server: firewall.tcp(server.packed, server.port, exemption),
        )
        servers = tuple(Server(upstream.address, upstream.port) for upstream in config.upstreams)
        service.upstream = Upstream(self.loop, servers, ports, config.upstream_timeout, service.round)
        service.observe = telemetry.counters.durations.note
        service.resolved = telemetry.opened if self.log.enabled("info") else None
        service.unresolved = telemetry.unresolved
        if config.deny_webhook is not None or config.otlp is not None:
            from egress.own import Own

            self._own = Own(self.loop, self.guard, firewall, servers, ports, config.upstream_timeout)
            telemetry.call(self._own.connect)
        if self.plan.sockets.names is not None:
            from egress.sni.desk import Desk

            channel = self.plan.sockets.names.worker
            desk = Desk(self.loop, channel, self.guard, telemetry.denied_connection, self.log.warn)
            self.guard.changed = desk.recheck
        for sock in self.plan.sockets.udp:
            service.listen(sock)
        for sock in self.plan.sockets.tcp:
            sock.listen(LISTEN)
            TcpListener(self.loop, sock, service.handle_stream)
        self.guard.watch()
        self.loop.call_later(HEAD_START, self._ready)

    def _ready(self) -> None:
        self.store.problem = None
        self._start_api()
        document = self.store.policy.to_document()
        self.events.loaded(str(document["defaultAction"]), document["egress"])  # type: ignore[arg-type]
        held = self.plan.held.shortcomings() if self.plan.held is not None else ()
        problem = self.plan.places.problem
        xdp = (f"XDP sockets are not guarded: {problem}",) if problem else ()
        for warning in (*self.config.warnings, *self.firewall.capabilities().shortcomings(), *xdp, *held):
            self.log.warn(warning)
        from egress.firewall.redirects import redirects
        from egress.runtimes import Watch

        Watch(self.loop, self.firewall.namespace, self._stack_beside)
        self.loop.run_in_thread(redirects, self._told_of_neighbours)
        if self.plan.places.sockets:
            self.firewall.newcomers = self._hold_newcomers
        self.firewall.watch_denied(self.loop, self._denied_packet)
        self.loop.call_later(self.config.probe_interval, self._probe)
        if self._own is not None:
            self.telemetry.export(self._own.connect)
        self._settled = True

    def _told_of_neighbours(self, found: tuple[Redirect, ...] | None, error: BaseException | None) -> None:
        for redirect in found or ():
            if not redirect.docker:
                owner = redirect.owner or f"{redirect.table} {redirect.chain}"
                self.log.error(
                    f"{owner} redirects connections in this namespace too: what it carries is not guarded here"
                )
        if error is not None:
            self.log.warn(f"whether somebody else redirects connections here is not known: {error}")

    def _hold_newcomers(self) -> bool:
        """On the helper thread: what sends past every rule is not to be had on devices that come later either."""
        gaps = self.plan.places.follow(self.firewall.namespace, shut="raw" in self.config.require)
        words = "; ".join([gap.words for gap in gaps if not gap.told])
        if words:
            self.loop.call_threadsafe(lambda: self.log.warn(f"XDP sockets are not guarded: {words}"))
        return bool(gaps)  # whoever has one may give it back

    def _stack_beside(self, words: str) -> None:
        """A network stack that our rules do not hold has come into the namespace, or gone ("")."""
        self.store.trouble = words
        if words:
            self.log.error(words)
        else:
            self.log.info("the network stack that was beside us is gone")

    def _start_api(self) -> None:
        """Imported only now, and beside the loop: DNS answers already, and goes on."""
        if self._api_started:
            return
        self._api_started = True

        def load() -> tuple[type[Api], type[ApiServer]]:
            from egress.control.api import Api
            from egress.control.server import Server as ApiServer

            return Api, ApiServer

        def loaded(result: tuple[type[Api], type[ApiServer]] | None, error: BaseException | None) -> None:
            if result is None:
                if not self._api_lacking:
                    self.log.error("the control API cannot be loaded, trying again", error=str(error))
                self._api_lacking = True
                self.loop.call_later(LOOK, lambda: self.loop.run_in_thread(load, loaded))
                return
            config = self.config
            api = result[0](
                self.loop, self.store, config.token, config.max_rules, self.events, self.telemetry.prometheus
            )
            server = result[1](self.loop, api)
            if self.plan.sockets.unix is not None:
                server.listen(self.plan.sockets.unix)
            listen(server)

        def listen(server: ApiServer, *, told: bool = False) -> None:
            try:
                server.listen(self.plan.sockets.api)
            except OSError as error:
                if not told:
                    self.log.write("error", "the control API cannot listen, trying again", {"error": str(error)})
                self.loop.call_later(LOOK, lambda: listen(server, told=True))

        self.loop.run_in_thread(load, loaded)

    def _probe(self) -> None:
        self.loop.call_later(self.config.probe_interval, self._probe)
        service = self.guard.service
        if service is not None and service.upstream is not None:
            service.upstream.probe(self.config.probe_name)

    def _denied_packet(self, denied: Denied) -> None:
        self.telemetry.denied_packet(denied, self.guard.names_of(denied.destination))


def placement(config: Config, sockets: Sockets) -> Placement:
    """Where the ruleset finds our ports, and what the operator opened or closed beside the policy."""
    return Placement(
        mode=config.mode,
        dns_ports=dns_ports(sockets.udp, sockets.tcp),
        upstreams=tuple((upstream.address, upstream.port) for upstream in config.upstreams),
        exempt=config.nameserver_exempt,
        doh_all=config.block_doh and not config.doh_networks,
        doh_networks=config.doh_networks if config.block_doh else (),
        own=(),
        answer_within=config.upstream_timeout,
        relay_ports=(0, 0) if sockets.names is None else family_ports(sockets.names.listeners),
    )
