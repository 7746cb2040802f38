"""Figures as people read them: medians with their range, ratios round by round, the goal beside each."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Goal(NamedTuple):
    """One line of the list of goals."""

    what: str
    goal: str
    found: str
    reached: bool
    remark: str = ""


def middle(values: Iterable[float], digits: int = 0) -> str:
    """`median (min..max)`."""
    found = sorted(values)
    if not found:
        return "-"
    text = number(statistics.median(found), digits)
    if len(found) == 1:
        return text
    return f"{text} ({number(found[0], digits)}..{number(found[-1], digits)})"


def number(value: float, digits: int = 0) -> str:
    return f"{value:,.{digits}f}"


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Ours divided by theirs, round by round: both were measured within seconds of each other."""
    return [mine / other for mine, other in zip(ours, theirs, strict=True) if other]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, set so that it can be read as it is."""
    lines = [list(head), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    )


def goals(found: Iterable[Goal]) -> str:
    rows = [(goal.what, goal.goal, goal.found, "yes" if goal.reached else "**no**") for goal in found]
    return table(("what", "goal", "found", "reached"), rows)


def short(found: Iterable[Goal]) -> str:
    """What falls short, and why."""
    lines = [
        f"- {goal.what}: {goal.found} instead of {goal.goal}. {goal.remark}".rstrip()
        for goal in found
        if not goal.reached
    ]
    return "\n".join(lines) if lines else "Nothing."
