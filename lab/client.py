"""What a program inside the sandbox can do, and what it hears: DNS queries, connections, datagrams, echo requests.

All sockets are opened in the sandbox's namespace by the test's own process (root). An attempt has one outcome:

    connected          TCP: established. UDP and ICMP: the peer answered
    refused            TCP reset, or ICMP port unreachable
    admin-prohibited   ICMP(v6) administratively prohibited: a firewall said no, aloud
    unreachable        any other ICMP unreachable, or no route
    dropped            the local kernel refused to send (EPERM): an `output` rule dropped it
    timeout            silence
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import time
from typing import TYPE_CHECKING, Literal, NamedTuple

from lab import http
from lab.errors import LabError
from lab.reply import Reply, build_query

if TYPE_CHECKING:
    from lab.namespace import Namespace

Outcome = Literal["connected", "refused", "admin-prohibited", "unreachable", "dropped", "timeout"]

_RESOLVER = "203.0.113.53"
_IP_RECVERR, _IPV6_RECVERR = 11, 25  # linux/in.h, linux/in6.h
_MSG_ERRQUEUE = 0x2000
# Seconds. Who answers is a process that a busy machine may keep waiting; a datagram that a guard lost is lost however
# long one waits. A handshake is the kernel's affair, done at once, and a SYN that a guard lost is sent again after one
# second: to wait for longer would hide that loss.
_PATIENCE = 10.0
_HANDSHAKE = 1.0
_FROM_ICMP, _FROM_ICMP6 = 2, 3  # linux/errqueue.h, SO_EE_ORIGIN_*


class NoReply(LabError):
    """A DNS query that nobody answered; `outcome` says what was heard in place of an answer."""

    def __init__(self, question: str, outcome: Outcome) -> None:
        super().__init__(f"{question}: {outcome}")
        self.outcome = outcome


class Fetched(NamedTuple):
    """What came of a fetch by name: the look-up's reply, the connection's outcome, the response if there was one."""

    reply: Reply
    outcome: Outcome | Literal["unresolved"]
    response: http.Response | None

    @property
    def ok(self) -> bool:
        return self.response is not None and self.response.status == 200


class Client:
    """Attempts from inside one namespace. Times in seconds."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._open: list[socket.socket] = []

    def close(self) -> None:
        for sock in self._open:
            sock.close()

    # -- DNS ----------------------------------------------------------------------------------------------------

    def query(
        self,
        name: str,
        qtype: str | int = "A",
        *,
        server: str = _RESOLVER,
        tcp: bool = False,
        edns: int | None = 1232,
        options: bytes = b"",
        ident: int | None = None,
        source_port: int = 0,
        port: int = 53,
        timeout: float = _PATIENCE,
    ) -> Reply:
        """Ask, as a stub resolver does, and read the answer. `edns=None` leaves EDNS out. Raises NoReply."""
        number = int.from_bytes(os.urandom(2)) if ident is None else ident
        message = build_query(name, qtype, number, edns, options)
        answer = self.query_raw(
            message, server=server, tcp=tcp, source_port=source_port, port=port, timeout=timeout, label=name
        )
        return Reply(answer)

    def query_raw(
        self,
        message: bytes,
        *,
        server: str = _RESOLVER,
        tcp: bool = False,
        source_port: int = 0,
        port: int = 53,
        timeout: float = _PATIENCE,
        label: str = "raw query",
    ) -> bytes:
        """Send octets to a resolver and return its answer's. Over UDP only an answer with the same id counts."""
        deadline = time.monotonic() + timeout
        kind = socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM
        with self._socket(server, kind) as sock:
            if source_port:
                sock.bind(("", source_port))
            outcome = _connect(sock, server, port, timeout)
            if outcome != "connected":
                raise NoReply(label, outcome)
            try:
                sock.send(struct.pack(">H", len(message)) + message if tcp else message)
                if tcp:
                    return _exactly(sock, int.from_bytes(_exactly(sock, 2, deadline)), deadline)
                while True:
                    _wait(sock, deadline)
                    answer = sock.recv(65535)
                    if answer[:2] == message[:2]:
                        return answer
            except OSError as error:
                raise NoReply(label, _outcome(sock, error)) from error

    # -- attempts -----------------------------------------------------------------------------------------------

    def connect(self, address: str, port: int, *, timeout: float = _HANDSHAKE) -> Outcome:
        """Try a TCP connection, and close it."""
        with self._socket(address, socket.SOCK_STREAM) as sock:
            return _connect(sock, address, port, timeout)

    def open(self, address: str, port: int, *, timeout: float = _PATIENCE) -> socket.socket:
        """A TCP connection to keep; closed with the lab. `timeout` is for what is said on it. Raises OSError."""
        sock = self._socket(address, socket.SOCK_STREAM)
        self._open.append(sock)
        sock.settimeout(_HANDSHAKE)
        sock.connect((address, port))
        sock.settimeout(timeout)
        return sock

    def udp(self, address: str, port: int, *, payload: bytes = b"ping", timeout: float = _PATIENCE) -> Outcome:
        """Send one datagram to an echo server and wait for it to come back."""
        with self._socket(address, socket.SOCK_DGRAM) as sock:
            return _ask(sock, (address, port), payload, timeout)

    def ping(self, address: str, *, timeout: float = _PATIENCE) -> Outcome:
        """One ICMP or ICMPv6 echo request."""
        ipv6 = ":" in address
        protocol = socket.IPPROTO_ICMPV6 if ipv6 else socket.IPPROTO_ICMP
        ident = os.getpid() & 0xFFFF
        request = struct.pack(">BBHHH", 128 if ipv6 else 8, 0, 0, ident, 1) + b"sallyport lab"
        if not ipv6:  # for ICMPv6 the kernel does it
            request = request[:2] + struct.pack(">H", _checksum(request)) + request[4:]
        deadline = time.monotonic() + timeout
        with self._socket(address, socket.SOCK_RAW, protocol) as sock:
            try:
                sock.connect((address, 0))
                sock.send(request)
                while True:
                    _wait(sock, deadline)
                    answer = sock.recv(65535)
                    body = answer if ipv6 else answer[(answer[0] & 15) * 4 :]
                    if body[0] == (129 if ipv6 else 0) and body[4:8] == request[4:8]:
                        return "connected"
            except OSError as error:
                return _outcome(sock, error)

    def fetch(
        self,
        host: str,
        path: str = "/",
        *,
        port: int = 80,
        server: str = _RESOLVER,
        qtype: str = "A",
        timeout: float = _PATIENCE,
    ) -> Fetched:
        """Resolve a name and GET from its first address, as a program would."""
        reply = self.query(host, qtype, server=server, timeout=timeout)
        if not reply.addresses:
            return Fetched(reply, "unresolved", None)
        sock = self._socket(reply.addresses[0], socket.SOCK_STREAM)
        with sock:
            outcome = _connect(sock, reply.addresses[0], port, timeout)
            if outcome != "connected":
                return Fetched(reply, outcome, None)
            sock.settimeout(timeout)
            return Fetched(reply, outcome, http.exchange(sock, "GET", path, host=host))

    def _socket(self, address: str, kind: int, protocol: int = 0) -> socket.socket:
        ipv6 = ":" in address
        sock = self._namespace.socket(socket.AF_INET6 if ipv6 else socket.AF_INET, kind, protocol)
        # Without it the kernel folds what ICMP said into an errno, and "prohibited" can't be told from "no such host".
        if ipv6:
            sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVERR, 1)
        else:
            sock.setsockopt(socket.IPPROTO_IP, _IP_RECVERR, 1)
        return sock


