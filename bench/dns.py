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

from bench import life, sets
from bench.contenders import Dnsmasq, Ours, Unbound
from bench.place import Place, neighbours, wait_for
from bench.questions import questions
from bench.report import Goal, goals, middle, ratios, short, table
from bench.run import FULL, QUICK, Run
from lab.lacking import lacking

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
STATIC = (0, 20_000)
BUSY = 0.1  # share of the machine that others use
MISSING = "they are not installed: {} (make setup installs them)"


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
