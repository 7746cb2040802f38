"""`make bench-dns`: the sidecar beside dnsmasq and unbound, in one run, round after round.

    A B C D  A B C D  A B C D …

Machines drift: a neighbour's load, a cooler core. So every contender is measured within seconds of the others, ratios
are taken round by round, and a figure is a median with its range. Everything happens in network namespaces of its own
(`sp-…-bench-…`), which are gone afterwards.
"""

from __future__ import annotations

import argparse
import gc
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench import life, load, sets
from bench.contenders import (
    Contender,
    Dnsmasq,
    DnsmasqBig,
    DnsmasqSet,
    DnsmasqSetBig,
    Ours,
    OursAsShipped,
    Unbound,
)
from bench.place import Place, neighbours, wait_for
from bench.report import Goal, goals, middle, number, ratios, short, table
from lab.lacking import lacking

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.load import Burst, Spread

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
CACHED_NAMES = 1000
STATIC = (0, 20_000)
NEW_ADDRESSES = 12_000  # below what leases hold
BUSY = 0.1  # share of the machine that others use
MISSING = "they are not installed: {} (make setup installs them)"


class Size(NamedTuple):
    """How much of everything."""

    rounds: int
    seconds: float  # a burst
    asked: int  # one at a time
    lives: int
    writes: int
    packets: int
    changes: int


FULL = Size(rounds=5, seconds=1.5, asked=2000, lives=7, writes=1500, packets=1_000_000, changes=7)
QUICK = Size(rounds=2, seconds=0.5, asked=500, lives=3, writes=300, packets=100_000, changes=2)


class Row(NamedTuple):
    """One contender in one mode, all rounds."""

    contender: Contender
    bursts: list[Burst]
    alone: list[Spread]
    crowds: list[Spread]

    @property
    def qps(self) -> list[float]:
        return [burst.qps for burst in self.bursts]

    @property
    def cpu(self) -> list[float]:
        return [burst.cpu for burst in self.bursts]


class Run:
    """One run: the contenders, what was found, and the sections of the report."""

    def __init__(self, place: Place, size: Size) -> None:
        self.place = place
        self.size = size
        self.sections: list[str] = []
        self.goals: list[Goal] = []
        self.began = time.monotonic()
        self._contenders: list[Contender] = []

    def add(self, kind: type[Contender]) -> Contender:
        contender = kind(self.place)
        self._contenders.append(contender)
        return contender

    def close(self) -> None:
        for contender in self._contenders:
            contender.close()

    def say(self, what: str) -> None:
        print(f"[{time.monotonic() - self.began:5.1f} s] {what}", flush=True)

    def section(self, title: str, *parts: str) -> None:
        text = f"## {title}\n\n" + "\n\n".join(parts)
        self.sections.append(text)
        print("\n" + text + "\n", flush=True)


# -- questions -----------------------------------------------------------------------------------------------------
def rounds(run: Run, what: str, contenders: list[Contender], measure: Callable[[Row], None]) -> list[Row]:
    rows = [Row(contender, [], [], []) for contender in contenders]
    for turn in range(run.size.rounds):
        for row in rows:
            measure(row)
            run.say(f"{what}, round {turn + 1} of {run.size.rounds}: {row.contender.name}: {row.bursts[-1].qps:,.0f}/s")
    return rows


def uncached(run: Run, contenders: list[Contender]) -> list[Row]:
    size = run.size

    def measure(row: Row) -> None:
        contender = row.contender
        file = load.names(contender.folder, int(80_000 * size.seconds), "p")
        row.bursts.append(load.burst(contender, file, size.seconds, once=True))
        row.alone.append(load.single(contender, load.fresh(size.asked, "p")))
        row.crowds.append(load.crowd(contender, load.names(contender.folder, 4 * size.asked, "p"), 4 * size.asked))

    return rounds(run, "uncached", contenders, measure)


