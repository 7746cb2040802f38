"""`egress attach`: a guard for a Docker container that runs already, from outside."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from egress.commands.output import NOT, CommandError, Outcome, Parser, run

if TYPE_CHECKING:
    import argparse

EPILOG = """\
examples:
  egress attach web --policy web-only
      guards the container "web" until it ends; everything that a policy does not name is refused from now on
  egress attach 3f4e --policy policy.yaml --allow api.example.com:443
      a container by its id, a policy file, and a rule above it

What the container resolved or opened before counts as new: a connection that the policy does not allow is cut, and an
address is open when its name has been asked for again. Log lines go to standard output, one JSON object a line.

On SIGTERM or Ctrl-C the rules stay, and names are not answered any more: the container reaches what was open, until
that runs out, and nothing else. Attach again to go on. When the container ends, this ends; one that Docker starts anew
has a new network, without a guard: egress docker watch guards a container from its first moment, whenever it starts.

exit code: 0 when the container has ended, 1 where it cannot be guarded, 2 where this command line is wrong.
"""


def main(argv: list[str]) -> int:
    """Guard the container until it ends; returns the exit code."""
    return run("attach", lambda: _work(_parser().parse_args(argv)))


def _work(options: argparse.Namespace) -> Outcome:
    from egress.commands.reading import inline_rules, load
    from egress.config import ConfigError
    from egress.docker.api import Docker, DockerError
    from egress.docker.containers import Said, objection, read
    from egress.hostconfig import host_config
    from policies.model import NetworkPolicy

    rules = inline_rules(options.allow, options.deny)
    if not options.policy and not rules:
        raise CommandError("no policy given; --policy FILE, or --allow and --deny; see egress attach --help")
    base = load(options.policy) if options.policy else NetworkPolicy()
    policy = base._replace(egress=(*rules, *base.egress))
    try:
        docker = Docker(options.docker_host)
        config = host_config(os.environ)
    except (ValueError, ConfigError) as error:
        raise CommandError(str(error)) from None
    try:
        container = read(docker.inspect(options.container))
    except DockerError as error:
        raise CommandError(str(error), NOT) from None
    if not container.running:
        raise CommandError(f"{container.name} does not run; start it, or use egress docker run", NOT)
    reason = objection(container)
    if reason:
        raise CommandError(f"{container.name} cannot be guarded: {reason}", NOT)
    if os.geteuid() != 0:
        raise CommandError("needs root: it enters the container's network", NOT)
    from egress.docker.attached import guard
    from egress.supervisor import spare_memory

    spare_memory()
    reason = guard(docker, container, Said(policy, options.policy or "command line", ""), config)
    if reason:
        raise CommandError(f"{container.name}: {reason}", NOT)
    return Outcome(0)


def _parser() -> Parser:
    parser = Parser(
        "egress attach",
        "egress attach CONTAINER --policy FILE|PRESET [OPTION ...]",
        "Guard a Docker container that runs already, until it ends.",
        EPILOG,
    )
    add = parser.add_argument
    add("container", metavar="CONTAINER", help="its name or id")
    add("--policy", metavar="FILE|PRESET", default="", help="a policy file (JSON or YAML) or the name of a preset")
    add("--allow", metavar="TARGET", action="append", default=[], help="allow a target; may be given again")
    add("--deny", metavar="TARGET", action="append", default=[], help="deny a target, whatever else allows it")
    add("--docker-host", metavar="unix:///PATH", default="", help="the daemon's socket (default: $DOCKER_HOST)")
    return parser
