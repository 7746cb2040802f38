"""WebSockets by hand (RFC 6455): the opening, and frames with every bit as the test wants it."""

from __future__ import annotations

import base64
import hashlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.real.ingress.hostile.ground import Link, Origin

KEY = b"dGhlIHNhbXBsZSBub25jZQ=="
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


def accept(key: bytes = KEY) -> bytes:
    return base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11", usedforsecurity=False).digest())


def opening(
    origin: Origin,
    *fields: bytes,
    line: bytes = b"GET /ws HTTP/1.1",
    connection: bytes = b"Upgrade",
    box: bytes = b"box",
) -> bytes:
    """A client's opening handshake."""
    lines = [
        line,
        b"Host: app.test",
        b"OpenSandbox-Ingress-To: %s-%d" % (box, origin.port),
        b"Upgrade: websocket",
        b"Connection: " + connection,
        b"Sec-WebSocket-Key: " + KEY,
        b"Sec-WebSocket-Version: 13",
        *fields,
    ]
    return b"\r\n".join([*lines, b"", b""])


def agreement(*fields: bytes, key: bytes = KEY) -> bytes:
    """The server's 101."""
    lines = [
        b"HTTP/1.1 101 Switching Protocols",
        b"Upgrade: websocket",
        b"Connection: Upgrade",
        b"Sec-WebSocket-Accept: " + accept(key),
        *fields,
    ]
    return b"\r\n".join([*lines, b"", b""])


def frame(opcode: int, payload: bytes = b"", *, mask: bool = False, fin: bool = True, rsv: int = 0) -> bytes:
    size = len(payload)
    first = bytes([(0x80 if fin else 0) | rsv << 4 | opcode])
    bit = 0x80 if mask else 0
    if size < 126:
        second = bytes([bit | size])
    elif size < 1 << 16:
        second = bytes([bit | 126]) + size.to_bytes(2)
    else:
        second = bytes([bit | 127]) + size.to_bytes(8)
    if not mask:
        return first + second + payload
    key = os.urandom(4)
    wide = int.from_bytes((key * (size // 4 + 1))[:size]) ^ int.from_bytes(payload)
    return first + second + key + wide.to_bytes(size)


async def echoing(link: Link) -> None:
    """Agrees to a WebSocket and sends back every octet that comes, whatever it means."""
    await link.until(b"\r\n\r\n")
    await link.send(agreement())
    while True:
        while len(link.data) == link.taken:
            if link.ended:
                return
            await link.more()
        fresh = bytes(link.data[link.taken :])
        link.taken = len(link.data)
        await link.send(fresh)
