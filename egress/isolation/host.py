"""Sockets of the host's network for a guard that works in the sandbox's.

A network namespace belongs to a thread. The guard's main thread enters the sandbox's network and cannot come back (as
an ordinary user it holds no right over the host's); one thread that never left opens the sockets that go to the
resolvers. They stay in the host's network wherever they are used from, so the guard's questions never pass the
sandbox's rules and need no exemption from them.
"""

from __future__ import annotations

import queue
import socket
import threading

from egress.isolation import syscalls


class HostNetwork:
    """Opens sockets in the network namespace in which it was made. Make it before entering another."""

    def __init__(self) -> None:
        self._wanted: queue.SimpleQueue[tuple[int, int, queue.SimpleQueue[socket.socket | OSError]]]
        self._wanted = queue.SimpleQueue()
        started = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(started,), name="host-network", daemon=True)
        self._thread.start()
        started.wait()

    def socket(self, family: int, kind: int) -> socket.socket:
        """A fresh non-blocking socket, neither bound nor connected. Raises `OSError`; takes some 50 us."""
        answer: queue.SimpleQueue[socket.socket | OSError] = queue.SimpleQueue()
        self._wanted.put((family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, answer))
        result = answer.get()
        if isinstance(result, OSError):
            raise result
        return result

    def _serve(self, started: threading.Event) -> None:
        syscalls.set_capabilities(0, 0, 0)  # this thread's: an ordinary socket needs none
        started.set()
        while True:
            family, kind, answer = self._wanted.get()
            try:
                answer.put(socket.socket(family, kind))
            except OSError as error:
                answer.put(error)
