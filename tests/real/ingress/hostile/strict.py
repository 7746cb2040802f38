"""What arrived, read by somebody else's parser: h11, and a few rules that h11 is too kind to hold.

A byte stream that two parties could read in two ways is `Unclear`, whatever h11 makes of it: line ends other than CRLF,
folded lines, control characters, two lengths, a coding other than `chunked`, several Hosts (RFC 9112, RFC 9110).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import h11

if TYPE_CHECKING:
    from collections.abc import Sequence

_LARGEST = 1 << 22
_HIGH = re.compile(rb"[\x80-\xff]")
_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_FIELD = re.compile(_TOKEN + rb":[\t\x20-\x7e\x80-\xff]*")
# Octets above ASCII are in no URI, and are sent all the same.
_REQUEST_LINE = re.compile(_TOKEN + rb" [\x21-\x7e\x80-\xff]+ HTTP/1\.[01]")
# Without a reason servers leave its space out too; nobody reads that in another way.
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] [1-9][0-9][0-9](?: [\t\x20-\x7e\x80-\xff]*)?")
_QUOTED = rb'"(?:[\t\x20\x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t\x20-\x7e\x80-\xff])*"'
_CHUNK_LINE = re.compile(rb"[0-9A-Fa-f]{1,16}(?:[ \t]*;(?:[\t\x20\x21\x23-\x7e\x80-\xff]|" + _QUOTED + rb")*)?")
Headers = list[tuple[bytes, bytes]]


class Unclear(Exception):
    """These bytes are no HTTP, or HTTP that can be read in more than one way."""


class Message(NamedTuple):
    """A whole message. Names in lower case, values stripped."""

    start: bytes
    headers: Headers
    body: bytes
    trailers: Headers
    interim: tuple[int, ...] = ()
    """The 1xx answers before this one."""

    @property
    def status(self) -> int:
        return int(self.start.split(b" ")[1])

    @property
    def method(self) -> bytes:
        return self.start.split(b" ")[0]

    @property
    def target(self) -> bytes:
        return self.start.split(b" ")[1]

    def all(self, name: str) -> list[str]:
        return [value.decode("latin-1") for key, value in self.headers if key == name.lower().encode()]

    def one(self, name: str) -> str | None:
        """The field's value, None where there is none; more than one is an error."""
        found = self.all(name)
        assert len(found) < 2, f"{name}: {found}"
        return found[0] if found else None


class Reading(NamedTuple):
    """Whole messages, and what stands behind the last of them."""

    messages: list[Message]
    partial: bytes


def request(data: bytes) -> tuple[Message | None, bytes]:
    """The first request in what a server received, None while it isn't whole; and what is behind it."""
    end = data.find(b"\r\n\r\n")
    _lines(data if end < 0 else data[:end], _REQUEST_LINE, whole=end >= 0)
    if end < 0:
        return None, data
    message, left = _read(h11.Connection(h11.SERVER, _LARGEST), data, end, closed=False)
    if message is not None and len(message.all("host")) != 1 and not message.start.endswith(b"HTTP/1.0"):
        raise Unclear(f"Host: {message.all('host')}")
    return message, left


def requests(data: bytes) -> Reading:
    """Every request in what a server received, in order."""
    found: list[Message] = []
    rest = bytes(data)
    while rest:
        message, rest = request(rest)
        if message is None:
            break
        found.append(message)
    return Reading(found, rest)