def cached(run: Run, contenders: list[Contender]) -> list[Row]:
    size = run.size

    def measure(row: Row) -> None:
        contender = row.contender
        file = load.fixed_names(contender.folder, CACHED_NAMES)
        load.burst(contender, file, 0.15, once=False)  # everything is in the cache after this
        row.bursts.append(load.burst(contender, file, size.seconds, once=False))
        row.alone.append(load.single(contender, ["p-same-7.example.com"] * size.asked))
        row.crowds.append(load.crowd(contender, file, CACHED_NAMES))

    return rounds(run, "cached", contenders, measure)


def new_addresses(run: Run, contenders: list[Contender]) -> list[Row]:
    """Each answer an address that was never seen: who writes sets writes each time. A fresh life for the burst, and one
    for the latencies: together they would be more addresses than ours holds."""
    size = run.size

    def measure(row: Row) -> None:
        contender = row.contender
        anew(contender)
        row.bursts.append(load.burst(contender, load.names(contender.folder, NEW_ADDRESSES, "n"), 10, once=True))
        written(contender, NEW_ADDRESSES)
        anew(contender)
        row.alone.append(load.single(contender, load.fresh(size.asked, "n")))
        written(contender, size.asked)
        row.crowds.append(load.crowd(contender, load.names(contender.folder, 4 * size.asked, "n"), 4 * size.asked))
        written(contender, 5 * size.asked)

    return rounds(run, "new addresses", contenders, measure)


def anew(contender: Contender) -> None:
    contender.start()
    if isinstance(contender, Ours):
        wait_for("API", contender.ready)


def written(contender: Contender, count: int) -> None:
    """Who updates sets has written so many. Raises RuntimeError."""
    if not contender.updates:
        return
    held = contender.learned()
    # Ours holds every one; dnsmasq, on a machine that is busy with others, goes without some.
    if held < count * (1 if isinstance(contender, Ours) else 0.99):
        raise RuntimeError(f"{contender.name} answered {count} new addresses and holds {held}")


def show(rows: list[Row]) -> str:
    head = ["", "answers/s", "sallyport is", "CPU µs each", "sallyport has", "core used"]
    head += ["1 in flight: p50 µs", "p99 µs", "100 in flight: p50 ms", "p99 ms"]
    ours = rows[0]
    lines = []
    for row in rows:
        faster = "" if row is ours else "x" + middle(ratios(ours.qps, row.qps), 2)
        roomier = "" if row is ours else "x" + middle(ratios(row.cpu, ours.cpu), 2)
        line = [row.contender.name, middle(row.qps), faster, middle(row.cpu, 1), roomier]
        line.append(f"{statistics.median(burst.busy for burst in row.bursts):.0%}")
        line += [middle(one.p50 for one in row.alone), middle(one.p99 for one in row.alone)]
        line += [middle((one.p50 / 1000 for one in row.crowds), 1), middle((one.p99 / 1000 for one in row.crowds), 1)]
        lines.append(line)
    bad = [row.contender.name for row in rows if min(burst.good for burst in row.bursts) < 0.999]
    note = f"\n\nNot all answered well: {', '.join(bad)}." if bad else ""
    return table(head, lines) + note


def carried(ours: Row, other: Row) -> tuple[float, str]:
    """The smaller of two readings, at the median: answers a second, and what a core would carry by CPU per query.

    They part where the load's core cannot keep the contender's busy: then the count flatters the slower one.
    """
    by_count = ratios(ours.qps, other.qps)
    by_cpu = ratios(other.cpu, ours.cpu)
    return (
        min(statistics.median(by_count), statistics.median(by_cpu)),
        f"{middle(by_count, 2)}x by answers/s, {middle(by_cpu, 2)}x by CPU per answer",
    )


