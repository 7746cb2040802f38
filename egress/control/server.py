"""A small HTTP/1.1 server on the sidecar's loop, with h11 for the protocol and nothing for the network but sockets.

Its clients are inside the sandbox's network namespace, so anybody may connect, and holding connections open must not
lock others out. Hence: a cap per listening socket, where the newest connection gets in and the one that has waited
longest without a request goes; a time limit on every phase of a request; and work in slices, so that 64 KiB of
one-byte chunks cost the DNS side a turn of the loop and no more. The unix socket has a cap of its own: the crowd on
TCP does not reach the operator's door. And a share of each turn of the loop: a hundred connections that ask without a
pause hold up DNS by that much and no more.

Importing this module imports h11 (29 ms): import it when DNS is up.
"""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING

from egress.control.connection import Connection

if TYPE_CHECKING:
    from collections.abc import Callable

    from egress.control.exchange import Application
    from egress.loop import Loop

CONNECTIONS = 128
"""Connections per listening socket."""
SHARE = 8  # pieces of requests that are read in a turn of the loop, over all connections
_ACCEPTS = 32  # connections accepted in one go
_BACKLOG = 1024
_PATIENCE = {"drain": 0, "idle": 1, "head": 2, "body": 3, "write": 4}  # who makes room first; "busy" never does


class Server:
    """Serves `application` on sockets that are already bound."""

    def __init__(
        self, loop: Loop, application: Application, on_error: Callable[[BaseException], None] | None = None
    ) -> None:
        self.loop = loop
        self.application = application
        self.buffered = 0
        self._on_error = on_error
        self._listeners: list[Listener] = []
        self._sweeping = False
        self._turn = 0  # the loop's, that `_left` pieces are left of
        self._left = SHARE

    def listen(self, sock: socket.socket) -> None:
        """Begin to accept on a bound TCP or unix socket; the server owns it from here on."""
        sock.setblocking(False)
        try:
            sock.listen(_BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or sock.family == socket.AF_UNIX:
                raise
            # What lingers of an earlier life's connections can stand in the way here too, though binding passed.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.listen(_BACKLOG)
        if sock.family != socket.AF_UNIX:
            # Only from here on, when nobody can take the port any more: our connections' last minute (TIME_WAIT) must
            # not keep the next start from binding it.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listeners.append(Listener(self, sock))

    def close(self) -> None:
        """Stop accepting and drop every connection."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    @property
    def connections(self) -> int:
        """Open connections, over all sockets."""
        return sum(len(listener.connections) for listener in self._listeners)

    def has_time(self) -> bool:
        """May one more piece be read in this turn? Who may not is ready in the next one again."""
        turn = self.loop.turns
        if turn != self._turn:
            self._turn = turn
            self._left = SHARE
        if not self._left:
            return False
        self._left -= 1
        return True

    def report(self, error: BaseException) -> None:
        if self._on_error is not None:
            self._on_error(error)

    def watch(self) -> None:
        """Look at deadlines once a second as long as there is a connection: one timer, however many they are."""
        if not self._sweeping:
            self._sweeping = True
            self.loop.call_later(1.0, self._sweep)

    def _sweep(self) -> None:
        now = self.loop.now()
        for listener in self._listeners:
            for connection in [c for c in listener.connections if c.deadline <= now]:
                connection.expire()
        self._sweeping = False
        if self.connections:
            self.watch()


class Listener:
    """One listening socket and the connections that came in by it."""

    __slots__ = ("connections", "local", "server", "sock")

    def __init__(self, server: Server, sock: socket.socket) -> None:
        self.server = server
        self.sock = sock
        self.local = sock.family == socket.AF_UNIX
        self.connections: dict[Connection, None] = {}  # oldest first
        server.loop.add_reader(sock.fileno(), self._ready)

    def close(self) -> None:
        self.server.loop.remove_reader(self.sock.fileno())
        self.sock.close()
        for connection in list(self.connections):
            connection.close()

    def _ready(self) -> None:
        for _ in range(_ACCEPTS):
            try:
                sock, _ = self.sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._short_of_descriptors()
                return  # else the peer has gone before we looked
            if len(self.connections) >= CONNECTIONS and not self._make_room():
                sock.close()
                continue
            sock.setblocking(False)
            if not self.local:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections[Connection(self, sock)] = None
            self.server.watch()

    def _make_room(self) -> bool:
        """Close the connection that is owed least: of those furthest from a request, the one that waits longest."""
        waiting = [c for c in self.connections if c.phase in _PATIENCE]
        if not waiting:
            return False
        min(waiting, key=lambda c: (_PATIENCE[c.phase], c.since)).close()
        return True

    def _short_of_descriptors(self) -> None:
        """Accepting fails and the socket stays readable: make room, and look again a little later."""
        self._make_room()
        fd = self.sock.fileno()
        self.server.loop.remove_reader(fd)
        self.server.loop.call_later(0.1, lambda: self._resume(fd))

    def _resume(self, fd: int) -> None:
        if self.sock.fileno() == fd:
            self.server.loop.add_reader(fd, self._ready)
