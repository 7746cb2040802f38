"""HTTP/1 heads, read strictly. Pure: bytes in, a value or an error out.

A request line is read here. llhttp (through httptools) reads the lines below it; what it lets through and two parties
could read in two ways is refused here: two Hosts or none, Transfer-Encoding on HTTP/1.0, with a coding other than
chunked or beside Content-Length (RFC 9112 sections 3.2, 6.1 and 6.3).
"""

from __future__ import annotations

import re
from typing import Any

from httptools import (
    HttpParserError,
    HttpParserUpgrade,
    HttpRequestParser,
    HttpResponseParser,
)

CHUNKED = -1
"""A body in chunks (RFC 9112 section 7.1)."""
UNTIL_CLOSE = -2
"""A response's body that ends when the connection does (section 6.3, rule 8)."""


class BadHead(Exception):
    """A head that can't be read, or can be read in more than one way. The text says what is wrong, for the client."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class Fields:
    """The header section of a message: every field in the order it came, and by name. Treat it as frozen.

    A connection that sends the same section again is handed the same object again, so who derives something from it may
    keep that in `memo`, under a key of its own, and find it at the next request.
    """

    __slots__ = ("_at", "lines", "made", "memo", "names")

    def __init__(self, lines: list[bytes]) -> None:
        """lines: as they came, checked (each a name, a colon and a value), without their line ends."""
        self.lines = lines
        self.names = [line.partition(b":")[0].lower() for line in lines]
        """The name of each line, in lower case."""
        self._at = {name: at for at, name in enumerate(self.names)}
        self.memo: dict[str, Any] = {}
        self.made: tuple[bytes, bytes, bytes, int] | None = None
        """What was made of these very lines; see `request_head`. The next section has one of its own."""

    def followed_by(self, lines: list[bytes], fixed: frozenset[bytes]) -> Fields | None:
        """The next section of the same connection, where it has the same fields in the same order and those of a name
        in `fixed` unchanged; else None. What was derived from fixed fields, all of `memo`, holds for it and is shared.

        A changed line is read here, stricter than llhttp would; framing fields but Content-Length have to be fixed.
        """
        before = self.lines
        if len(lines) != len(before):
            return None
        names = self.names
        for at, line in enumerate(lines):
            if line != before[at]:
                name = names[at]
                start = len(name) + 1
                if name in fixed or line[:start].lower() != name + b":" or not _plain(line):
                    return None
                if name == b"content-length" and _LENGTH(line, start) is None:
                    return None
        after = Fields.__new__(Fields)
        after.lines = lines
        after.names = names
        after._at = self._at
        after.memo = self.memo
        after.made = None
        return after

    def __contains__(self, name: bytes) -> bool:
        """Is there a field of this name (lower case)?"""
        return name in self._at

    def get(self, name: bytes) -> bytes | None:
        """The value of a field that counts once; of several the first. `name` in lower case."""
        found = self.all(name)
        return found[0] if found else None

    def all(self, name: bytes) -> list[bytes]:
        """Every value of a field, in order, without surrounding white space; `name` in lower case."""
        at = self._at.get(name)
        if at is None:
            return []
        if len(self._at) == len(self.lines):
            return [self.lines[at][len(name) + 1 :].strip(b" \t")]
        pairs = zip(self.names, self.lines, strict=True)
        return [line[len(name) + 1 :].strip(b" \t") for known, line in pairs if known == name]

    def tokens(self, name: bytes) -> list[bytes]:
        """The members of a comma-separated field in lower case, empty ones left out (RFC 9110 section 5.6.1)."""
        if name not in self._at:
            return []
        found = self.all(name)
        if len(found) == 1 and b"," not in found[0]:
            return [found[0].lower()] if found[0] else []
        return [token for part in b",".join(found).lower().split(b",") if (token := part.strip(b" \t"))]

    @property
    def items(self) -> list[tuple[bytes, bytes]]:
        """(name as sent, value without surrounding white space) of each line; made anew each time."""
        return [(name, value.strip(b" \t")) for name, _, value in (line.partition(b":") for line in self.lines)]


class RequestHead:
    """A request's head. `length`: the body's length in bytes, or CHUNKED."""

    __slots__ = ("fields", "keep", "length", "method", "target", "version")

    def __init__(
        self, method: bytes, target: bytes, version: int, fields: Fields, length: int, keep: bool | None = None
    ) -> None:
        self.method = method
        self.target = target
        """The request target as it was sent, untouched."""
        self.version = version
        """10 or 11"""
        self.fields = fields
        self.length = length
        self.keep = keeps_alive(fields, version) if keep is None else keep
        """The connection may go on after it."""


def keeps_alive(fields: Fields, version: int) -> bool:
    """May the connection go on after this message (RFC 9112 section 9.3)?"""
    if b"connection" not in fields:
        return version == 11
    tokens = fields.tokens(b"connection")
    return b"close" not in tokens and (version == 11 or b"keep-alive" in tokens)


class ResponseHead:
    """A response's head. `length`: octets as its fields say, CHUNKED or UNTIL_CLOSE; HEAD, 204, 304: the caller's."""

    __slots__ = ("fields", "length", "reason", "status", "version")

    def __init__(self, status: int, reason: bytes, version: int, fields: Fields, length: int) -> None:
        self.status = status
        self.reason = reason
        self.version = version
        self.fields = fields
        self.length = length


_VERSIONS = {b"HTTP/1.1": 11, b"HTTP/1.0": 10}


def read_again(line: bytes, before: RequestHead) -> RequestHead | None:
    """The head with this request line whose header section is that of `before`; None where llhttp should look at it."""
    parts = line.split(b" ")
    if len(parts) != 3 or _VERSIONS.get(parts[2]) != before.version or parts[0] not in _METHODS:
        return None
    target = parts[1]
    if not target.startswith(b"/") or not _plain(target):
        return None
    return RequestHead(parts[0], target, before.version, before.fields, before.length, before.keep)


def read_similar(raw: bytes, before: RequestHead, fixed: frozenset[bytes]) -> RequestHead | None:
    """`read_request` for a connection that has sent `before`: None where the heads differ in more than `followed_by`
    allows, or llhttp should look. Content-Length may differ, the other framing fields have to be fixed."""
    line_end = raw.find(b"\r\n")
    head = read_again(raw[:line_end], before)
    if head is None:
        return None
    fields = before.fields.followed_by(raw[line_end + 2 : -4].split(b"\r\n"), fixed)
    if fields is None:
        return None
    head.fields = fields
    if before.length != CHUNKED and b"content-length" in fields:
        head.length = content_length(fields)
    return head


def _plain(text: bytes) -> bool:
    """ASCII without control characters: what nobody reads in two ways. Three times as fast as a regular expression."""
    return text.isascii() and text.decode().isprintable()


_METHODS = frozenset((b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"))
_LENGTH = re.compile(rb" *[0-9]{1,18}").fullmatch

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+").fullmatch
"""What a method is made of (RFC 9110 sections 9.1 and 5.6.2)."""
_VISIBLE = re.compile(rb"[!-~\x80-\xff]+").fullmatch
"""What a target may hold. Octets above ASCII are in no URI (RFC 3986): they are a name sent as it was typed."""
_LONGEST_METHOD = 64
_NOT_SERVED = frozenset((b"CONNECT", b"PRI"))
"""Whatever the case of their letters: behind the one comes a tunnel, behind the other HTTP/2."""


def read_request(raw: bytes) -> RequestHead:
    """A request's head, from its first octet to the empty line, both included. BadHead where it won't do."""
    line_end = raw.find(b"\r\n")
    method, target, version = request_line(raw[:line_end])
    # llhttp knows some methods only, and no octet above ASCII in a target. How it reads what stands below depends on
    # neither, CONNECT apart: so it is shown another line, of this version.
    _check(HttpRequestParser, b"POST /" + raw[line_end - 9 :])
    fields = _fields(raw, line_end)
    hosts = fields.all(b"host")
    if not hosts:
        if version == 11:
            raise BadHead("an HTTP/1.1 request needs a Host header")
    elif len(hosts) > 1:
        raise BadHead("more than one Host header")
    return RequestHead(method, target, version, fields, body_length(fields, version, 0))


def request_line(line: bytes) -> tuple[bytes, bytes, int]:
    """Method, target and version (10 or 11) of a request line; between them is one space (RFC 9112 section 3)."""
    parts = line.split(b" ")
    if len(parts) != 3:
        raise BadHead("the request line is not `METHOD target HTTP/1.1`")
    method, target, spoken = parts
    version = _VERSIONS.get(spoken)
    if version is None:
        if spoken.startswith(b"HTTP/") and spoken[5:6].isdigit():
            raise BadHead("this gateway speaks HTTP/1.1 and HTTP/1.0", 505)
        raise BadHead("the request line is not `METHOD target HTTP/1.1`")
    if method not in _METHODS:
        _check_method(method)
    if not _plain(target) and not _VISIBLE(target):
        raise BadHead("a control character in the request target")
    if target[:1] != b"/" and target != b"*" and b"://" not in target:
        raise BadHead("the request target is neither a path nor a URL")
    return method, target, version


def _check_method(method: bytes) -> None:
    """Of one that isn't among the usual."""
    if not _TOKEN(method):
        raise BadHead("the request line does not begin with a method")
    if len(method) > _LONGEST_METHOD:
        raise BadHead(f"a method longer than {_LONGEST_METHOD} letters", 501)
    if method.upper() in _NOT_SERVED:
        raise BadHead(f"{method.decode()} is not served here", 405)