def questions(run: Run) -> None:
    ours, plain, with_set, unbound = (run.add(kind) for kind in (Ours, Dnsmasq, DnsmasqSet, Unbound))
    big, set_big = run.add(DnsmasqBig), run.add(DnsmasqSetBig)
    shipped = [run.add(OursAsShipped)] if OursAsShipped.available() else []
    for contender in (ours, plain, with_set, unbound, *shipped):
        contender.start()
    assert isinstance(ours, Ours)
    wait_for("API", ours.ready)
    time.sleep(0.5)
    life.call(ours.sandbox, "GET", "/policy")
    idle = {contender.name: contender.running.pss() for contender in (ours, plain, with_set, unbound)}
    rows = uncached(run, [ours, with_set, plain, unbound, *shipped])
    for contender in (ours, with_set):
        if contender.learned() < 1000:
            raise RuntimeError(f"{contender.name} updated no set")
    run.section(
        "Uncached, addresses shared",
        "Every question is a name that nobody asked before; its address is one of 4,096. dnsmasq --nftset writes it "
        "into a set before each answer, though it is there already; sallyport only when less than its lease is left in "
        "the kernel: here that is seldom, so these figures, one at a time too, are not those of a set update for each "
        "answer. Those come further down, and the goals for a set update are theirs. dnsmasq with its default cache of "
        "150, which is its best for this."
        + (" *sallyport, Debian's Python* is the same by the interpreter of the image." if shipped else ""),
        show(rows),
    )
    hint = "More than half of the time is the interpreter's, the rest the kernel's: four packets an answer."
    shared = []
    for row, least in ((rows[1], 3), (rows[3], 1)):
        value, text = carried(rows[0], row)
        what = f"uncached, addresses shared, against {row.contender.name}"
        shared.append(Goal(what, f"≥ {least}x", text, value >= least, hint))
    for contender in (plain, with_set):
        contender.stop()
    for contender in (big, set_big):
        contender.start()
    rows = cached(run, [ours, big, set_big, unbound, *shipped])
    run.section(
        "Cached",
        f"{CACHED_NAMES:,} names, asked again and again. dnsmasq with a cache of 10,000, its best for this.",
        show(rows),
    )
    best = max(rows[1:3], key=lambda row: statistics.median(row.qps))
    value, text = carried(rows[0], best)
    run.goals.append(Goal(f"cached, against {best.contender.name}", "≥ 0.85x", text, value >= 0.85))
    after = {contender.name: contender.running.pss() for contender in (ours, big, set_big, unbound)}
    run.section(
        "Memory",
        "PSS in MB, all processes of a contender.",
        table(
            ("", "idle", "after the load"),
            [(name, number(idle[name], 1) if name in idle else "", number(after[name], 1) if name in after else "")
             for name in dict.fromkeys((*idle, *after))],
        ),
    )  # fmt: skip
    run.goals.append(
        Goal(
            "idle memory, both processes, API loaded", "PSS ≤ 25 MB", f"{idle[ours.name]:.1f} MB", idle[ours.name] <= 25
        )
    )
    for contender in (big, set_big, unbound, *shipped):
        contender.stop()
    rows = new_addresses(run, [ours, with_set, plain, unbound])
    run.section(
        "Uncached, every answer a set update",
        f"{NEW_ADDRESSES:,} names, each with an address of its own, so that each answer costs sallyport and dnsmasq "
        "--nftset a write, one at a time as well: their sets are counted afterwards. dnsmasq by itself and unbound "
        "write no set.",
        show(rows),
    )
    every = []
    for row, least in ((rows[1], 3), (rows[3], 1)):
        value, text = carried(rows[0], row)
        what = f"uncached, every answer a set update, against {row.contender.name}"
        every.append(Goal(what, f"≥ {least}x", text, value >= least, hint))
    slower = ratios([one.p50 for one in rows[0].alone], [one.p50 for one in rows[1].alone])
    what = "uncached, every answer a set update, one at a time, p50"
    alone = Goal(what, "≤ 0.6x dnsmasq --nftset", f"{middle(slower, 2)}x", statistics.median(slower) <= 0.6)
    run.goals[:0] = [*every, alone, *shared]
    for contender in (ours, with_set, plain, unbound):
        contender.stop()


