"""`egress check`: a policy as it is understood, or every fault with its place, before a sandbox depends on it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from egress.commands.output import (
    GOOD,
    NOT,
    USAGE,
    CommandError,
    Outcome,
    Parser,
    json_line,
    policy_json,
    policy_yaml,
    run,
)

if TYPE_CHECKING:
    import argparse

    from egress.commands.places import Fault
    from egress.commands.regrets import Regret
    from policies.model import NetworkPolicy

EPILOG = """\
examples:
  egress check policy.yaml
      prints the policy as it is understood: names in lower case, host bits cleared, ports merged
  egress check policy.json > normalised.json
      the policy goes to standard output, verdict and warnings to standard error
  egress check web-only --yaml > policy.yaml
      a preset as the start of a policy of your own
  egress check --strict policies/*.yaml
      for continuous integration: warnings fail too
  egress check --json policy.yaml | jq -r '.errors[].path'
      one JSON object a line and a policy: file, format, valid, policy, errors, warnings
  generate-policy | egress check -
      from standard input

Whether a file is JSON or YAML is told by its ending (.json, .yaml, .yml), else by its content.

Warnings are about policies that say what they should not: rules that an earlier rule leaves nothing, "*" allowed, wide
networks (which don't open the metadata addresses in them), ports 53 and 853, address rules where mode is dns.

exit code: 0 the policy is good, 1 it has warnings and --strict was given, 2 it has errors or cannot be read.
"""


class Report(NamedTuple):
    """What there is to say about one policy; `policy` is None where it has faults or cannot be read."""

    label: str
    format: str
    policy: NetworkPolicy | None
    faults: tuple[Fault, ...] = ()
    regrets: tuple[Regret, ...] = ()
    unreadable: str = ""

    def document(self) -> dict[str, object]:
        errors: list[dict[str, object]] = [
            {"path": fault.path, "line": fault.line or None, "message": fault.message} for fault in self.faults
        ]
        if self.unreadable:
            errors.append({"path": None, "line": None, "message": self.unreadable})
        return {
            "file": self.label,
            "format": self.format.lower() or None,
            "valid": self.policy is not None,
            "mode": self.policy.mode if self.policy else None,
            "policy": self.policy.to_document() if self.policy else None,
            "errors": errors,
            "warnings": [{"path": regret.path, "message": regret.message} for regret in self.regrets],
        }

    def remarks(self) -> list[str]:
        """The verdict in lines, errors in the form that editors know: file:line: words."""
        if self.unreadable:
            return [f"egress check: {self.unreadable}"]
        if self.policy is None:
            from egress.commands.places import MOST

            lines = []
            for fault in self.faults:
                place = f"{self.label}:{fault.line}" if fault.line else self.label
                lines.append(f"{place}: error: {fault.path}: {fault.message}")
            count = len(self.faults)
            more = " or more" if count == MOST else ""
            return [*lines, f"{self.label}: {self.format}, {count} error{'s' if count != 1 else ''}{more}"]
        lines = [f"{self.label}: warning: {regret.path}: {regret.message}" for regret in self.regrets]
        rules = len(self.policy.egress)
        what = f"default {self.policy.default.value}, {rules} rule{'s' if rules != 1 else ''}"
        count = len(self.regrets)
        ending = f", {count} warning{'s' if count != 1 else ''}" if count else ""
        return [*lines, f"{self.label}: good {self.format}, {what}{ending}"]


def main(argv: list[str]) -> int:
    """Check every policy named; returns the exit code."""
    return run("check", lambda: _work(_parser().parse_args(argv)))


def _work(options: argparse.Namespace) -> Outcome:
    mode = _mode(options.mode)
    max_rules = _max_rules()
    reports = [examine(text, mode, max_rules) for text in options.files]
    code = GOOD
    if any(report.policy is None for report in reports):
        code = USAGE
    elif options.strict and any(report.regrets for report in reports):
        code = NOT
    if options.json:
        return Outcome(code, "".join(json_line(report.document()) for report in reports))
    remarks = tuple(line for report in reports for line in report.remarks())
    good = [report.policy for report in reports if report.policy is not None]
    if options.quiet:
        return Outcome(code, "", remarks if code else ())
    if options.yaml:
        return Outcome(code, "---\n".join(policy_yaml(policy) for policy in good), remarks)
    return Outcome(code, "".join(policy_json(policy) for policy in good), remarks)


def examine(text: str, mode: str, max_rules: int) -> Report:
    """Read and judge one policy."""
    from egress.commands.places import Fault, faults
    from egress.commands.reading import read
    from egress.commands.regrets import regrets
    from policies.model import PolicyError
    from policies.parser import parse_policy

    try:
        source = read(text)
    except CommandError as error:
        return Report(text, "", None, unreadable=str(error))
    found = faults(source.data, yaml=source.yaml)
    if found:
        return Report(source.label, source.format, None, found)
    policy = parse_policy(source.data, yaml=source.yaml)
    try:
        return Report(source.label, source.format, policy, regrets=regrets(policy, mode=mode, max_rules=max_rules))
    except PolicyError as error:
        return Report(source.label, source.format, None, (Fault(error.path, error.message),))


def _mode(text: str) -> str:
    """The sidecar's mode: the option, else its variable, else its default."""
    text = text or os.environ.get("OPENSANDBOX_EGRESS_MODE", "")
    tokens = {token.strip().lower() for token in text.split("+")}
    return "dns" if tokens == {"dns"} else "dns+nft"


def _max_rules() -> int:
    text = os.environ.get("OPENSANDBOX_EGRESS_MAX_RULES", "").strip()
    return int(text) if text.isdecimal() and len(text) < 9 else 4096


def _parser() -> Parser:
    parser = Parser(
        "egress check",
        "egress check [OPTION ...] FILE|PRESET|- ...",
        "Check policies and print them as they are understood.",
        EPILOG,
    )
    add = parser.add_argument
    add("files", metavar="FILE|PRESET|-", nargs="+", help="a policy file, a preset's name, or - for standard input")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object a line with everything there is to say")
    form.add_argument("--yaml", action="store_true", help="print the policy as YAML")
    form.add_argument("--quiet", action="store_true", help="print nothing where all is well")
    add("--strict", action="store_true", help="exit 1 where there are warnings")
    add("--mode", choices=("dns", "dns+nft"), default="", help="the sidecar's mode, for the warnings")
    return parser
