"""Connections that are kept open through everything: those that may go on do, and those that may not are dead."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from lab import Lab
    from soak.model import Probe

STREAM = 19
"""The port of peers that keep sending, whatever comes back; for a minute."""
_STREAMS = 40.0  # seconds for which one is held
ECHO_TCP = (22, 25, 853, 5000, 8000)
PATIENCE = 10.0  # seconds in which an answer must come, on a busy machine
_SILENCE = 0.15  # seconds in which nothing may come from a peer that has been cut off


class Flow:
    """One connection from the sandbox; `probe` says where to. Raises OSError where it cannot be opened."""

    def __init__(self, lab: Lab, probe: Probe) -> None:
        self.probe = probe
        self.chain: tuple[str, ...] = ()
        self._count = 0
        self._born = time.monotonic()
        self.ended = ""
        """What was heard last, where it did not go on."""
        family = socket.AF_INET6 if ":" in probe.address else socket.AF_INET
        kind = socket.SOCK_STREAM if probe.protocol == "tcp" else socket.SOCK_DGRAM
        self._sock = lab.sandbox.socket(family, kind)
        self._sock.settimeout(PATIENCE)
        try:
            self._sock.connect((probe.address, probe.port))
            self._sock = self.greet(self._sock)
            if not self.goes_on():
                raise ConnectionRefusedError(str(probe))
        except OSError:
            self._sock.close()
            raise

    @property
    def streams(self) -> bool:
        return self.probe.port == STREAM

    @property
    def over(self) -> bool:
        """Its peer will end it soon, of its own."""
        return self.streams and time.monotonic() - self._born > _STREAMS

    def close(self) -> None:
        self._sock.close()

    def greet(self, sock: socket.socket) -> socket.socket:
        """What comes first on a connection."""
        return sock

    def say(self, word: bytes) -> None:
        """So that the word comes back."""
        self._sock.send(word)

    def goes_on(self, patience: float = PATIENCE) -> bool:
        """Something is sent and comes back; a peer that sends by itself is heard, now and not from a buffer."""
        self._count += 1
        word = b"<%d>" % self._count
        try:
            if self.streams:
                self._drain()
                if self.probe.protocol == "udp":
                    self._sock.send(b"go on")
                return self._heard(b"\n", patience)
            self.say(word)
            return self._heard(word, patience)
        except OSError as error:
            self.ended = str(error)
            return False

    def is_dead(self) -> bool:
        """Nothing of ours comes back any more, and what the peer sends by itself doesn't arrive."""
        if self.streams:
            try:
                self._drain()
            except OSError:
                return True
            try:
                return not self._heard(b"\n", _SILENCE)
            except OSError:
                return True
        if self.probe.protocol == "udp":
            return not self.goes_on(_SILENCE)
        # A reader that is blocked in the sandbox has to notice: an error or an end, not silence.
        self._count += 1
        word = b"<%d>" % self._count
        try:
            self.say(word)
            self._sock.settimeout(PATIENCE)
            while data := self._sock.recv(65536):
                if word in data:
                    return False
        except TimeoutError:
            return False
        except OSError:
            return True
        return True

    def _drain(self) -> None:
        self._sock.setblocking(False)
        try:
            while self._sock.recv(65536):
                pass
            if self.probe.protocol == "tcp":
                raise ConnectionResetError("the peer has ended it")
        except BlockingIOError:
            return
        finally:
            self._sock.settimeout(PATIENCE)

    def _heard(self, word: bytes, patience: float) -> bool:
        deadline = time.monotonic() + patience
        heard = b""
        while (left := deadline - time.monotonic()) > 0:
            self._sock.settimeout(left)
            try:
                data = self._sock.recv(65536)
            except TimeoutError:
                break
            if not data and self.probe.protocol == "tcp":
                self.ended = "its end"
                return False
            heard = heard[-64:] + data
            if word in heard:
                return True
        self.ended = "silence"
        return False


class Visitor:
    """A connection from outside into the sandbox, as a gateway makes them: no policy may ever touch it."""

    def __init__(self, lab: Lab) -> None:
        self._listener = lab.sandbox.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._listener.settimeout(PATIENCE)
        self._listener.bind(("0.0.0.0", 8888))
        self._listener.listen()
        self._outside = lab.dial_in(8888, timeout=PATIENCE)
        self._inside, _ = self._listener.accept()
        for sock in (self._outside, self._inside):
            sock.settimeout(PATIENCE)
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for sock in (self._outside, self._inside, self._listener):
            sock.close()

    def is_served(self) -> bool:
        """A word goes each way."""
        self._count += 1
        word = b"%08d" % self._count
        try:
            self._outside.sendall(word)
            if self._inside.recv(8, socket.MSG_WAITALL) != word:
                return False
            self._inside.sendall(word)
            return self._outside.recv(8, socket.MSG_WAITALL) == word
        except OSError:
            return False
