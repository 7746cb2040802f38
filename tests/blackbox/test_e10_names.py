"""E10: data in the labels of an allowed wildcard. A tunnel is stopped by the running sidecar, honest programs are not.

What counts as having got out is what the resolver has seen, not what the client was told.
"""

from __future__ import annotations

import base64
import json
import random
import socket
import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from lab.identity import CONTAINER_ROOT, NOBODY
from lab.reply import Reply, build_query
from tests.blackbox.place import allow, soon

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lab import Identity, Lab, Sidecar

    Start = Callable[..., Sidecar]

RESOLVER = ("203.0.113.53", 53)
IN_FLIGHT = 60
SEARCH = ("default.svc.cluster.local", "svc.cluster.local", "cluster.local")


def ask_all(lab: Lab, names: Iterable[str], qtype: str = "A") -> dict[str, Reply]:
    """Every name once, as many at a time as a busy program has; those that nobody answered are missing."""
    waiting = dict(enumerate(names))
    pending = list(waiting)
    replies: dict[str, Reply] = {}
    flying: set[int] = set()
    sock = lab.sandbox.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.settimeout(0.5)
    deadline = time.monotonic() + 60
    try:
        while (pending or flying) and time.monotonic() < deadline:
            while pending and len(flying) < IN_FLIGHT:
                number = pending.pop()
                flying.add(number)
                sock.sendto(build_query(waiting[number], qtype, number), RESOLVER)
            try:
                data = sock.recv(4096)
            except TimeoutError:
                pending += flying  # lost on the way: once more
                flying.clear()
                continue
            number = int.from_bytes(data[:2], "big")
            flying.discard(number)
            replies[waiting[number]] = Reply(data)
    finally:
        sock.close()
    return replies


def tunnel(count: int, zone: str = "t.example.com", seed: int = 1) -> list[str]:
    """Names of 180 octets of data in base32, as iodine and dnscat make them."""
    dice = random.Random(seed)
    return [
        ".".join(base64.b32encode(dice.randbytes(37)).decode()[:60].lower() for _ in range(3)) + f".{zone}"
        for _ in range(count)
    ]


def carried(lab: Lab, zone: str) -> int:
    """Octets of different labels that have reached the resolver in front of the zone."""
    names = {query.name.lower().rstrip(".") for query in lab.dns.queries()}
    return sum(len(name) - len(zone) for name in names if name.endswith("." + zone))


@pytest.fixture
def wide(lab: Lab) -> Lab:
    """A lab where every name of these zones exists."""
    for zone in ("example.com", "example.net"):
        lab.dns.generate(zone, "198.51.0.0/16")
    return lab


# -- stopped -----------------------------------------------------------------------------------------------------------
def test_e10_a_tunnel_is_stopped_early_and_told(wide: Lab, start_sidecar: Start) -> None:
    sidecar = start_sidecar(policy=allow("*.example.com"))
    names = tunnel(1500)
    replies = ask_all(wide, names)
    passed = [name for name, reply in replies.items() if reply.rcode == "NOERROR"]
    assert 200 < len(passed) < 300
    assert carried(wide, "example.com") <= 48 * 1024 + 2 * len(names)  # its own "t." is known after the first
    refused = next(reply for reply in replies.values() if reply.rcode == "NXDOMAIN")
    assert refused.ede is not None
    assert refused.ede[0] == 15
    known = wide.query(passed[0])
    assert known.addresses, "what is known goes on"
    events = [event for event in sidecar.events("egress.outbound") if "budget" in event.get("reason", "")]
    assert len(events) <= 2, "once in a while, not once a name"
    assert events[0]["action"] == "deny"
    assert events[0]["rule"] == "egress[0]"
    assert "49152 bytes of new names a day below example.com" in events[0]["reason"]
    metrics = sidecar.api("GET", "/metrics", token=None).text
    count = next(line for line in metrics.splitlines() if line.startswith("egress_dns_budget_denied_total "))
    assert int(count.split()[1]) >= len(names) - len(passed) - IN_FLIGHT


