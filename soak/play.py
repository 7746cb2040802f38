"""The play: one life of a sidecar, step by step, and after each step the comparison with the model.

look up · change the policy (POST, PUT, PATCH, DELETE, what is no policy) · open flows · let leases end · ask for all
names of an address, and speak to each there · `faults`
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from soak.faults import Faults
from soak.flows import ECHO_TCP, STREAM, Flow
from soak.kinds import WEB, Guarded
from soak.model import Probe
from soak.speech import Talk
from soak.stage import Difference
from soak.world import NAMES, SLEEPERS, STRANGER, family

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from lab import Lab

FLOWS = 12  # held open at most

__all__ = ["Difference", "Play"]


class Play(Faults):
    """One life. A context manager; `step` does one step with all its checks."""

    def __init__(self, lab: Lab, chance: random.Random, kind: str = "dns+nft") -> None:
        super().__init__(lab, chance, kind)
        self._sleepers = list(SLEEPERS)
        self._asleep: list[tuple[float, str]] = []  # when its lease has ended for sure, address
        weights: dict[Callable[[], None], int] = {
            self.look_up: 34, self.open_flow: 20, self.replace: 10, self.patch: 9, self.delete: 6, self.nonsense: 3,
            self.fall_asleep: 2, self.kill_worker: 3, self.restart: 2, self.stop_for_a_moment: 2, self.neighbour: 2,
            self.resolver_trouble: 7,
        }  # fmt: skip
        if self.guards:
            weights |= {self.open_talk: 15, self.share: 12, self.kill_relay: 2}
        self._steps, self._weights = list(weights), list(weights.values())

    def step(self) -> None:
        """One step and everything that has to hold after it. Raises Difference."""
        self.number += 1
        self.spoken_of = ()
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

    def look_up(self) -> None:
        self.ask(self.chance.choice(NAMES))

    # -- changing --------------------------------------------------------------------------------------------------
    def change(self, method: str, body: Any, document: dict[str, Any]) -> None:
        """Sent, answered, and at once in force: in the API's words, in packets, and for every open flow."""
        self.tell(f"{method} {json.dumps(body)}")
        self.counts["changes"] += 1
        answer = self.api(method, body)
        if answer.status != 200:
            self.differ(f"{method} {json.dumps(body)} was answered {answer.status} {answer.text}")
        self.model.change(document)
        self.settle_flows(changed=True)
        self.told()

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
        answer = self.api("POST", body)
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

    def open_talk(self) -> None:
        """One that goes by its name, on 80 or 443."""
        model = self.model
        assert isinstance(model, Guarded)
        if len(self.flows) >= FLOWS:
            self.flows.pop(self.chance.randrange(FLOWS)).close()
        found = self.relayed(model)
        if not found:
            self.share()
            found = self.relayed(model)
        if not found:
            return
        probe, chain = self.chance.choice(found)
        self.tell(f"opens {probe}")
        if self.attempt(probe) != "connected":
            return
        try:
            self.flows.append(Talk(self.lab, probe, chain))
        except OSError as error:
            self.tell(f"it was not opened: {error}")
            self.attempt(probe)  # this machine is too busy, or here it differs
            return
        self.counts["talks"] += 1

    def relayed(self, model: Guarded) -> list[tuple[Probe, tuple[str, ...]]]:
        """Where a connection passes because of its name, and that name's chain."""
        now = time.monotonic()
        every = [
            (Probe("tcp", address, port, name), one.chain)
            for address, teachings in model.taught.items()
            for name, one in teachings.items()
            for port in WEB
        ]
        return [one for one in every if model.relays(one[0], now) and model.passes(one[0], now)]

    def share(self) -> None:
        """All names of an address are asked for, and each is spoken to there; best where not all are allowed."""
        shared = self.world.shared()

        def allowed(address: str) -> int:
            return sum(self.model.answers(name, self.world.names[name].chain) for name in shared[address])

        mixed = [address for address in shared if 0 < allowed(address) < len(shared[address])]
        address = self.chance.choice(mixed or list(shared))
        for name in shared[address]:
            self.ask(name, family(address))
        for port in WEB:
            probes = [Probe("tcp", address, port, name) for name in (*shared[address], STRANGER)]
            heard = {self.attempt(probe) for probe in probes}
            self.counts["shared"] += heard == {"connected", "reset"}

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
