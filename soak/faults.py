"""What goes wrong: resolvers, processes, neighbours. Nothing of it may open or close anything for long."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from typing import Any

from lab.errors import LabError
from lab.rdata import address as record_of
from soak.speech import Talk
from soak.stage import RECOVERY, Stage
from soak.world import LIES, NAMES

_DORMANT = 1  # NFT_TABLE_F_DORMANT; nft writes a number where one of the flags is new to it
_REMOVALS = (
    "delete table inet sallyport", "delete table netdev sallyport", "delete table inet sallyport_cut",
    "flush ruleset", "flush table inet sallyport", "add table inet sallyport { flags dormant; }",
)  # fmt: skip
_REMOVALS_DNS = (_REMOVALS[0], *_REMOVALS[3:])  # of the one table that there is in mode dns


class Faults(Stage):
    """The steps that break something."""

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

    def kill_worker(self) -> None:
        self.tell("the worker is killed")
        self.counts["faults"] += 1
        self.sidecar.kill_worker()
        self.knock_meanwhile()
        self.sidecar.wait_ready(RECOVERY)
        self.told()

    def restart(self) -> None:
        """The whole sidecar ends; nothing but the rules is there for a while."""
        gently = self.chance.random() < 0.4
        self.tell("the sidecar ends and starts again" if gently else "the sidecar is killed and starts again")
        self.counts["faults"] += 1
        if gently:
            self.sidecar.terminate(RECOVERY)
        else:
            self.sidecar.kill()
        self.hang_up()
        self.knock_meanwhile()
        self.model.forget_names()
        self.sidecar.restart()
        self.told()
        self.settle_flows(changed=False)

    def kill_relay(self) -> None:
        """The name guard's process: its connections end, new ones wait for the next one."""
        self.tell("the name guard's process is killed")
        self.counts["faults"] += 1
        before = self.relay()
        if not before:
            return  # it has not come back yet
        os.kill(before, signal.SIGKILL)
        self.hang_up()
        self.knock_meanwhile()
        deadline = time.monotonic() + RECOVERY
        while self.relay() in (0, before):
            if time.monotonic() > deadline:
                self.differ("no other process of the name guard is started")
            time.sleep(0.05)

    def relay(self) -> int:
        """The process id of the name guard's process, 0 where there is none at the moment."""
        with contextlib.suppress(LabError):
            return self.sidecar.relay_pid
        return 0

    def hang_up(self) -> None:
        """Connections that were relayed are nobody's any more."""
        for flow in [flow for flow in self.flows if isinstance(flow, Talk)]:
            flow.close()
            self.flows.remove(flow)

    def knock_meanwhile(self) -> None:
        """The rules stand; nobody may be there to judge names."""
        self.unwell = True
        try:
            self.knock()
        finally:
            self.unwell = False

    def stop_for_a_moment(self) -> None:
        self.tell("the worker stands still")
        self.counts["faults"] += 1
        pid = self.sidecar.worker_pid
        os.kill(pid, signal.SIGSTOP)
        try:
            self.knock_meanwhile()
            time.sleep(self.chance.random() * 0.5)
        finally:
            os.kill(pid, signal.SIGCONT)

    def neighbour(self) -> None:
        """Somebody takes tables away; they are back, and so is everything in them."""
        removal = self.chance.choice([one for one in _REMOVALS if self.kind != "dns" or one in _REMOVALS_DNS])
        while not (before := self.chains()):
            time.sleep(0.05)
        self.tell(f"a neighbour: {removal}")
        self.counts["faults"] += 1
        if removal not in _REMOVALS[1:3]:
            self.hang_up()  # without the chain nothing translates their packets: one that is sent now is their end
        self.lab.sandbox.nft(removal + "\n")
        deadline = time.monotonic() + RECOVERY
        # Twice: a listing that the repair overtakes has its tables from after and its chains from before.
        while self.chains() != before or self.chains() != before:
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
