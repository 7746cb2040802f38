"""What each table of the worker weighs when it is as full as it may get, measured: for docs/security.md.

Each is filled in a process of its own, by its own code, with what fills it most; MB are the growth of private memory.
"""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench.load import question
from egress.dns import cache, same, shedding, upstream
from egress.dns.budget import ACCOUNTS, KNOWN, Budget, Limits
from egress.dns.interceptor import TAUGHT, WAYS, Interceptor
from egress.dns.question import Waiter, new_question
from egress.dns.shedding import Shedding
from egress.dns.straight import Plain
from egress.dns.wire import parse_query
from egress.events import KINDS, _Kind
from egress.firewall.leases import ADDRESSES, TEACHINGS, Leases
from policies.matcher import compile_policy
from policies.parser import parse_policy
from policies.ports import EVERYTHING

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "p{:07x}.some-service.example.com"


class Table(NamedTuple):
    """One table and how to fill it."""

    what: str
    bound: str
    fill: Callable[[], object]


def _policy() -> object:
    rules = [{"action": "allow", "target": "*"}]
    return compile_policy(parse_policy(json.dumps({"defaultAction": "deny", "egress": rules}).encode()))


def _addresses() -> object:
    leases = Leases()
    for number in range(ADDRESSES):
        grant = leases.learn(NAME.format(number), (), EVERYTHING, (11 << 24 | number).to_bytes(4, "big"), 60, 1.0)
        assert grant is not None
        leases.granted([grant], 1.0)
    return leases


def _teachings() -> object:
    leases = Leases()
    for number in range(TEACHINGS):
        packed = (11 << 24 | number % (TEACHINGS // 8)).to_bytes(4, "big")
        grant = leases.learn(NAME.format(number), (), EVERYTHING, packed, 60, 1.0)
        if grant is not None:
            leases.granted([grant], 1.0)
    return leases


def _answers() -> object:
    kept = cache.Cache()
    for number in range(cache.CAPACITY):
        plain = Plain(os.urandom(16), ((number.to_bytes(4, "big"), 60 + number),), 60 + number, (6,))
        kept.put((NAME.format(number), 1), plain, cache.weight(plain), 1.0 + number, 61.0 + number)
    return kept


def _same() -> object:
    replies: dict[bytes, tuple[float, bytes]] = {}
    octets = 0
    while len(replies) < same.SAME and octets <= same.SAME_OCTETS:
        data = os.urandom(50)
        replies[data] = (1.0 * len(replies), data + bytes(400))
        octets += 500
    return replies


def _flying() -> object:
    flying = {}
    for number in range(upstream.PENDING):
        question = new_question((NAME.format(number), 1), [], 1.0 + number, os.urandom(50))
        question.places = [(None, os.urandom(2)), (None, os.urandom(2))]  # type: ignore[list-item]
        for _ in range(upstream.WAITING // upstream.PENDING):
            question.waiters.append(Waiter(os.urandom(60), None, ("127.0.0.1", 1000 + number), 1232))
        flying[question.name, 1] = question
    return flying


def _budget() -> object:
    budget = Budget(Limits(10**9, 10**9, 10**6))
    policy = _policy()
    for number in range(max(2 * ACCOUNTS, 2 * KNOWN)):
        name = f"p.z{number:07x}.com"
        budget.admits(policy, name, policy.decide_name(name), 1.0)  # type: ignore[arg-type, attr-defined]
    return budget


def _judged() -> object:
    interceptor = Interceptor(_policy(), 1, lambda _: None)  # type: ignore[arg-type]
    for number in range(TAUGHT):
        interceptor.verdict((0x2B << 120 | number).to_bytes(16, "big"))
    for number in range(WAYS):
        data = question("a." + NAME.format(number))
        query = parse_query(data)
        assert query is not None
        assert not isinstance(query, bytes)
        interceptor.learn_way(data, query, 512 + number % 512, EVERYTHING, query.question)
    return interceptor


def _told() -> object:
    fields: dict[str, object] = {}
    tables: list[dict[object, _Kind]] = []
    for _ in range(3):
        table: dict[object, _Kind] = {}
        for number in range(KINDS):
            name = NAME.format(number)
            fields = {"action": "deny", "target.host": name, "reason": name + " is denied by the default"}
            table["name", name] = _Kind(1.0, "warn", "denied name " + name, fields)
        tables.append(table)
    return tables


def _shares() -> object:
    made = Shedding()
    made.judge(3, shedding.FULL, shedding.FULL, 0, 1.0)
    made.judge(3, shedding.FULL, shedding.FULL, shedding.LOST, 1.0)
    for number in range(shedding.PARENTS):
        made._parents[os.urandom(60)] = number
    return made


TABLES = (
    Table("addresses that answers opened", f"{ADDRESSES:,} addresses", _addresses),
    Table("names that opened them, eight for one address", f"{TEACHINGS:,} names", _teachings),
    Table("answers kept", f"{cache.CAPACITY:,}, {cache.OCTETS >> 20} MB", _answers),
    Table("queries answered by their bytes", f"{same.SAME:,}, {same.SAME_OCTETS >> 20} MB", _same),
    Table("questions in flight, who waits", f"{upstream.PENDING:,}, {upstream.WAITING:,}", _flying),
    Table("budgets: ends of names known, accounts", f"2 x {KNOWN:,}, 2 x {ACCOUNTS:,}", _budget),
    Table("verdicts: on addresses, below parents", f"{TAUGHT:,}, {WAYS:,}", _judged),
    Table("what was told lately", f"3 x {KINDS:,}", _told),
    Table("shares under a flood", f"65,536 ports, {shedding.PARENTS:,} parents", _shares),
)


def weigh(table: Table) -> float:
    """MB."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        gc.collect()
        before = _private()
        kept = table.fill()
        gc.collect()
        os.write(writer, f"{_private() - before}".encode())
        del kept
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as told:
        grown = int(told.read())
    os.waitpid(child, 0)
    return grown / 1024


def _private() -> int:
    """kB that nobody else has (proc(5), smaps_rollup)."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
