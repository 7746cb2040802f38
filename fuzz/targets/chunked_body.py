"""Bodies in chunks: however they are cut the same payload, and what is taken is what the format's grammar says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ingress.http1.body import LINE_LIMIT, TRAILER_LIMIT, BadBody, ChunkedReader, framed, last_chunk

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST = 300
WORDS = (
    b"\r\n",
    b"0\r\n\r\n",
    b"5\r\nhello\r\n",
    b";a=b",
    b';a="\\""',
    b"X-T: v\r\n",
    b"\n",
    b"FFFFFFFFFFFFFFF",
    b"0x",
)
Trailers = tuple[tuple[bytes, bytes], ...]
Reading = tuple[bytes, Trailers, bytes | None] | None
"""Payload, trailers and what is behind the body (None: it isn't whole); None: a fault."""
_HEX = b"0123456789abcdefABCDEF"
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


def seeds() -> Iterator[bytes]:
    """The first octet says how the stream is cut."""
    yield b"\1" + framed([b"hello", b" world"]) + last_chunk([])
    yield b"\2" + framed([b"x" * 20]) + last_chunk([(b"X-Sum", b"1"), (b"B", b"")]) + b"GET / HTTP/1.1"
    yield b"\3" + b'5;a=b;c="d\\"e"\r\nhello\r\n000;x\r\n\r\n'
    yield b"\0" + b"A \t;\r\n0123456789\r\n0\r\nT:\t v \r\n\r\n"
    yield b"\7" + b"5\nhello\n0\n\n"


def check(data: bytes) -> None:
    """Whole, in pieces and by a plain reading."""
    if not data:
        return
    step, stream = data[0], data[1:]
    whole = read(stream, len(stream) or 1)
    pieces = read(stream, step % 7 + 1)
    assert whole == pieces, "two readings of one stream"
    assert whole == plainly(stream)
    if whole is not None and whole[2] is not None:
        payload, trailers, _ = whole
        again = (framed([payload]) if payload else b"") + last_chunk(list(trailers)) + whole[2]
        assert read(again, len(again)) == whole, "framed anew it says the same"


def read(stream: bytes, step: int) -> Reading:
    reader = ChunkedReader()
    payload = b""
    try:
        for at in range(0, len(stream), step):
            piece = stream[at : at + step]
            if reader.done:
                reader.rest += piece
                continue
            parts = reader.feed(piece)
            assert all(parts)
            payload += b"".join(parts)
    except BadBody as error:
        assert str(error).isprintable()
        return None
    return payload, tuple(reader.trailers), reader.rest if reader.done else None


def plainly(stream: bytes) -> Reading:
    """RFC 9112 section 7.1, an octet after the other; chunk extensions as strictly as the reader's own words say."""
    payload, at = b"", 0
    while True:
        end = stream.find(b"\n", at)
        if end < 0:
            return (payload, (), None) if len(stream) - at < LINE_LIMIT else None
        if end == at or stream[end - 1 : end] != b"\r":
            return None
        size = chunk_size(stream[at : end - 1])
        if size is None:
            return None
        at = end + 1
        if not size:
            return plain_trailers(payload, stream, at)
        payload += stream[at : at + size]
        at += size
        ending = stream[at : at + 2]
        if ending not in (b"\r\n", b"\r", b""):
            return None
        if len(ending) < 2:
            return payload, (), None
        at += 2


def chunk_size(line: bytes) -> int | None:
    digits = line[: len(line) - len(line.lstrip(_HEX))]
    rest = line[len(digits) :]
    if not 0 < len(digits) <= 15 or (rest and not rest.lstrip(b" \t").startswith(b";")):
        return None
    if _CONTROL.search(rest):
        return None
    quoted = escaped = False
    for octet in rest:
        if escaped:
            escaped = False
        elif octet == 34:
            quoted = not quoted
        elif octet == 92 and quoted:
            escaped = True
    return None if quoted else int(digits, 16)


def plain_trailers(payload: bytes, stream: bytes, at: int) -> Reading:
    trailers: list[tuple[bytes, bytes]] = []
    octets = 0
    while True:
        end = stream.find(b"\n", at)
        if end < 0:
            return (payload, tuple(trailers), None) if len(stream) - at < LINE_LIMIT else None
        line = stream[at:end]
        if line[-1:] != b"\r":
            return None
        line = line[:-1]
        at = end + 1
        if not line:
            return payload, tuple(trailers), stream[at:]
        octets += len(line)
        name, colon, value = line.partition(b":")
        if not colon or not _NAME.fullmatch(name) or _CONTROL.search(value) or octets > TRAILER_LIMIT:
            return None
        trailers.append((name, value.strip(b" \t")))
