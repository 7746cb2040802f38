"""`egress doctor`: what this kernel and these capabilities can hold, line by line, and what to do about the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from egress.commands.output import GOOD, NOT, Outcome, Parser, json_line, run

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from egress.commands.findings import Finding

EPILOG = """\
examples:
  egress doctor
      as root: for egress serve, the sidecar; as an ordinary user: for egress run
  docker run --rm --cap-drop ALL --cap-add NET_ADMIN --entrypoint /opt/venv/bin/egress IMAGE doctor
      in the container that it is about, with the capabilities that it will have
  egress doctor --for run
  egress doctor --json | jq -r '.findings[] | select(.state == "missing") | .advice'

Each line is one of
  ok        holds
  note      good to know
  limited   does not hold here; the guard works without, and the line says what is lost
  missing   does not hold here, and is needed

Nothing is changed: rulesets are tried in a network namespace of their own, which is gone when this ends. Where no such
namespace may be made (an ordinary container), the kernel is only asked to check them. Resolvers get one question each.

exit code: 0 everything needed holds, 1 something needed is missing, 2 this call is wrong.
"""


def main(argv: list[str]) -> int:
    """Examine this machine; returns the exit code."""
    return run("doctor", lambda: _work(_parser().parse_args(argv)))


def _work(options: argparse.Namespace) -> Outcome:
    from egress.commands.findings import default_purpose, survey

    purpose = options.purpose or default_purpose()
    found = survey(purpose, ask=not options.offline)
    missing = [finding for finding in found if finding.state == "missing"]
    code = NOT if missing else GOOD
    if options.json:
        findings = [finding._asdict() for finding in found]
        return Outcome(code, json_line({"purpose": purpose, "holds": not missing, "findings": findings}))
    return Outcome(code, _shown(purpose, found, missing))


def _shown(purpose: str, found: Sequence[Finding], missing: Sequence[Finding]) -> str:
    width = max(len(finding.title) for finding in found)
    lines = []
    for finding in found:
        lines.append(f"{finding.state:<8} {finding.title:<{width}}  {finding.found}")
        if finding.advice:
            lines.append(f"{'':<8} {'':<{width}}  -> {finding.advice}")
    if missing:
        verdict = f"egress {purpose} cannot work here: {', '.join(finding.title for finding in missing)}"
    else:
        limited = sum(finding.state == "limited" for finding in found)
        verdict = f"egress {purpose}: everything it needs holds here" + (f"; {limited} limited" if limited else "")
    return "\n".join([*lines, "", verdict]) + "\n"


def _parser() -> Parser:
    parser = Parser(
        "egress doctor",
        "egress doctor [--for serve|run] [--offline] [--json]",
        "Say what this kernel and these capabilities can hold, and what to do about what they can't.",
        EPILOG,
    )
    add = parser.add_argument
    add("--for", dest="purpose", choices=("serve", "run"), default="",
        help="what it has to be good enough for (default: serve with CAP_NET_ADMIN or as root, else run)")  # fmt: skip
    add("--offline", action="store_true", help="ask no resolver anything")
    add("--json", action="store_true", help="one JSON object: purpose, holds, findings")
    return parser