def responses(data: bytes, methods: Sequence[bytes], *, closed: bool) -> Reading:
    """The answers to requests with these methods, in order; answers to requests nobody made are `partial`.

    closed: the connection has ended; an answer cut short by that is then Unclear.
    """
    found: list[Message] = []
    rest = bytes(data)
    for method in methods:
        interim: list[int] = []
        while rest:
            end = rest.find(b"\r\n\r\n")
            if end < 0:
                if closed:
                    raise Unclear(f"an answer cut short in its head: {rest[:200]!r}")
                return Reading(found, rest)
            _lines(rest[:end], _STATUS_LINE, whole=True)
            status = int(rest[9:12])
            if 100 <= status < 200 and status != 101:
                interim.append(status)
                rest = rest[end + 4 :]
                continue
            http = h11.Connection(h11.CLIENT, _LARGEST)
            http.send(h11.Request(method=method, target="/", headers=[("Host", "x"), *_asks(status)]))
            http.send(h11.EndOfMessage())
            message, left = _read(http, rest, end, closed=closed)
            if message is None:
                if closed:
                    raise Unclear(f"an answer cut short in its body: {rest[:200]!r}")
                return Reading(found, rest)
            found.append(message._replace(interim=tuple(interim)))
            rest = left
            break
    return Reading(found, rest)


def _asks(status: int) -> list[tuple[str, str]]:
    return [("Upgrade", "websocket"), ("Connection", "Upgrade")] if status == 101 else []


def _lines(head: bytes, first: re.Pattern[bytes], *, whole: bool) -> None:
    lines = head.split(b"\r\n")
    if not whole:
        lines = lines[:-1]  # the last one is still coming
    for number, line in enumerate(lines):
        if not (_FIELD if number else first).fullmatch(line):
            raise Unclear(f"line {number + 1}: {line[:200]!r}")


def _read(http: h11.Connection, data: bytes, end: int, *, closed: bool) -> tuple[Message | None, bytes]:
    """The first message, and what is behind it; None while it isn't whole."""
    start = data[: data.index(b"\r\n")]
    shown = _HIGH.sub(b"x", start) + data[len(start) :]  # h11 takes no target with an octet above ASCII
    body, trailers = bytearray(), Headers()
    headers: Headers | None = None
    try:
        http.receive_data(shown)
        if closed:
            http.receive_data(b"")
        while True:
            event = http.next_event()
            if isinstance(event, h11.Request | h11.Response | h11.InformationalResponse):
                headers = [(bytes(name), bytes(value)) for name, value in event.headers]
                _framing(headers, data[:end])
                if isinstance(event, h11.InformationalResponse):
                    return Message(start, headers, b"", []), data[end + 4 :]
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                trailers = [(bytes(name), bytes(value)) for name, value in event.headers]
                break
            else:
                assert event is h11.NEED_DATA, event
                return None, data
    except h11.RemoteProtocolError as error:
        raise Unclear(str(error)) from None
    assert headers is not None
    left = http.trailing_data[0]
    if (b"transfer-encoding", b"chunked") in headers and len(data) - len(left) > end + 4:
        _chunks(data[end + 4 : len(data) - len(left)])
    return Message(start, headers, bytes(body), trailers), left


def _framing(headers: Headers, head: bytes) -> None:
    lengths = re.findall(rb"(?im)^content-length:", head)  # h11 folds two equal ones into one
    codings = [value for name, value in headers if name == b"transfer-encoding"]
    if len(lengths) + len(codings) > 1:
        raise Unclear("more than one word about the body's length")
    if codings and (codings[0].lower() != b"chunked" or b"HTTP/1.0" in head[: head.find(b"\r\n")]):
        raise Unclear(f"Transfer-Encoding: {codings}")


def _chunks(body: bytes) -> None:
    """h11 lets bare line ends through in chunk lines and trailers; nobody should send them."""
    at = 0
    while True:
        end = body.find(b"\r\n", at)
        if end < 0 or not _CHUNK_LINE.fullmatch(body[at:end]):
            raise Unclear(f"a chunk's line: {body[at : at + 80]!r}")
        size = int(body[at:end].split(b";")[0].strip(), 16)
        at = end + 2
        if size == 0:
            break
        if body[at + size : at + size + 2] != b"\r\n":
            raise Unclear("a chunk that doesn't end where it says")
        at += size + 2
    for line in body[at:].split(b"\r\n"):
        if line and not _FIELD.fullmatch(line):
            raise Unclear(f"a trailer: {line[:200]!r}")
