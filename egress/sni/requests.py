"""The requests of a plain HTTP/1 connection, walked through one after the other for the name in each. Pure.

The octets are passed on as they came, so only what has one reading may pass (RFC 9112): one Host that is a name, one
length, lines that end in CR LF. What makes the stream something else (CONNECT, Upgrade), or leaves open whether a body
comes (Expect, a body with GET), is refused. One connection is for one name.
"""

from __future__ import annotations

import re

from egress.sni.names import Refused, canonical

HEAD = 16_384  # octets of a request's head, of its trailers, and of a chunk's head
PORT = 80
_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) ([!-~\x80-\xff]+) HTTP/1\.([01])")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)")
# Extensions without quotes and without space before them: what programs send, and all that every reader takes alike.
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[\t !#-~\x80-\xff]*)?")
_DIGITS = re.compile(rb"[0-9]{1,18}")
_PORTED = re.compile(rb"([^:]*):([0-9]{1,5})")
_WITHOUT_BODY = frozenset((b"GET", b"HEAD", b"TRACE", b"OPTIONS"))


class Requests:
    """Takes what the client sends and gives back what may go on; `name` is there with the first whole head."""

    done = False  # there may always be another one

    def __init__(self) -> None:
        self.name = ""
        self._held = bytearray()  # of a line or head that is not whole yet
        self._seen = 0  # octets of a head in which no end of a line is left to find
        self._begun = False  # its request line is one
        self._body = 0  # octets of body, or of a chunk, still to come
        self._step = self._head

    def feed(self, data: bytes) -> bytes:
        """The octets that may be passed on now. Raises Refused; nothing of this call must then go on."""
        held = self._held
        held += data
        passed = bytearray()
        while held:
            if self._body:
                count = min(self._body, len(held))
                self._body -= count
            else:
                count = self._step()
                if not count:
                    break
            passed += held[:count]
            del held[:count]
        return bytes(passed)

    # -- steps: octets that were understood, 0 to wait for more ----------------------------------------------------
    def _head(self) -> int:
        held = self._held
        if not (65 <= held[0] <= 90 or 97 <= held[0] <= 122):
            raise Refused("not an HTTP/1 request")
        while True:
            end = held.find(b"\n", self._seen, HEAD)
            if end < 0:
                self._seen = min(len(held), HEAD)
                if self._seen == HEAD:
                    raise Refused("the head of a request is too long")
                return 0
            if held[end - 1] != 13:
                raise Refused("a line that does not end in CR LF")
            self._seen = end + 1
            if not self._begun:
                if not _LINE.fullmatch(held, 0, end - 1):
                    raise Refused("not an HTTP/1 request")
                self._begun = True
            elif held[end - 3 : end + 1] == b"\r\n\r\n":
                break
        first, *fields = bytes(held[: end - 3]).split(b"\r\n")
        self._begun, self._seen = False, 0
        self._request(first, fields)
        return end + 1

    def _request(self, line: bytes, fields: list[bytes]) -> None:
        match = _LINE.fullmatch(line)
        if match is None:
            raise Refused("not an HTTP/1 request")
        method, target = match[1], match[2]
        if method == b"CONNECT":
            raise Refused("CONNECT")
        if target[:1] != b"/" and not (target == b"*" and method == b"OPTIONS"):
            raise Refused("a request target that is no path")
        found: dict[bytes, bytes] = {}
        for field in fields:
            match = _FIELD.fullmatch(field)
            if match is None:
                raise Refused("a header line that is not well-formed")
            key = match[1].lower()
            if b"_" in key and key.replace(b"_", b"-") in _ONCE:  # some servers take the one for the other
                raise Refused("a header that some servers take for another")
            if key in _ONCE and key in found:
                raise Refused(f"{_ONCE[key]} twice")
            found[key] = match[2].strip(b" \t")
        for key in (b"upgrade", b"expect", b"http2-settings"):
            if key in found:
                raise Refused(f"{key.decode().capitalize()} in a request")
        self._host(found)
        self._framing(method, found, old=line.endswith(b"0"))

    def _host(self, found: dict[bytes, bytes]) -> None:
        if b"host" not in found:
            raise Refused("no Host")
        host = found[b"host"]
        ported = _PORTED.fullmatch(host)
        if ported:
            if int(ported[2]) != PORT:
                raise Refused("a Host with another port")
            host = ported[1]
        name = canonical(host.removesuffix(b"."), "Host")  # as somebody may type it: the same name
        if self.name and name != self.name:
            raise Refused("another Host on the same connection")
        self.name = name

    def _framing(self, method: bytes, found: dict[bytes, bytes], *, old: bool) -> None:
        coding, length = found.get(b"transfer-encoding"), found.get(b"content-length")
        if coding is not None and length is not None:
            raise Refused("Content-Length and Transfer-Encoding")
        if coding is not None:
            if coding.lower() != b"chunked" or old:
                raise Refused("a Transfer-Encoding other than chunked in HTTP/1.1")
            self._step = self._chunk
        elif length is not None:
            if not _DIGITS.fullmatch(length):
                raise Refused("a Content-Length that is no number")
            self._body = int(length)
        if (coding is not None or self._body) and method in _WITHOUT_BODY:
            raise Refused(f"a body with {method.decode()}")

    def _chunk(self) -> int:
        line = self._line()
        if line is None:
            return 0
        match = _CHUNK.fullmatch(line)
        if match is None:
            raise Refused("a chunk that is not well-formed")
        size = int(match[1], 16)
        if size:
            self._body, self._step = size, self._chunk_end
        else:
            self._step = self._trailer
        return len(line) + 2

    def _chunk_end(self) -> int:
        if len(self._held) < 2:
            return 0
        if self._held[:2] != b"\r\n":
            raise Refused("a chunk that is not well-formed")
        self._step = self._chunk
        return 2

    def _trailer(self) -> int:
        line = self._line()
        if line is None:
            return 0
        if not line:
            self._step = self._head
        else:
            match = _FIELD.fullmatch(line)
            if match is None or match[1].lower() in _ONCE:
                raise Refused("a trailer that is not well-formed")
        return len(line) + 2

    def _line(self) -> bytes | None:
        held = self._held
        end = held.find(b"\n", 0, HEAD)
        if end < 0:
            if len(held) >= HEAD:
                raise Refused("a line that is too long")
            return None
        if end == 0 or held[end - 1] != 13:
            raise Refused("a line that does not end in CR LF")
        return bytes(held[: end - 1])


_ONCE = {b"host": "Host", b"content-length": "Content-Length", b"transfer-encoding": "Transfer-Encoding"}
