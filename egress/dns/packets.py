"""Many packets with one system call: recvmmsg(2) and sendmmsg(2), which Python's sockets lack.

Under load most of what a cached answer costs is not the answer: two system calls, and an address that is made into
objects and back. So where packets keep coming they are taken by the dozen, and addresses stay the octets that the
kernel wrote. What is answered by the very octets of its question is answered here, in the place where it was read.

The layouts are those of Linux with 64-bit pointers (struct mmsghdr, msghdr and iovec); elsewhere it is done `OneByOne`.
"""

from __future__ import annotations

import ctypes
import struct

from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from typing import Any

MOST = 64  # packets in a call
ROOM = 4096  # octets of one
_NAME = 32  # octets kept for an address: sockaddr_in has 16, sockaddr_in6 28
_MMSGHDR = struct.Struct("@PIPNPNi4xI4x")  # name, its length, iovec, how many, control, its length, flags; octets taken
_IOVEC = struct.Struct("@PN")
_LENGTHS = {2: 16, 10: 28}  # of a name, by AF_INET and AF_INET6
_DONTWAIT = 0x40
_libc = ctypes.CDLL(None)

_fits = (_MMSGHDR.size, _IOVEC.size) == (64, 16) and hasattr(_libc, "recvmmsg") and hasattr(_libc, "sendmmsg")


class _Messages:
    """MOST of mmsghdr, with an iovec, a name and ROOM octets for each. Pages that nobody has used take no memory."""

    def __init__(self, length: int) -> None:
        whole = ctypes.create_string_buffer(MOST * (ROOM + 112))
        self.octets: Any = whole  # a slice of it is bytes at once
        self.memory = memoryview(whole).cast("B")
        start = ctypes.addressof(whole)
        heads, iovecs, names = MOST * ROOM, MOST * (ROOM + 64), MOST * (ROOM + 80)
        for index in range(MOST):
            name = start + names + _NAME * index
            iovec = start + iovecs + 16 * index
            _MMSGHDR.pack_into(self.memory, heads + 64 * index, name, length, iovec, 1, 0, 0, 0, 0)
            _IOVEC.pack_into(self.memory, iovecs + 16 * index, start + ROOM * index, ROOM)
        self.start = start
        self.first = start + heads  # message
        self.all = ctypes.c_void_p(self.first)
        self.names = self.memory[names:]
        self.name = start + names
        self.sizes = self.memory[heads:iovecs].cast("I")[14::16]  # what was taken, of each
        self.pointers = self.memory[heads:iovecs].cast("Q")  # to names: 0, 8, 16, …
        self.vectors = self.memory[iovecs:names].cast("Q")  # start and octets of each


class Packets:
    """The packets of one bound, non-blocking UDP socket; like it, something that a reply can be sent to.

    What `sendto` is given leaves with `flush`, which must be called in the same turn.
    """

    most = MOST

    def __init__(self, sock: socket.socket) -> None:
        self._fd = sock.fileno()
        self._length = length = _LENGTHS[sock.family]
        self._in = _Messages(length)
        self._same = _Messages(length)  # replies in the place of their questions, which is `_placed` now
        self._placed = [-1] * MOST
        self._out = _Messages(length)
        self._queued = 0
        self.taken = 0  # packets by the last call of `take`

    def take(self, known: Callable[[bytes], tuple[float, bytes] | None], now: float) -> list[tuple[bytes, bytes]]:
        """What waits, at most MOST packets, as (octets, address).

        Without those whose octets behind the id `known` has a reply to, with a time that is not over: these are
        answered with the reply, behind the same id.
        """
        found = self._in
        taken = self.taken = _libc.recvmmsg(self._fd, found.all, MOST, _DONTWAIT, None)
        if taken <= 0:
            return []
        octets, memory = found.octets, found.memory
        vectors, placed = self._same.vectors, self._placed
        others: list[tuple[bytes, bytes]] = []
        answered = 0
        at = 0
        for size in found.sizes[:taken].tolist():
            stop = at + size
            hit = known(octets[at + 2 : stop])
            if hit is not None and hit[0] > now:
                reply = hit[1]
                end = len(reply) + 2
                memory[at + 2 : at + end] = reply
                vectors[2 * answered + 1] = end
                if placed[answered] != at:  # as a rule it was there the last time, too
                    placed[answered] = at
                    vectors[2 * answered] = found.start + at
                    self._same.pointers[8 * answered] = found.name + at // ROOM * _NAME
                answered += 1
            else:
                place = at // ROOM * _NAME
                others.append((octets[at:stop], bytes(found.names[place : place + self._length])))
            at += ROOM
        if answered:
            self._send(self._same, answered)
        return others

    def sendto(self, message: bytes, address: bytes) -> None:
        """Send a message to an address that `take` gave, with the next `flush`."""
        size = len(message)
        if size > ROOM:
            return  # no reply over UDP is; if it were it would be lost, as packets are
        number = self._queued
        if number == MOST:
            self.flush()
            number = 0
        out = self._out
        out.memory[ROOM * number : ROOM * number + size] = message
        out.names[_NAME * number : _NAME * number + self._length] = address
        out.vectors[2 * number + 1] = size
        self._queued = number + 1

    def flush(self) -> None:
        queued, self._queued = self._queued, 0
        if queued:
            self._send(self._out, queued)

    def _send(self, messages: _Messages, count: int) -> None:
        done = 0
        while done < count:  # as a rule once; it stops at what cannot be sent: UDP loses packets, clients ask again
            sent = _libc.sendmmsg(self._fd, ctypes.c_void_p(messages.first + 64 * done), count - done, 0)
            done += sent if sent > 0 else 1


class OneByOne:
    """The same with the calls that Python has. Addresses are Python's."""

    most = MOST

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.sendto = sock.sendto
        self.taken = 0

    def take(self, known: Callable[[bytes], tuple[float, bytes] | None], now: float) -> list[tuple[bytes, Any]]:
        others: list[tuple[bytes, Any]] = []
        self.taken = 0
        while self.taken < MOST:
            try:
                data, address = self._sock.recvfrom(ROOM)
            except OSError:  # nothing left; or an error of an earlier reply, which is the client's loss
                break
            self.taken += 1
            hit = known(data[2:])
            if hit is None or hit[0] <= now:
                others.append((data, address))
                continue
            try:
                self.sendto(data[:2] + hit[1], address)
            except OSError:
                pass
        return others

    def flush(self) -> None:
        """Everything has left."""


def packets_of(sock: socket.socket) -> Packets | OneByOne:
    return Packets(sock) if _fits else OneByOne(sock)
