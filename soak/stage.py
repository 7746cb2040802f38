"""The stage: the sidecar, the model of it, and everything that is compared between the two."""

from __future__ import annotations

import collections
import contextlib
import json
import time
from typing import TYPE_CHECKING, Any, NoReturn, Self

from lab import Sidecar
from lab.client import NoReply
from soak.flows import Flow, Visitor
from soak.kinds import KINDS, WEB
from soak.model import Probe, canonical
from soak.speech import hear
from soak.world import NAMES, STRANGER, World, family

if TYPE_CHECKING:
    import random

    from lab import Lab, http
    from lab.reply import Reply

REFUSED = {"tcp": ("refused",), "udp": ("admin-prohibited", "dropped"), "echo": ("admin-prohibited", "dropped")}
"""What is heard at once; the kernel says few ICMP errors a second, and EPERM where it would be one more."""
PROBES = 14  # after each step
RECOVERY = 60.0  # seconds in which everything must be well again after a fault, and the API must have answered
_TELLS = 12  # steps of a story
_ENV = {"POLICY_FILE": "/var/egress/policy.json", "DNS_UPSTREAM_TIMEOUT": "2", "LOG_LEVEL": "error"}


class Difference(AssertionError):
    """The sidecar does not do what a plain reading says; the text tells how it came to that."""


