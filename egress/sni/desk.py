"""The worker's part of the name guard: it judges names, makes sockets, and tells what was refused."""

from __future__ import annotations

from socket import AF_INET, AF_INET6

from egress.sni import messages
from egress.sni.messages import Message
from egress.sni.post import SOCKETS, Post
from policies.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from typing import Protocol

    from egress.loop import Loop
    from egress.sni.verdict import Verdict

    class House(Protocol):
        """The part of the guard that this module needs."""

        def judge_name(self, packed: bytes, port: int, name: str) -> Verdict: ...
        def still_allows(self, packed: bytes, port: int, name: str, chain: tuple[str, ...]) -> bool: ...
        def spare(self, family: int) -> socket.socket: ...


QUIET = 10.0  # seconds between complaints


class Refusal(NamedTuple):
    """A connection that was refused; `times` it was, as far as that could be told apart."""

    packed: bytes  # b"" for one that had not been redirected
    port: int
    name: str  # "" where the client did not say one
    reason: str
    rule: str
    times: int


class Desk:
    """Answers the relay. Belongs to the loop's thread."""

    def __init__(
        self,
        loop: Loop,
        channel: socket.socket,
        house: House,
        refused: Callable[[Refusal], None],
        failed: Callable[[str], None],
    ) -> None:
        self._house = house
        self._refused = refused
        self._failed = failed
        self._loop = loop
        self._quiet_until = 0.0
        self._post = Post(loop, channel, self._hear)
        self._post.send(Message(messages.RECHECK, 1))

    def recheck(self) -> None:
        """The policy changed: connections that it forbids are to end."""
        self._post.send(Message(messages.RECHECK, 0))

    def _hear(self, message: Message, strays: list[socket.SocketType]) -> None:
        for stray in strays:
            stray.close()
        number, packed, port, texts = message.number, message.packed, message.port, message.texts
        if message.kind == messages.ASK and len(texts) == 1:
            self._ask(number, packed, port, texts[0])
        elif message.kind == messages.CHECK and texts:
            if not self._house.still_allows(packed, port, texts[0], texts[1:]):
                self._post.send(Message(messages.CUT, number))
        elif message.kind == messages.REFUSED and len(texts) == 2:
            self._refused(Refusal(packed, port, texts[0], texts[1], "", number))
        elif message.kind == messages.NEED and port in _FAMILIES:
            self._spare(port)

    def _ask(self, number: int, packed: bytes, port: int, name: str) -> None:
        verdict = self._house.judge_name(packed, port, name)
        if not verdict.allowed:
            self._post.send(Message(messages.DENIED, number))
            self._refused(Refusal(packed, port, name, verdict.reason, verdict.rule, 1))
            return
        self._post.send(Message(messages.ALLOWED, number, texts=verdict.chain))

    def _spare(self, family: int) -> None:
        """Sockets that the relay may connect to what names have opened. Even none is an answer."""
        made: list[socket.socket] = []
        try:
            while len(made) < SOCKETS:
                made.append(self._house.spare(family))
        except OSError as error:
            if self._loop.now() >= self._quiet_until:
                self._quiet_until = self._loop.now() + QUIET
                self._failed(f"connections that were let through cannot be opened: {error.strerror}")
        if not made or not self._post.send_sockets(Message(messages.SPARE, 0, port=family), made):
            self._post.send(Message(messages.SPARE, 0, port=family))
        for sock in made:
            sock.close()


_FAMILIES = (AF_INET, AF_INET6)
