"""Floods of DNS beside an honest client: what is offered, what is taken, what the honest one feels."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.contenders import Ours
from bench.place import program

if TYPE_CHECKING:
    from bench.place import Place

RATE = 50_000  # questions a second
CONNECTIONS = 500  # of TCP, a second
SOCKETS = 4000
POLICY: dict[str, Any] = {
    "defaultAction": "deny",
    "egress": [
        *({"action": "allow", "target": f"service{index}.example.org"} for index in range(8)),
        {"action": "allow", "target": "*.flood.example.com"},
        {"action": "allow", "target": "*.honest.example.com"},
        {"action": "allow", "target": "same.example.org"},
    ],
}
EVERY_NAME: dict[str, Any] = {"defaultAction": "deny", "egress": [{"action": "allow", "target": "*"}]}


class Flood(NamedTuple):
    """One way to flood; of `sockets` 1 is one source port."""

    what: str
    kind: str
    sockets: int
    policy: dict[str, Any] = POLICY


FLOODS = (
    Flood("none: the control", "", 0),
    Flood("allowed names, one socket", "distinct", 1),
    Flood("allowed names", "distinct", SOCKETS),
    Flood("allowed names, an address each", "addressed", SOCKETS),
    Flood("allowed names that nobody answers", "unheard", SOCKETS),
    Flood("denied names, one socket", "denied", 1),
    Flood("denied names", "denied", SOCKETS),
    Flood("one name, one socket", "same", 1),
    Flood("one name", "same", SOCKETS),
    Flood("garbage, one socket", "garbage", 1),
    Flood("garbage", "garbage", SOCKETS),
    Flood("any name allowed: a new zone each time", "zones", SOCKETS, EVERY_NAME),
    Flood("TCP, 100 connections full of denied names", "pipeline", 100),
    Flood(f"TCP, {CONNECTIONS} connections a second, slow and half open", "stream", 0),
)


class Shipped(Ours):
    """With the budgets that it has by default, and the policy that it is told."""

    policy: dict[str, Any] = POLICY

    def env(self) -> dict[str, str]:
        ours = {key: value for key, value in super().env().items() if "NAME_BUDGET" not in key}
        return {**ours, "OPENSANDBOX_EGRESS_RULES": json.dumps(self.policy)}

    def answers(self) -> bool:
        return self.running.alive() and self.ready()


class Found(NamedTuple):
    """What one flood came to."""

    flood: Flood
    offered: float  # a second
    taken: float  # a second: out of the queue, whatever came of them
    cpu: float  # share of its core
    growth: float  # MB of both processes, at the most
    known: list[float | None]  # seconds, of honest questions
    new: list[float | None]
    calls: list[float | None]

    @property
    def asked(self) -> list[float | None]:
        return self.known + self.new

    def quantile(self, percent: int) -> float:
        """ms; what failed counts as a second."""
        took = sorted(1.0 if one is None else one for one in self.asked)
        return took[min(len(took) - 1, len(took) * percent // 100)] * 1000

    def unanswered(self) -> int:
        """Calls of the API."""
        return sum(one is None for one in self.calls)

    def slowest(self) -> float:
        """ms, of the API."""
        return max(1.0 if one is None else one for one in self.calls) * 1000


def dropped(ours: Shipped) -> int:
    """Datagrams that did not fit into a receive queue of the sidecar's (proc(5), net/udp)."""
    lines = Path(f"/proc/{ours.running.pid}/net/udp").read_text().splitlines()[1:]
    return sum(int(line.split()[-1]) for line in lines if line.split()[1].startswith("0100007F"))


def flooded(place: Place, ours: Shipped, flood: Flood, seconds: float) -> Found:
    """A life of its own for each flood."""
    ours.policy = flood.policy
    ours.start()
    process, sandbox = ours.running, ours.sandbox.namespace
    host = ours.sandbox.gateway
    program(place, sandbox, "bench.honest", 1, host).communicate(timeout=20)  # all is warm
    before, used, lost = process.pss(), process.cpu(), dropped(ours)
    worker = process.pids()[1:]
    begin = time.monotonic()
    honest = program(place, sandbox, "bench.honest", seconds, host)
    attack = None
    if flood.kind:
        rate = CONNECTIONS if flood.kind == "stream" else RATE
        attack = program(place, sandbox, "bench.flood", flood.kind, flood.sockets, rate, seconds, host)
    most = before
    while honest.poll() is None or (attack is not None and attack.poll() is None):
        most = max(most, process.pss())
        time.sleep(0.5)
    took = time.monotonic() - begin
    if process.pids()[1:] != worker:
        raise RuntimeError(f"{flood.what}: the worker did not survive it")
    told = json.loads(honest.communicate()[0])
    sent, sending = 0, 1.0
    if attack is not None:
        done = json.loads(attack.communicate()[0])
        sent, sending = done["sent"], done["seconds"]
    taken = max(0, sent - (dropped(ours) - lost))
    return Found(
        flood, sent / sending, taken / sending, (process.cpu() - used) / took, most - before,
        told["known"], told["new"], told["calls"],
    )  # fmt: skip
