"""What goes unanswered when more is asked than can be answered. Pure but for reading a socket's state.

A receive queue knows no fairness: who floods it fills it, and what does not fit is thrown away whoever sent it. So
under a flood the queue is emptied faster than it can be filled. Taking a packet and dropping it costs a twentieth of
deciding about a name, and what is dropped is what there is too much of:

    known by these very bytes ──▶ answered as ever
    from a port that has asked its share already ──────────────▶ dropped
    below a parent that has had its share of decisions          ─┐ dropped, unless the name is known: an exact rule's,
    when all the new ones' share is spent, but for the first     ├▶ or one that is in the cache
    questions of ports, which have a share of their own         ─┘

Dropped and not refused: a refusal costs what it is meant to save, and whoever was caught by mistake asks again. All of
this begins only with a queue that does not empty, and ends seconds after the flood. What nobody can tell from a flood
(many ports, each name below another parent) is let in by lot.
"""

from __future__ import annotations

import socket
import struct
from array import array

from egress.dns.wire import PLAIN
from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

TAKEN = 512  # questions taken in one go, some two milliseconds' worth
WINDOW = 0.025  # seconds: shares are for so long, so that what they admit is soon done
PORT_WINDOWS = 80  # that a port is remembered for at least, and twice that at most
PORT_SHARE = 4000  # questions from one port in these: 2,000 a second, more than a browser or package manager asks
PARENT_SHARE = 40  # new names below one parent
NEW_SHARE = 50  # new names in all, which may take a sixth of the worker's time
FIRST_SHARE = 50  # beyond that, from ports that are not remembered: who asks one question has one answer
KNOWN_SHARE = 200  # known names beyond all of these
LEAST = 0.05  # of these shares, where the queue goes on losing questions: a slow or busy machine
PARENTS = 4096  # that are counted; further ones only in all
FULL = 1024 * 1024  # octets of memory in a receive queue, some 1,300 questions: no program asks them at once
LOST = 500  # questions that did not fit
PATIENCE = 0.1  # seconds that a queue may stay full: a burst is over sooner
CALM = 5.0  # seconds without anything dropped until all is as ever
_SO_MEMINFO = 55  # linux/sock_diag.h: SK_MEMINFO_RMEM_ALLOC, _RCVBUF, …, _DROPS
_MEMINFO = struct.Struct("=9I")


