"""The guard of one sandbox: everything that belongs to it, and nothing else.

A process may hold several. All state is here: policy generation, leases, interceptor, ruleset secrets. What it does
with the kernel goes through `Firewall`, which knows the namespace.

    apply ─▶ hold (answers that would teach something wait)
          ─▶ helper thread: leases decided again, ruleset rendered, one transaction, then `commit` (the policy file)
          ─▶ loop: interceptor and leases swapped, release
          ─▶ helper thread: flows that the new policy forbids are cut
          ─▶ done
"""

from __future__ import annotations

import errno
from socket import SOCK_STREAM

from egress.dns.interceptor import Interceptor
from egress.dns.service import Service
from egress.effect import NAMELESS, allows, decider, digest, still_allows
from egress.firewall import FirewallError
from egress.firewall.leases import Leases
from egress.learned import Learned, by_class
from egress.netns import Exemption, secret
from egress.state import Accepted
from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from egress.dns.budget import Budget
    from egress.dns.interceptor import Denial
    from egress.firewall.conntrack import Flow
    from egress.firewall.guardhouse import Firewall
    from egress.firewall.ruleset import RulesetSpec
    from egress.learned import Taught
    from egress.loop import Loop
    from egress.placement import Placement
    from egress.sni.verdict import Verdict
    from egress.state import Handover
    from policies.matcher import CompiledPolicy

HEAD_START = 0.01  # seconds that the first questions have before open flows are looked at
SWEEP = 5.0  # seconds between looks at which leases are in use
STALL = 15.0  # seconds late: the whole container stood still
NAMES_TO_SPEAK_TO = 64  # names that the name guard lets speak to one address: the last whose answers led there
GUESSES = 2000  # unstamped frames within a sweep after which the stamp changes
UNDER_WAY = 1.0  # seconds in which a packet that the rules have let through comes to its device
OFTEN = 16  # changes after which that is not waited for
WATCH = 0.5  # seconds between looks at whether our tables still stand


