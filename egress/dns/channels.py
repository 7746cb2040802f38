"""UDP sockets to one resolver: each on a port of the kernel's choosing, given up in time or when it is guessed at.

A pool holds up to POOL connected sockets, so the kernel drops what comes from any other address or port. A question
goes out on a random one of them with a random id, 32 bits together (RFC 5452 §9.2). After every USES questions the
oldest socket is retired, so that each serves about as many; and one that is AGE seconds old or has seen STRAYS packets
that answer nothing. No new question uses it then, and it is closed when the last question on it is done, or when
RETIRED others wait for theirs.
"""

from __future__ import annotations

import os
import struct

from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from egress.dns.question import Question
    from egress.loop import Gather, Loop

POOL = 32  # sockets a server, each another random port
USES = 1024  # questions after which a socket is replaced, the oldest first
AGE = 60.0  # seconds after which one is
STRAYS = 16  # packets that answer nothing we asked, after which it is: somebody is guessing
RETIRED = 64  # retired sockets a server that may wait for their last answers
_DRAW = struct.Struct("2sH")


class Entropy:
    """The kernel's randomness, read for USES questions at a time."""

    __slots__ = ("drawn",)

    def __init__(self) -> None:
        self.drawn: list[tuple[bytes, int]] = []

    def next(self) -> tuple[bytes, int]:
        """An id, two octets, and a number below 65,536 that has nothing to do with it."""
        drawn = self.drawn
        if not drawn:
            drawn.extend(_DRAW.iter_unpack(os.urandom(_DRAW.size * USES)))
        return drawn.pop()


class Channel:
    """A connected UDP socket and the ids, two octets each, that are out on it."""

    __slots__ = ("born", "fd", "ids", "late", "receive", "retired", "send", "server", "sock", "strays")

    def __init__(self, sock: socket.socket, server: int, now: float) -> None:
        self.sock = sock
        self.fd = sock.fileno()  # -1 once closed
        self.send, self.receive = sock.send, sock.recv
        self.server = server
        self.ids: dict[bytes, Question] = {}
        self.late: set[bytes] = set()  # ids whose question was settled elsewhere: their answers are no guesses
        self.strays = 0
        self.born = now
        self.retired = False


class Pool:
    """The sockets to one server. A channel that can be read is put into `ready`."""

    def __init__(
        self, loop: Loop, server: int, dial: Callable[[], socket.socket], ready: Gather, entropy: Entropy
    ) -> None:
        self._loop = loop
        self._server = server
        self._dial = dial
        self._ready = ready
        self._entropy = entropy
        self._drawn = entropy.drawn
        self.channels: list[Channel] = []
        self._retired: dict[Channel, None] = {}

    def __len__(self) -> int:
        """How many sockets are open, retired ones too."""
        return len(self.channels) + len(self._retired)

    def take(self, now: float) -> tuple[Channel, bytes]:
        """A channel for the next question, and an id that is free on it. Raises OSError where none can be opened."""
        drawn = self._drawn
        ident, number = drawn.pop() if drawn else self._draw()
        channels = self.channels
        # A power of two: each as likely as the other.
        channel = channels[number % POOL] if len(channels) >= POOL else self._another(now, number)
        while ident in channel.ids:
            ident, _ = self._entropy.next()
        return channel, ident

    def _draw(self) -> tuple[bytes, int]:
        if len(self.channels) >= POOL:
            self.retire(self.channels[0])
        return self._entropy.next()

    def age(self, now: float) -> None:
        """Give up what is too old."""
        channels = self.channels  # in the order of their age
        while channels and now - channels[0].born > AGE:
            self.retire(channels[0])

    def _another(self, now: float, number: int) -> Channel:
        try:
            return self._open(now)
        except OSError:
            if not self.channels:
                raise
            return self.channels[number % len(self.channels)]  # out of descriptors: those that are open serve

    def _open(self, now: float) -> Channel:
        channel: Channel = Channel(self._dial(), self._server, now)
        self._loop.add_gathered(channel.fd, self._ready, channel)
        self.channels.append(channel)
        return channel

    def release(self, channel: Channel, ident: bytes, *, settled_here: bool) -> None:
        """The question with this id is done; unless its answer came on this channel, it may still come."""
        if channel.ids.pop(ident, None) is None:
            return
        if not settled_here:
            channel.late.add(ident)
        if channel.retired and not channel.ids:
            self.drop(channel)

    def retire(self, channel: Channel) -> None:
        """No new question uses it."""
        if channel.retired:
            return
        channel.retired = True
        self.channels.remove(channel)
        if not channel.ids:
            self.drop(channel)
            return
        self._retired[channel] = None
        if len(self._retired) > RETIRED:
            self.drop(next(iter(self._retired)))  # its questions are asked again elsewhere when they are late

    def retire_all(self) -> None:
        for channel in list(self.channels):
            self.retire(channel)

    def close(self) -> None:
        for channel in [*self.channels, *self._retired]:
            channel.retired = True
            self.drop(channel)
        self.channels.clear()

    def drop(self, channel: Channel) -> None:
        """Close it; what is out on it has to be asked elsewhere."""
        self._retired.pop(channel, None)
        channel.ids.clear()
        channel.late.clear()
        if channel.fd >= 0:
            self._loop.remove_reader(channel.fd)
            channel.sock.close()
            channel.fd = -1
