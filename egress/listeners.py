"""Every port of the sidecar, bound by the supervisor and shared by all its workers; nothing listens here yet."""

from __future__ import annotations

import errno
import os
import socket
import stat

from egress.literals import safe
from egress.log import emit
from policies.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from egress.config import Config

RECEIVE = 2 << 20  # octets of a UDP socket's queue, which the kernel doubles for its own book-keeping
_SO_RCVBUFFORCE = 33  # asm-generic/socket.h; not in Python's socket module


class Sockets(NamedTuple):
    """All of them, the control API's among them."""

    udp: tuple[socket.socket, ...]
    tcp: tuple[socket.socket, ...]
    api: socket.socket
    unix: socket.socket | None
    names: Names | None = None


class Names(NamedTuple):
    """The name guard's: where redirected connections arrive, and its channel's two ends."""

    listeners: tuple[socket.socket, ...]  # 127.0.0.1 and, where there is one, ::1
    relay: socket.socket
    worker: socket.socket


class StartError(Exception):
    """Something the start depends on; its text is one line that says what and what to do."""


def bind(config: Config) -> Sockets:
    """Bind every port, before anything in the sandbox can; nothing listens yet. Raises StartError."""
    udp, tcp = bind_dns()
    return Sockets(udp, tcp, _bind_api(config), _bind_unix(config), _bind_names() if config.sni else None)


def _bind_names() -> Names:
    listeners = []
    for family, loopback in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            listeners.append(_bound(family, socket.SOCK_STREAM, (loopback, 0)))
        except OSError as error:
            if family == socket.AF_INET:
                raise StartError(f"cannot bind a port for the name guard on {loopback}: {error.strerror}") from error
    relay, worker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Names(tuple(listeners), relay, worker)


def bind_dns() -> tuple[tuple[socket.socket, ...], tuple[socket.socket, ...]]:
    """UDP and TCP sockets for the interceptor on 127.0.0.1 and, where there is one, ::1. Raises StartError.

    The ports are the kernel's choice: whatever the sandbox occupies, there is another. UDP without reuse: with it any
    process could take a share of the queries.
    """
    udp, tcp = [], []
    for family, loopback in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            udp.append(_bound(family, socket.SOCK_DGRAM, (loopback, 0)))
            tcp.append(_bound(family, socket.SOCK_STREAM, (loopback, 0)))
        except OSError as error:
            if family == socket.AF_INET:
                raise StartError(f"cannot bind a DNS port on {loopback}: {error.strerror}") from error
            del udp[1:], tcp[1:]  # no ::1 (Docker's default): IPv4 goes on, IPv6 stays denied
    return tuple(udp), tuple(tcp)


def dns_ports(udp: tuple[socket.socket, ...], tcp: tuple[socket.socket, ...]) -> tuple[int, int, int, int]:
    """The ports of `bind_dns`: udp4, tcp4, udp6, tcp6; 0 where there is none."""
    (udp4, udp6), (tcp4, tcp6) = family_ports(udp), family_ports(tcp)
    return udp4, tcp4, udp6, tcp6


def family_ports(found: tuple[socket.socket, ...]) -> tuple[int, int]:
    """The ports of these sockets, IPv4 and IPv6; 0 where there is none."""

    def port(family: int) -> int:
        return next((int(sock.getsockname()[1]) for sock in found if sock.family == family), 0)

    return port(socket.AF_INET), port(socket.AF_INET6)


def _bound(
    family: int, kind: int, address: tuple[str, int], *, reuse: bool = False, dual: bool = False
) -> socket.socket:
    sock = socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if dual else 1)
        if reuse:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if kind == socket.SOCK_DGRAM:
            _make_room(sock)
        sock.bind(address)
        if reuse:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except OSError:
        sock.close()
        raise
    return sock


def _make_room(sock: socket.socket) -> None:
    """For what arrives while the worker is not on a processor, or not alive: some 5,000 questions in every place.

    By itself the kernel has room for a tenth of that (net.core.rmem_max); in a user namespace it stays so.
    """
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, RECEIVE)
    except OSError:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE)


def _bind_api(config: Config) -> socket.socket:
    address, port = config.http.address, config.http.port
    tries: list[tuple[int, str, bool]]
    if not address:
        tries = [(socket.AF_INET6, "::", True), (socket.AF_INET, "0.0.0.0", False)]
    else:
        one = socket.AF_INET if len(address) == 4 else socket.AF_INET6
        tries = [(one, socket.inet_ntop(one, address), False)]
    problem: OSError | None = None
    for family, host, dual in tries:
        # Reuse only where an earlier life's connections still linger, and only for the moment of binding: a bound
        # port with it, not yet listening, can be taken over by any user.
        for reuse in (False, True):
            try:
                return _bound(family, socket.SOCK_STREAM, (host, port), reuse=reuse, dual=dual)
            except OSError as error:
                problem = error
                if error.errno != errno.EADDRINUSE:
                    break
        if problem is not None and problem.errno == errno.EADDRINUSE:
            break  # IPv4 alone is for where there is no IPv6, not for where somebody else has our port on ::1
    assert problem is not None
    hint = "something else listens there" if problem.errno == errno.EADDRINUSE else "choose another address"
    raise StartError(f"OPENSANDBOX_EGRESS_HTTP_ADDR: cannot bind port {port}: {problem.strerror}; {hint}")


def _bind_unix(config: Config) -> socket.socket | None:
    path = config.socket_path
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            if not stat.S_ISSOCK(os.lstat(path).st_mode):  # somebody's file, and not what an earlier life left
                raise FileExistsError(errno.EEXIST, "is there already, and no socket")
            os.unlink(path)
        except FileNotFoundError:
            pass
        before = os.umask(0o177)  # mode 0600 from its first moment on
        try:
            sock.bind(path)
        finally:
            os.umask(before)
    except OSError as error:
        if config.socket_explicit:
            raise StartError(f"OPENSANDBOX_EGRESS_SOCKET: {safe(path, 107)}: {error.strerror}") from error
        emit("warn", f"no control socket at {path}: {error.strerror}")
        return None
    return sock
