"""The worker's part of the name guard: it judges each connection, opens the way for it, and tells what was refused."""

from __future__ import annotations

import errno

from egress.sni import messages
from egress.sni.messages import Message
from egress.sni.post import Post
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
        def dial(self, packed: bytes, port: int) -> socket.socket: ...


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
        self._post = Post(loop, channel, self._hear)
        self._post.send(Message(messages.RECHECK, 1))

    def recheck(self) -> None:
        """The policy changed: connections that it forbids are to end."""
        self._post.send(Message(messages.RECHECK, 0))

    def _hear(self, message: Message, stray: socket.socket | None) -> None:
        if stray is not None:
            stray.close()
        number, packed, port, texts = message.number, message.packed, message.port, message.texts
        if message.kind == messages.ASK and len(texts) == 1:
            self._ask(number, packed, port, texts[0])
        elif message.kind == messages.CHECK and texts:
            if not self._house.still_allows(packed, port, texts[0], texts[1:]):
                self._post.send(Message(messages.CUT, number))
        elif message.kind == messages.REFUSED and len(texts) == 2:
            self._refused(Refusal(packed, port, texts[0], texts[1], "", number))

    def _ask(self, number: int, packed: bytes, port: int, name: str) -> None:
        verdict = self._house.judge_name(packed, port, name)
        if not verdict.allowed:
            self._post.send(Message(messages.DENIED, number))
            self._refused(Refusal(packed, port, name, verdict.reason, verdict.rule, 1))
            return
        try:
            server = self._house.dial(packed, port)
        except OSError as error:
            # What the network says is the client's to hear; what we lack is the operator's.
            if error.errno in _OURS:
                self._failed(f"a connection that was let through could not be opened: {error.strerror}")
            self._post.send(Message(messages.FAILED, number))
            return
        try:
            self._post.send_socket(Message(messages.OPENED, number, texts=verdict.chain), server)
        finally:
            server.close()


_OURS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EPERM))
