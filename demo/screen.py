"""What the person sees: acts, commands, what came back, and the table at the end."""

from __future__ import annotations

import os
import textwrap
import time
from typing import TYPE_CHECKING, TextIO

from demo.result import milliseconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from demo.result import Result, Row

WIDTH = 100
# SGR codes (ECMA-48 §8.3.117). Only the sixteen colours that every terminal's owner has chosen for himself.
BOLD, DIM, RED, GREEN, BLUE, MAGENTA = "1", "2", "31", "32", "34", "35"
_PROMPTS = {"sandbox$": BLUE, "operator$": MAGENTA}
_READ_COMMAND, _READ_VERDICT = 0.07, 0.25  # seconds, where somebody reads along


def wants_colour(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """On a terminal, unless NO_COLOR (no-color.org) or TERM=dumb says otherwise."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


class Screen:
    """Writes to `stream`. `colour` and `paced` are for people; without them it is plain text, at once."""

    def __init__(self, stream: TextIO, *, colour: bool = False, paced: bool = False) -> None:
        self._stream = stream
        self._colour = colour
        self._paced = paced
        unicode = "utf" in (getattr(stream, "encoding", None) or "utf-8").lower()
        self._yes, self._no, self._line = ("✓", "✗", "─") if unicode else ("ok", "FAILED", "-")

    # -- acts -----------------------------------------------------------------------------------------------------
    def title(self, text: str, below: str) -> None:
        self._write(self._dye(text, BOLD))
        self._write(below)

    def act(self, number: int, text: str) -> None:
        self._write("")
        self._write(self._dye(f"{number}  {text}", BOLD))

    def typed(self, prompt: str, command: str) -> None:
        """A command, before it runs. Its own line breaks stay."""
        first, *more = command.split("\n")
        self._write(f"   {self._dye(prompt, _PROMPTS[prompt])} {first}")
        for line in more:
            self._write(f"   {' ' * len(prompt)} {line}")
        self._pause(_READ_COMMAND)

    def came(self, lines: Sequence[str]) -> None:
        """What came back."""
        for line in lines:
            for part in textwrap.wrap(line, WIDTH - 5, subsequent_indent="  ") or [""]:
                self._write(f"     {part}")

    def verdict(self, row: Row) -> None:
        took = milliseconds(row.milliseconds)
        time_said = f"  ({took})" if took else ""
        if row.ok:
            self._write(f"   {self._dye(self._yes, GREEN)} {row.title}: {row.seen}{time_said}")
        else:
            self._write(f"   {self._dye(self._no, RED)} {row.title}: {row.seen}{time_said}")
            self._write(f"     {self._dye(f'expected: {row.expected}', RED)}")
        self._pause(_READ_VERDICT)

    # -- the end --------------------------------------------------------------------------------------------------
    def table(self, result: Result) -> None:
        heads = ("step", "expected", "seen", "time")
        cells = [(row.title, row.expected, row.seen, milliseconds(row.milliseconds)) for row in result.rows]
        widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
        mark = max(len(self._yes), *(0 if row.ok else len(self._no) for row in result.rows))
        self._write("")
        self._write(self._dye(f"{' ' * mark} {_columns(heads, widths)}".rstrip(), BOLD))
        self._write(self._dye(self._line * (mark + 1 + sum(widths) + 6), DIM))
        for row, cell in zip(result.rows, cells, strict=True):
            sign = self._dye(self._yes.ljust(mark), GREEN) if row.ok else self._dye(self._no.ljust(mark), RED)
            self._write(f"{sign} {_columns(cell, widths)}")
        self._write("")

    def conclusion(self, result: Result) -> None:
        whose = "root" if result.root else "an ordinary user, in a user namespace"
        if not result.failed:
            self._write(
                self._dye(f"All {len(result.rows)} steps came out as expected", GREEN)
                + f", in {result.seconds:.1f} s, as {whose}."
            )
            return
        count = len(result.failed)
        self._write(
            self._dye(f"{count} of {len(result.rows)} steps did not come out as expected:", RED)
            + " "
            + "; ".join(f"{row.title} ({row.seen})" for row in result.failed)
        )

    def note(self, text: str) -> None:
        for line in text.splitlines():
            self._write(line)

    # -- ink ------------------------------------------------------------------------------------------------------
    def _dye(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour else text

    def _write(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()

    def _pause(self, seconds: float) -> None:
        if self._paced:
            time.sleep(seconds)


def _columns(cells: Sequence[str], widths: Sequence[int]) -> str:
    step, expected, seen, took = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return f"{step}  {expected}  {seen}  {took.strip():>{widths[3]}}".rstrip()


def silent() -> Screen:
    """A screen that nobody looks at."""
    return Screen(open(os.devnull, "w", encoding="utf-8"))
