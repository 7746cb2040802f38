"""`make bench-load`: the sidecar while somebody inside attacks its means; how fast it stands, and how fast it cuts.

Settings are those of a sidecar as it is shipped. Everything happens in network namespaces of its own (`sp-…-bench-…`),
which are gone afterwards.
"""

from __future__ import annotations

import argparse
import platform
import socket
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench.floods import FLOODS, POLICY, RATE, Shipped, flooded
from bench.place import Place, neighbours
from bench.report import Goal, goals, middle, number, short, table
from bench.revocation import FLOWS, revoked
from bench.tables import TABLES, weigh
from lab.lacking import lacking

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.floods import Found

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "benchmarks-load.md"
BUSY = 0.1  # share of the machine that others use
P99, GROWTH, LOCKED, DEAD = 50.0, 10.0, 40.0, 1000.0  # ms, MB, ms, ms: the goals


class Size(NamedTuple):
    """How much of everything."""

    seconds: float  # a flood
    changes: int
    lives: int


FULL = Size(seconds=30, changes=7, lives=31)
QUICK = Size(seconds=5, changes=3, lives=11)


class Run:
    """One run and what was found."""

    def __init__(self, place: Place, size: Size) -> None:
        self.place = place
        self.size = size
        self.sections: list[str] = []
        self.goals: list[Goal] = []
        self.ours = Shipped(place)

    def section(self, title: str, *parts: str) -> None:
        self.sections.append(f"## {title}\n\n" + "\n\n".join(parts))


# -- floods --------------------------------------------------------------------------------------------------------
def floods(run: Run) -> None:
    found = []
    for flood in FLOODS:
        one = flooded(run.place, run.ours, flood, run.size.seconds)
        found.append(one)
        failed = sum(took is None for took in one.asked)
        print(
            f"{flood.what}: {one.taken:,.0f}/s taken of {one.offered:,.0f}, p50 {one.quantile(50):.1f} ms, "
            f"p99 {one.quantile(99):.1f} ms, {failed} of {len(one.asked)} failed, {one.growth:+.1f} MB, "
            f"API {one.unanswered()} of {len(one.calls)} not answered",
            flush=True,
        )
    attacks = [one for one in found if one.flood.kind]

    def goal(what: str, aim: str, digits: int, value: Callable[[Found], float], most: float) -> None:
        over = [one for one in attacks if value(one) > most]
        remark = "; ".join(f"{one.flood.what}: {number(value(one), digits)}" for one in over) + "."
        worst = number(max(map(value, attacks)), digits)
        reached = f"{worst} at the most" + (f", {len(over)} of {len(attacks)} floods over it" if over else "")
        run.goals.append(Goal(what, aim, reached, not over, remark))

    goal("under a flood, growth of both processes, PSS MB", f"≤ {GROWTH:.0f}", 1, lambda one: one.growth, GROWTH)
    goal("under a flood, honest questions' p99, ms", f"≤ {P99:.0f}", 1, lambda one: one.quantile(99), P99)
    goal("under a flood, health checks and API calls without an answer", "0", 0, lambda one: one.unanswered(), 0)
    rows = [
        (
            one.flood.what, number(one.offered), number(one.taken), f"{one.cpu:.0%}", f"{one.growth:+.1f}",
            number(one.quantile(50), 1), number(one.quantile(99), 1),
            f"{sum(took is None for took in one.known)} + {sum(took is None for took in one.new)} of {len(one.asked)}",
            f"{one.unanswered()} of {len(one.calls)}", number(one.slowest()),
        )
        for one in found
    ]  # fmt: skip
    run.section(
        "Floods of DNS",
        f"{RATE:,} questions a second for {run.size.seconds:g} s, by root in the sandbox; where nothing else is said "
        "from 4,000 sockets, each name once. *Taken* is what the sidecar took out of its queue, whatever came of it: "
        "answered, refused or dropped ([why dropped](decisions/0008-what-goes-unanswered-under-a-flood.md)). Beside it "
        "an honest client asks 50 questions a second, each from a new port: half of them for names that the sidecar "
        "knows, half for new ones below another wildcard than the flood's. Without an answer within a second a "
        "question has failed (*known + new*), and counts as one of 1,000 ms; a stub resolver would ask again. Once a "
        "second it asks for `/healthz` and `/policy`.",
        table(
            ("flood", "offered/s", "taken/s", "core", "PSS MB", "honest p50 ms", "p99 ms", "failed", "API: unanswered",
             "slowest ms"),
            rows,
        ),
    )  # fmt: skip


