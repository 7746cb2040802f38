"""Sockets that are not connected yet, made by the worker, and used again for as long as that can be done cleanly.

A socket carries the mark that only the worker can set, so each costs a message and the worker's time. A connection
that has ended in order, on both sides, leaves a socket as good as new: connect(2) with AF_UNSPEC dissolves it.
"""

from __future__ import annotations

import ctypes
import socket
from socket import AF_INET, AF_INET6, SocketType

from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FEW = 4  # of a family; when there are fewer, more are asked for
KEPT = 16  # of a family, at most
_CLOSE = 7  # the first octet of struct tcp_info: net/tcp_states.h
_NOWHERE = bytes(16)  # a struct sockaddr of AF_UNSPEC
_library = ctypes.CDLL(None, use_errno=True)


class Spares:
    """Of both families; `need` asks the worker for more of one."""

    def __init__(self, need: Callable[[int], None]) -> None:
        self.life = 0  # changes with the worker: sockets of an earlier one are used no more
        self.some: dict[int, list[SocketType]] = {AF_INET: [], AF_INET6: []}
        self._need = need
        self._asked: set[int] = set()  # families of which more are under way

    def ask(self, family: int) -> None:
        """Have more made, unless they are under way."""
        if family not in self._asked:
            self._asked.add(family)
            self._need(family)

    def supply(self, family: int, came: Sequence[SocketType]) -> None:
        """They came: none, if they cannot be made."""
        self._asked.discard(family)
        for sock in came:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self.some[family].append(sock)

    def take(self, family: int) -> SocketType | None:
        """One that is not connected yet, and does not block."""
        some = self.some[family]
        if len(some) <= FEW:
            self.ask(family)
        return some.pop() if some else None

    def take_back(self, sock: SocketType, family: int, life: int) -> bool:
        """Dissolve its connection and keep it; False: it is the caller's to close.

        Only when both ends have said their last and it has arrived: whatever the kernel still had to do for the
        connection would not be done any more.
        """
        some = self.some[family]
        if life != self.life or len(some) >= KEPT:
            return False
        if sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != _CLOSE:
            return False
        if _library.connect(sock.fileno(), _NOWHERE, len(_NOWHERE)):
            return False
        some.append(sock)
        return True

    def renew(self) -> None:
        """A new worker: their mark may be one of a ruleset that stands no more."""
        self.life += 1
        self._asked.clear()
        for family, some in self.some.items():
            if some:
                self.close(family)
                self.ask(family)

    def close(self, family: int) -> None:
        some = self.some[family]
        while some:
            some.pop().close()


def accept(listener: int, family: int) -> SocketType:
    """The next connection, as one that does not block: in one call, where Python's has four. Raises OSError."""
    found = _library.accept4(listener, None, None, socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    if found < 0:
        raise OSError(ctypes.get_errno(), "accept4")
    return SocketType(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK, 0, found)
