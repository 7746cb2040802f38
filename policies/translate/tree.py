"""Reading somebody else's document with the path at hand: what isn't of the kind that is wanted is an error with it."""

from __future__ import annotations

import re

from policies.model import PolicyError
from policies.name import show
from policies.parser import fail_type
from policies.source import Pairs, read_document, read_text
from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

_IDENTIFIER = re.compile(r"(?a)[A-Za-z_][A-Za-z0-9_-]{0,60}")
_MARKER = re.compile(r"(?m)^---(?=\s|$)")


class Node:
    """A value and its JSON path. Every method raises PolicyError where the value is something else."""

    __slots__ = ("path", "value")

    def __init__(self, value: object, path: str = "$") -> None:
        self.value = value
        self.path = path

    def members(self, what: str = "an object") -> dict[str, Node]:
        """The members of an object; those that are null count as absent."""
        if not isinstance(self.value, Pairs):
            self.fail(what)
        assert isinstance(self.value, Pairs)
        found: dict[str, Node] = {}
        for key, value in self.value.pairs:
            step = f".{key}" if _IDENTIFIER.fullmatch(key) else f"[{show(key)}]"
            if key in found:
                raise PolicyError(self.path + step, "the key stands there twice; write it once")
            found[key] = Node(value, self.path + step)
        return {key: node for key, node in found.items() if node.value is not None}

    def known(self, keys: Collection[str], what: str = "an object") -> dict[str, Node]:
        """Members of which none is unknown: what nobody here knows might be a restriction."""
        found = self.members(what)
        for key, node in found.items():
            if key not in keys:
                raise PolicyError(node.path, f"unknown key {show(key)}; known here: {', '.join(keys)}")
        return found

    def items(self, what: str = "an array") -> list[Node]:
        if not isinstance(self.value, list):
            self.fail(what)
        assert isinstance(self.value, list)
        return [Node(value, f"{self.path}[{index}]") for index, value in enumerate(self.value)]

    def text(self, what: str = "a text") -> str:
        if not isinstance(self.value, str):
            self.fail(what)
        return str(self.value)

    def flag(self) -> bool:
        if not isinstance(self.value, bool):
            self.fail("true or false")
        return bool(self.value)

    def fail(self, wanted: str) -> None:
        """Raises PolicyError: what is there, and what to write."""
        fail_type(self.value, self.path, wanted)


def read(text: str) -> Node:
    """One document, JSON or YAML. Raises PolicyError."""
    return Node(read_document(read_text(text)))


def read_all(text: str) -> list[Node]:
    """Every document of a file; of several the path says which: `doc[1].spec`. Blank ones are left out."""
    text = read_text(text)
    if text.lstrip()[:1] in ("{", "["):
        return [Node(read_document(text))]
    parts = _MARKER.split(text)
    found: list[object] = []
    for part in parts:
        try:
            value = read_document(part)
        except PolicyError as error:
            place = f"doc[{len(found)}]" if len(parts) > 1 else "$"
            raise PolicyError(place, error.message) from None
        if value is not None:
            found.append(value)
    return [Node(value, f"doc[{index}]" if len(found) > 1 else "$") for index, value in enumerate(found)]


def port(node: Node, least: int = 1) -> int:
    """A port number, as number or text."""
    value = node.value
    if isinstance(value, str) and re.fullmatch(r"(?a)[0-9]{1,5}", value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= 65535:
        node.fail(f"a port from {least} to 65535")
    assert isinstance(value, int)
    return value