class Stage:
    """One sidecar with its world. A context manager."""

    def __init__(self, lab: Lab, chance: random.Random, kind: str = "dns+nft") -> None:
        """`kind` is one of KINDS."""
        self.lab, self.chance, self.kind = lab, chance, kind
        self.guards = kind == "guard"
        self.world = World(chance)
        self.counts: collections.Counter[str] = collections.Counter()
        self.model = KINDS[kind].model(self.world.policy())
        env = {**_ENV, **KINDS[kind].env}
        self.sidecar = Sidecar(lab, policy=self.model.document, env=env, as_pid1=True)
        self.flows: list[Flow] = []
        self.story: list[tuple[int, str]] = []
        self.number = 0
        self.unwell = False  # the guard cannot judge at the moment: what it should let through it may refuse
        self.spoken_of: tuple[str, ...] = ()  # addresses that the last step was about
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self.world.publish(self.lab.dns)
        self.lab.dns.set_logging(False)
        with contextlib.ExitStack() as undo:
            undo.enter_context(self.sidecar)
            self.visitor = undo.enter_context(Visitor(self.lab))
            self._undo = undo.pop_all()
        self.tell(f"begins with {json.dumps(self.model.document)}")
        return self

    def __exit__(self, *_: object) -> None:
        for flow in self.flows:
            flow.close()
        self._undo.close()

    def tell(self, words: str) -> None:
        self.story.append((self.number, words))

    # -- comparing -------------------------------------------------------------------------------------------------
    def knock(self) -> None:
        """Some attempts, half of them where the last step may have changed something."""
        for _ in range(PROBES):
            self.attempt(self.world.probe(self.spoken_of or tuple(self.model.taught)))

    def attempt(self, probe: Probe) -> str:
        """Try it, compare, and say what was heard."""
        if self.guards and probe.name is None and probe.protocol == "tcp" and probe.port in WEB:
            probe = probe._replace(name=self.claim(probe.address))
        now = time.monotonic()
        expected = self.model.passes(probe, now)
        heard = self.heard(probe)
        self.counts["attempts"] += 1
        if heard == "connected":
            self.counts["passed"] += 1
            self.model.used.add(probe.address)
        if expected is None:
            self.counts["left open"] += 1
        elif expected and heard != "connected":
            if self.unwell and probe.name is not None:
                return heard
            if heard in ("timeout", "reset") and self.heard(probe) == "connected":
                self.counts["slow"] += 1  # this machine was too busy: the guard waits for a name, and a verdict, 1.5 s
                return "connected"
            self.differ(f"{probe} is allowed, and {heard}", probe)
        elif not expected and heard not in REFUSED[probe.protocol] and (heard != "reset" or probe.name is None):
            self.differ(f"{probe} is not allowed, and {heard}", probe)
        return heard

    def claim(self, address: str) -> str:
        """A name for a connection there: one of those that have the address, or any, or none."""
        chance = self.chance
        here = [entry.name for entry in self.world.names.values() if address in entry.addresses]
        name = chance.choice((*here, *here, *here, chance.choice(NAMES), STRANGER, ""))
        return name.upper() if chance.random() < 0.1 else name

    def heard(self, probe: Probe) -> str:
        if probe.name is not None:
            return hear(self.lab, probe)
        if probe.protocol == "tcp":
            return self.lab.connect(probe.address, probe.port, timeout=3)
        if probe.protocol == "udp":
            return self.lab.udp(probe.address, probe.port, timeout=3)
        return self.lab.ping(probe.address, timeout=3)

    def settle_flows(self, *, changed: bool) -> None:
        """After a change: what the policy still allows goes on, the rest is dead now. After a fault that made the
        sidecar look at all flows anew the rest may be dead."""
        for flow in list(self.flows):
            expected = self.model.keeps(flow.probe, flow.chain, time.monotonic())
            if expected:
                if not flow.goes_on():
                    self.differ(f"the open flow {flow.probe} is allowed, and was cut ({flow.ended})", flow.probe)
                continue
            if expected is False and changed:
                if not flow.is_dead():
                    self.differ(f"the open flow {flow.probe} is forbidden, and goes on", flow.probe)
                self.counts["talks cut" if flow.probe.name else "flows cut"] += 1
            flow.close()  # nobody can say what becomes of it
            self.flows.remove(flow)

    def differ(self, what: str, probe: Probe | None = None) -> NoReturn:
        """Tell how it came to that, as shortly as it can be told."""
        lines = [what, f"policy: {json.dumps(self.model.document)}"]
        about: list[str] = []
        if probe is not None:
            lines.append(f"reading: {self.model.because(probe, time.monotonic())}")
            about = [probe.address, *self.model.taught.get(probe.address, ())]
            lines += self.kernel(probe.address)
        last = self.story[-_TELLS:]
        earlier = [one for one in self.story[:-_TELLS] if any(word in one[1] for word in about)][-_TELLS:]
        lines += [f"  {number}: {words}" for number, words in (*earlier, *last)]
        log = "\n".join(self.sidecar.log.splitlines()[-15:])
        raise Difference("\n".join(lines) + f"\nthe sidecar's last words:\n{log}")

    def kernel(self, address: str) -> list[str]:
        """What conntrack and the sets of cut flows have about it."""
        tool = ["conntrack", "-L", "-f", "ipv6" if ":" in address else "ipv4", "-d", address]
        tracked = self.lab.sandbox.run(tool).stdout.splitlines()
        cut = self.lab.sandbox.run(["nft", "list", "table", "inet", "sallyport_cut"]).stdout
        held = [line.strip() for line in cut.splitlines() if address in line]
        return [f"conntrack: {line}" for line in tracked] + [f"cut: {line}" for line in held]

    # -- looking up ------------------------------------------------------------------------------------------------
    def ask(self, name: str, qtype: str = "", *, troubled: bool = False) -> None:
        """One name, by UDP or TCP, in any case; the answer is what the policy leaves of the zone's."""
        entry = self.world.names[name]
        qtype = qtype or self.chance.choice(("A", "A", "AAAA"))
        tcp = self.chance.random() < 0.15
        spelt = name.upper() if self.chance.random() < 0.2 else name
        self.spoken_of = entry.addresses
        self.counts["look-ups"] += 1
        here = [address for address in entry.addresses if family(address) == qtype]
        if not self.model.answers(name, entry.chain):
            expected = None
        else:
            expected = sorted(address for address in here if self.model.passed_on(address))
        began = time.monotonic()
        deadline = began + (3.0 if troubled else RECOVERY)
        while True:
            reply = self.reply(spelt, qtype, tcp=tcp)
            if reply is not None and reply.rcode != "SERVFAIL":
                break
            if time.monotonic() > deadline:
                if not troubled:
                    self.differ(f"{name} {qtype} is not answered ({reply})")
                for address in expected or ():
                    self.model.learned(name, entry.chain, address, entry.ttl, time.monotonic(), certain=False)
                self.tell(f"asks {name} {qtype}: no answer")
                return
            self.counts["asked again"] += 1
            time.sleep(0.05)
        said = reply.rcode if reply.rcode != "NOERROR" else sorted(reply.addresses)
        self.tell(f"asks {spelt} {qtype}{' by TCP' * tcp}: {said}")
        wanted = "NXDOMAIN" if expected is None else expected
        if said != wanted:
            self.differ(f"{name} {qtype} has to be answered {wanted}, not {said}")
        left = min(reply.ttls, default=0)
        for address in expected or ():
            self.model.learned(name, entry.chain, address, left, began)

    def reply(self, name: str, qtype: str, *, tcp: bool) -> Reply | None:
        try:
            return self.lab.query(name, qtype, tcp=tcp, timeout=5)
        except NoReply:
            return None

    def api(self, method: str, body: Any = None) -> http.Response:
        """One request about the policy."""
        try:
            return self.sidecar.api(method, "/policy", body, timeout=RECOVERY)
        except TimeoutError:
            self.differ(f"{method} {json.dumps(body)} is not answered")

    def told(self) -> None:
        answer = self.api("GET").json()
        now, mode = answer["policy"], answer["enforcementMode"]
        if mode != KINDS[self.kind].mode:
            self.differ(f"GET /policy says that what is enforced is {mode}")
        if canonical(now) != canonical(self.model.document):
            self.differ(f"GET /policy says {json.dumps(now)}")
