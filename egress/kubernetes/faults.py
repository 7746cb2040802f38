"""What is wrong with a document, by its place in it, and how to read one without trusting its shape.

A wrong type where something is read is a fault too: `hostNetwork: "true"` must not pass for absent.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from egress.literals import safe


class Fault(NamedTuple):
    """One reason against a document: where, and in words that say what to write instead."""

    path: str  # such as spec.containers[0].securityContext.privileged
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class Refused(Exception):
    """A document that cannot be guarded, with every reason that was found."""

    def __init__(self, *faults: Fault) -> None:
        super().__init__("; ".join(map(str, faults)))
        self.faults = faults


class Place(NamedTuple):
    """An object of the document and where it stands: `""` for the document itself."""

    path: str
    value: dict[str, Any]

    def at(self, key: str) -> str:
        """The path of a member. Keys with dots or slashes, as annotations have, stand in brackets."""
        if any(char in key for char in "./[]"):
            return f"{self.path}[{key}]"
        return f"{self.path}.{key}" if self.path else key

    def object(self, key: str) -> Place:
        """The object below `key`, empty where there is none. Raises Refused."""
        found = self.value.get(key)
        if found is not None and not isinstance(found, dict):
            raise Refused(Fault(self.at(key), "must be an object"))
        return Place(self.at(key), found or {})

    def objects(self, key: str) -> list[Place]:
        """The list of objects below `key`. Raises Refused."""
        places = [Place(f"{self.at(key)}[{index}]", item) for index, item in enumerate(self.list(key))]
        for place in places:
            if not isinstance(place.value, dict):
                raise Refused(Fault(place.path, "must be an object"))
        return places

    def list(self, key: str) -> list[Any]:
        """The list below `key`, empty where there is none. Raises Refused."""
        found = self.value.get(key)
        if found is None:
            return []
        if not isinstance(found, list):
            raise Refused(Fault(self.at(key), "must be a list"))
        return found

    def text(self, key: str) -> str:
        """The string below `key`, "" where there is none. Raises Refused."""
        found = self.value.get(key)
        if found is None:
            return ""
        if not isinstance(found, str):
            raise Refused(Fault(self.at(key), f"must be a string, not {safe(str(found))}; put it in quotes"))
        return found

    def flag(self, key: str) -> bool:
        """The truth value below `key`, False where there is none. Raises Refused."""
        found = self.value.get(key)
        if found is None:
            return False
        if not isinstance(found, bool):
            raise Refused(Fault(self.at(key), f"must be true or false, not {safe(str(found))}"))
        return found
