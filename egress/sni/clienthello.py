"""The ClientHello of a TLS connection, read for the one name in it. Pure.

What is read is what the server will read: octet for octet what has gone by, so whatever two readers could understand
differently is refused (RFC 8446 4.1.2 and 5.1, RFC 5246 7.4.1.2, RFC 6066 3, RFC 9849 5). Records are put together
before their content is looked at, as RFC 8446 5.1 has it: a ClientHello may come in many, over many segments.
"""

from __future__ import annotations

import struct

from egress.sni.names import Refused, canonical
from policies.values import NamedTuple

LONGEST = 16_384  # octets of a ClientHello; with post-quantum keys it has some 2,000
MOST = 2 * LONGEST  # octets of records that it may come in
_HANDSHAKE, _CHANGE_CIPHER_SPEC, _APPLICATION_DATA = 22, 20, 23
_CLIENT_HELLO, _SERVER_HELLO = 1, 2
_RECORD = 16_384  # octets of a plaintext record
_SERVER_NAME, _EARLY_DATA = 0, 42
# encrypted_client_hello and what its drafts, and encrypted_server_name before them, were numbered
_ENCRYPTED = frozenset((*range(0xFE08, 0xFE0E), 0xFF02, 0xFF03, 0xFFCE))
# SHA-256 of "HelloRetryRequest", the random of such a ServerHello (RFC 8446 4.1.3)
_RETRY = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
FIRST_WORD = 43  # octets of a server's first record that say whether it asks for another ClientHello


class Hello(NamedTuple):
    """What the guard has to know of a ClientHello."""

    name: str  # canonical
    encrypted: bool  # there is an encrypted ClientHello in it, or something that looks like one
    early: bool  # early data may follow


class Reader:
    """Takes a stream's octets as they come; `hello` is there once they hold a whole ClientHello.

    `end` is then where it ends in them. With `again` it is the one after a HelloRetryRequest: change_cipher_spec
    records, and early data if there was some, may come before it.
    """

    def __init__(self, again: Hello | None = None) -> None:
        self.hello: Hello | None = None
        self.end = 0
        self.raw = bytearray()  # all that came
        self._body = bytearray()
        self._again = again

    def feed(self, data: bytes) -> Hello | None:
        """Raises Refused for what is not, or cannot become, a ClientHello that says one name."""
        raw = self.raw
        raw += data
        if self.hello is not None:
            return self.hello
        if len(raw) > MOST:
            raise Refused("a ClientHello that is too long")
        while self._record():
            body = self._body
            if not body:
                continue
            if body[0] != _CLIENT_HELLO:
                raise Refused("not a ClientHello")
            if len(body) < 4:
                continue
            length = 4 + int.from_bytes(body[1:4], "big")
            if length > LONGEST:
                raise Refused("a ClientHello that is too long")
            if len(body) > length:
                raise Refused("something follows the ClientHello in its record")
            if len(body) == length:
                hello = self.hello = _read(bytes(body), 4)
                self._follow(hello)
                return hello
        return None

    def _record(self) -> bool:
        """Take one whole record; False when there is none."""
        raw, at = self.raw, self.end
        head = raw[at : at + 5]
        if not head:
            return False
        kind = head[0]
        early = kind == _APPLICATION_DATA and self._again is not None and self._again.early
        aside = not self._body and (early or (kind == _CHANGE_CIPHER_SPEC and self._again is not None))
        if kind != _HANDSHAKE and not aside:
            raise Refused("not TLS" if not at else "not a ClientHello")
        if (len(head) > 1 and head[1] != 3) or (len(head) > 2 and head[2] > 4):
            raise Refused("not TLS")
        if len(head) < 5:
            return False
        length = int.from_bytes(head[3:5], "big")
        if not length or length > _RECORD + (256 if early else 0):
            raise Refused("a TLS record of no valid length")
        if len(raw) - at - 5 < length:
            if kind == _HANDSHAKE and not self._body and len(raw) > at + 5 and raw[at + 5] != _CLIENT_HELLO:
                raise Refused("not a ClientHello")
            return False
        self.end = at + 5 + length
        if not aside:
            self._body += raw[at + 5 : self.end]
        return True

    def _follow(self, hello: Hello) -> None:
        """What has come behind the ClientHello already: nothing, or the beginning of early data."""
        rest = self.raw[self.end :]
        if rest and not (rest[0] in (_CHANGE_CIPHER_SPEC, _APPLICATION_DATA) and (hello.early or self._again)):
            raise Refused("something follows the ClientHello")


def asks_again(word: bytes) -> bool | None:
    """Whether a server's first octets are a HelloRetryRequest, so that a second ClientHello comes; None: too few."""
    if word[:1] != b"\x16" or (len(word) > 5 and word[5] != _SERVER_HELLO):
        return False
    return word[11:43] == _RETRY if len(word) >= FIRST_WORD else None


def _read(body: bytes, at: int) -> Hello:
    """A ClientHello's fields, from `at` on. Raises Refused. (Each connection waits for this: few steps.)"""
    size = len(body)
    if size < at + 35:
        raise Refused(_SHORT)
    if body[at] != 3:
        raise Refused("not TLS")
    session = body[at + 34]
    suites = at + 35 + session + 2
    if suites > size:
        raise Refused(_SHORT)
    listed = body[suites - 2] << 8 | body[suites - 1]
    compression = suites + listed
    if compression >= size:
        raise Refused(_SHORT)
    methods = body[compression]
    end = compression + 1 + methods
    if end > size:
        raise Refused(_SHORT)
    if session > 32 or listed < 2 or listed % 2 or not methods:
        raise Refused("a ClientHello that is not well-formed")
    name, kinds, unpack = "", [], _EXTENSION.unpack_from
    if end < size:
        at, end = _field(body, end, 2, size)
        if end != size:
            raise Refused("something follows the ClientHello's extensions")
        while at < end:
            if end - at < 4:
                raise Refused(_SHORT)
            kind, length = unpack(body, at)
            kinds.append(kind)
            at += 4 + length
            if kind == _SERVER_NAME and at <= end:
                name = _server_name(body, at - length, at)
        if at > end:
            raise Refused(_SHORT)
    if len(set(kinds)) < len(kinds):
        raise Refused("an extension twice in the ClientHello")
    if not name:
        raise Refused("no server name (SNI)")
    return Hello(name, not _ENCRYPTED.isdisjoint(kinds), _EARLY_DATA in kinds)


def _server_name(body: bytes, at: int, end: int) -> str:
    at, last = _field(body, at, 2, end)
    if last != end or at == end or body[at]:
        raise Refused("a server name (SNI) that is not well-formed")
    at, last = _field(body, at + 1, 2, end)
    if last != end:
        raise Refused("several server names (SNI)")
    return canonical(body[at:last], "server name (SNI)")


def _field(body: bytes, at: int, octets: int, end: int) -> tuple[int, int]:
    """Where a field that begins with its length, of so many octets, begins and ends. Raises Refused behind `end`."""
    start = at + octets
    if start <= end:
        last = start + int.from_bytes(body[at:start], "big")
        if last <= end:
            return start, last
    raise Refused(_SHORT)


_SHORT = "a ClientHello that is cut short"
_EXTENSION = struct.Struct(">HH")
