"""The guard's seat in `egress run`: where it works from, and the callbacks through which it is heard.

    process      user namespace of the sandbox's network (every capability there, none on the host); PID, mount, IPC
                 and UTS namespaces that the command is not in; no terminal, no inherited descriptor but stderr
    main thread  network namespace of the sandbox: firewall, netlink, conntrack, NFLOG and the listening DNS sockets
                 are opened as anywhere, by opening them
    host thread  network namespace of the host: `Seat.host` opens what goes to the resolvers

The order is the guard's duty: `locked` once deny-all stands (only then is the network connected), `ready` once the
policy stands and DNS answers (only then is the command started). Returning, or dying, ends the run.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from egress.isolation import syscalls as sys_
from egress.isolation.host import HostNetwork

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from egress.config import Config
    from egress.isolation.channel import Channel
    from policies.model import NetworkPolicy


class Seat(NamedTuple):
    """All that a guard is given. The callbacks never raise and never wait."""

    config: Config  # upstreams are addresses as the host sees them, loopback included
    policy: NetworkPolicy
    host: HostNetwork
    stop_fd: int  # readable (at its end) when it is time to leave: flush what was denied and return
    locked: Callable[[], None]
    ready: Callable[[], None]
    warn: Callable[[str], None]  # one line for the person in front
    denied_name: Callable[[str, str, str], None]  # name, reason, rule's place ("default" = none matched)
    denied_packet: Callable[[str, str, int, Sequence[str]], None]  # address, protocol, port (0 = none), names of it


def occupy(
    channel: Channel, network_fd: int, stop_fd: int, guard: Callable[[Seat], int], config: Config, policy: NetworkPolicy
) -> NoReturn:
    """Be the guard: runs in a process forked for it, of one thread, in the user namespace that owns the network."""
    code = 1
    try:
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        host = HostNetwork()
        sys_.setns(network_fd, sys_.CLONE_NEWNET)
        os.close(network_fd)
        code = guard(
            Seat(
                config=config,
                policy=policy,
                host=host,
                stop_fd=stop_fd,
                locked=lambda: channel.tell("locked"),
                ready=lambda: channel.tell("ready"),
                warn=lambda text: channel.tell("warn", text=text),
                denied_name=lambda name, reason, rule: _offer_name(channel, name, reason, rule),
                denied_packet=lambda address, protocol, port, names: _offer_packet(
                    channel, address, protocol, port, names
                ),
            )
        )
    except BaseException as error:  # noqa: BLE001 - the last words of this process, whatever ended it
        channel.tell("failed", why=f"the guard: {type(error).__name__}: {error}")
    os._exit(code)


def _offer_name(channel: Channel, name: str, reason: str, rule: str) -> None:
    channel.offer("name", name=name, reason=reason, rule=rule)


def _offer_packet(channel: Channel, address: str, protocol: str, port: int, names: Sequence[str]) -> None:
    channel.offer("packet", address=address, protocol=protocol, port=port, names=list(names[:3]))
