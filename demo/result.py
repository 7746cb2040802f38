"""What a run of the demo found: one row a step."""

from __future__ import annotations

from typing import Any, NamedTuple


class Row(NamedTuple):
    """One step. `milliseconds` is of what the step is about, not of the whole act; None where time says nothing."""

    ident: str
    title: str
    expected: str
    seen: str
    milliseconds: float | None
    ok: bool

    def document(self) -> dict[str, Any]:
        """For `--json`."""
        time = None if self.milliseconds is None else round(self.milliseconds, 3)
        return {
            "id": self.ident,
            "title": self.title,
            "expected": self.expected,
            "seen": self.seen,
            "milliseconds": time,
            "ok": self.ok,
        }


class Typed(NamedTuple):
    """A command as it was typed, and what came back: both streams, as a terminal mixes them."""

    prompt: str
    command: str
    output: str
    code: int
    milliseconds: float


class Result(NamedTuple):
    """The whole run."""

    rows: tuple[Row, ...]
    typed: tuple[Typed, ...]
    seconds: float
    root: bool

    @property
    def failed(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if not row.ok)

    def document(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "ok": not self.failed,
            "seconds": round(self.seconds, 3),
            "as": "root" if self.root else "an ordinary user, in a user namespace",
            "steps": [row.document() for row in self.rows],
            "commands": [{**one._asdict(), "milliseconds": round(one.milliseconds, 3)} for one in self.typed],
        }


def milliseconds(value: float | None) -> str:
    """`0.2 ms`, `17 ms`, `1.4 s`; nothing for None."""
    if value is None:
        return ""
    if value >= 1000:
        return f"{value / 1000:.1f} s"
    return f"{value:.1f} ms" if value < 9.95 else f"{value:.0f} ms"
