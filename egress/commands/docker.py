"""`egress docker`: containers, guarded: `run` starts one with a sidecar, `watch` guards all that are labelled."""

from __future__ import annotations

import sys
from importlib import import_module

COMMANDS = {"run": "egress.commands.docker_run", "watch": "egress.commands.docker_watch"}

HELP = """\
usage: egress docker run --policy FILE [DOCKER RUN OPTION ...] -- IMAGE [COMMAND ...]
       egress docker watch [OPTION ...]

  run    start a container behind a sidecar of its own, which goes when it goes
  watch  guard every container with the label sallyport.policy, from outside, all of them by one process

A container that runs already: egress attach CONTAINER --policy FILE

Each has its own help: egress docker run --help. docs/docker.md says which of them is for what.
"""


def main(argv: list[str]) -> int:
    """Run one of them; returns the exit code."""
    command = argv[0] if argv else ""
    if command in COMMANDS:
        run: int = import_module(COMMANDS[command]).main(argv[1:])
        return run
    if command in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0
    problem = f"unknown command {command!r}" if command else "no command given"
    print(f"egress docker: {problem}\n\n{HELP}", file=sys.stderr, end="")
    return 2
