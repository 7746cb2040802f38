"""What the name guard's relay and the worker tell each other, each message one datagram. Pure.

relay ─▶ worker   ASK       may this connection go on? `texts` are the name
                  CHECK     it may no longer be so: the name, and what the worker said of it
                  REFUSED   a connection was refused, `number` of them: the name if there was one, and the reason
                  NEED      sockets, of the family in `port`
worker ─▶ relay   ALLOWED   yes. `texts` go back with CHECK
                  DENIED    no
                  CUT       end it
                  SPARE     sockets of the family in `port`
                  RECHECK   the policy changed, or (`number` is 1) this worker is new: ask again, about all
"""

from __future__ import annotations

import struct

from policies.values import NamedTuple

ASK, CHECK, REFUSED, NEED, ALLOWED, DENIED, CUT, SPARE, RECHECK = range(9)
LONGEST = 8192  # octets of a message
_HEAD = struct.Struct("=BQHB")


class Message(NamedTuple):
    """`number` is the connection's, `packed` and `port` are where it wanted to."""

    kind: int
    number: int
    packed: bytes = b""
    port: int = 0
    texts: tuple[str, ...] = ()

    def encode(self) -> bytes:
        head = _HEAD.pack(self.kind, self.number, self.port, len(self.packed))
        return head + self.packed + "\n".join(self.texts).encode()


def decode(data: bytes) -> Message:
    """Raises ValueError."""
    try:
        kind, number, port, size = _HEAD.unpack_from(data)
    except struct.error:
        raise ValueError("a message that is too short") from None
    at = _HEAD.size + size
    text = data[at:].decode()
    return Message(kind, number, data[_HEAD.size : at], port, tuple(text.split("\n")) if text else ())