def test_e10_the_control_with_the_budget_off_it_passes(wide: Lab, start_sidecar: Start) -> None:
    start_sidecar(policy=allow("*.example.com"), env={"NAME_BUDGET": "0"})
    names = tunnel(1500)
    replies = ask_all(wide, names)
    assert sum(reply.rcode == "NOERROR" for reply in replies.values()) == len(names)
    assert carried(wide, "example.com") >= 180 * len(names)


def test_e10_the_reason_reaches_the_client(wide: Lab, start_sidecar: Start) -> None:
    start_sidecar(policy=allow("*.example.com"), env={"NAME_BUDGET": "60"})
    assert wide.query(f"{'a' * 50}.example.com").addresses
    name = f"{'b' * 20}.example.com"
    reply = wide.query(name)
    assert reply.rcode == "NXDOMAIN"
    said = "over its budget: 60 bytes of new names a day below example.com"
    assert reply.ede == (15, f'{name}: rule egress[0] "allow *.example.com", {said}')
    assert wide.query("c.example.com").addresses, "less is left, not nothing"


@pytest.mark.parametrize("qtype", ["TXT", "AAAA", "NULL", "MX"])
def test_e10_no_type_is_a_way_around(wide: Lab, start_sidecar: Start, qtype: str) -> None:
    start_sidecar(policy=allow("*.example.com"), env={"NAME_BUDGET": "2000"})
    ask_all(wide, tunnel(60), qtype)
    assert carried(wide, "example.com") <= (0 if qtype == "NULL" else 2200)


def test_e10_spread_over_wildcards_and_through_a_search_domain(wide: Lab, start_sidecar: Start) -> None:
    resolv = f"search {' '.join(SEARCH)}\nnameserver 203.0.113.53\n"
    rules = allow("*.example.com", "*.example.net", "*.cluster.local")
    wide.dns.generate("cluster.local", "198.51.0.0/16")
    start_sidecar(policy=rules, env={"NAME_BUDGET": "4000", "NAME_BUDGET_ALL": "5000"}, resolv_conf=resolv)
    ask_all(wide, tunnel(60) + tunnel(60, "t.example.net", 2))
    ask_all(wide, [f"{name}.cluster.local" for name in tunnel(60, seed=3)])
    together = carried(wide, "example.com") + carried(wide, "example.net") + carried(wide, "cluster.local")
    assert together <= 5500


def test_e10_a_policy_change_and_deeper_levels_do_not_fill_it_up(wide: Lab, start_sidecar: Start) -> None:
    sidecar = start_sidecar(policy=allow("*.example.com"), env={"NAME_BUDGET": "2000"})
    ask_all(wide, tunnel(30))
    for ports in ([443], [80, 443]):
        assert sidecar.api("POST", "/policy", allow("*.example.com", ports=ports)).status == 200
        ask_all(wide, tunnel(30, f"{'.'.join('abcdefgh')}.example.com", ports[0]))
    assert carried(wide, "example.com") <= 2400


_WAYS = r"""
import json, socket, struct, sys

def message(name):
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack(">6H", 77, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", 1, 1)

heard = []
for number, name in enumerate(json.loads(sys.argv[1])):
    server, over_tcp = [("203.0.113.53", False), ("2001:4860:4860::8888", False), ("8.8.8.8", True)][number % 3]
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM if over_tcp else socket.SOCK_DGRAM) as sock:
        sock.settimeout(20)
        sock.connect((server, 53))
        data = message(name)
        sock.sendall(struct.pack(">H", len(data)) + data if over_tcp else data)
        heard.append(sock.recv(4096)[2 if over_tcp else 0:][3] & 15)
print(json.dumps(heard))
"""


