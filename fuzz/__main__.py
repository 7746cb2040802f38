"""`python -m fuzz`: every target for its share of the executions, with what is seen of it meanwhile.

    python -m fuzz                                  all targets, a million executions
    python -m fuzz --runs 10000000                  more of them
    python -m fuzz dns_query policy_json --seed 7   two targets, another path through them
    python -m fuzz --again .fuzz/findings/FILE dns_query   one input once more, with its traceback

Inputs that have led somewhere new are kept in `.fuzz/` and begun with the next time; so are findings. Exit code 1 where
there was one.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from fuzz import TARGETS, shares
from fuzz.running import Run, command, environment

_CHECKOUT = Path(__file__).resolve().parent.parent
_EVERY = 5.0  # seconds between two lines
_STATE = re.compile(r"#(\d+)\s.*?cov: (\d+) ft: (\d+) corp: (\d+)")


class Result(NamedTuple):
    """What came of a target."""

    name: str
    runs: int
    seconds: float
    covered: int
    inputs: int
    findings: list[Path]


def main(arguments: list[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m fuzz", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}")
    parser.add_argument("--runs", type=int, default=1_000_000, help="executions of all targets together")
    parser.add_argument("--seed", type=int, default=0, help="of the mutator; 0: another one each time")
    parser.add_argument("--state", type=Path, default=_CHECKOUT / ".fuzz", help="where inputs and findings are kept")
    parser.add_argument("--again", type=Path, help="run this one input through the target instead")
    options = parser.parse_args(arguments)
    for name in options.targets:
        if name not in TARGETS:
            parser.error(f"no target {name!r}; there are {', '.join(TARGETS)}")
    if importlib.util.find_spec("atheris") is None:
        print(
            "fuzz: atheris is not there: it is built for Linux on x86_64 only, and `make setup` installs it",
            file=sys.stderr,
        )
        return 2
    targets = options.targets or list(TARGETS)
    if options.again:
        for name in targets:
            run = Run(name, options.state / "corpus" / name, options.state / "findings")
            again = subprocess.run(
                [*command(run), str(options.again.resolve())], env=environment(), cwd=_CHECKOUT, check=False
            )
            if again.returncode:
                return 1
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    seed = options.seed or random.randrange(1, 1 << 31)
    print(f"{options.runs:,} executions of {len(targets)} targets, seed {seed}", flush=True)
    results = [fuzz(name, runs, seed, options.state) for name, runs in shares(targets, options.runs).items()]
    return summary(results)


def fuzz(name: str, runs: int, seed: int, state: Path) -> Result:
    """One target for so many executions, findings or not: after each it goes on behind it with another seed."""
    findings: list[Path] = []
    begun = time.monotonic()
    done, covered, inputs = 0, 0, 0
    while done < runs and len(findings) < 10:
        run = Run(name, state / "corpus" / name, state / "findings", runs - done, seed + len(findings))
        started = time.time()
        count, covered, inputs, told = follow(run, done, runs)
        done += count
        new = [path for path in run.findings() if path.stat().st_mtime >= started - 1]
        if not new and done < runs:
            raise SystemExit(f"{name} ended early:\n" + "\n".join(told))
        print("\n".join([f"  {name} FOUND {path}" for path in new] + (told if new else [])), end="", flush=True)
        if set(new) <= set(findings):
            break  # the very same again, or nothing
        findings += new
    return Result(name, done, time.monotonic() - begun, covered, inputs, findings)


def follow(run: Run, done: int, runs: int) -> tuple[int, int, int, list[str]]:
    """Start it and tell how it goes: executions, places covered, inputs kept, and its last words."""
    begun = said = time.monotonic()
    count = covered = inputs = 0
    last: list[str] = []
    with run.start() as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                found = _STATE.match(line)
                if found:
                    count, covered, inputs = int(found[1]), int(found[2]), int(found[4])
                elif (heard := run.progress(line)) is not None:
                    count = heard
                else:
                    last = [*last[-30:], line.rstrip()]
                now = time.monotonic()
                if now - said > _EVERY:
                    said = now
                    far = f"{done + count:>10,} of {runs:,}  {count / (now - begun):>7,.0f}/s"
                    print(f"  {run.name:15} {far}  {covered} covered  {inputs} inputs", flush=True)
        except BaseException:
            process.kill()
            raise
    return count, covered, inputs, last


def summary(results: list[Result]) -> int:
    print(f"\n{'target':15} {'executions':>12} {'per second':>11} {'covered':>8} {'inputs':>7} {'findings':>9}")
    for one in results:
        pace = one.runs / max(one.seconds, 0.001)
        print(f"{one.name:15} {one.runs:>12,} {pace:>11,.0f} {one.covered:>8} {one.inputs:>7} {len(one.findings):>9}")
    total, seconds = sum(one.runs for one in results), sum(one.seconds for one in results)
    found = [path for one in results for path in one.findings]
    print(f"{'together':15} {total:>12,} {total / max(seconds, 0.001):>11,.0f} {'':8} {'':7} {len(found):>9}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