def _connect(sock: socket.socket, address: str, port: int, timeout: float) -> Outcome:
    sock.setblocking(False)
    try:
        code = sock.connect_ex((address, port))
        if code == errno.EINPROGRESS:
            poll = select.poll()
            poll.register(sock, select.POLLOUT)
            if not poll.poll(timeout * 1000):
                return "timeout"
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        return "connected" if code == 0 else _outcome(sock, OSError(code, ""))
    finally:
        sock.setblocking(True)


def _ask(sock: socket.socket, peer: tuple[str, int], payload: bytes, timeout: float) -> Outcome:
    deadline = time.monotonic() + timeout
    try:
        sock.connect(peer)
        sock.send(payload)
        _wait(sock, deadline)
        sock.recv(65535)
    except OSError as error:
        return _outcome(sock, error)
    return "connected"


def _wait(sock: socket.socket, deadline: float) -> None:
    """Until readable or in error. Raises TimeoutError."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise TimeoutError


def _exactly(sock: socket.socket, count: int, deadline: float) -> bytes:
    data = b""
    while len(data) < count:
        _wait(sock, deadline)
        part = sock.recv(count - len(data))
        if not part:
            raise ConnectionResetError("closed before the answer was whole")
        data += part
    return data


def _outcome(sock: socket.socket, error: OSError) -> Outcome:
    """What an error means, the queue of ICMP errors consulted first."""
    said = _icmp(sock)
    if said is not None:
        return said
    match error.errno:
        case errno.ECONNREFUSED | errno.ECONNRESET | errno.ECONNABORTED:  # the last: its socket was destroyed
            return "refused"
        case errno.EPERM | errno.ENOBUFS:
            return "dropped"
        case errno.EACCES:
            return "admin-prohibited"
        case errno.EHOSTUNREACH | errno.ENETUNREACH | errno.EADDRNOTAVAIL:
            return "unreachable"
        case errno.ETIMEDOUT | errno.EAGAIN | None:
            return "refused" if isinstance(error, ConnectionResetError) else "timeout"
    raise error


def _icmp(sock: socket.socket) -> Outcome | None:
    try:
        _, ancillary, _, _ = sock.recvmsg(512, 512, _MSG_ERRQUEUE | socket.MSG_DONTWAIT)
    except OSError:
        return None
    for level, kind, value in ancillary:
        if (level, kind) not in ((socket.IPPROTO_IP, _IP_RECVERR), (socket.IPPROTO_IPV6, _IPV6_RECVERR)):
            continue
        _, origin, icmp_type, code = struct.unpack_from("=IBBB", value)
        if (origin, icmp_type) == (_FROM_ICMP, 3):
            return "admin-prohibited" if code in (9, 10, 13) else "refused" if code == 3 else "unreachable"
        if (origin, icmp_type) == (_FROM_ICMP6, 1):
            return "admin-prohibited" if code == 1 else "refused" if code == 4 else "unreachable"
    return None


def _checksum(data: bytes) -> int:
    """RFC 1071."""
    padded = data + b"\0" * (len(data) % 2)
    total: int = sum(struct.unpack(f">{len(padded) // 2}H", padded))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
