"""Streams of Kubernetes documents, YAML or JSON, read as kubectl would read them and written so that it does.

PyYAML follows YAML 1.1, kubectl another mixture of 1.1 and 1.2. What both read alike passes; a plain word that they
read differently (`on`, `y`, `1_000`, `12:30`) is an error that says to put it in quotes, never a guess: a guard that
reads `hostNetwork: y` as a string has looked at another pod than the one that will run.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import yaml

from egress.literals import safe

if TYPE_CHECKING:
    from egress.kubernetes.settings import Reference

LIMIT = 16 * 1024 * 1024
"""Bytes of a stream at most."""
_NODES = 1_000_000
_DEEPEST = 200

_BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_NULLS = frozenset(("", "~", "null", "Null", "NULL"))
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_OCTAL = re.compile(r"0[0-7]+")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?")
_UNSURE = re.compile(
    r"(?:y|n|yes|no|on|off)|[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?|[-+]?0[xob][0-9a-f_]+|"
    r"[-+]?[0-9][0-9_]*_[0-9_]*(?:\.[0-9_]*)?(?:e[-+]?[0-9]+)?|[-+]0[0-9]+|0[0-9]+|[-+]?\.(?:inf|nan)",
    re.IGNORECASE,
)
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9/_.-]*(?:[:@][A-Za-z0-9/_.-]+)*")
_WORDS = re.compile(r"(?:y|n|yes|no|on|off|true|false|null|nan|inf)", re.IGNORECASE)


class DocumentError(ValueError):
    """A stream that is not read; the text names the line where there is one."""


class _Loader(yaml.SafeLoader):
    """Plain words are left to `_scalar`, keys may stand once, tags are none."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 - as PyYAML has it
    yaml_constructors = {}  # noqa: RUF012


def _scalar(_: _Loader, node: yaml.ScalarNode) -> Any:
    text: str = node.value
    if node.style is not None:
        return text
    if text in _NULLS:
        return None
    if text in _BOOLS:
        return _BOOLS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _OCTAL.fullmatch(text):
        return int(text, 8)
    if _UNSURE.fullmatch(text):
        raise DocumentError(f"line {_line(node)}: {safe(text)} means different things to different readers; put it in "
                            "quotes, or write true, false or a plain number")  # fmt: skip
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[str, Any]:
    seen = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise DocumentError(f"line {_line(key)}: a key must be a string")
        if key.value in seen:
            raise DocumentError(f"line {_line(key)}: {safe(key.value)} stands here twice")
        seen.add(key.value)
    loader.flatten_mapping(node)
    made: dict[str, Any] = {}
    for key, value in node.value:
        name = key.value if key.tag.endswith(":merge") else _scalar(loader, key)
        if not isinstance(name, str):
            raise DocumentError(f"line {_line(key)}: the key {safe(key.value)} must be a string; put it in quotes")
        made[name] = loader.construct_object(value, deep=True)
    return made


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _sequence(loader: _Loader, node: yaml.SequenceNode) -> list[Any]:
    return [loader.construct_object(item, deep=True) for item in node.value]


def _tagged(_: _Loader, node: yaml.Node) -> Any:
    raise DocumentError(f"line {_line(node)}: the tag {safe(node.tag)} has no place here; remove it")


_Loader.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile(r"<<"), ["<"])
_Loader.add_constructor("tag:yaml.org,2002:str", _scalar)
_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
_Loader.add_constructor("tag:yaml.org,2002:seq", _sequence)
_Loader.add_constructor(None, _tagged)


def read(data: bytes) -> list[dict[str, Any]]:
    """Every document of a stream; empty ones are left out. Raises DocumentError."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise DocumentError(f"is not UTF-8 (octet {error.start})") from None
    if len(data) > LIMIT:
        raise DocumentError(f"is larger than {LIMIT >> 20} MiB")
    found = []
    try:
        for document in yaml.load_all(text, _Loader):
            if document is None:
                continue
            if not isinstance(document, dict):
                raise DocumentError("holds something that is no object; a Kubernetes document has apiVersion and kind")
            found.append(document)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark else ""
        raise DocumentError(f"{where}{error.problem or error.context or 'no YAML'}") from None
    except yaml.YAMLError as error:
        raise DocumentError(safe(str(error), 200)) from None
    except RecursionError:
        raise DocumentError("is nested too deeply") from None
    left = _NODES
    for document in found:
        left = _count(document, left, 0)
    return found


def _count(value: Any, left: int, depth: int) -> int:
    """Aliases are cheap to write and dear to follow, and may lead back to themselves. Raises DocumentError."""
    left -= 1
    if left < 0:
        raise DocumentError(f"has more than {_NODES} values once its aliases are followed")
    if depth > _DEEPEST:
        raise DocumentError("is nested too deeply, or an alias leads back to itself")
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        left = _count(item, left, depth + 1)
    return left


def configured(documents: list[dict[str, Any]], reference: Reference, namespace: str) -> str | None:
    """The text of a ConfigMap's or Secret's key, where the stream holds it."""
    import base64
    import binascii

    kind = "ConfigMap" if reference.kind == "configmap" else "Secret"
    for document in documents:
        metadata = document.get("metadata")
        if document.get("kind") != kind or document.get("apiVersion") != "v1" or not isinstance(metadata, dict):
            continue
        if metadata.get("name") != reference.name or (metadata.get("namespace") or "default") != namespace:
            continue
        plain = document.get("data" if kind == "ConfigMap" else "stringData")
        if isinstance(plain, dict) and isinstance(plain.get(reference.key), str):
            return str(plain[reference.key])
        encoded = document.get("data")
        if kind == "Secret" and isinstance(encoded, dict) and isinstance(encoded.get(reference.key), str):
            try:
                return base64.b64decode(encoded[reference.key], validate=True).decode()
            except (binascii.Error, UnicodeDecodeError):
                return ""
    return None


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, False)  # items of a list stand below their key, as people write them


def _string(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    """Plain only where every reader sees a string; several lines as a block; else in quotes."""
    style = "'" if '"' in text and text.isprintable() else '"'
    if _PLAIN.fullmatch(text) and not _WORDS.fullmatch(text):
        style = ""
    elif "\n" in text and text.strip() == text.rstrip("\n") and _blockable(text):
        style = "|"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style or None)


def _blockable(text: str) -> bool:
    return all(line.isprintable() and line == line.rstrip() for line in text.split("\n"))


_Dumper.add_representer(str, _string)


def write(documents: list[dict[str, Any]], *, as_json: bool = False) -> str:
    """The stream again: YAML, or JSON (several documents become a List). Order is kept, comments are not."""
    if as_json:
        whole = documents[0] if len(documents) == 1 else {"apiVersion": "v1", "kind": "List", "items": documents}
        return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"
    return "---\n".join(
        yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1 << 30)
        for document in documents
    )
