"""The `egress` command. `serve` takes the short way: nothing is imported before the sandbox is locked down."""

from __future__ import annotations

import os
import sys
from importlib import import_module

COMMANDS = {
    "serve": "guard this network namespace: what the container runs; all settings from the environment",
    "run": "run a command in a guarded sandbox of its own",
    "attach": "guard a Docker container that runs already",
    "docker": "run a Docker container behind a guard, or guard all that are labelled",
    "check": "check a policy file and print it as it is understood",
    "translate": "make a policy of another system's settings, never wider than they are",
    "explain": "say what a policy decides about a name or an address, and which rule does",
    "doctor": "say what this kernel and these capabilities can hold",
    "policy": "read or change the policy of a running sidecar",
    "inject": "print Kubernetes manifests with the sidecar in every pod",
    "webhook": "the same as a mutating admission webhook",
    "healthcheck": "exit 0 when the sidecar beside us is ready",
}

HELP = """\
usage: egress COMMAND [ARGUMENT ...]

Sallyport's egress guard: a sandbox behind it reaches what its policy names, and nothing else.

commands:
{commands}

try it, as root or not:
  egress run --allow example.com -- curl -s http://example.com
  egress explain --policy web-only api.example.com:443
  egress doctor

Each command has its own help: egress COMMAND --help
"""


def keep_standard_descriptors() -> None:
    """Fill descriptors 0, 1 and 2 with /dev/null where they are closed, before anything else is opened: a socket that
    lands on descriptor 1 would be sent our log."""
    while True:
        fd = os.open(os.devnull, os.O_RDWR)
        if fd > 2:
            os.close(fd)
            return


def _shut() -> None:
    """Before anything else is imported. Whether it could be had is for `serve` to find out, and to say."""
    from egress.firewall import FirewallError
    from egress.firewall.shut import at_once
    from egress.runtimes import below

    try:
        if not below():
            at_once()
    except (FirewallError, OSError):
        pass


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns its exit code (2: the call or a setting is wrong)."""
    arguments = sys.argv[1:] if argv is None else argv
    command = arguments[0] if arguments else ""
    if command == "serve" and len(arguments) == 1:
        import gc

        gc.disable()  # nothing that is imported is garbage; the worker turns it on again
        keep_standard_descriptors()
        _shut()
        from egress.supervisor import serve

        return serve(os.environ)
    if command in COMMANDS:
        run: int = import_module(f"egress.commands.{command}").main(arguments[1:])
        return run
    width = max(map(len, COMMANDS))
    text = HELP.format(commands="\n".join(f"  {name:<{width}}  {what}" for name, what in COMMANDS.items()))
    if command in ("-h", "--help", "help"):
        print(text, end="")
        return 0
    if command == "--version":
        from importlib.metadata import version

        print(f"sallyport {version('sallyport')}")
        return 0
    problem = f"unknown command {command!r}" if command else "no command given"
    print(f"egress: {problem}\n\n{text}", file=sys.stderr, end="")
    return 2


if __name__ == "__main__":
    sys.exit(main())
