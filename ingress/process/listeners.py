"""Listening sockets: bound by the master, one for each worker, so that a worker's death loses no queued connection.

With SO_REUSEPORT the kernel spreads connections over the sockets of one port by their addresses. Closing one of them
resets what waits in its queue, so none is closed while the gateway runs: a restarted worker gets the same socket again,
and a successor (handover.py) gets all of them, whether it has as many workers or not.
"""

from __future__ import annotations

import errno
import socket
from typing import NamedTuple, TypeVar

T = TypeVar("T")

BACKLOG = 4096
"""What may wait to be accepted on one socket; the kernel caps it at net.core.somaxconn."""


class StartError(Exception):
    """Something the start depends on; its text is one line that says what and what to do."""


class Listeners(NamedTuple):
    """Every listening socket of the gateway."""

    main: list[socket.socket]
    admin: list[socket.socket]  # one, or none without an admin port

    def all(self) -> list[socket.socket]:
        return [*self.main, *self.admin]

    def close(self) -> None:
        for sock in self.all():
            sock.close()


def open_port(
    host: str, port: int, count: int, flag: str, inherited: list[socket.socket] | None = None
) -> list[socket.socket]:
    """Sockets for `count` workers on one address and port, bound and not yet listening.

    host: a literal address, or "" for every one, v4 and v6. port: 0 for the kernel's choice. inherited: sockets of a
    gateway before us; those of this address are taken, the others closed. Raises StartError, which names `flag`.
    """
    taken = []
    for sock in inherited or []:
        if _fits(sock, host, port):
            taken.append(sock)
        else:
            sock.close()
    if not taken:
        taken.append(_first(host, port, flag))
    address = taken[0].getsockname()
    while len(taken) < count:
        try:
            taken.append(_bound(taken[0].family, address[:2], dual=host == ""))
        except OSError:
            # Sockets that another user's gateway handed over can't be joined by ours: the workers share what there is.
            break
    return taken


def shares(sockets: list[T], workers: int) -> list[list[T]]:
    """Which worker serves which sockets: every socket has a worker and every worker a socket. Pure."""
    if len(sockets) >= workers:
        return [sockets[index::workers] for index in range(workers)]
    return [[sockets[index % len(sockets)]] for index in range(workers)]


def show(sock: socket.socket) -> str:
    """`127.0.0.1:28888`, `[::1]:28888`, or `*:28888` for every address."""
    host, port = sock.getsockname()[:2]
    if host in ("::", "0.0.0.0"):
        return f"*:{port}"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _fits(sock: socket.socket, host: str, port: int) -> bool:
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    there, at = sock.getsockname()[:2]
    if port not in (0, at):
        return False
    if host == "":
        return there in ("::", "0.0.0.0")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return sock.family == family and socket.inet_pton(family, there) == socket.inet_pton(family, host)


def _first(host: str, port: int, flag: str) -> socket.socket:
    tries: list[tuple[socket.AddressFamily, str]]
    if host == "":
        tries = [(socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")]
    else:
        tries = [(socket.AF_INET6 if ":" in host else socket.AF_INET, host)]
    problem: OSError | None = None
    for family, address in tries:
        try:
            # Sockets of the same user join one another silently; two gateways on one port must not, so ask first.
            if port:
                _bound(family, (address, port), dual=host == "", alone=True).close()
            return _bound(family, (address, port), dual=host == "")
        except OSError as error:
            problem = error
            if error.errno == errno.EADDRINUSE:
                break
    assert problem is not None
    if problem.errno == errno.EADDRINUSE:
        hint = "something listens there already; stop it, choose another port, or start both with --handover"
    elif problem.errno == errno.EACCES:
        hint = "ports below 1024 need CAP_NET_BIND_SERVICE; choose a higher one"
    else:
        hint = "choose an address of this machine"
    words = (problem.strerror or str(problem)).lower()
    raise StartError(f"--{flag}: cannot listen on {host or '*'}, port {port}: {words}; {hint}")


def _bound(family: socket.AddressFamily, address: tuple[str, int], *, dual: bool, alone: bool = False) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if dual else 1)
        # Connections of an earlier life that linger in TIME_WAIT are no reason not to start.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if not alone:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(address)
        if alone:
            sock.listen(1)  # with SO_REUSEADDR two may be bound, but only one listens
    except OSError:
        sock.close()
        raise
    return sock
