"""Where in a file the faults of a policy are: all of them, not only the first, and on which line.

The parser stops at the first fault and names its JSON path; for a person with a file in an editor, each faulty rule
is parsed again by itself, and the path is looked up in the text.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

from policies.model import PolicyError
from policies.parser import parse_patch, parse_policy
from policies.source import Oddity, Pairs, read_document, read_json, read_text

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST = 50
"""Faults that are told; who has more has one."""

_RULE = re.compile(r"\$\.egress\[([0-9]+)\]")
_STEP = re.compile(r"\.([A-Za-z_][A-Za-z0-9_]*)|\[([0-9]+)\]")


class Fault(NamedTuple):
    """One fault: JSON path, words, and the line in the file (from 1), 0 where it isn't known."""

    path: str
    message: str
    line: int = 0


def faults(data: bytes, *, yaml: bool) -> tuple[Fault, ...]:
    """Every fault of a policy text, empty for a good one."""
    try:
        parse_policy(data, yaml=yaml)
    except PolicyError as error:
        found = _all(data, yaml, error) if _RULE.match(error.path) else [error]
    else:
        return ()
    lines = _lines(data.decode("utf-8", "replace"), [error.path for error in found])
    return tuple(Fault(error.path, error.message, lines.get(error.path, 0)) for error in found)


def _all(data: bytes, yaml: bool, first: PolicyError) -> list[PolicyError]:
    text = read_text(data)
    tree = read_document(text) if yaml else read_json(text)
    rules = next((v for k, v in tree.pairs if k == "egress"), None) if isinstance(tree, Pairs) else None
    if not isinstance(rules, list):
        return [first]
    found = []
    for index, rule in enumerate(rules):
        try:
            parse_patch(f"[{_dump(rule)}]")
        except RecursionError:
            return [first]
        except PolicyError as error:
            found.append(PolicyError(f"$.egress[{index}]{error.path.removeprefix('$[0]')}", error.message))
            if len(found) == MOST:
                break
    return found or [first]


def _dump(tree: object) -> str:
    """The tree as JSON, doubled keys and odd numbers included. Raises RecursionError."""
    if isinstance(tree, Pairs):
        return "{" + ",".join(f"{json.dumps(key)}:{_dump(value)}" for key, value in tree.pairs) + "}"
    if isinstance(tree, list):
        return "[" + ",".join(map(_dump, tree)) + "]"
    if isinstance(tree, Oddity):
        number = re.search(r"-?(?:[0-9][0-9.eE+-]*|NaN|Infinity)", tree.words)
        return number[0] if number and "..." not in tree.words else "1" * 30
    return json.dumps(tree)


def _lines(text: str, paths: Iterable[str]) -> dict[str, int]:
    """The line of each path, by reading the text as YAML, which JSON nearly is; what can't be read has no lines."""
    wanted = {_steps(path): path for path in paths}
    wanted.pop((), None)
    if not wanted:
        return {}
    try:
        import yaml
    except ImportError:
        return {}
    found: dict[str, int] = {}
    walk = _Walk()
    try:
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            steps = walk.take(event)
            path = wanted.get(steps) if steps is not None else None
            mark = event.start_mark
            if path is not None and mark is not None and path not in found:
                found[path] = mark.line + 1
                if len(found) == len(wanted):
                    break
    except (yaml.YAMLError, RecursionError):
        pass
    return found


def _steps(path: str) -> tuple[str | int, ...]:
    return tuple(name or int(number) for name, number in _STEP.findall(path))


class _Walk:
    """Follows YAML events and says which path each value stands at. A key counts as the place of its value."""

    def __init__(self) -> None:
        self._stack: list[list[object]] = []  # [is a mapping, next is a key, key or index]

    def take(self, event: object) -> tuple[str | int, ...] | None:
        kind = type(event).__name__
        if kind in ("SequenceEndEvent", "MappingEndEvent"):
            self._stack.pop()
            self._done()
            return None
        if kind not in ("ScalarEvent", "SequenceStartEvent", "MappingStartEvent", "AliasEvent"):
            return None
        top = self._stack[-1] if self._stack else None
        if top is not None and top[0] and top[1]:
            top[1], top[2] = False, str(getattr(event, "value", ""))
            if kind in ("ScalarEvent", "AliasEvent"):
                return self._path()
        path = self._path()
        if kind == "SequenceStartEvent":
            self._stack.append([False, False, 0])
        elif kind == "MappingStartEvent":
            self._stack.append([True, True, ""])
        else:
            self._done()
        return path

    def _done(self) -> None:
        """A value has ended: on to the next key or index."""
        if self._stack:
            top = self._stack[-1]
            if top[0]:
                top[1] = True
            elif isinstance(top[2], int):
                top[2] += 1

    def _path(self) -> tuple[str | int, ...]:
        return tuple(level[2] for level in self._stack if isinstance(level[2], (str, int)))
