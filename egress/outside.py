"""The same guard from outside, for `egress run`: it works in the sandbox's network and asks from the host's.

Its questions never pass the sandbox's rules, so there is no exemption to guess, and a resolver on the host's loopback
will do. There is no control API, no file and no second life: when it ends, the run ends.
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
from egress.guard import Guard, Placement
from egress.loop import Loop
from egress.privileges import settle, take_up
from egress.state import Handover
from egress.supervisor import bind_dns, dns_ports
from policies.matcher import compile_policy

if TYPE_CHECKING:
    from egress.firewall.nflog import Denied
    from egress.isolation.guard import Seat

LINGER = 0.07  # seconds: the kernel gathers refused packets for 50 ms before it tells of them


def run_guard(seat: Seat) -> int:
    """Guard the sandbox of `seat` until its `stop_fd` ends. The exit code of the guard's process."""
    code = 0
    firewall = Firewall()
    firewall.lock()
    udp, tcp = bind_dns()
    settle()  # nothing that the command can send to us finds more than this
    take_up()
    firewall.reopen()
    seat.locked()

    config = seat.config
    loop = Loop(lambda error: seat.warn(f"unexpected: {type(error).__name__}: {error}"))
    guard = Guard(
        loop,
        firewall,
        Placement(
            mode="dns+nft",
            dns_ports=dns_ports(udp, tcp),
            upstreams=(),
            exempt=(),
            doh_all=config.block_doh and not config.doh_networks,
            doh_networks=config.doh_networks if config.block_doh else (),
            own=(),
        ),
        Handover(),
        lambda denial: None if denial.expansion else seat.denied_name(denial.name, denial.reason, denial.rule),
        seat.warn,
    )

    def dial(server: Server, kind: int) -> socket.socket:
        family = socket.AF_INET if len(server.packed) == 4 else socket.AF_INET6
        sock = seat.host.socket(family, kind)
        code = sock.connect_ex((printable(server.packed), server.port))
        if code not in (0, errno.EINPROGRESS):
            sock.close()
            raise OSError(code, os.strerror(code))
        return sock

    def denied(packet: Denied) -> None:
        names = guard.names_of(packet.destination)
        seat.denied_packet(printable(packet.destination), packet.protocol, packet.port or 0, names)

    def started(error: BaseException | None) -> None:
        if error is not None:
            nonlocal code
            code = 1
            seat.warn(f"the ruleset could not be loaded: {error}")
            loop.stop()
            return
        service = guard.service
        assert service is not None
        servers = tuple(Server(upstream.address, upstream.port) for upstream in config.upstreams)
        ports = Ports(lambda server: dial(server, socket.SOCK_DGRAM), lambda server: dial(server, socket.SOCK_STREAM))
        service.upstream = Upstream(loop, servers, ports, config.upstream_timeout, service.round)
        for sock in udp:
            service.listen(sock)
        for sock in tcp:
            sock.listen(LISTEN)
            TcpListener(loop, sock, service.handle_stream)
        guard.watch()
        firewall.watch_denied(loop, denied)
        seat.ready()

    def leave() -> None:
        loop.remove_reader(seat.stop_fd)
        loop.call_later(LINGER, loop.stop)

    loop.add_reader(seat.stop_fd, leave)
    guard.start(compile_policy(seat.policy), document_of(seat.policy), started)
    loop.run()
    return code
