"""`egress docker watch`: a daemon that guards every container with the label `sallyport.policy`."""

from __future__ import annotations

import ipaddress
import os
import re
from typing import TYPE_CHECKING

from egress.commands.output import NOT, CommandError, Outcome, Parser, run

if TYPE_CHECKING:
    import argparse

EPILOG = """\
examples:
  egress docker watch
      as root; creates the network "sallyport" where it is not there, and guards what is started on it:
  docker run --network sallyport --label sallyport.policy=web-only IMAGE
      a preset's name ...
  docker run --network sallyport --label sallyport.policy=/etc/sallyport/build.yaml IMAGE
      ... or the absolute path of a policy file on this machine, which is followed when it changes ...
  docker run --network sallyport \\
      --label 'sallyport.policy={"egress":[{"action":"allow","target":"api.example.com"}]}' IMAGE
      ... or the policy itself
  egress docker watch --subnet 172.29.0.0/16 --subnet fd29::/64
      the network with IPv6 too

what holds: a container on that network reaches nothing until its rules stand: the host drops all that comes from its
port. That gate and the rules in the container are the kernel's, so they stand when this process is stopped or killed;
names are not answered then, and nothing new is opened. The next one takes over what stands.

Docker since 25 asks the host's resolvers for its containers from the host's network, before a guard stands too: so give
the daemon resolvers of its own ("dns" in /etc/docker/daemon.json), or the container (--dns), or it is killed.

A container with the label that could not be held is killed, with the reason in the log: one on another network, with
NET_ADMIN, privileged, with the host's processes or its Docker socket. One whose label is no policy stays closed.

The log goes to standard output, one JSON object a line; sandbox_id is the container's name. Settings: resolvers of this
host, or OPENSANDBOX_EGRESS_DNS_UPSTREAM; OPENSANDBOX_EGRESS_LOG_LEVEL and the others that egress run takes.

exit code: 0 after SIGTERM, 1 where it cannot go on, 2 where this command line is wrong.
"""
_BRIDGE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,14}")
_NETWORK = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


def main(argv: list[str]) -> int:
    """Watch until SIGTERM; returns the exit code."""
    return run("docker watch", lambda: _work(_parser().parse_args(argv)))


def _work(options: argparse.Namespace) -> Outcome:
    from egress.config import ConfigError
    from egress.docker.api import Docker
    from egress.docker.network import Wanted
    from egress.hostconfig import host_config

    if not _NETWORK.fullmatch(options.network):
        raise CommandError(f"--network {options.network!r}: not a network's name; write one such as sallyport")
    if not _BRIDGE.fullmatch(options.bridge):
        raise CommandError(f"--bridge {options.bridge!r}: not a device's name; at most 15 letters and digits")
    for subnet in options.subnet:
        try:
            ipaddress.ip_network(subnet)
        except ValueError:
            raise CommandError(f"--subnet {subnet!r}: not a network; write 172.29.0.0/16 or fd29::/64") from None
    try:
        docker = Docker(options.docker_host)
        config = host_config(os.environ)
    except (ValueError, ConfigError) as error:
        raise CommandError(str(error)) from None
    if os.geteuid() != 0:
        raise CommandError("needs root: it enters containers' networks and writes the host's rules", NOT)
    from egress.docker.watch import Watch, WatchError
    from egress.supervisor import spare_memory

    spare_memory()
    try:
        wanted = Wanted(options.network, options.bridge, tuple(options.subnet))
        return Outcome(Watch(docker, wanted, config, daemon_has_dns=options.daemon_has_dns).run())
    except WatchError as error:
        raise CommandError(str(error), NOT) from None


def _parser() -> Parser:
    parser = Parser(
        "egress docker watch",
        "egress docker watch [OPTION ...]",
        "Guard every container with the label sallyport.policy, from its start event on, from outside.",
        EPILOG,
    )
    add = parser.add_argument
    add("--network", default="sallyport", help="the Docker network that containers are guarded on (default: sallyport)")
    add("--bridge", default="sallyport0", help="its device on this machine (default: sallyport0)")
    add("--subnet", metavar="CIDR", action="append", default=[],
        help="its addresses, where it has to be created; again for IPv6 (default: Docker's choice, IPv4)")  # fmt: skip
    add("--docker-host", metavar="unix:///PATH", default="", help="the daemon's socket (default: $DOCKER_HOST)")
    add(
        "--daemon-has-dns",
        action="store_true",
        help="the daemon was started with --dns: what its containers ask is asked in their networks",
    )
    return parser