class Shedding:
    """The shares of the window that is on. `on` says whether they count."""

    def __init__(self) -> None:
        self.on = False
        self.dropped = 0  # since it went on
        self._quiet_at = 0.0
        self._ends = 0.0  # of the window
        self._ports = self._ports_before = array("H")  # 128 KB each, only while they are needed
        self._age = 0  # windows since these were exchanged
        self._parents: dict[bytes, int] = {}
        self._new = self._first = self._known = 0
        self._part = 1.0  # of the shares that there is time for
        self._looked = float("-inf")
        self._full_since = 0.0
        self._lost: dict[int, int] = {}  # by descriptor, when the queue was last seen in order

    # -- when ----------------------------------------------------------------------------------------------------
    def look(self, sock: socket.socket, now: float) -> bool:
        """A drain took all it may and there is more: is this a flood? True when it has just become one."""
        return self.judge(sock.fileno(), *_state(sock), now)

    def judge(self, queue: int, held: int, most: int, lost: int, now: float) -> bool:
        """As `look`, for a queue that holds so many octets of `most` and has `lost` so many questions ever."""
        if now - self._looked > PATIENCE:
            self._lost.clear()
            self._full_since = now  # it was empty meanwhile
        self._looked = now
        if held < min(FULL, most // 2):
            self._full_since = now
        before = self._lost.setdefault(queue, lost)
        if self.on or (now - self._full_since < PATIENCE and lost - before < LOST):
            return False
        self.on = True
        self._ports, self._ports_before = _nobody(), _nobody()
        self._part = 1.0
        self.dropped = 0
        self._quiet_at = now + CALM
        self._begin(now)
        return True

    def over(self, now: float) -> bool:
        """Whether it has just ended."""
        if now < self._quiet_at:
            return False
        self.on = False
        self._ports = self._ports_before = array("H")
        self._parents.clear()
        self._lost.clear()
        return True

    def _begin(self, now: float) -> None:
        self._age += 1 + int((now - self._ends) / WINDOW)
        self._ends = now + WINDOW
        if self._age >= PORT_WINDOWS:
            self._age = 0
            self._ports_before, self._ports = self._ports, _nobody()
        self._parents.clear()
        self._new = self._first = self._known = 0

    def adapt(self, queue: int, lost: int) -> None:
        """A window has ended: where the queue lost questions in it, the next ones have smaller shares."""
        before = self._lost.get(queue, lost)
        self._lost[queue] = lost
        self._part = max(self._part / 2, LEAST) if lost > before else min(self._part * 1.1, 1.0)

    # -- what ----------------------------------------------------------------------------------------------------
    def drain(
        self, sock: socket.socket, now: float, same: Callable[[bytes], tuple[float, bytes] | None],
        decide: Callable[[bytes, Any], None], is_known: Callable[[str, int], bool],
    ) -> int:  # fmt: skip
        """Empty the queue as far as one turn may; how many were answered with what `same` gave."""
        if now >= self._ends:
            self._begin(now)
            self.adapt(sock.fileno(), _state(sock)[2])
        answered = 0
        for _ in range(TAKEN):
            try:
                data, address = sock.recvfrom(4096)
            except OSError:
                break
            hit = same(data[2:])
            if hit is not None and hit[0] > now:
                try:
                    sock.sendto(data[:2] + hit[1], address)
                except OSError:
                    pass  # a full buffer: whose it is asks again
                answered += 1
            elif self.admits(data, address[1], now, is_known):
                decide(data, address)
        return answered

    def admits(self, data: bytes, port: int, now: float, is_known: Callable[[str, int], bool]) -> bool:
        """May this question, from this port, be decided about? `is_known(name, type)` is asked last."""
        if now >= self._ends:
            self._begin(now)
        ports = self._ports
        asked = ports[port]
        if asked >= PORT_SHARE:
            return self._drop(now)
        ports[port] = asked + 1
        end = data.find(0, 12)
        body = data[12:end].lower() if end > 12 else b""
        parent = body[body[0] + 1 :] if body else b""
        parents = self._parents
        had = parents.get(parent, 0)
        part = self._part
        if had < PARENT_SHARE * part:
            is_first = not asked and not self._ports_before[port]
            if self._new < NEW_SHARE * part or (is_first and self._first < FIRST_SHARE * part):
                if self._new < NEW_SHARE * part:
                    self._new += 1
                else:
                    self._first += 1
                if had or len(parents) < PARENTS:
                    parents[parent] = had + 1
                return True
        if body and self._known < KNOWN_SHARE * part:
            name = _name(body)
            if name and is_known(name, int.from_bytes(data[end + 1 : end + 3], "big")):
                self._known += 1
                return True
        return self._drop(now)

    def _drop(self, now: float) -> bool:
        self.dropped += 1
        self._quiet_at = now + CALM
        return False


def _nobody() -> array[int]:
    """How much each port has asked: nothing."""
    return array("H", bytes(2 << 16))


def _state(sock: socket.socket) -> tuple[int, int, int]:
    """Octets in the queue, how many it takes, questions that it ever lost."""
    try:
        state = _MEMINFO.unpack(sock.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size))
    except (OSError, struct.error):
        return FULL, FULL, 0  # not told: by time alone
    return state[0], state[1], state[8]


def _name(body: bytes) -> str:
    """Labels as text; "" where it is not a plain name. Not checked further: it is only looked up."""
    labels = []
    at = 0
    while at < len(body):
        length = body[at]
        label = body[at + 1 : at + 1 + length]
        if length > 63 or len(label) < length or label.translate(None, PLAIN):
            return ""
        labels.append(label)
        at += length + 1
    return b".".join(labels).decode()
