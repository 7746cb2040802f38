"""`python -m soak`: lives of a sidecar, one after the other, until the time is over or something differs."""

from __future__ import annotations

import argparse
import collections
import random
import signal
import sys
import time

from lab import Internet, Lab
from lab.lacking import lacking
from lab.tls import TlsSites
from soak.kinds import KINDS
from soak.play import Difference, Play
from soak.world import EVERYWHERE

LIFE = 250
"""Steps of one life."""
_EVERY = 5.0  # seconds between two lines


def main(arguments: list[str]) -> int:
    """0: no difference in all that time; 1: one, and it is told; 2: this machine cannot."""
    parser = argparse.ArgumentParser(prog="python -m soak", description="the sidecar lived with at random")
    parser.add_argument("--minutes", type=float, default=5.0, help="how long")
    parser.add_argument("--seed", type=int, default=0, help="of the first life; the n-th has the n-th after it; 0: any")
    parser.add_argument("--steps", type=int, default=0, help="one life of so many steps, whatever time it takes")
    parser.add_argument("--kind", choices=["", *KINDS], default="", help="of every life, else it is left to the seed")
    options = parser.parse_args(arguments)
    if lacking():
        print(f"soak: {lacking()}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # everything is taken down on the way out
    seed = options.seed or random.SystemRandom().randrange(1, 1 << 31)
    begun = time.monotonic()
    total: collections.Counter[str] = collections.Counter()
    life = 0
    with Internet() as internet, TlsSites(internet.namespace) as tls:
        tls.add(*EVERYWHERE)
        while True:
            try:
                internet.reset()
                with Lab(internet) as lab:
                    total += live(lab, seed + life, options, begun, total)
            except Difference as difference:
                again = f"make soak SEED={seed + life}" + f" KIND={options.kind}" * bool(options.kind)
                print(f"\nDIFFERENCE, {again}:\n{difference}", flush=True)
                return 1
            life += 1
            if options.steps or time.monotonic() - begun > options.minutes * 60:
                break
    print(f"{line(total, time.monotonic() - begun)}; {life} lives from seed {seed}; no difference")
    return 0


def live(
    lab: Lab, seed: int, options: argparse.Namespace, begun: float, before: collections.Counter[str]
) -> collections.Counter[str]:
    """One life; what was counted in it."""
    said = time.monotonic()
    chance = random.Random(seed)
    (drawn,) = chance.choices(list(KINDS), [kind.weight for kind in KINDS.values()])
    kind = options.kind or drawn
    with Play(lab, chance, kind) as play:
        try:
            for _ in range(options.steps or LIFE):
                play.step()
                now = time.monotonic()
                if now - said > _EVERY:
                    said = now
                    print(f"seed {seed}, {line(before + play.counts, now - begun)}", flush=True)
                if not options.steps and now - begun > options.minutes * 60:
                    break
        except Difference as difference:
            raise Difference(f"at step {play.number} of seed {seed}, {kind}: {difference}") from None
        play.counts[f"steps with {kind}"] = play.counts["steps"]
        return play.counts


def line(counts: collections.Counter[str], seconds: float) -> str:
    rest = ", ".join(f"{counts[name]:,} {name}" for name in sorted(counts) if name != "steps")
    return f"{seconds:,.0f} s, {counts['steps']:,} steps: {rest}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
