"""One end of the channel between the relay and the worker: datagrams of a unix socket pair, some with sockets.

The supervisor holds both ends, so neither of the two notices that the other one dies: what was sent waits for the
next, and whoever waits for an answer has a clock.
"""

from __future__ import annotations

import array
import os
import socket
from collections import deque
from socket import SocketType

from egress.sni.messages import LONGEST, decode
from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from egress.loop import Loop
    from egress.sni.messages import Message

TURN = 16  # messages taken in a turn of the loop: others want it too
QUEUED = 256  # messages that may wait for the other side, if they can be spared
SOCKETS = 8  # that may come with a message
_DESCRIPTOR = array.array("i").itemsize


class Post:
    """Sends and receives on the loop's thread."""

    def __init__(self, loop: Loop, channel: socket.socket, hear: Callable[[Message, list[SocketType]], None]) -> None:
        self._loop = loop
        self._channel = channel
        self._hear = hear
        self._queue: deque[bytes] = deque()
        self.lost = 0
        channel.setblocking(False)
        loop.add_reader(channel.fileno(), self._receive)

    def send(self, message: Message, *, spare: bool = False) -> None:
        """Now, or when the other side has read what waits for it. One to `spare` is lost when too many wait."""
        data = message.encode()
        if not self._queue:
            try:
                self._channel.send(data)
                return
            except BlockingIOError:
                self._loop.add_writer(self._channel.fileno(), self._drain)
        if not spare or len(self._queue) < QUEUED:
            self._queue.append(data)
        else:
            self.lost += 1

    def send_sockets(self, message: Message, some: Sequence[socket.socket]) -> bool:
        """Now or never; the sockets stay ours to close. False: they were not sent."""
        numbers = array.array("i", [sock.fileno() for sock in some])
        try:
            self._channel.sendmsg([message.encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)])
        except OSError:
            return False
        return True

    def _drain(self) -> None:
        queue = self._queue
        try:
            while queue:
                self._channel.send(queue[0])
                queue.popleft()
        except BlockingIOError:
            return
        self._loop.remove_writer(self._channel.fileno())

    def _receive(self) -> None:
        for _ in range(TURN):
            try:
                data, ancillary, _, _ = self._channel.recvmsg(
                    LONGEST, socket.CMSG_SPACE(SOCKETS * _DESCRIPTOR), socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return
            numbers = array.array("i")
            for level, kind, value in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    numbers.frombytes(value[: len(value) - len(value) % _DESCRIPTOR])
            try:
                message = decode(data)
            except ValueError:
                for number in numbers:
                    os.close(number)
                continue
            # The family is said, so that the kernel need not be asked for each of them; none of them blocks.
            kind = socket.SOCK_STREAM | socket.SOCK_NONBLOCK
            self._hear(message, [SocketType(message.port, kind, 0, number) for number in numbers])
