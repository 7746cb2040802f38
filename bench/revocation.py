"""A policy change that forbids half of a thousand open flows, TCP and UDP, whose both ends keep sending."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, NamedTuple

from bench.life import call
from bench.place import program

if TYPE_CHECKING:
    from bench.floods import Shipped
    from bench.place import Place

FLOWS = 1000
_PORT = 7007
_GONE, _KEPT = "198.51.100.31", "198.51.100.32"


class Cut(NamedTuple):
    """One policy change."""

    answered: float  # ms to the answer of the API
    dead: float  # ms to the last thing that arrived on a forbidden flow, at either end
    lost: int  # messages of allowed flows that did not arrive, and allowed flows that ended
    arrived: int  # messages of allowed flows that did


def revoked(place: Place, ours: Shipped) -> Cut:
    """Once, in a life of its own."""
    rules = [{"action": "allow", "target": host} for host in (_GONE, _KEPT)]
    ours.policy = {"defaultAction": "deny", "egress": rules}
    ours.start()
    peer = program(place, place.internet, "lab.crowd", "answer", _PORT, _GONE, _KEPT, talk=True)
    assert peer.stdout is not None
    peer.stdout.readline()
    crowd = program(place, ours.sandbox.namespace, "lab.crowd", "hold", _PORT, FLOWS, _GONE, _KEPT, talk=True)
    assert crowd.stdout is not None
    crowd.stdout.readline()
    time.sleep(1)
    begin = time.monotonic()
    answer = call(ours.sandbox, "PUT", "/policy", {"defaultAction": "deny", "egress": rules[1:]})
    answered = time.monotonic()
    if answer.status != 200:
        raise RuntimeError(f"the policy was not taken: {answer.status} {answer.text}")
    time.sleep(2)
    ends = []
    for process in (crowd, peer):
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("tell\n")
        process.stdin.flush()
        ends.append({int(flow): seen for flow, seen in json.loads(process.stdout.readline()).items()})
    for process in (crowd, peer):
        process.communicate("", timeout=10)
    if any(len(end) != FLOWS for end in ends):
        raise RuntimeError("not all flows were open")
    kept = [end[flow] for end in ends for flow in range(1, FLOWS, 2)]
    dead = max(end[flow][0] for end in ends for flow in range(0, FLOWS, 2))
    lost = sum(lost + bool(ended) + (last < answered) for last, _, lost, ended in kept)
    return Cut((answered - begin) * 1000, (dead - begin) * 1000, lost, sum(heard for _, heard, _, _ in kept))