# -- revocation ----------------------------------------------------------------------------------------------------
def revocation(run: Run) -> None:
    cuts = []
    for _ in range(run.size.changes):
        cuts.append(revoked(run.place, run.ours))
        print(f"revocation: {cuts[-1]}", flush=True)
    dead, lost = max(cut.dead for cut in cuts), sum(cut.lost for cut in cuts)
    what = f"policy change until the last of {FLOWS // 2} forbidden flows is dead"
    run.goals.append(Goal(what, "≤ 1,000 ms", f"{number(dead)} ms at the most", dead <= DEAD))
    run.goals.append(Goal("messages that the allowed flows lost by it", "0", str(lost), not lost))
    run.section(
        "Revocation",
        f"{FLOWS:,} flows, every other one TCP or UDP, both ends sending ten times a second; one policy change forbids "
        f"half of them. {len(cuts)} times; ms from the request. On the other half {sum(cut.arrived for cut in cuts):,} "
        f"messages arrived and {lost} were lost.",
        table(
            ("what", "ms"),
            [
                ("200 from the API", middle((cut.answered for cut in cuts), 0)),
                ("the last thing arrived on a forbidden flow, either way", middle((cut.dead for cut in cuts), 0)),
            ],
        ),
    )


# -- lock-down -----------------------------------------------------------------------------------------------------
def locked(run: Run) -> float:
    """ms from exec to the first packet that is refused, knocking without a pause."""
    ours = run.ours
    ours.policy = POLICY
    with ours.sandbox.namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) as knock:
        target = ("192.0.2.1", 9)
        ours.start(wait=False)
        begin = ours.running.started
        while True:
            try:
                knock.sendto(b"x", target)
            except PermissionError:
                return (time.monotonic() - begin) * 1000
            if time.monotonic() - begin > 10:
                raise TimeoutError("nothing is refused")


def bare(run: Run) -> float:
    """ms from exec to exit of an interpreter that does nothing."""
    process = run.place.start(run.ours.sandbox.namespace, [sys.executable, "-c", ""], run.place.cores.server)
    while process.alive():
        time.sleep(0.0002)
    return (time.monotonic() - process.started) * 1000


def lockdown(run: Run) -> None:
    times, bares = [], []
    for _ in range(run.size.lives):
        times.append(locked(run))
        run.ours.stop()
        bares.append(bare(run))
    print(f"lock-down: {middle(times, 1)}, interpreter {middle(bares, 1)}", flush=True)
    found = statistics.median(times)
    remark = f"The interpreter alone, exec to exit, took {statistics.median(bares):.0f} ms here."
    run.goals.append(Goal("exec to lock-down, median", "≤ 40 ms", f"{found:.1f} ms", found <= LOCKED, remark))
    run.section(
        "Lock-down",
        f"From exec to the first datagram that is refused, knocking without a pause; {len(times)} lives. Byte code is "
        "compiled, files are warm.",
        table(
            ("what", "ms"),
            [("exec to lock-down", middle(times, 1)), ("the interpreter alone, exec to exit", middle(bares, 1))],
        ),
    )


# -- tables --------------------------------------------------------------------------------------------------------
def tables(run: Run) -> None:
    weights = [(one.what, one.bound, weigh(one)) for one in TABLES]
    rows = [(what, bound, number(weight, 1)) for what, bound, weight in weights]
    rows.append(("all of them full at once, which no flood does", "", number(sum(weight for *_, weight in weights), 1)))
    run.section(
        "Tables, full",
        "What each of the worker's tables weighs when it holds as much as it ever may, filled by its own code.",
        table(("what", "bound", "MB"), rows),
    )


PARTS = {"floods": floods, "revocation": revocation, "lockdown": lockdown, "tables": tables}


def document(run: Run, arguments: argparse.Namespace, others: float) -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if "model name" in line), platform.machine())
    how = "make bench-load" + (" (shortened: --quick)" if arguments.quick else "")
    noise = f" Others used {others:.0%} of the machine just before: not a quiet one." if others > BUSY else ""
    intro = (
        f"# Benchmarks: under load\n\nWritten by `{how}` on {time.strftime('%Y-%m-%d', time.gmtime())}: {model}, "
        f"{len(run.place.cores.before)} cores, Linux {platform.release()}, CPython {platform.python_version()}. The "
        "sidecar has one core; flood, honest client and a fake resolver share the other, so what the flood takes of "
        f"that core is in the honest client's figures too.{noise}"
    )
    parts = [intro, "## Goals", goals(run.goals), "What falls short:", short(run.goals), *run.sections]
    return "\n\n".join(parts) + "\n"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.pressure", description="Measure the sidecar under attack.")
    parser.add_argument("--quick", action="store_true", help="two minutes, coarser")
    parser.add_argument("--only", choices=tuple(PARTS), action="append", help="these parts, written nowhere")
    parser.add_argument("--dry", action="store_true", help="print, do not write docs/benchmarks-load.md")
    arguments = parser.parse_args(argv)
    problem = lacking()
    if problem:
        print(f"bench: {problem}", file=sys.stderr)
        return 1
    others = neighbours()
    if others > BUSY:
        print(f"bench: others use {others:.0%} of this machine: figures will be worse than they are, and scattered")
    with Place() as place:
        run = Run(place, QUICK if arguments.quick else FULL)
        try:
            for name, part in PARTS.items():
                if not arguments.only or name in arguments.only:
                    part(run)
        finally:
            run.ours.close()
        text = document(run, arguments, others)
    if arguments.only or arguments.dry:
        print(text)
    else:
        DOCUMENT.write_text(text)
        print(goals(run.goals))
        print(f"written: {DOCUMENT.relative_to(DOCUMENT.parent.parent)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
