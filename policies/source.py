"""JSON and YAML text into plain trees, strictly.

What the usual readers let pass is kept visible for the walk that knows the path: an object is a list of pairs, so a
doubled key can be named with its place; NaN and its kin, and integers of absurd length, are marks instead of numbers.
Text that can't be read at all is an error at `$`.

YAML is read event by event rather than composed: no recursion to overflow, no aliases to multiply, no tags to
construct objects, and of YAML 1.1's surprises (`no` as false, `22:30` as a number) none. PyYAML is imported only then.
"""

from __future__ import annotations

import json
import re

from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import NoReturn

from policies.model import PolicyError
from policies.name import show

_DEEPEST = 16
_LONGEST_NUMBER = 20
_INTEGER = r"(?a)-?[0-9]+"
_BLANK = " \t\r\n"


class Pairs:
    """A JSON object or YAML mapping as its pairs in order, doubled keys included."""

    __slots__ = ("pairs",)

    def __init__(self, pairs: list[tuple[str, object]]) -> None:
        self.pairs = pairs


class Oddity:
    """A value that no policy can hold, with the words for it."""

    __slots__ = ("words",)

    def __init__(self, words: str) -> None:
        self.words = words


def read_text(data: bytes | str) -> str:
    """The text of a document: strict UTF-8 without a byte order mark. Raises PolicyError."""
    if isinstance(data, str):
        text = data
    else:
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise PolicyError("$", f"not UTF-8: bad byte at offset {error.start}") from None
    if text.startswith("\ufeff"):
        raise PolicyError("$", "starts with a byte order mark; save the document as UTF-8 without one")
    return text


def read_json(text: str) -> object:
    """A strict tree, or None for a blank document. Raises PolicyError."""
    if not text.strip(_BLANK):
        return None
    try:
        return json.loads(
            text, object_pairs_hook=Pairs, parse_constant=_constant, parse_int=_integer, parse_float=_float
        )
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise PolicyError("$", f"not JSON: {_json_words(error, text)} ({where})") from None
    except RecursionError:
        raise PolicyError("$", "nested too deeply; a policy has four levels") from None


def _json_words(error: json.JSONDecodeError, text: str) -> str:
    if error.msg == "Extra data":
        return "text after the document's end"
    if error.pos >= len(text):
        return "the document ends too early"
    words = error.msg[0].lower() + error.msg[1:]
    return f"{words}, found {show(text[error.pos : error.pos + 12])}"


def _constant(text: str) -> Oddity:
    return Oddity(f"{text}, which isn't JSON")


def _integer(text: str) -> object:
    return int(text) if len(text) <= _LONGEST_NUMBER else Oddity("a number of absurd length")


def _float(text: str) -> Oddity:
    return Oddity(f"the fraction {text if len(text) <= _LONGEST_NUMBER else text[:_LONGEST_NUMBER] + '...'}")


def read_document(text: str) -> object:
    """A file that may be JSON or YAML: what starts with a brace or bracket is JSON, everything else YAML."""
    stripped = text.lstrip(_BLANK)
    if stripped and stripped[0] not in "{[":
        return _read_yaml(text)
    try:
        return read_json(text)
    except PolicyError as error:
        raise PolicyError(error.path, f"{error.message}; what starts with a brace or bracket is read as JSON") from None


class _Builder:
    """Builds a tree from YAML events with a stack of its own."""

    def __init__(self) -> None:
        self.root: object = None
        self.documents = 0
        self._stack: list[list[object] | _Mapping] = []

    def put(self, value: object) -> None:
        if not self._stack:
            self.root = value
            return
        top = self._stack[-1]
        if isinstance(top, _Mapping):
            top.put(value)
        else:
            top.append(value)

    def open(self, container: list[object] | _Mapping) -> None:
        if len(self._stack) >= _DEEPEST:
            raise PolicyError("$", "nested too deeply; a policy has four levels")
        self._stack.append(container)

    def close(self) -> None:
        container = self._stack.pop()
        self.put(Pairs(container.pairs) if isinstance(container, _Mapping) else container)


class _Mapping:
    """A mapping under construction; keys and values come in turn."""

    def __init__(self) -> None:
        self.pairs: list[tuple[str, object]] = []
        self._key: str | None = None

    def put(self, value: object) -> None:
        if self._key is not None:
            self.pairs.append((self._key, value))
            self._key = None
        elif isinstance(value, str):
            self._key = value
        else:
            raise PolicyError("$", "a YAML key that isn't text")


def _read_yaml(text: str) -> object:
    try:
        import yaml
    except ImportError:
        raise PolicyError("$", "YAML needs the Python package PyYAML; install it or write JSON") from None
    builder = _Builder()
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        for event in yaml.parse(text, Loader=loader):
            _take(builder, event)
    except yaml.YAMLError as error:
        _yaml_error(error)
    except (RecursionError, UnicodeError):
        raise PolicyError("$", "not YAML that a policy can be written in") from None
    return builder.root


def _take(builder: _Builder, event: object) -> None:
    kind = type(event).__name__
    if kind == "AliasEvent":
        raise PolicyError("$", f"a YAML alias{_place(event)}; quote targets that start with '*', and write things out")
    if getattr(event, "anchor", None) is not None:
        raise PolicyError("$", f"a YAML anchor{_place(event)}; write things out")
    if getattr(event, "tag", None) not in (None, "!"):
        raise PolicyError("$", f"a YAML tag{_place(event)}; write plain values")
    if kind == "ScalarEvent":
        builder.put(_scalar(event))
    elif kind == "SequenceStartEvent":
        builder.open([])
    elif kind == "MappingStartEvent":
        builder.open(_Mapping())
    elif kind in ("SequenceEndEvent", "MappingEndEvent"):
        builder.close()
    elif kind == "DocumentStartEvent":
        builder.documents += 1
        if builder.documents > 1:
            raise PolicyError("$", f"a second YAML document{_place(event)}; a file holds one")


def _scalar(event: object) -> object:
    """Quoted: text. Plain: null, a whole number, true, false, else text (YAML 1.2's core schema, less floats)."""
    value = str(getattr(event, "value", ""))
    if getattr(event, "style", None):
        return value
    if value in ("", "~", "null", "Null", "NULL"):
        return None
    if value in ("true", "True", "TRUE", "false", "False", "FALSE"):
        return value.lower() == "true"
    if re.fullmatch(_INTEGER, value) and (value == "0" or not value.lstrip("-").startswith("0")):
        return _integer(value)
    return value


def _place(event: object) -> str:
    mark = getattr(event, "start_mark", None)
    return f" (line {mark.line + 1})" if mark is not None else ""


def _yaml_error(error: Exception) -> NoReturn:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = str(getattr(error, "problem", None) or getattr(error, "reason", None) or "unreadable")
    place = f" (line {mark.line + 1}, column {mark.column + 1})" if mark is not None else ""
    words = "".join(char if char.isprintable() else "?" for char in problem)[:200]
    hint = "; quote targets that start with '*'" if "alias" in str(getattr(error, "context", "")) + problem else ""
    raise PolicyError("$", f"not YAML: {words}{place}{hint}") from None
