"""The play: one life of a sidecar, step by step, and after each step the comparison with the model.

look up · change the policy (POST, PUT, PATCH, DELETE, what is no policy) · open flows · let leases end
kill the worker, the whole sidecar; stop it for a moment; a neighbour deletes tables; resolvers are silent, slow, lie
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import signal
import time
from typing import TYPE_CHECKING, Any, Self

from lab import Sidecar
from lab.client import NoReply
from lab.rdata import address as record_of
from soak.flows import ECHO_TCP, STREAM, Flow, Visitor
from soak.model import Model, Probe, canonical
from soak.world import LIES, NAMES, SLEEPERS, World, family

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from lab import Lab
    from lab.reply import Reply

REFUSED = {"tcp": ("refused",), "udp": ("admin-prohibited", "dropped"), "echo": ("admin-prohibited", "dropped")}
"""What is heard at once; the kernel says few ICMP errors a second, and EPERM where it would be one more."""
PROBES = 14  # after each step
FLOWS = 12  # held open at most
_RECOVERY = 20.0  # seconds in which everything must be well again after a fault
_TELLS = 12  # steps of a story
_ENV = {"POLICY_FILE": "/var/egress/policy.json", "DNS_UPSTREAM_TIMEOUT": "2", "LOG_LEVEL": "error"}
_DORMANT = 1  # NFT_TABLE_F_DORMANT; nft writes a number where one of the flags is new to it
_REMOVALS = (
    "delete table inet sallyport", "delete table netdev sallyport", "delete table inet sallyport_cut",
    "flush ruleset", "flush table inet sallyport", "add table inet sallyport { flags dormant; }",
)  # fmt: skip


class Difference(AssertionError):
    """The sidecar does not do what a plain reading says; the text tells how it came to that."""


class Play:
    """One life. A context manager; `step` does one step with all its checks."""

    def __init__(self, lab: Lab, chance: random.Random) -> None:
        self.lab, self.chance = lab, chance
        self.world = World(chance)
        self.counts: collections.Counter[str] = collections.Counter()
        self.model = Model(self.world.policy())
        self.sidecar = Sidecar(lab, policy=self.model.document, env=_ENV, as_pid1=True)
        self.flows: list[Flow] = []
        self.story: list[tuple[int, str]] = []
        self.number = 0
        self._sleepers = list(SLEEPERS)
        self._asleep: list[tuple[float, str]] = []  # when its lease has ended for sure, address
        self._spoken_of: tuple[str, ...] = ()  # addresses that the last step was about
        self._undo = contextlib.ExitStack()
        weights: dict[Callable[[], None], int] = {
            self.look_up: 34, self.open_flow: 20, self.replace: 10, self.patch: 9, self.delete: 6, self.nonsense: 3,
            self.fall_asleep: 2, self.kill_worker: 3, self.restart: 2, self.stop_for_a_moment: 2, self.neighbour: 2,
            self.resolver_trouble: 7,
        }  # fmt: skip
        self._steps, self._weights = list(weights), list(weights.values())

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

    def step(self) -> None:
        """One step and everything that has to hold after it. Raises Difference."""
        self.number += 1
        self._spoken_of = ()
        (chosen,) = self.chance.choices(self._steps, self._weights)
        for flow in [flow for flow in self.flows if flow.over]:
            flow.close()
            self.flows.remove(flow)
        chosen()
        self.counts["steps"] += 1
        self.knock()
        self.wake()
        for flow in self.flows:
            if not flow.goes_on():
                self.differ(f"an open flow has ended ({flow.ended}), and nothing has forbidden it", flow.probe)
        if not self.visitor.is_served():
            self.differ("the connection from outside has ended")

    # -- comparing -------------------------------------------------------------------------------------------------
    def knock(self) -> None:
        """Some attempts, half of them where the last step may have changed something."""
        for _ in range(PROBES):
            self.attempt(self.world.probe(self._spoken_of or tuple(self.model.taught)))

    def attempt(self, probe: Probe) -> None:
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
            if heard == "timeout" and self.heard(probe) == "connected":
                return  # this machine was too busy
            self.differ(f"{probe} is allowed, and {heard}", probe)
        elif not expected and heard not in REFUSED[probe.protocol]:
            self.differ(f"{probe} is not allowed, and {heard}", probe)

    def heard(self, probe: Probe) -> str:
        if probe.protocol == "tcp":
            return self.lab.connect(probe.address, probe.port, timeout=3)
        if probe.protocol == "udp":
            return self.lab.udp(probe.address, probe.port, timeout=3)
        return self.lab.ping(probe.address, timeout=3)

    def settle_flows(self, *, changed: bool) -> None:
        """After a change: what the policy still allows goes on, the rest is dead now. After a fault that made the
        sidecar look at all flows anew the rest may be dead."""
        for flow in list(self.flows):
            expected = self.model.passes(flow.probe, time.monotonic())
            if expected:
                if not flow.goes_on():
                    self.differ(f"the open flow {flow.probe} is allowed, and was cut ({flow.ended})", flow.probe)
                continue
            if expected is False and changed:
                if not flow.is_dead():
                    self.differ(f"the open flow {flow.probe} is forbidden, and goes on", flow.probe)
                self.counts["flows cut"] += 1
            flow.close()  # nobody can say what becomes of it
            self.flows.remove(flow)

    def differ(self, what: str, probe: Probe | None = None) -> None:
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
    def look_up(self) -> None:
        self.ask(self.chance.choice(NAMES))

    def ask(self, name: str, *, troubled: bool = False) -> None:
        """One name, by UDP or TCP, in any case; the answer is what the policy leaves of the zone's."""
        entry = self.world.names[name]
        qtype = self.chance.choice(("A", "A", "AAAA"))
        tcp = self.chance.random() < 0.15
        spelt = name.upper() if self.chance.random() < 0.2 else name
        self._spoken_of = entry.addresses
        self.counts["look-ups"] += 1
        here = [address for address in entry.addresses if family(address) == qtype]
        if not self.model.answers(name, entry.chain):
            expected = None
        else:
            expected = sorted(address for address in here if self.model.passed_on(address))
        began = time.monotonic()
        deadline = began + (3.0 if troubled else _RECOVERY)
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

    def resolver_trouble(self) -> None:
        """The resolver is silent, slow, sends wrong or forged answers, for one question."""
        name = self.chance.choice(NAMES)
        lie = [("other.example.com", "A", 600, record_of(LIES[0])[1])]
        kind = self.chance.choice(("drop", "slow", "rcode", "short", "forged", "beside", "junk", "closed"))
        troubles: dict[str, dict[str, Any]] = {
            "drop": {"drop": True, "times": self.chance.randint(1, 6)},
            "slow": {"delay": self.chance.random() * 1.5, "times": 4},
            "rcode": {"rcode": self.chance.choice(("SERVFAIL", "REFUSED")), "times": 2},
            "short": {"truncate": True},
            "forged": {"forge": self.chance.choice(("port", "source", "id", "question")), "forged_address": LIES[0]},
            "beside": {"extra": lie},
            "junk": {"raw": self.chance.randbytes(self.chance.randint(2, 60)), "times": 2},
            "closed": {"drop_udp": True, "close": True, "times": 2},
        }
        self.tell(f"the resolver: {kind} for {name}")
        self.counts["faults"] += 1
        self.lab.dns.behave("*", **troubles[kind])
        try:
            self.ask(name, troubled=True)
        finally:
            self.lab.dns.normal("*")
        for address in LIES:
            self.attempt(self.world.at(address, "tcp"))

    # -- changing --------------------------------------------------------------------------------------------------
    def change(self, method: str, body: Any, document: dict[str, Any]) -> None:
        """Sent, answered, and at once in force: in the API's words, in packets, and for every open flow."""
        self.tell(f"{method} {json.dumps(body)}")
        self.counts["changes"] += 1
        answer = self.sidecar.api(method, "/policy", body, timeout=20)
        if answer.status != 200:
            self.differ(f"{method} {json.dumps(body)} was answered {answer.status} {answer.text}")
        self.model.change(document)
        self.settle_flows(changed=True)
        self.told()

    def told(self) -> None:
        now = self.sidecar.api("GET", "/policy", timeout=20).json()["policy"]
        if canonical(now) != canonical(self.model.document):
            self.differ(f"GET /policy says {json.dumps(now)}")

    def replace(self) -> None:
        document = self.world.policy() if self.chance.random() < 0.95 else {}
        whole = {"defaultAction": "deny", "egress": [], **document}
        self.change(self.chance.choice(("POST", "POST", "PUT")), document, whole)

    def patch(self) -> None:
        rules = self.world.rules(3)
        if len(self.model.document["egress"]) > 24:
            self.replace()
        else:
            self.change("PATCH", rules, self.model.patch(rules))

    def delete(self) -> None:
        """One or two rules that are there, by target or in full; sometimes one that is not."""
        rules = self.model.document["egress"]
        if not rules:
            self.patch()
            return
        selectors: list[Any] = []
        for rule in self.chance.sample(rules, min(len(rules), self.chance.randint(1, 2))):
            whole = self.chance.random() < 0.5
            some = {name: value for name, value in rule.items() if name not in ("action", "comment")}
            selectors.append(rule["target"] if whole else some)
        if self.chance.random() < 0.2:
            selectors.append("nobody.example.com")
        self.change("DELETE", selectors, self.model.delete(selectors))

    def nonsense(self) -> None:
        """What is no policy changes nothing."""
        body = self.chance.choice((
            '{"egress": [{"action": "allow"}]}', '{"defaultAction": "permit"}', "{", '{"egress": [], "x": 1}',
            '{"egress": [{"action": "allow", "target": "a..b"}]}', '{"defaultAction": "allow", "egress": [{}]}',
        ))  # fmt: skip
        self.tell(f"POST {body}")
        answer = self.sidecar.api("POST", "/policy", body, timeout=20)
        if answer.status != 400:
            self.differ(f"POST {body} was answered {answer.status}")
        self.told()

    # -- flows and leases ------------------------------------------------------------------------------------------
    def open_flow(self) -> None:
        """One that is allowed: to an echo, or to a peer that sends by itself."""
        if len(self.flows) >= FLOWS:
            self.flows.pop(self.chance.randrange(FLOWS)).close()
        known = tuple(self.model.taught)
        for _ in range(60):
            probe = self.world.probe(known)
            if probe.protocol == "echo":
                continue
            if probe.protocol == "tcp":
                probe = probe._replace(port=self.chance.choice(ECHO_TCP))
            if self.chance.random() < 0.2:
                probe = probe._replace(port=STREAM)
            if not self.model.passes(probe, time.monotonic()):
                continue
            self.tell(f"opens {probe}")
            self.model.used.add(probe.address)
            try:
                self.flows.append(Flow(self.lab, probe))
            except OSError as error:
                self.differ(f"{probe} is allowed, and cannot be opened: {error}", probe)
            self.counts["flows"] += 1
            return

    def fall_asleep(self) -> None:
        """A name is asked whose address nobody uses: it is looked at again when its lease must have ended."""
        if not self._sleepers:
            self.look_up()
            return
        name, address = self._sleepers.pop()
        self.ask(name)
        taught = self.model.taught.get(address, {}).get(name)
        if taught is not None:
            self._asleep.append((taught.over, address))

    def wake(self) -> None:
        """Leases that nobody used end by time."""
        now = time.monotonic()
        for one in [one for one in self._asleep if one[0] < now]:
            self._asleep.remove(one)
            self.counts["leases ended"] += 1
            self.attempt(Probe("tcp", one[1], 80))

    # -- faults ----------------------------------------------------------------------------------------------------
    def kill_worker(self) -> None:
        self.tell("the worker is killed")
        self.counts["faults"] += 1
        self.sidecar.kill_worker()
        self.knock()  # the rules stand meanwhile
        self.sidecar.wait_ready(_RECOVERY)
        self.told()

    def restart(self) -> None:
        """The whole sidecar ends; nothing but the rules is there for a while."""
        gently = self.chance.random() < 0.4
        self.tell("the sidecar ends and starts again" if gently else "the sidecar is killed and starts again")
        self.counts["faults"] += 1
        if gently:
            self.sidecar.terminate(_RECOVERY)
        else:
            self.sidecar.kill()
        self.knock()
        self.model.forget_names()
        self.sidecar.restart()
        self.told()
        self.settle_flows(changed=False)

    def stop_for_a_moment(self) -> None:
        self.tell("the worker stands still")
        self.counts["faults"] += 1
        pid = self.sidecar.worker_pid
        os.kill(pid, signal.SIGSTOP)
        try:
            self.knock()
            time.sleep(self.chance.random() * 0.5)
        finally:
            os.kill(pid, signal.SIGCONT)

    def neighbour(self) -> None:
        """Somebody takes tables away; they are back, and so is everything in them."""
        removal = self.chance.choice(_REMOVALS)
        while not (before := self.chains()):
            time.sleep(0.05)
        self.tell(f"a neighbour: {removal}")
        self.counts["faults"] += 1
        self.lab.sandbox.nft(removal + "\n")
        deadline = time.monotonic() + _RECOVERY
        while self.chains() != before:
            if time.monotonic() > deadline:
                self.differ(f"{removal}: not repaired: {self.chains() ^ before}")
            time.sleep(0.05)
        self.told()
        self.settle_flows(changed=False)

    def chains(self) -> set[tuple[str, str, bool]]:
        """The guard's chains that are hooked, and whether there are rules in them; nothing in the midst of a change."""
        try:
            listing = json.loads(self.lab.sandbox.run(["nft", "-j", "list", "ruleset"]).stdout)["nftables"]
        except ValueError:
            return set()  # nft begins anew when the ruleset changes while it reads, in the middle of its JSON
        flags = [entry["table"].get("flags", []) for entry in listing if "table" in entry]
        if any(one & _DORMANT if isinstance(one, int) else "dormant" in one for one in flags):
            return set()
        ruled = {(e["rule"]["family"], e["rule"]["table"], e["rule"]["chain"]) for e in listing if "rule" in e}
        hooked = [entry["chain"] for entry in listing if "chain" in entry and "hook" in entry["chain"]]
        return {
            (f"{c['family']} {c['table']}", c["name"], (c["family"], c["table"], c["name"]) in ruled)
            for c in hooked
            if c["table"].startswith("sallyport")
        }
