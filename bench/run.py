"""One run of `make bench-dns`: how much is measured, who is, and what was found."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from bench.contenders import Contender
    from bench.place import Place
    from bench.report import Goal


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
