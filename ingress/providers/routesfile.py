"""The routes file as text: JSON or YAML into sandboxes, every fault with its JSON path. Pure.

{"sandboxes": {"box": {"host": "10.0.0.7", "ready": true, "secure_access_token": "", "ports": [8080]}}}
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingress.providers import fields
from ingress.providers.fields import FieldError, shown
from ingress.routes import Sandbox
from policies.model import PolicyError
from policies.source import Oddity, Pairs, read_document, read_json, read_text

if TYPE_CHECKING:
    from collections.abc import Callable

_KEYS = ("host", "ready", "secure_access_token", "ports", "upstream_host")
NOT_READY = "its route says that it is not ready"


class RoutesError(ValueError):
    """A routes file that can't be used; the text names the file, the JSON path and what to write instead.

    path: `sandboxes.box.ports[1]`, "" for the document as a whole.
    """

    def __init__(self, name: str, path: str, message: str) -> None:
        super().__init__(": ".join(part for part in (name, path, message) if part))
        self.path = path
        self.message = message


def parse_routes(text: str | bytes, name: str) -> list[Sandbox]:
    """The sandboxes that a routes file names, in its order. Raises RoutesError.

    name: the file's, for messages; one that ends in `.yaml` or `.yml` is YAML, one in `.json` JSON, any other is
    JSON where it starts with a brace. Blank text, null and {} are no sandboxes. A member that is null counts as absent.
    """
    try:
        tree = _read(text, name.lower())
    except PolicyError as error:
        words = error.message.partition("; ")[0].replace("not YAML that a policy", "not YAML that routes")
        raise RoutesError(name, "", words) from None
    walk = _Walk(name)
    sandboxes: list[Sandbox] = []
    for key, value in walk.members(tree, "", ("sandboxes",)):
        for sandbox_id, fields_of in walk.members(value, key, None):
            sandboxes.append(walk.sandbox(sandbox_id, fields_of))
    return sandboxes


def _read(text: str | bytes, name: str) -> object:
    text = read_text(text)
    if name.endswith((".yaml", ".yml")):
        # JSON is YAML's subset and ten times as fast to read; what is not quite JSON (flow style) goes the long way
        if text.lstrip().startswith("{"):
            try:
                return read_json(text)
            except PolicyError:
                pass
        return _flow(text)
    return read_json(text) if name.endswith(".json") else read_document(text)


def _flow(text: str) -> object:
    """YAML, also where it starts with a brace: a marker before it keeps the reader from taking it for JSON."""
    return read_document("--- " + text) if text.lstrip().startswith(("{", "[")) else read_document(text)


class _Walk:
    """Takes values out of the tree, with the path for errors."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _error(self, path: str, message: str) -> RoutesError:
        return RoutesError(self._name, path, message)

    def members(self, value: object, path: str, known: tuple[str, ...] | None) -> list[tuple[str, object]]:
        """An object's members in order, less those that are null; every key one of `known`, where that is given."""
        if value is None:
            return []
        if not isinstance(value, Pairs):
            example = {"": '{"sandboxes": {…}}', "sandboxes": '{"<id>": {"host": …}}'}.get(path, '{"host": "10.0.0.7"}')
            raise self._error(path, f"{_kind(value)}; write an object such as {example}")
        seen: set[str] = set()
        for key, _ in value.pairs:
            where = f"{path}.{_step(key)}" if path else _step(key)
            if key in seen:
                raise self._error(where, "given twice")
            seen.add(key)
            if known is not None and key not in known:
                raise self._error(where, f"unknown key; known {'is' if len(known) == 1 else 'are'} {', '.join(known)}")
        return [(key, member) for key, member in value.pairs if member is not None or known is None]

    def sandbox(self, sandbox_id: str, value: object) -> Sandbox:
        """One entry of `sandboxes`."""
        path = f"sandboxes.{_step(sandbox_id)}"
        self._checked(fields.sandbox_id, sandbox_id, path)
        if value is None:
            raise self._error(path, 'null; write an object such as {"host": "10.0.0.7"}')
        given = dict(self.members(value, path, _KEYS))
        if "host" not in given:
            raise self._error(path, 'no host; write where it listens, such as "host": "10.0.0.7"')
        ready = given.get("ready", True)
        if not isinstance(ready, bool):
            raise self._error(f"{path}.ready", f"{_kind(ready)}; write true or false")
        return Sandbox(
            id=sandbox_id,
            host=self._text(fields.host, given["host"], f"{path}.host"),
            ready=ready,
            reason="" if ready else NOT_READY,
            token=self._text(fields.token, given.get("secure_access_token", ""), f"{path}.secure_access_token"),
            ports=self._ports(given.get("ports"), f"{path}.ports"),
            upstream_host=self._text(fields.upstream_host, given.get("upstream_host", ""), f"{path}.upstream_host"),
        )

    def _text(self, check: Callable[[str], str], value: object, path: str) -> str:
        if not isinstance(value, str):
            raise self._error(path, f"{_kind(value)}; write text in quotes")
        return self._checked(check, value, path)

    def _checked(self, check: Callable[[str], str], value: str, path: str) -> str:
        try:
            return check(value)
        except FieldError as error:
            raise self._error(path, str(error)) from None

    def _ports(self, value: object, path: str) -> frozenset[int] | None:
        if value is None:
            return None
        if not isinstance(value, list):
            raise self._error(path, f"{_kind(value)}; write a list such as [8080, 3000]")
        if not value:
            raise self._error(path, "an empty list; leave it out to open every port")
        for index, port in enumerate(value):
            if isinstance(port, bool) or not isinstance(port, int):
                raise self._error(f"{path}[{index}]", f"{_kind(port)}; write a number from 1 to 65535")
            if not 1 <= port <= 65535:
                raise self._error(f"{path}[{index}]", f"{port} is no port; write a number from 1 to 65535")
        return frozenset(value)


def _step(key: str) -> str:
    """A key as a path shows it: as it is, or in quotes where it would be misread."""
    plain = key and len(key) <= 60 and all(char.isascii() and (char.isalnum() or char in "-_") for char in key)
    return key if plain else shown(key)


def _kind(value: object) -> str:
    """What stands there, in words."""
    if isinstance(value, Oddity):
        return value.words
    if isinstance(value, bool):
        return f"{value}".lower()
    names = {str: "text", int: "a number", list: "a list", Pairs: "an object", type(None): "null"}
    return names.get(type(value), "an odd value")
