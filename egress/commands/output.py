"""What the client commands share on their way out: a strict argument parser, one exit for errors, one write for text.

A command gathers what it has to say and says it in one go, so that its exit code means the same whether or not the
reader is still there (`egress explain ... | head -1`). Errors are one line on standard error that says what to do.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING, NamedTuple, NoReturn, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable

    from policies.model import NetworkPolicy

GOOD, NOT, USAGE = 0, 1, 2
"""Exit codes: yes, no (denied, missing, refused), and a call or a file that is wrong."""


class CommandError(Exception):
    """The command cannot go on; the text is one printable line. `code` is the exit code."""

    def __init__(self, text: str, code: int = USAGE) -> None:
        super().__init__(text)
        self.code = code


class Outcome(NamedTuple):
    """What a command ends with: exit code, text for standard output, and lines for standard error."""

    code: int
    text: str = ""
    remarks: tuple[str, ...] = ()


class Parser(argparse.ArgumentParser):
    """argparse without abbreviations, whose errors are one line and a hint."""

    def __init__(self, prog: str, usage: str, description: str, epilog: str = "") -> None:
        super().__init__(
            prog=prog,
            usage=usage,
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        raise CommandError(f"{message}; see {self.prog} --help")


def run(name: str, work: Callable[[], Outcome]) -> int:
    """Do a command's work and write its outcome; returns the exit code, whatever happens on the way."""
    try:
        outcome = work()
    except CommandError as error:
        outcome = Outcome(error.code, "", (f"egress {name}: {error}",))
    except SystemExit as left:  # --help: argparse has printed it
        outcome = Outcome(left.code if isinstance(left.code, int) else USAGE)
    except KeyboardInterrupt:
        return 130
    problem = _write(sys.stdout, outcome.text)
    remarks = outcome.remarks
    code = outcome.code
    if problem:
        remarks = (*remarks, f"egress {name}: cannot write the output: {problem}")
        code = USAGE
    _write(sys.stderr, "".join(f"{printable(remark)}\n" for remark in remarks))
    return code


def _write(stream: TextIO | None, text: str) -> str:
    """Write and flush all of it; why that failed, or "". A reader who has left is no failure."""
    if stream is None:  # closed before we were started
        return "it is closed" if text else ""
    try:
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        _abandon(stream.fileno())
    except OSError as error:
        _abandon(stream.fileno())
        return error.strerror or "unknown error"
    return ""


def _abandon(fd: int) -> None:
    """Point the descriptor at nothing, or the interpreter would complain about the same text again at its end."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, fd)
    os.close(nothing)


def printable(text: str) -> str:
    """The text with everything a terminal might obey written out: file names and servers' words come from anywhere."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode("ascii") for char in text
    )


def reason_of(error: OSError) -> str:
    """The system's words for an error, starting in lower case."""
    words = error.strerror or str(error) or "unknown error"
    return words[0].lower() + words[1:]


def json_line(document: object) -> str:
    """One JSON object on one line."""
    return json.dumps(document) + "\n"


def policy_json(policy: NetworkPolicy) -> str:
    """A policy document as JSON for people: one rule a line."""
    document = policy.to_document()
    rules = [f"  {json.dumps(rule.to_document())}" for rule in policy.egress]
    body = "[\n" + ",\n".join(rules) + "\n]" if rules else "[]"
    return f'{{"defaultAction": {json.dumps(document["defaultAction"])}, "egress": {body}}}\n'


def policy_yaml(policy: NetworkPolicy) -> str:
    """A policy document as YAML, one rule a line. JSON strings are YAML strings, so nothing needs a YAML writer."""
    lines = [f"defaultAction: {policy.default.value}"]
    if not policy.egress:
        return lines[0] + "\negress: []\n"
    lines.append("egress:")
    for rule in policy.egress:
        members = ", ".join(f"{key}: {_yaml(value)}" for key, value in rule.to_document().items())
        lines.append(f"  - {{{members}}}")
    return "\n".join(lines) + "\n"


def _yaml(value: object) -> str:
    plain = isinstance(value, str) and value in ("allow", "deny", "tcp", "udp")
    return str(value) if plain else json.dumps(value)