def body_length(fields: Fields, version: int, untold: int) -> int:
    """The body's length as the fields tell it: octets, or CHUNKED; without a word of it, `untold` (RFC 9112, 6.3)."""
    if b"transfer-encoding" in fields:
        if version == 10:
            raise BadHead("Transfer-Encoding in an HTTP/1.0 message")
        codings = fields.all(b"transfer-encoding")
        if len(codings) != 1 or codings[0].lower() != b"chunked":
            raise BadHead("a Transfer-Encoding other than `chunked`")
        if b"content-length" in fields:
            raise BadHead("both Transfer-Encoding and Content-Length")
        return CHUNKED
    return content_length(fields) if b"content-length" in fields else untold


def content_length(fields: Fields) -> int:
    """The one Content-Length, in octets; BadHead for none, several, or what is no number (RFC 9110 section 8.6)."""
    lengths = fields.all(b"content-length")
    if len(lengths) != 1 or not lengths[0].isdigit() or len(lengths[0]) > 18:
        raise BadHead("Content-Length is not one number")
    return int(lengths[0])


def read_response(raw: bytes) -> ResponseHead:
    """A response's head, from its first octet to the empty line, both included. BadHead where it won't do."""
    _check(HttpResponseParser, raw)
    line_end = raw.find(b"\r\n")
    parts = raw[:line_end].split(b" ", 2)
    version = _VERSIONS.get(parts[0])
    if version is None or len(parts) < 2 or not _STATUS(parts[1]):
        raise BadHead("the status line is not `HTTP/1.1 200 reason`")
    reason = parts[2] if len(parts) == 3 else b""
    if _REASON(reason) is None:
        raise BadHead("a control character in the reason phrase")
    fields = _fields(raw, line_end)
    length = body_length(fields, version, UNTIL_CLOSE)
    return ResponseHead(int(parts[1]), reason, version, fields, length)


_STATUS = re.compile(rb"[1-9][0-9][0-9]").fullmatch
_REASON = re.compile(rb"[\t\x20-\x7e\x80-\xff]*").fullmatch


def _fields(raw: bytes, line_end: int) -> Fields:
    """llhttp has read every line, strictly: between two line ends stands one field, and nothing else."""
    section = raw[line_end + 2 : -4]
    return Fields(section.split(b"\r\n") if section else [])


def _check(parser: type[Any], raw: bytes) -> None:
    try:
        parser(None).feed_data(raw)
    except HttpParserUpgrade:
        return  # llhttp stops where another protocol may begin; whether it does is the caller's to say
    except HttpParserError as error:
        raise BadHead(f"not HTTP/1.1: {error}") from None
