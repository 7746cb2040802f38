"""Questions over TCP, where UDP would not do: a truncated answer, or a port that is being guessed at (RFC 7766)."""

from __future__ import annotations

from collections import deque

from egress.dns.answer import parse_answer
from egress.dns.question import HEAD, OPT, PROBING
from egress.dns.wire import WireError
from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from egress.dns.answer import Answer
    from egress.dns.channels import Entropy
    from egress.dns.question import Question
    from egress.loop import Loop

STREAMS = 64  # connections; further questions wait for one to end
QUEUED = 4096  # of these; what is more is late, and asked again by the clock
CHUNK = 16_384  # octets read at once


class Stream:
    """One question over one connection. `done` is called once, with the message, or None when the connection broke."""

    __slots__ = ("_buffer", "_done", "_fd", "_loop", "_out", "_sock", "server")

    def __init__(
        self, loop: Loop, sock: socket.socket, server: int, message: bytes, done: Callable[[bytes | None], None]
    ) -> None:
        """`sock` is non-blocking and may still be connecting."""
        self.server = server
        self._loop = loop
        self._sock = sock
        self._fd = sock.fileno()
        self._out = len(message).to_bytes(2, "big") + message
        self._buffer = bytearray()
        self._done = done
        loop.add_writer(self._fd, self._writable)
        loop.add_reader(self._fd, self._readable)

    def _writable(self) -> None:
        try:
            sent = self._sock.send(self._out)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._end(None)
            return
        self._out = self._out[sent:]
        if not self._out:
            self._loop.remove_writer(self._fd)

    def _readable(self) -> None:
        try:
            chunk = self._sock.recv(CHUNK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._end(None)
            return
        buffer = self._buffer
        buffer += chunk
        if len(buffer) >= 2:
            length = buffer[0] << 8 | buffer[1]
            if len(buffer) >= length + 2:
                self._end(bytes(buffer[2 : length + 2]))
                return
        if not chunk:
            self._end(None)

    def _end(self, message: bytes | None) -> None:
        self.close()
        self._done(message)

    def close(self) -> None:
        """Hang up; `done` is not called."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
            self._sock.close()
            self._fd = -1


class Streams:
    """All of them, for the questions in flight.

    `heard` is told of each question that it is given, with the server's number: the answer; None where none came.
    """

    def __init__(
        self,
        loop: Loop,
        dial: Callable[[int], socket.socket],
        entropy: Entropy,
        heard: Callable[[Question, int, Answer | None], None],
    ) -> None:
        self._loop = loop
        self._dial = dial
        self._entropy = entropy
        self._heard = heard
        self.open = 0
        self.queued: deque[tuple[Question, int]] = deque()

    def ask(self, question: Question, server: int) -> None:
        """Put a question to a server, as soon as there is a connection to spare."""
        if question.tcp is not None or question.stage == PROBING:
            return
        if self.open >= STREAMS:
            if len(self.queued) < QUEUED:
                self.queued.append((question, server))
            return
        ident, _ = self._entropy.next()
        try:
            sock = self._dial(server)
        except OSError:
            self._heard(question, server, None)
            return
        self.open += 1
        question.simple = False
        message = ident + HEAD + question.body + OPT
        question.tcp = Stream(self._loop, sock, server, message, lambda data: self._ended(question, ident, data))

    def give_up(self, question: Question) -> None:
        """It is settled: hang up."""
        if question.tcp is not None:
            question.tcp.close()
            self._hung_up(question)

    def _hung_up(self, question: Question) -> None:
        question.tcp = None
        self.open -= 1
        while self.queued and self.open < STREAMS:
            waiting, server = self.queued.popleft()
            if not waiting.done and waiting.tcp is None:
                self.ask(waiting, server)

    def _ended(self, question: Question, ident: bytes, data: bytes | None) -> None:
        assert question.tcp is not None
        server = question.tcp.server
        self._hung_up(question)
        answer = None
        if data is not None and data[:2] == ident:
            try:
                answer = parse_answer(data, question.body, question.name)
            except WireError:
                pass
            else:
                if answer.truncated:  # over TCP that is a lie: it teaches nothing
                    answer = None
        self._heard(question, server, answer)
