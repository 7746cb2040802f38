"""`make bench-http`: the gateway beside other proxies, in one run, round after round.

    A B C D  A B C D  A B C D …

Machines drift, so every contender is measured within seconds of the others, ratios are taken round by round, and a
figure is a median with its range. Everything is on loopback; what was started has ended when this ends.

    python -m bench.http --only requests --contenders sallyport,nginx --quick      while changing the data path
"""

from __future__ import annotations

import argparse
import gc
import platform
import resource
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.http.contenders import BY_KEY, KINDS
from bench.http.parts import PARTS
from bench.http.peers import Peers
from bench.http.place import Place
from bench.http.run import DRY, FULL, LIMIT, OURS, QUICK, Run
from bench.place import CHECKOUT, neighbours
from bench.report import goals, short

if TYPE_CHECKING:
    from types import FrameType

DOCUMENT = CHECKOUT / "docs" / "benchmarks-http.md"
BUSY = 0.1  # share of the machine that others use
FILES = 16_384  # sockets that one process here may need, and more


def document(run: Run, arguments: argparse.Namespace, others: float) -> str:
    info = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.partition(":")[2].strip() for line in info if "model name" in line), platform.machine())
    cores = len(run.place.cores.before)
    how = "make bench-http" + (" (shortened: --quick)" if arguments.quick else "")
    shared = " With one core for load and proxy alike, the figures mean little." if run.place.cores.shared else ""
    noise = f" Others used {others:.0%} of the machine just before: not a quiet one." if others > BUSY else ""
    versions = ", ".join(dict.fromkeys(text for contender in run.contenders for text in contender.versions()))
    intro = (
        f"# Benchmarks of the gateway\n\nWritten by `{how}` on {time.strftime('%Y-%m-%d', time.gmtime())}: {cpu}, "
        f"{cores} cores, Linux {platform.release()}, CPython {platform.python_version()}. The proxy has one core and "
        f"one worker, load and origins the other core.{shared}{noise} Figures are medians (min..max) of up to "
        f"{run.size.rounds} interleaved rounds ({run.size.echoes} of WebSockets), every other one from the other end; "
        "ratios are taken round by round. Absolute figures belong to this machine and its neighbours; ratios travel "
        "better.\n\n"
        "*CPU µs each* is the processor time of all of a contender's processes for one answer, kernel included. *core "
        f"used* below {LIMIT:.0%} means that the load's core, not the contender, was the limit: then the CPU is the "
        "better comparison. A goal by count is reached where both readings reach it, and by CPU alone where "
        "sallyport's core was not the limit. *no proxy* is how far load and origin come on their core.\n\n"
        "All take the prefix `/box/<port>` off the path. sallyport reads sandbox and port from it, decides about "
        "access and keeps its counters; the others have both origins written into their configuration. All speak "
        "HTTP/1.1 to the origin on connections kept alive, as many as the load needs (FastAPI + httpx: 20, as "
        "agent-sandbox's router), and write no access log. aiohttp and FastAPI + httpx are reverse proxies of a few "
        "lines of our own; the latter is built the way agent-sandbox's router is, which has no WebSockets.\n\n"
        f"Versions: {versions}."
    )
    parts = [intro]
    if run.absent:
        parts += ["Left out:", "\n".join(f"- {name}: {why}" for name, why in run.absent.items())]
    parts += ["## Goals", "sallyport with routes by path.", goals(run.goals)]
    parts += ["What falls short:", short(run.goals) if run.goals else "Nothing was compared.", *run.sections]
    return "\n\n".join(parts) + "\n"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.http", description="Measure the gateway beside other proxies.")
    parser.add_argument("--quick", action="store_true", help="about a minute, coarser, with fewer contenders")
    parser.add_argument("--only", choices=tuple(PARTS), action="append", help="these parts, written nowhere")
    parser.add_argument("--contenders", metavar="NAMES", help=f"these, written nowhere: {','.join(BY_KEY)}")
    parser.add_argument("--rounds", type=int, metavar="N", help="how many")
    parser.add_argument(
        "--dry", action="store_true", help="a few requests with what is installed, to see that it runs; writes nothing"
    )
    arguments = parser.parse_args(argv)
    shortened = arguments.quick or arguments.dry
    usual = [kind.key for kind in KINDS if kind.quick or not shortened]
    keys = arguments.contenders.split(",") if arguments.contenders else usual
    if unknown := [key for key in keys if key not in BY_KEY]:
        parser.error(f"no such contender: {', '.join(unknown)} (there are {', '.join(BY_KEY)})")
    if arguments.rounds is not None and arguments.rounds < 1:
        parser.error("--rounds has to be at least 1")
    size = DRY if arguments.dry else QUICK if arguments.quick else FULL
    if arguments.rounds:
        size = size._replace(rounds=arguments.rounds)
    kinds = [kind for kind in KINDS if kind.key in keys]
    peers = Peers(install=not arguments.dry)
    peers.provide({"nginx", "wrk", *(need for kind in kinds for need in kind.needs)})
    if arguments.dry:
        others = 0.0
    elif (others := neighbours()) > BUSY:
        print(f"bench: others use {others:.0%} of this machine: figures will be worse than they are, and scattered")
    _prepare()
    with Place(peers.program("nginx")) as place:
        run = Run(place, size, kinds, peers)
        try:
            for name, part in PARTS.items():
                if not arguments.only or name in arguments.only:
                    part(run)
            text = document(run, arguments, others)
        finally:
            run.stop()
        if run.goals:
            print(goals(run.goals))
        print(f"\nin {time.monotonic() - run.began:.0f} s")
    if OURS in keys and any(name.startswith(OURS) for name in run.absent):
        print("bench: sallyport was not measured, or not all of it: nothing is written", file=sys.stderr)
        return 1
    if not (arguments.only or arguments.contenders or arguments.dry):
        DOCUMENT.write_text(text)
        print(f"written: {DOCUMENT.relative_to(CHECKOUT)}")
    return 0


def _prepare() -> None:
    """A quiet interpreter with room for sockets, that also cleans up when it is asked to end."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, FILES) if hard != resource.RLIM_INFINITY else FILES, hard))
    gc.freeze()

    def ended(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, ended)


if __name__ == "__main__":
    sys.exit(main())