# -- sets ----------------------------------------------------------------------------------------------------------
def updates(run: Run) -> None:
    run.say("set updates")
    found = sets.update_costs(run.place, STATIC, run.size.rounds, run.size.writes)
    rows = [
        (f"{size:,}", middle((cost.new for cost in costs), 1), middle((cost.again for cost in costs), 1))
        for size, costs in found.items()
    ]
    few, many = ([cost.new for cost in found[size]] for size in STATIC)
    spread = statistics.median(ratios(many, few))
    run.say("packets under renewal")
    loss = sets.lost_packets(run.place, run.size.packets)
    lost = loss.sent - loss.arrived
    run.section(
        "Set updates",
        "One address written and acknowledged, µs at the median, by how many networks the policy lists.",
        table(("networks", "new address", "renewed"), rows),
        f"{loss.sent:,} packets to a learned address, each looked up in the set, while another core renewed its "
        f"element {loss.renewals:,} times: {loss.arrived:,} arrived, {loss.refused} were refused. Before the address "
        f"was learned, {loss.control} of 100 arrived.",
    )
    run.goals.append(
        Goal("one resolved-to-allowed update", "≤ 20 µs, within 10 % at 20,000 networks",
             f"{statistics.median(few):.1f} µs, {abs(spread - 1):.1%} apart",
             statistics.median(few) <= 20 and abs(spread - 1) <= 0.1)
    )  # fmt: skip
    run.goals.append(
        Goal(f"packets lost of {loss.sent:,} under constant renewal", "0", str(lost), not lost and not loss.control)
    )


# -- life ----------------------------------------------------------------------------------------------------------
def lives(run: Run) -> None:
    ours, peers = run.add(Ours), [run.add(Dnsmasq), run.add(Unbound)]
    assert isinstance(ours, Ours)
    starts: dict[str, list[life.Start]] = {contender.name: [] for contender in (ours, *peers)}
    back: list[float] = []
    bare: list[float] = []
    life.compiled()
    life.starting(ours)  # files are in the page cache
    for turn in range(run.size.lives):
        for contender in (ours, *peers):
            starts[contender.name].append(life.starting(contender))
            if contender is not ours:
                contender.stop()
        bare.append(life.interpreter(run.place, ours.sandbox))
        time.sleep(0.2)
        back.append(life.reviving(ours))
        run.say(
            f"life {turn + 1}: first answer after {starts[ours.name][-1].answered:.0f} ms, back in {back[-1]:.0f} ms"
        )
    ours.start()
    wait_for("API", ours.ready)
    changes = []
    for turn in range(run.size.changes):
        changes.append(life.changing(ours, turn))
        run.say(f"4,096 rules: {changes[-1].took:.0f} ms, longest gap {changes[-1].gap:.0f} ms")
    weight = ours.running.pss()
    mine = starts[ours.name]
    rows = [
        ("exec to lockdown", middle((start.locked for start in mine), 1)),
        ("exec to first answer", middle((start.answered for start in mine), 1)),
        ("exec to API listening", middle((start.ready for start in mine), 1)),
        *(
            (f"{peer.name}: exec to first answer", middle((one.answered for one in starts[peer.name]), 1))
            for peer in peers
        ),
        ("the interpreter alone: exec to exit", middle(bare, 1)),
        ("worker killed to next answer", middle(back, 1)),
        ("4,096 rules over HTTP to 200", middle((change.took for change in changes), 1)),
        ("longest gap between answers meanwhile", middle((change.gap for change in changes), 1)),
        ("the same without a change", middle((change.quiet_gap for change in changes), 1)),
    ]
    lost = sum(change.lost for change in changes)
    run.section(
        "Start, crash, policy change",
        "Milliseconds. Questions are asked every millisecond; the interpreter's byte code is compiled, files are warm.",
        table(("what", "ms"), rows),
        f"With 4,096 rules loaded both processes weigh {weight:.1f} MB. Questions lost during {len(changes)} changes, "
        f"asked again after {life.PATIENCE * 1000:.0f} ms: {lost}.",
    )
    answered = statistics.median(start.answered for start in mine)
    alone = f"The interpreter alone took {statistics.median(bare):.0f} ms here."
    run.goals.append(Goal("exec to first DNS answer", "≤ 60 ms", f"{answered:.0f} ms", answered <= 60, alone))
    revived = statistics.median(back)
    run.goals.append(Goal("worker killed to next answer", "≤ 20 ms", f"{revived:.0f} ms", revived <= 20))
    took = statistics.median(change.took for change in changes)
    gap = max(change.gap for change in changes)
    run.goals.append(
        Goal("policy of 4,096 rules replaced, answers going on", "≤ 250 ms", f"{took:.0f} ms, longest gap {gap:.0f} ms",
             took <= 250 and gap <= 100 and not lost)
    )  # fmt: skip


