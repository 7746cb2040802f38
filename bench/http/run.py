"""One run: who takes part, how much of everything, the rounds, and what was found."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, NamedTuple

from bench.report import Goal, middle, ratios

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from bench.http.contender import Contender
    from bench.http.load import Burst, Spread
    from bench.http.peers import Peers
    from bench.http.place import Place

OURS = "sallyport"
LIMIT = 0.95  # share of its core from which on a contender was the limit itself


class Size(NamedTuple):
    """How much of everything."""

    rounds: int
    wrk: int  # whole seconds of one burst of small answers
    short: float  # seconds of everything else
    most: int  # messages or requests one at a time
    echoes: int  # rounds of WebSockets: they are short, and scattered more than the rest
    connections: tuple[int, ...]  # of small answers, besides one at a time
    messages: int  # tunnels with a message under way each
    tunnels: int  # that do nothing
    loaded: int  # whole seconds of load until memory is read
    limit: float  # seconds for all; rounds that would go beyond are left out


FULL = Size(
    rounds=5,
    wrk=1,
    short=0.4,
    most=4000,
    echoes=11,
    connections=(32, 256),
    messages=64,
    tunnels=1000,
    loaded=10,
    limit=480,
)
QUICK = Size(
    rounds=1, wrk=1, short=0.2, most=1500, echoes=3, connections=(32, 256), messages=64, tunnels=400, loaded=1, limit=60
)
DRY = Size(
    rounds=1, wrk=1, short=0.02, most=10, echoes=1, connections=(32,), messages=8, tunnels=20, loaded=1, limit=30
)
"""Enough to see that all of it runs."""


class Row:
    """One contender and what was measured, by cell, all rounds."""

    def __init__(self, contender: Contender) -> None:
        self.contender = contender
        self.bursts: dict[str, list[Burst]] = {}
        self.spreads: dict[str, list[Spread]] = {}

    @property
    def name(self) -> str:
        return self.contender.name

    def forget(self, turn: int) -> None:
        """What was measured in this round; the ones before stay."""
        for bursts in self.bursts.values():
            del bursts[turn:]
        for spreads in self.spreads.values():
            del spreads[turn:]

    def rates(self, cell: str) -> list[float]:
        return [burst.rate for burst in self.bursts.get(cell, ())]

    def cpus(self, cell: str) -> list[float]:
        return [burst.cpu for burst in self.bursts.get(cell, ())]

    def p50s(self, cell: str) -> list[float]:
        return [one.p50 for one in (*self.spreads.get(cell, ()), *self.bursts.get(cell, ()))]

    def p99s(self, cell: str) -> list[float]:
        return [one.p99 for one in (*self.spreads.get(cell, ()), *self.bursts.get(cell, ()))]


class Run:
    """The contenders that start, the sections of the report, the goals."""

    def __init__(self, place: Place, size: Size, kinds: Sequence[type[Contender]], peers: Peers) -> None:
        self.place = place
        self.size = size
        self.peers = peers
        self.sections: list[str] = []
        self.goals: list[Goal] = []
        self.absent: dict[str, str] = {}  # contender to reason
        self.began = time.monotonic()
        self.contenders: list[Contender] = []
        for kind in kinds:
            why = next((peers.why[need] for need in kind.needs if need in peers.why), "")
            if why:
                self.leave_out(kind.name, why)
            else:
                self.contenders.append(kind(place, peers))

    def say(self, what: str) -> None:
        print(f"[{time.monotonic() - self.began:5.1f} s] {what}", flush=True)

    def leave_out(self, name: str, why: str) -> None:
        self.absent.setdefault(name, why)
        self.say(f"without {name}: {why}")

    def section(self, title: str, *parts: str) -> None:
        text = f"## {title}\n\n" + "\n\n".join(part for part in parts if part)
        self.sections.append(text)
        print("\n" + text + "\n", flush=True)

    def started(self, wanted: Callable[[Contender], bool]) -> list[Row]:
        """A row for each contender that is wanted and starts."""
        rows = []
        for contender in list(self.contenders):
            if wanted(contender) and (contender.program is not None or self.start(contender)):
                rows.append(Row(contender))
        return rows

    def start(self, contender: Contender) -> bool:
        """A fresh life; one that does not start takes no further part, and the report says why."""
        try:
            contender.start()
        except (OSError, RuntimeError) as error:
            contender.stop()
            self.contenders.remove(contender)
            self.leave_out(contender.name, f"it does not start: {error}")
            return False
        return True

    def stop(self) -> None:
        for contender in self.contenders:
            contender.stop()

    def rounds(self, what: str, rows: list[Row], measure: Callable[[Row], str], share: float, count: int = 0) -> None:
        """Everybody once, then everybody again, from the other end: what comes and goes meanwhile meets both.

        share: of the run's time that may be used up after the last round. count: of rounds, where not the usual.
        """
        count = count or self.size.rounds
        longest = 0.0
        for turn in range(count):
            begin = time.monotonic()
            if turn and begin - self.began + longest > share * self.size.limit:
                self.say(f"{what}: {turn} rounds instead of {count}, time is up")
                return
            for row in rows[:] if turn % 2 == 0 else rows[::-1]:
                try:
                    found = self._measured(row, turn, measure)
                except (OSError, RuntimeError) as error:
                    rows.remove(row)
                    self.leave_out(f"{row.name} ({what})", str(error))
                    continue
                self.say(f"{what}, round {turn + 1} of {count}: {row.name}: {found}")
                row.contender.settle()
            longest = max(longest, time.monotonic() - begin)

    def _measured(self, row: Row, turn: int, measure: Callable[[Row], str]) -> str:
        """One contender in one round. What fails is tried once more: a busy machine is not a contender's fault."""
        try:
            return measure(row)
        except (OSError, RuntimeError) as error:
            self.say(f"{row.name}, once more: {error}")
            row.forget(turn)
            row.contender.settle(5)
            return measure(row)

    @property
    def over(self) -> bool:
        """Has it taken as long as it may?"""
        return time.monotonic() - self.began > self.size.limit


