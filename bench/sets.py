"""Learned addresses: what one costs, and whether renewing them ever loses a packet.

Both run on the real ruleset, loaded in a namespace, through the same code that the sidecar's worker uses.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import socket
import statistics
import time
from typing import TYPE_CHECKING, NamedTuple

from bench.place import UPSTREAM_PORT
from egress.firewall.guardhouse import Firewall
from egress.firewall.ruleset import RulesetSpec
from egress.netns import Exemption
from egress.netns import Namespace as Door
from policies.matcher import CompiledPolicy, compile_policy
from policies.parser import parse_policy

if TYPE_CHECKING:
    from bench.place import Place, Sandbox

LEASE = 120_000  # ms
_DISCARD = 9  # a port
_UNTRACKED = """
table inet bench {{
  chain raw_out {{
    type filter hook output priority -310; policy accept;
    ip daddr {address} udp dport {port} notrack
  }}
}}
"""
_COUNTED = """
table inet bench {{
  chain arrived {{
    type filter hook prerouting priority -310; policy accept;
    ip daddr {address} udp dport {port} counter drop
  }}
}}
"""


class Cost(NamedTuple):
    """µs at the median."""

    new: float
    again: float


class Loss(NamedTuple):
    sent: int
    arrived: int
    refused: int
    renewals: int
    control: int  # packets of a hundred that arrived before the address was learned


def policy(static: int) -> CompiledPolicy:
    """Names, and as many networks that do not touch each other."""
    rules = [{"action": "allow", "target": "*.example.com"}]
    for number in range(static):
        packed = ((11 << 24) + number * 512).to_bytes(4, "big")
        rules.append({"action": "allow", "target": f"{socket.inet_ntoa(packed)}/24"})
    return compile_policy(parse_policy(json.dumps({"defaultAction": "deny", "egress": rules}).encode()))


def guarded(sandbox: Sandbox, compiled: CompiledPolicy) -> Firewall:
    """The sandbox with this policy's ruleset standing."""
    firewall = Firewall(Door(sandbox.namespace.fd))
    firewall.lock()
    firewall.load(
        RulesetSpec(
            mode="dns+nft",
            default_allow=False,
            plan=compiled.address_plan(),
            classes=compiled.port_classes(),
            learned={},
            upstreams=((socket.inet_aton(sandbox.gateway), UPSTREAM_PORT),),
            exempt=(),
            doh_all=False,
            doh_networks=(),
            dns_ports=(5301, 5301, 0, 0),
            own=(),
            exemption=Exemption(1, 1),
            stamp=Exemption(2, 2),
            flow_mark=3,
        )
    )
    return firewall


def update_costs(place: Place, sizes: tuple[int, ...], rounds: int, count: int) -> dict[int, list[Cost]]:
    """One address a write, as for a single answer; the sizes take turns."""
    firewalls = {size: guarded(place.sandbox(f"set{size}"), policy(size)) for size in sizes}
    found: dict[int, list[Cost]] = {size: [] for size in sizes}
    next_address = 47 << 24
    clock = time.perf_counter_ns
    try:
        for number in range(rounds + 1):
            for size, firewall in firewalls.items():
                medians = []
                batch = [(next_address + index).to_bytes(4, "big") for index in range(count)]
                next_address += count
                for _ in range(2):
                    taken = []
                    for packed in batch:
                        begin = clock()
                        firewall.write_learned({0: {packed: LEASE}})
                        taken.append(clock() - begin)
                    medians.append(statistics.median(taken) / 1000)
                if number:  # the first round warms up
                    found[size].append(Cost(*medians))
    finally:
        for firewall in firewalls.values():
            firewall.close()
    return found


def lost_packets(place: Place, packets: int) -> Loss:
    """Send to a learned address while another core renews its element without a pause.

    The packets are not tracked, so that each of them is looked up in the set; what arrives is counted by the kernel at
    the other end of the cable.
    """
    sandbox = place.sandbox("loss")
    address = socket.inet_aton("48.0.0.1")
    text = socket.inet_ntoa(address)
    sandbox.namespace.nft(_UNTRACKED.format(address=text, port=_DISCARD))
    place.internet.nft(_COUNTED.format(address=text, port=_DISCARD))
    firewall = guarded(sandbox, policy(0))
    try:
        _send(sandbox, text, 100)
        control = _arrived(place)
        firewall.write_learned({0: {address: LEASE}})
        shared = mmap.mmap(-1, 8)
        child = _renewer(place, firewall, address, shared)
        try:
            while not int.from_bytes(shared[:8], "little"):
                time.sleep(0.001)
            refused = _send(sandbox, text, packets)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        return Loss(packets, _arrived(place) - control, refused, int.from_bytes(shared[:8], "little"), control)
    finally:
        firewall.close()


def _renewer(place: Place, firewall: Firewall, address: bytes, shared: mmap.mmap) -> int:
    child = os.fork()
    if child:
        return child
    try:
        os.sched_setaffinity(0, place.cores.server)
        firewall.reopen()
        done = 0
        while os.getppid() != 1:
            firewall.write_learned({0: {address: LEASE}})
            done += 1
            shared[:8] = done.to_bytes(8, "little")
    finally:
        os._exit(1)


def _send(sandbox: Sandbox, address: str, packets: int) -> int:
    """How many of them the kernel refused to send."""
    refused = 0
    with sandbox.namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        target = (address, _DISCARD)
        sendto = sock.sendto
        for _ in range(packets):
            try:
                sendto(b"x", target)
            except OSError:
                refused += 1
    return refused


def _arrived(place: Place) -> int:
    listed = json.loads(
        place.internet.run(["nft", "-j", "list", "chain", "inet", "bench", "arrived"], check=True).stdout
    )
    for entry in listed["nftables"]:
        for part in entry.get("rule", {}).get("expr", ()):
            if "counter" in part:
                return int(part["counter"]["packets"])
    raise RuntimeError("no counter in inet bench")