# -- all of it -----------------------------------------------------------------------------------------------------
PARTS = {"questions": questions, "updates": updates, "lives": lives}


def document(run: Run, arguments: argparse.Namespace, others: float) -> str:
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    cores = len(run.place.cores.before)
    how = "make bench-dns" + (" (shortened: --quick)" if arguments.quick else "")
    shared = " With one core for load and server alike, the figures mean little." if run.place.cores.shared else ""
    noise = f" Others used {others:.0%} of the machine just before: not a quiet one." if others > BUSY else ""
    intro = (
        f"# Benchmarks\n\nWritten by `{how}` on {time.strftime('%Y-%m-%d', time.gmtime())}: {cpu}, {cores} cores, "
        f"Linux {platform.release()}, CPython {platform.python_version()}. What is measured has one core, load and a "
        f"fake resolver the other.{shared}{noise} Figures are medians (min..max) of {run.size.rounds} interleaved "
        "rounds, ratios taken round by round. Absolute figures belong to this machine and its neighbours; ratios "
        "travel better.\n\n"
        "All answer on loopback behind an nftables redirect in a network namespace, ask the same resolver across a "
        "veth pair with random ports and ids, and have their own questions untracked. *CPU µs each* is the processor "
        "time of the contender's processes for an answer, kernel included. *core used* below 90 % means that the "
        "load's core, not the contender, was the limit: then the CPU is the better comparison."
    )
    parts = [intro, "## Goals", goals(run.goals), "What falls short:", short(run.goals), *run.sections]
    return "\n\n".join(parts) + "\n"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.dns", description="Measure the sidecar beside dnsmasq and unbound.")
    parser.add_argument("--quick", action="store_true", help="under a minute, coarser")
    parser.add_argument("--only", choices=tuple(PARTS), action="append", help="these parts, written nowhere")
    parser.add_argument("--dry", action="store_true", help="print, do not write docs/benchmarks.md")
    arguments = parser.parse_args(argv)
    problem = lacking() or _missing()
    if problem:
        print(f"bench: {problem}", file=sys.stderr)
        return 1
    others = neighbours()
    if others > BUSY:
        print(f"bench: others use {others:.0%} of this machine: figures will be worse than they are, and scattered")
    sys.setswitchinterval(0.0005)
    gc.freeze()
    with Place() as place:
        run = Run(place, QUICK if arguments.quick else FULL)
        try:
            for name, part in PARTS.items():
                if not arguments.only or name in arguments.only:
                    part(run)
            text = document(run, arguments, others)
        finally:
            run.close()
        print(goals(run.goals))
        print(f"\nin {time.monotonic() - run.began:.0f} s")
    if not arguments.only and not arguments.dry:
        DOCUMENT.write_text(text)
        print(f"written: {DOCUMENT.relative_to(DOCUMENT.parent.parent)}")
    return 0


def _missing() -> str:
    import shutil

    absent = [name for name in ("dnsperf", "dnsmasq", "unbound") if not shutil.which(name, path="/usr/sbin:/usr/bin")]
    return MISSING.format(", ".join(absent)) if absent else ""


if __name__ == "__main__":
    sys.exit(main())
