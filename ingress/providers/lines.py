"""JSON documents out of a stream that has one on each line. Pure."""

from __future__ import annotations

import json

LONGEST = 16 * 1024 * 1024
"""Bytes of a line at most; etcd takes objects of 1.5 MB."""


class Garbage(ValueError):
    """What came isn't a line of JSON: nothing after it can be trusted."""


class Lines:
    """Takes bytes as they come, gives whole documents."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[dict[str, object]]:
        """The documents that are complete now. Raises Garbage; those before the fault are lost with it."""
        *whole, rest = data.split(b"\n")
        found = []
        for line in whole:
            if self._parts:
                line = b"".join((*self._parts, line))
                self._parts.clear()
                self._size = 0
            if line.strip():
                found.append(_document(line))
        if rest:
            self._parts.append(rest)
            self._size += len(rest)
            if self._size > LONGEST:
                raise Garbage(f"a line of more than {LONGEST} bytes")
        return found


def _document(line: bytes) -> dict[str, object]:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        raise Garbage("a line that isn't JSON") from None
    if not isinstance(document, dict):
        raise Garbage("a line that holds no object")
    return document