def row_of(rows: Iterable[Row], key: str) -> Row | None:
    return next((row for row in rows if row.contender.key == key), None)


def faster(ours: Row | None, other: Row, cell: str) -> str:
    """`x1.2 (1.1..1.3)`, or nothing to say."""
    if ours is None or ours is other:
        return ""
    return "x" + middle(ratios(ours.rates(cell), other.rates(cell)), 2)


def roomier(ours: Row | None, other: Row, cell: str) -> str:
    """The other's processor time for each, divided by ours."""
    if ours is None or ours is other or not any(other.cpus(cell)):
        return ""
    return "x" + middle(ratios(other.cpus(cell), ours.cpus(cell)), 2)


def carried(ours: Row, other: Row, cell: str) -> tuple[float, str]:
    """Two readings at the median, by count and by processor time for each: the smaller one.

    They part where the load's core cannot keep a contender's busy: then the count flatters the slower of the two. Where
    that is so for ours, the count says nothing and the processor time decides alone.
    """
    by_count = ratios(ours.rates(cell), other.rates(cell))
    by_cpu = ratios(other.cpus(cell), ours.cpus(cell))
    value = statistics.median(by_cpu)
    share = statistics.median(burst.busy for burst in ours.bursts[cell])
    counted = f"{middle(by_count, 2)}x by count"
    if share >= LIMIT:
        value = min(value, statistics.median(by_count))
    else:
        counted += f" (with {share:.0%} of its core)"
    return value, f"{counted}, {middle(by_cpu, 2)}x by CPU"


def slower(ours: Row, other: Row, cell: str) -> tuple[float, str]:
    """Our p50 divided by theirs."""
    found = ratios(ours.p50s(cell), other.p50s(cell))
    return statistics.median(found), f"{middle(found, 2)}x"
