"""Messages between the processes of one run: one JSON object a packet, with descriptors where a namespace moves.

A pair of SOCK_SEQPACKET sockets keeps the borders of messages, and its end is the news that the other side has died.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from typing import Any

LIMIT = 256 * 1024
"""Bytes of the largest message: a plan with hundreds of sockets to cover stays far below."""


class Closed(Exception):
    """The other side is gone."""


class Channel:
    """One end. Descriptors are closed on exec, so the command never holds one."""

    __slots__ = ("_socket",)

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    @staticmethod
    def pair() -> tuple[Channel, Channel]:
        left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (left, right):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LIMIT * 2)
        return Channel(left), Channel(right)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, kind: str, *fds: int, **members: Any) -> None:
        """Send one message; raises `Closed` where nobody is left to read it."""
        data = json.dumps({"kind": kind, **members}).encode("utf-8", "surrogateescape")
        try:
            if fds:
                socket.send_fds(self._socket, [data], list(fds))
            else:
                self._socket.send(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Closed from error

    def tell(self, kind: str, **members: Any) -> None:
        """`send` where it does not matter whether somebody still listens."""
        with contextlib.suppress(Closed, OSError):
            self.send(kind, **members)

    def offer(self, kind: str, **members: Any) -> bool:
        """`send` that never waits: False where the reader is behind and the message was dropped."""
        data = json.dumps({"kind": kind, **members}).encode("utf-8", "surrogateescape")
        try:
            self._socket.send(data, socket.MSG_DONTWAIT)
        except OSError:
            return False
        return True

    def receive(self) -> dict[str, Any]:
        """The next message, its descriptors under "fds"; raises `Closed` at the end."""
        try:
            data, fds, _, _ = socket.recv_fds(self._socket, LIMIT, 4)
        except ConnectionResetError as error:
            raise Closed from error
        for fd in fds:
            os.set_inheritable(fd, False)
        if not data:
            raise Closed
        message: dict[str, Any] = json.loads(data.decode("utf-8", "surrogateescape"))
        message["fds"] = fds
        return message

    def expect(self, kind: str) -> dict[str, Any]:
        """The next message, which has to be of `kind`; a "failed" one raises `SetupError` with its words."""
        message = self.receive()
        if message["kind"] == "failed":
            raise SetupError(str(message["why"]))
        if message["kind"] != kind:
            raise SetupError(f"expected {kind!r} from a process of this run, got {message['kind']!r}")
        return message

    def close(self) -> None:
        self._socket.close()


class SetupError(Exception):
    """The sandbox could not be built; `str()` is one line for the person who started it."""
