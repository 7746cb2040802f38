"""Bodies in chunks (RFC 9112 section 7.1), read strictly. Pure: bytes in, payload out.

The payload is framed anew for the other side, so that nobody there can read the same octets in another way; chunk
extensions end here, as the section allows, and trailers are given to the caller.
"""

from __future__ import annotations

import re

LINE_LIMIT = 4_096
"""Octets of a chunk's size line, its extensions included."""
TRAILER_LIMIT = 16_384
"""Octets of the whole trailer section."""

_QUOTED = rb'"(?:[\t\x20\x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t\x20-\x7e\x80-\xff])*"'
# A quote that isn't closed on its line could be read as an extension that goes on behind it: refused.
_EXTENSIONS = rb"[ \t]*;(?:[\t\x20\x21\x23-\x7e\x80-\xff]|" + _QUOTED + rb")*"
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:" + _EXTENSIONS + rb")?").fullmatch
_TRAILER = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([\t\x20-\x7e\x80-\xff]*)").fullmatch

_SIZE_LINE, _DATA, _DATA_END, _TRAILERS = range(4)


class BadBody(Exception):
    """A body that doesn't keep to its framing. The text says what is wrong."""


class ChunkedReader:
    """Takes a chunked body apart, however it is cut into reads.

    done: the last chunk and the trailers have been read. rest: what came after them. trailers: name and value, as sent.
    octets: how many were fed, framing and rest included.
    """

    __slots__ = ("_buffer", "_left", "_state", "_trailer_octets", "done", "octets", "rest", "trailers")

    def __init__(self) -> None:
        self._state = _SIZE_LINE
        self._left = 0
        self._buffer = b""
        self._trailer_octets = 0
        self.trailers: list[tuple[bytes, bytes]] = []
        self.octets = 0
        self.done = False
        self.rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The payload in these octets, in pieces, none empty. BadBody at the first fault; not after `done`."""
        pieces: list[bytes] = []
        self.octets += len(data)
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        at = 0
        size = len(data)
        while at < size:
            state = self._state
            if state == _DATA:
                end = at + self._left
                if end > size:
                    pieces.append(data[at:] if at else data)
                    self._left = end - size
                    return pieces
                pieces.append(data[at:end])
                at = end
                self._state = _DATA_END
            elif state == _DATA_END:
                if size - at < 2 and data[at] == 13:
                    break
                if data[at : at + 2] != b"\r\n":
                    raise BadBody("a chunk is longer than its size says")
                at += 2
                self._state = _SIZE_LINE
            else:
                end = data.find(b"\n", at, at + LINE_LIMIT)
                if end < 0:
                    if size - at >= LINE_LIMIT:
                        raise BadBody("a chunk's size line or a trailer is too long")
                    break
                if end == at or data[end - 1] != 13:
                    raise BadBody("a line feed without its carriage return")
                self._line(data[at : end - 1])
                at = end + 1
                if self.done:
                    self.rest = data[at:]
                    return pieces
        self._buffer = data[at:]
        return pieces

    def _line(self, line: bytes) -> None:
        if self._state == _SIZE_LINE:
            match = _SIZE(line)
            if match is None:
                raise BadBody("a chunk's size is not a hexadecimal number")
            self._left = int(match[1], 16)
            self._state = _DATA if self._left else _TRAILERS
            return
        if not line:
            self.done = True
            return
        self._trailer_octets += len(line)
        match = _TRAILER(line)
        if match is None or self._trailer_octets > TRAILER_LIMIT:
            raise BadBody("a trailer is malformed" if match is None else "the trailers are too long")
        self.trailers.append((match[1], match[2].rstrip(b" \t")))


def framed(pieces: list[bytes]) -> bytes:
    """Pieces of payload as chunks of their own; no piece may be empty."""
    if len(pieces) == 1:
        return b"%x\r\n%b\r\n" % (len(pieces[0]), pieces[0])
    return b"".join([b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces])


def last_chunk(trailers: list[tuple[bytes, bytes]]) -> bytes:
    """The end of a chunked body, with these trailers."""
    return b"0\r\n%b\r\n" % b"".join([b"%b: %b\r\n" % trailer for trailer in trailers])
