"""The part of `make bench-dns` that asks: uncached, cached, and with a set update for every answer."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, NamedTuple

from bench import life, load
from bench.contenders import (
    Dnsmasq,
    DnsmasqBig,
    DnsmasqSet,
    DnsmasqSetBig,
    Ours,
    OursAsShipped,
    Unbound,
)
from bench.place import wait_for
from bench.report import Goal, middle, number, ratios, table

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.contenders import Contender
    from bench.load import Burst, Spread
    from bench.run import Run

CACHED_NAMES = 1000
NEW_ADDRESSES = 12_000  # below what leases hold


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
