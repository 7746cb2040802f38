"""The same guard from outside: it works in the sandbox's network and asks from the host's.

Its questions never pass the sandbox's rules, so there is no exemption to guess, and a resolver on the host's loopback
will do. There is no control API and no second process: when it ends, the rules stand and nothing new is opened.
`Outside` is one sandbox of however many; `run_guard` is all that `egress run` needs of it.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING

from egress.app import LISTEN
from egress.control.store import document_of
from egress.dns.interceptor import printable
from egress.dns.listener import TcpListener
from egress.dns.upstream import Ports, Server, Upstream
from egress.firewall.guardhouse import Firewall
from egress.guard import Guard
from egress.listeners import bind_dns, dns_ports
from egress.loop import Loop
from egress.placement import Placement
from egress.privileges import settle, take_up
from egress.state import Handover
from policies.matcher import compile_policy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from egress.config import Config
    from egress.dns.budget import Budget
    from egress.dns.interceptor import Denial
    from egress.firewall.nflog import Denied
    from egress.isolation.guard import Seat
    from policies.model import NetworkPolicy

LINGER = 0.07  # seconds: the kernel gathers refused packets for 50 ms before it tells of them

Listeners = tuple[tuple[socket.socket, ...], tuple[socket.socket, ...]]
"""What `bind_dns` gives: UDP, TCP."""


class Outside:
    """One sandbox, guarded by this process from outside. `firewall` is locked already and `listeners` are bound in the
    sandbox's namespace; `open_socket(family, kind)` opens a non-blocking socket in the network that is asked from."""

    def __init__(
        self,
        loop: Loop,
        firewall: Firewall,
        listeners: Listeners,
        config: Config,
        open_socket: Callable[[int, int], socket.socket],
        denied_name: Callable[[Denial], None],
        denied_packet: Callable[[Denied, tuple[str, ...]], None],
        report: Callable[[str], None],
        opened: Callable[[str, Sequence[bytes]], None] | None = None,
        budget: Budget | None = None,
    ) -> None:
        self._loop = loop
        self._firewall = firewall
        self._udp, self._tcp = listeners
        self._config = config
        self._open_socket = open_socket
        self._denied_packet = denied_packet
        self._streams: list[TcpListener] = []
        self._closed = False
        placement = Placement(
            mode="dns+nft",
            dns_ports=dns_ports(self._udp, self._tcp),
            upstreams=(),
            exempt=(),
            doh_all=config.block_doh and not config.doh_networks,
            doh_networks=config.doh_networks if config.block_doh else (),
            own=(),
            answer_within=config.upstream_timeout,
        )
        self._handover = Handover()
        self.guard = Guard(loop, firewall, placement, self._handover, denied_name, report, opened, budget)

    def start(self, policy: NetworkPolicy, done: Callable[[BaseException | None], None]) -> None:
        """Load the policy and answer DNS; then `done(None)`. Raises PolicyError for one too intricate to compile."""

        def started(error: BaseException | None) -> None:
            if self._closed:
                return  # the sandbox went while its ruleset was being loaded
            if error is None:
                try:
                    self._answer()
                except Exception as refused:  # noqa: BLE001 - no descriptor, as a rule: who waits has to hear of it
                    error = refused
            done(error)

        self.guard.start(compile_policy(policy), document_of(policy), started)

    def change(self, policy: NetworkPolicy, done: Callable[[BaseException | None], None]) -> None:
        """Another policy; `done(None)` once it holds everywhere, open flows included. Raises PolicyError."""
        self.guard.apply(compile_policy(policy), document_of(policy), None, done)

    def close(self) -> None:
        """Answer no more and close every socket; the rules stand. What was begun on the helper thread ends first."""
        self._closed = True
        self.guard.close()
        for listener in self._streams:
            listener.close()
        self._firewall.unwatch(self._loop)
        for sock in (*self._udp, *self._tcp):
            sock.close()
        self._loop.run_in_thread(self._firewall.close, lambda *_: self._handover.close())

    def _answer(self) -> None:
        service, config, loop = self.guard.service, self._config, self._loop
        assert service is not None
        servers = tuple(Server(upstream.address, upstream.port) for upstream in config.upstreams)
        ports = Ports(
            lambda server: self._dial(server, socket.SOCK_DGRAM), lambda server: self._dial(server, socket.SOCK_STREAM)
        )
        service.upstream = Upstream(loop, servers, ports, config.upstream_timeout, service.round)
        for sock in self._udp:
            service.listen(sock)
        for sock in self._tcp:
            sock.listen(LISTEN)
            self._streams.append(TcpListener(loop, sock, service.handle_stream))
        self.guard.watch()
        self._firewall.watch_denied(loop, self._denied)

    def _dial(self, server: Server, kind: int) -> socket.socket:
        family = socket.AF_INET if len(server.packed) == 4 else socket.AF_INET6
        sock = self._open_socket(family, kind)
        code = sock.connect_ex((printable(server.packed), server.port))
        if code not in (0, errno.EINPROGRESS):
            sock.close()
            raise OSError(code, os.strerror(code))
        return sock

    def _denied(self, packet: Denied) -> None:
        self._denied_packet(packet, self.guard.names_of(packet.destination))


def run_guard(seat: Seat) -> int:
    """Guard the sandbox of `seat` until its `stop_fd` ends. The exit code of the guard's process."""
    code = 0
    firewall = Firewall()
    firewall.lock()
    listeners = bind_dns()
    settle()  # nothing that the command can send to us finds more than this
    take_up()
    firewall.reopen()
    seat.locked()

    loop = Loop(lambda error: seat.warn(f"unexpected: {type(error).__name__}: {error}"))

    def denied(packet: Denied, names: tuple[str, ...]) -> None:
        seat.denied_packet(printable(packet.destination), packet.protocol, packet.port or 0, names)

    outside = Outside(
        loop,
        firewall,
        listeners,
        seat.config,
        seat.host.socket,
        lambda denial: None if denial.expansion else seat.denied_name(denial.name, denial.reason, denial.rule),
        denied,
        seat.warn,
    )

    def started(error: BaseException | None) -> None:
        if error is None:
            seat.ready()
            return
        nonlocal code
        code = 1
        seat.warn(f"the ruleset could not be loaded: {error}")
        loop.stop()

    def leave() -> None:
        loop.remove_reader(seat.stop_fd)
        loop.call_later(LINGER, loop.stop)

    loop.add_reader(seat.stop_fd, leave)
    outside.start(seat.policy, started)
    loop.run()
    return code
