"""Accepting connections that have something to settle before HTTP: a PROXY header, a TLS handshake, or both in turn.

Only used with --proxy-protocol-from or TLS; otherwise the loop accepts by itself, which is faster. A peer on the list
of balancers has to send the header, or whoever reaches the port through it could pass for the balancer by leaving it
out; a peer that isn't on it is taken as it is, and a header from it is no HTTP request. Who settles nothing is counted,
too, so that handshakes that never end leave room for what else needs descriptors.

The header's octets are looked at in the socket and taken from it exactly, so that what follows (a TLS handshake, or a
request) is still there for whoever reads next. SO_RCVLOWAT keeps half a header from waking us again and again.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import TYPE_CHECKING

from ingress.process.proxyprotocol import LONGEST, BadHeader, Header, parse
from ingress.refusal import Refusal
from policies.address import AddressError, parse_address

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence

    from ingress.http1.connection import Connection
    from policies.address import Network

AT_ONCE = 64
"""Connections accepted in one turn of the loop."""
PAUSE = 0.1
"""Seconds without accepting when descriptors have run out."""


class Acceptor:
    """Takes connections from one listening socket until it is stopped.

    protocol: makes a connection's protocol, as soon as it is accepted; it hears its client's address later. timeout:
    seconds for the header, and for a TLS handshake. most: connections that may be in either; the rest waits in the
    kernel's queue. complain: is told the address of a peer that did not keep to the agreement, and how.
    """

    def __init__(
        self,
        sock: socket.socket,
        trusted: Sequence[Network],
        protocol: Callable[[], Connection],
        *,
        timeout: float,
        most: int,
        complain: Callable[[str, str], None],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._sock = sock
        self._trusted = tuple(trusted)
        self._protocol = protocol
        self._timeout = timeout
        self._most = most
        self._complain = complain
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._reading = False
        self._stopped = False

    def start(self, backlog: int) -> None:
        """Listen, and accept."""
        self._sock.setblocking(False)
        self._sock.listen(backlog)
        self._resume()

    def close(self) -> None:
        """Accept what is queued by now and nothing more; connections go on, whoever still owes its header included."""
        if not self._stopped:
            self._accept(most=10_000)
            self._stopped = True
            self._pause()
            self._sock.close()

    def _resume(self) -> None:
        if not self._reading and not self._stopped:
            self._reading = True
            self._loop.add_reader(self._sock, self._accept)

    def _pause(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._sock)

    def _accept(self, most: int = AT_ONCE) -> None:
        for _ in range(most):
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, ConnectionAbortedError, InterruptedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                self._pause()
                self._loop.call_later(PAUSE, self._resume)
                return
            sock.setblocking(False)
            task = self._loop.create_task(self._take(sock, address[0], self._protocol()))
            self._tasks.add(task)
            task.add_done_callback(self._done)
            if len(self._tasks) >= self._most:
                self._pause()
                return

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._resume()

    async def _take(self, sock: socket.socket, peer: str, protocol: Connection) -> None:
        try:
            if self._is_trusted(peer):
                async with asyncio.timeout(self._timeout):
                    header = await self._header(sock)
                if header is None:
                    sock.close()  # a port scan, or a balancer that only looks whether somebody listens
                    return
                protocol.address = header.address
            await self._loop.connect_accepted_socket(
                lambda: protocol,
                sock,
                ssl=self._tls,
                ssl_handshake_timeout=self._timeout if self._tls is not None else None,
            )
        except BadHeader as error:
            self._complain(peer, str(error))
            self._refuse(sock, str(error))
        except TimeoutError:
            self._complain(peer, "no whole PROXY header in time")
            sock.close()
        except OSError:  # an ssl.SSLError is one; the client has left, or does not speak TLS as we do
            sock.close()

    def _is_trusted(self, peer: str) -> bool:
        try:
            packed = parse_address(peer.partition("%")[0])
        except AddressError:
            return False
        return any(network.contains(packed) for network in self._trusted)

    async def _header(self, sock: socket.socket) -> Header | None:
        """The whole header, taken out of the socket; None when the peer closed before it began. Raises BadHeader."""
        needed = 1
        while True:
            await self._readable(sock, needed)
            data = sock.recv(LONGEST, socket.MSG_PEEK)
            if len(data) < needed:
                if not data:
                    return None
                raise BadHeader("a PROXY header that breaks off")
            found = parse(data)
            if isinstance(found, Header):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
                sock.recv(found.size)
                return found
            needed = found

    async def _readable(self, sock: socket.socket, octets: int) -> None:
        """Until so many octets are there, or the peer has closed."""
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, octets)
        ready = asyncio.Event()
        self._loop.add_reader(sock, ready.set)
        try:
            await ready.wait()
        finally:
            self._loop.remove_reader(sock)

    def _refuse(self, sock: socket.socket, why: str) -> None:
        """Say what is wrong to somebody who may be a person in front of a browser, and close."""
        if self._tls is None:
            refusal = Refusal(400, "proxy_protocol", f"this address is to be reached through its balancer: {why}")
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
                sock.recv(65536)  # what is unread would turn the close into a reset, and the answer would be lost
                sock.send(refusal.render(keep_alive=False))
                sock.shutdown(socket.SHUT_WR)
            except OSError:
                pass
        sock.close()
