"""The `ingress` command. Each command's module is imported only when it is asked for."""

from __future__ import annotations

import sys
from importlib import import_module

COMMANDS = {
    "serve": "lead HTTP and WebSocket traffic from outside to sandboxes; what the container runs",
    "routes": "list the sandboxes that a provider knows, and what keeps one from being reached",
    "sign": "make a signed route to a sandbox's port",
    "verify": "say what a signed route means, and why it is refused",
    "healthcheck": "exit 0 when the gateway beside us is alive",
}

HELP = """\
usage: ingress COMMAND [ARGUMENT ...]

Sallyport's gateway: what a sandbox serves, reached from outside by header, by host name or by path.

commands:
{commands}

try it:
  ingress serve --routes routes.yaml --mode header+uri --allow-target 127.0.0.0/8
  curl -H 'OpenSandbox-Ingress-To: box-8000' http://localhost:28888/
  curl http://localhost:28888/box/8000/

Each command has its own help: ingress COMMAND --help
"""


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns its exit code (2: the call or a setting is wrong)."""
    arguments = sys.argv[1:] if argv is None else argv
    command = arguments[0] if arguments else ""
    if command in COMMANDS:
        run: int = import_module(f"ingress.commands.{command}").main(arguments[1:])
        return run
    width = max(map(len, COMMANDS))
    text = HELP.format(commands="\n".join(f"  {name:<{width}}  {what}" for name, what in COMMANDS.items()))
    if command in ("-h", "--help", "-help", "help"):
        print(text, end="")
        return 0
    if command in ("-V", "--version"):
        from importlib.metadata import version

        print(f"sallyport {version('sallyport')}")
        return 0
    if command.startswith("-"):
        # The gateway that this one replaces has no commands, only flags.
        return main(["serve", *arguments])
    problem = f"unknown command {command!r}" if command else "no command given"
    print(f"ingress: {problem}\n\n{text}", file=sys.stderr, end="")
    return 2


if __name__ == "__main__":
    sys.exit(main())