@pytest.mark.parametrize("attacker", [NOBODY, CONTAINER_ROOT], ids=["nobody", "container root"])
@pytest.mark.parametrize("budget", ["2000", "0"], ids=["guarded", "control"])
def test_e10_every_way_to_a_resolver_pays_into_one_account(
    wide: Lab, start_sidecar: Start, attacker: Identity, budget: str
) -> None:
    """UDP and TCP, IPv4 and IPv6, whichever resolver is asked, as whoever there is in the sandbox."""
    start_sidecar(policy=allow("*.example.com"), env={"NAME_BUDGET": budget})
    done = wide.python(_WAYS, json.dumps(tunnel(45)), identity=attacker, timeout=60)
    assert done.returncode == 0, done.stderr
    heard = json.loads(done.stdout)
    if budget == "0":
        assert heard == [0] * 45
        assert carried(wide, "example.com") >= 45 * 180
    else:
        assert heard == [0] * 10 + [3] * 35
        assert carried(wide, "example.com") <= 2000 + 2 * 45


# -- not stopped -------------------------------------------------------------------------------------------------------
def test_e10_short_names_of_a_busy_program_pass(wide: Lab, start_sidecar: Start) -> None:
    """1,500 names in a few seconds, both types: a browser, or an installation."""
    sidecar = start_sidecar(policy=allow("*.example.com"))
    dice = random.Random(7)
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    names = list({"".join(dice.choices(letters, k=dice.randint(4, 20))) + ".example.com" for _ in range(1500)})
    for qtype in ("A", "AAAA"):
        replies = ask_all(wide, names, qtype)
        assert {reply.rcode for reply in replies.values()} == {"NOERROR"}
        assert len(replies) == len(names)
    assert "budget" not in sidecar.log


def test_e10_buckets_named_by_forty_characters_pass(wide: Lab, start_sidecar: Start) -> None:
    start_sidecar(policy=allow("*.example.com"))
    dice = random.Random(8)
    names = [f"logs{uuid.UUID(int=dice.getrandbits(128))}.s3.example.com" for _ in range(800)]
    assert {reply.rcode for reply in ask_all(wide, names).values()} == {"NOERROR"}


def test_e10_search_domains_neither_pay_nor_are_told(wide: Lab, start_sidecar: Start) -> None:
    """`ndots:5`: three denials, or three answers of the cluster's, in front of the look-up that was meant."""
    resolv = f"search {' '.join(SEARCH)}\nnameserver 203.0.113.53\noptions ndots:5\n"
    env = {"NAME_BUDGET": "1200"}
    names = [f"service-{number:03}.example.com" for number in range(80)]
    expanded: list[str] = [name + end for name in names for end in (*(f".{domain}" for domain in SEARCH), "")]

    def rcodes(rules: Any) -> dict[str, str]:
        with_search = start_sidecar(policy=rules, env=env, resolv_conf=resolv)
        found = {name: reply.rcode for name, reply in ask_all(wide, expanded).items()}
        assert "budget" not in with_search.log
        assert "over their budget" not in with_search.log
        return found

    assert all(rcode == "NXDOMAIN" for name, rcode in rcodes(allow("*.example.com")).items() if name not in names)


def test_e10_search_domains_that_are_allowed_cost_no_more(wide: Lab, start_sidecar: Start) -> None:
    resolv = f"search {' '.join(SEARCH)}\nnameserver 203.0.113.53\noptions ndots:5\n"
    rules = allow("*.example.com", "*.cluster.local")
    sidecar = start_sidecar(policy=rules, env={"NAME_BUDGET": "1200"}, resolv_conf=resolv)
    names = [f"service-{number:03}.example.com" for number in range(80)]
    expanded = [name + end for name in names for end in (*(f".{domain}" for domain in SEARCH), "")]
    replies = ask_all(wide, expanded)
    assert all(replies[name].rcode == "NOERROR" for name in names)
    assert "budget" not in sidecar.log
    assert soon(lambda: carried(wide, "cluster.local") > 0), "they were asked"