class Guard:
    """One guarded sandbox."""

    def __init__(
        self,
        loop: Loop,
        firewall: Firewall,
        placement: Placement,
        handover: Handover,
        denied: Callable[[Denial], None],
        report: Callable[[str], None],
        opened: Callable[[str, Sequence[bytes]], None] | None = None,
        budget: Budget | None = None,
    ) -> None:
        """`denied` hears of refused names, `opened` of a name and the addresses that it opened or renewed; `budget`
        says what names may carry, whatever the policy."""
        self.loop = loop
        self.firewall = firewall
        self.placement = placement
        self.exemption = secret()
        self.generation = 0
        self.loaded = False
        self._handover = handover
        self._denied = denied
        self._report = report
        self._opened = opened
        self._budget = budget
        self._compiled: CompiledPolicy | None = None
        self._document = b""
        leases = Leases(names_per_address=NAMES_TO_SPEAK_TO) if any(placement.relay_ports) else Leases()
        self._learned = Learned(leases, firewall, handover, self._taught, report)
        self._spec: RulesetSpec | None = None
        self._loading = False
        self._waiting: list[Callable[[], None]] = []
        self._swept = 0.0
        self._unstamped = 0
        self._severed: set[bytes] = set()  # far ends of flows that are held cut
        self._earlier = False  # the first ruleset replaces one of an earlier life of the whole sidecar
        self._closed = False
        self.changed: Callable[[], None] = lambda: None  # called when another policy holds
        self.service: Service | None = None
        self.repairs = 0
        self._rulesets = 0  # that the kernel has taken
        self._changes = 0  # that were begun

    @property
    def updates(self) -> int:
        """How many rulesets and batches of addresses the kernel has taken from us."""
        return self._rulesets + self._learned.batches

    @property
    def rules(self) -> int:
        """How many rules, the operator's among them, are in force in the kernel."""
        return self._compiled.rule_count if self._compiled is not None and self.enforcing else 0

    @property
    def enforcing(self) -> bool:
        return self.placement.mode == "dns+nft"

    # -- policy --------------------------------------------------------------------------------------------------
    def start(self, compiled: CompiledPolicy, document: bytes, done: Callable[[BaseException | None], None]) -> None:
        """Load the first ruleset of this process; leases that an earlier one left are taken over."""
        now = self.loop.now()
        accepted = self._handover.policy()
        same = accepted is not None and accepted.document == document
        self._learned.inherit(compiled.port_classes(), now, same=same)
        if not len(self._learned.leases):
            self._adopt(compiled, now)
        if self._resume(compiled, document):
            self._begin(done)
        else:
            self.apply(compiled, document, None, done)

    def _resume(self, compiled: CompiledPolicy, document: bytes) -> bool:
        """A worker died and its ruleset stands, whole and of this very policy: nothing needs to be loaded."""
        accepted = self._handover.policy()
        if accepted is None or not accepted.secrets:
            return False
        mark, priority, stamp_mark, stamp_priority, flow_mark = accepted.secrets
        fresh = self.exemption
        self.exemption = Exemption(mark, priority)
        leases = self._learned.leases.rebase(decider(compiled, same=True), self.loop.now())
        stamp = Exemption(stamp_mark, stamp_priority)
        spec = self._specify(compiled, leases)._replace(stamp=stamp, flow_mark=flow_mark)
        try:
            if not self.firewall.resume(spec):
                self.exemption = fresh
                return False
        except (OSError, FirewallError):
            self.exemption = fresh
            return False
        self.generation = accepted.generation
        self._swap(compiled, document, spec, leases)
        return True

    def _begin(self, done: Callable[[BaseException | None], None]) -> None:
        """The first ruleset of this process stands. Nobody waits for the flows: first of all, DNS answers."""
        self.loaded = True
        done(None)
        self.loop.call_later(HEAD_START, self._catch_up)

    def _catch_up(self) -> None:
        if self._closed:
            return
        self.loop.run_in_thread(self.firewall.sweep, lambda *_: None)
        self._cut(lambda _: None)

    def _adopt(self, compiled: CompiledPolicy, now: float) -> None:
        """The whole sidecar starts again: what the standing table learned under this very policy still holds.

        The sets know addresses and times, not names, so these go with the next policy change.
        """
        try:
            standing = self.firewall.standing()
            self._earlier = standing is not None and standing.mode != "lockdown" and self._handover.policy() is None
            if standing is not None and standing.digest == digest(compiled):
                self._learned.read_back(compiled.port_classes(), now)
        except (OSError, FirewallError) as error:
            self._report(f"learned addresses could not be taken over: {error}")

    def apply(
        self,
        compiled: CompiledPolicy,
        document: bytes,
        commit: Callable[[], None] | None,
        done: Callable[[BaseException | None], None],
    ) -> None:
        """Make `compiled` hold everywhere, or nothing of it; `commit` runs once the kernel has it."""
        if self._loading:
            self._waiting.append(lambda: self.apply(compiled, document, commit, done))
            return
        self._loading = True
        self._changes += 1
        service = self.service
        if service is not None:
            service.hold()
        before, old_spec = self._learned.leases, self._spec
        same = self._compiled is None or digest(self._compiled) == digest(compiled)
        decide = decider(compiled, same=same)

        def work() -> tuple[RulesetSpec, Leases]:
            leases = before.rebase(decide, self.loop.now())
            spec = self._specify(compiled, leases)
            self.firewall.load(spec, sweep=self.loaded)
            if self._earlier:
                self._earlier = False
                try:
                    self.firewall.forget_redirects()
                except (OSError, FirewallError):
                    pass  # unused, they end by themselves
            self.generation += 1
            try:
                self._remember(document, leases, spec)
                if commit is not None:
                    commit()  # last: what follows a rename must not fail
            except BaseException:
                self.generation -= 1
                self._go_back(old_spec, before)
                raise
            return spec, leases

        def finished(result: tuple[RulesetSpec, Leases] | None, error: BaseException | None) -> None:
            if result is not None:
                self._rulesets += 1
                self._swap(compiled, document, *result)
            self._sweep_later()
            self._loading = False
            if self.service is not None and service is not None:
                service.release()
            if result is None:
                done(error)
            elif self.loaded:
                self._cut(done)  # the answer to a change says that it holds, for open flows too
            else:
                self._begin(done)
            self._next()

        self.loop.run_in_thread(work, finished)

    def _sweep_later(self) -> None:
        """When what the rules before have let through is under way; where changes follow each other closely, behind the
        last of them, but now and then all the same."""
        mine = self._changes

        def sweep() -> None:
            if not self._closed and (mine == self._changes or not mine % OFTEN):
                self.loop.run_in_thread(self.firewall.sweep, lambda *_: None)

        self.loop.call_later(UNDER_WAY, sweep)

    def _go_back(self, spec: RulesetSpec | None, leases: Leases) -> None:
        """The change could not be kept: the old ruleset again, with what is left of its leases."""
        if spec is None:
            self.firewall.lock()
        else:
            self.firewall.load(spec._replace(learned=by_class(leases, spec.classes, self.loop.now())))
            self._remember(self._document, leases, spec)

    def _swap(self, compiled: CompiledPolicy, document: bytes, spec: RulesetSpec, leases: Leases) -> None:
        self._compiled, self._document, self._spec = compiled, document, spec
        self._learned.replace(leases, spec.classes)
        interceptor = Interceptor(compiled, self.generation, self._denied, self._budget)
        if self.service is None:
            write = self._learned.write if self.enforcing else None
            self.service = Service(self.loop, interceptor, leases, write, self._learned.note, self._report)
        else:
            self.service.swap(interceptor, leases)
        self.changed()

    def _specify(self, compiled: CompiledPolicy, leases: Leases) -> RulesetSpec:
        classes = compiled.port_classes()
        return self.placement.specify(compiled, classes, by_class(leases, classes, self.loop.now()), self.exemption)

    def _remember(self, document: bytes, leases: Leases, spec: RulesetSpec) -> None:
        secrets = (*spec.exemption, *spec.stamp, spec.flow_mark)
        self._handover.store_leases(leases)
        self._handover.store_policy(Accepted(document, self.generation, secrets))

    def open_own(
        self, endpoint: tuple[bytes, str, int], done: Callable[[BaseException | None], None], most: int
    ) -> None:
        """Let the sidecar itself, with its exemption, reach one more endpoint; `done(None)` when it can."""
        place = self.placement
        if endpoint in place.own:
            done(None)
            return
        if self._compiled is None:
            done(RuntimeError("no policy is loaded"))
            return
        self.placement = place._replace(own=(*place.own[1 - most :], endpoint))
        self.apply(self._compiled, self._document, None, done)

    def _taught(self, news: Taught) -> None:
        """Tell of what an answer has opened; what was cut of it needs to be cut no longer."""
        opened = self._opened
        if opened is not None:
            by_name: dict[str, list[bytes]] = {}
            for packed, teaching in news:
                by_name.setdefault(teaching.name, []).append(packed)
            for name, addresses in by_name.items():
                opened(name, addresses)
        if self._severed and not self._severed.isdisjoint([packed for packed, _ in news]):
            self._severed -= {packed for packed, _ in news}
            self.loop.run_in_thread(self._lift, lambda *_: None)  # else they end a minute after they were last tried

    # -- flows ---------------------------------------------------------------------------------------------------
    def _allows(self, flow: Flow) -> bool:
        assert self._compiled is not None
        return allows(self._compiled, self._learned.leases, self.placement, flow)

    def _cut(self, done: Callable[[BaseException | None], None]) -> None:
        if not self.enforcing:
            done(None)
            return

        def work() -> set[bytes]:
            self.firewall.cut([flow for flow in self.firewall.flows() if flow.outgoing and not self._allows(flow)])
            return self._lift()

        def finished(held: set[bytes] | None, error: BaseException | None) -> None:
            if error is not None:
                self._report(f"flows that are no longer allowed could not all be cut: {error}")
            self._severed = held or set()
            done(None)

        self.loop.run_in_thread(work, finished)

    def _lift(self) -> set[bytes]:
        """Hold what is allowed again cut no longer; the far ends that go on being held. For the helper thread."""
        severed = self.firewall.severed()
        again = [flow for flow in severed if self._allows(flow)]
        self.firewall.lift(again)
        return {flow.remote for flow in severed} - {flow.remote for flow in again}

    # -- names (for the name guard) ------------------------------------------------------------------------------
    def judge_name(self, packed: bytes, port: int, name: str) -> Verdict:
        """Whether a new connection to a learned address may be for this name."""
        from egress.sni.verdict import Verdict, judge

        if self._compiled is None:
            return Verdict(False, (), "no policy is loaded")
        return judge(self._compiled, [taught for _, taught in self._learned.leases.named(packed)], NAMELESS, name, port)

    def still_allows(self, packed: bytes, port: int, name: str, chain: tuple[str, ...]) -> bool:
        """Whether the policy of now lets a connection that was let through go on."""
        return self._compiled is not None and still_allows(self._compiled, packed, port, name, chain)

    def names_of(self, packed: bytes) -> tuple[str, ...]:
        """The names whose answers led to this address."""
        return self._learned.names_of(packed)

    def spare(self, family: int) -> socket.socket:
        """A TCP socket for the relay, which reaches what names have opened and nothing else. Raises OSError."""
        relay = self._spec.relay if self._spec is not None else None
        if relay is None:
            raise OSError(errno.ENOTCONN, "no ruleset is loaded")
        return self.firewall.namespace.exempted(family, SOCK_STREAM, relay.exemption)

    # -- time ----------------------------------------------------------------------------------------------------
    def watch(self) -> None:
        """Start the timers: leases in use are renewed, a table that a neighbour removed is put back."""
        self._swept = self.loop.now()
        if self.enforcing:
            self.loop.call_later(SWEEP, self._sweep)
        self.loop.call_later(WATCH, self._look)

    def close(self) -> None:
        """Answer and look no more; the ruleset stands, and what is under way on the helper thread ends."""
        self._closed = True
        if self.service is not None:
            self.service.close()

    def _sweep(self) -> None:
        if self._closed:
            return
        now = self.loop.now()
        stood_still = now - self._swept - SWEEP
        self._swept = now
        self.loop.call_later(SWEEP, self._sweep)
        self._count_guesses()
        if self._loading:
            # In its turn: however often the policy changes, the leases of living flows are renewed.
            self._waiting.append(lambda: self._renew(stood_still))
        else:
            self._renew(stood_still)

    def _renew(self, stood_still: float) -> None:
        if not len(self._learned.leases):
            self._next()
            return
        if stood_still > STALL:
            self._learned.shift(stood_still, self.loop.now())

        def finished(active: set[bytes] | None, _: BaseException | None) -> None:
            try:
                if active is not None:
                    self._learned.used(active, self.loop.now())
            finally:  # whatever happens: else no policy would ever be taken again
                self._loading = False
                self._next()

        self._loading = True  # a change of the policy waits
        self.loop.run_in_thread(self.firewall.active, finished)

    def _next(self) -> None:
        if self._waiting and not self._loading:
            self._waiting.pop(0)()

    def _count_guesses(self) -> None:
        """Frames that came to the last door without the stamp are a packet socket's: a search gets another stamp."""
        seen = self.firewall.unstamped()
        fresh, self._unstamped = seen - self._unstamped, seen
        if fresh > GUESSES:
            self._report(f"{fresh} frames were sent past the IP path and dropped; the stamp is changed")
            self._handover.store_policy(Accepted(self._document, self.generation))  # its secrets are out of date
            self.loop.run_in_thread(self.firewall.restamp, lambda _, error: self._reloaded(error))

    def _look(self) -> None:
        if self._closed:
            return
        self.loop.call_later(WATCH, self._look)
        if self._loading or not self.loaded or self._compiled is None or self.firewall.intact():
            return
        self.repairs += 1
        self._report("somebody removed or changed the guard's tables; loading them again")
        self.apply(self._compiled, self._document, None, self._reloaded)

    def _reloaded(self, error: BaseException | None) -> None:
        if error is not None:
            self._report(f"the ruleset could not be loaded again: {error}")
