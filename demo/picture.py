"""`python -m demo.picture`: run the demo and draw what it prints, as docs/images/demo.svg.

A terminal as SVG, without scripts or fonts of its own. The colours change with the reader's light or dark mode by a
media query, which viewers honour in an <img> as well. The acts in SHOWN are drawn, and the table; two runs differ in
their times and process ids only.
"""

from __future__ import annotations

import io
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from demo.play import run
from demo.screen import BLUE, BOLD, DIM, GREEN, MAGENTA, RED, Screen
from lab.rootless import become_root

if TYPE_CHECKING:
    from collections.abc import Iterable

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "images" / "demo.svg"
SHOWN = ("4", "7")  # with all of them the picture is three screens high
_LINE, _CHARACTER, _SIZE, _MARGIN, _BAR = 18, 7.8, 13, 20, 34
_SGR = re.compile(r"\x1b\[(\d+)m(.*?)\x1b\[0m")
_CLASSES = {BOLD: "b", DIM: "d", RED: "r", GREEN: "g", BLUE: "s", MAGENTA: "o"}
_STYLE = """
  .ground { fill: #ffffff; stroke: #d1d9e0 } .bar { fill: #f6f8fa; stroke: #d1d9e0 } .dot { fill: #d1d9e0 }
  text { font: 13px ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace; white-space: pre;
    fill: #1f2328 }
  .b { font-weight: 700 } .d { fill: #818b98 } .r { fill: #cf222e } .g { fill: #1a7f37 } .s { fill: #0969da }
  .o { fill: #8250df }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #0d1117; stroke: #3d444d } .bar { fill: #151b23; stroke: #3d444d } .dot { fill: #3d444d }
    text { fill: #d1d7e0 } .d { fill: #9198a1 } .r { fill: #ff7b72 } .g { fill: #3fb950 } .s { fill: #58a6ff }
    .o { fill: #bc8cff }
  }
"""


def draw(lines: Iterable[str]) -> str:
    """Lines with our own SGR codes as an SVG document."""
    shown = list(lines)
    width = round(max(len(_SGR.sub(r"\2", line)) for line in shown) * _CHARACTER + 2 * _MARGIN)
    height = _BAR + len(shown) * _LINE + 2 * _MARGIN - 6
    out = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            ' role="img" aria-label="What make demo prints">'
        ),
        f"<style>{_STYLE}</style>",
        f'<rect class="ground" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"/>',
        f'<path class="bar" d="M.5 {_BAR}V8.5a8 8 0 0 1 8-8H{width - 8.5}a8 8 0 0 1 8 8V{_BAR}z"/>',
        *(f'<circle class="dot" cx="{20 + 18 * n}" cy="{_BAR / 2}" r="5.5"/>' for n in range(3)),
        f'<text class="d" x="{width / 2}" y="{_BAR / 2 + 4.5}" text-anchor="middle">make demo</text>',
    ]
    for number, line in enumerate(shown):
        baseline = _BAR + _MARGIN + number * _LINE + _SIZE - 2
        out.extend(_texts(line, baseline))
    return "\n".join([*out, "</svg>", ""])


def _texts(line: str, baseline: int) -> Iterable[str]:
    """One element a run of one colour, each at its own column: fonts of another width keep the table straight."""
    at, column = 0, 0
    runs: list[tuple[str, str]] = []
    for found in _SGR.finditer(line):
        runs += [("", line[at : found.start()]), (_CLASSES[found[1]], found[2])]
        at = found.end()
    runs.append(("", line[at:]))
    for name, text in runs:
        for words in re.finditer(r"\S+(?: \S+)*", text):
            x = _MARGIN + (column + words.start()) * _CHARACTER
            length = len(words[0]) * _CHARACTER
            attribute = f' class="{name}"' if name else ""
            yield (f'<text x="{x:.1f}" y="{baseline}" textLength="{length:.1f}"{attribute}>{escape(words[0])}</text>')
        column += len(text)


def excerpt(lines: list[str]) -> list[str]:
    """The acts in SHOWN and everything after the last act, with a line of dots where acts are left out."""
    kept: list[str] = []
    act, dots = "", False
    for line in lines[2:]:
        plain = _SGR.sub(r"\2", line)
        started = re.match(r"(\d)  \S", plain)
        if started:
            act = started[1]
        elif plain.lstrip().startswith("step "):
            act = "table"
        if act in (*SHOWN, "table"):
            kept.append(line)
            dots = False
        elif not dots and act:
            kept += [f"\x1b[{DIM}m⋯\x1b[0m", ""]
            dots = True
    return kept


def main() -> int:
    become_root()
    stream = io.StringIO()
    root = os.geteuid() == 0 and not os.environ.get("SALLYPORT_LAB_ROOTLESS")
    screen = Screen(stream, colour=True)
    result = run(screen, root=root)
    screen.table(result)
    screen.conclusion(result)
    if result.failed:
        print("demo.picture: not every step came out as expected; the picture stays as it was", file=sys.stderr)
        return 1
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_text(draw(excerpt(stream.getvalue().rstrip("\n").split("\n"))), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
