"""A strict reader of Prometheus' text format 0.0.4, by its published grammar, for tests.

Stricter than a scraper: every family has HELP and TYPE before its samples, in that order and once; samples of a family
stand together; no sample twice; no time stamps; a histogram's buckets grow and end with +Inf, which equals its count.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_SAMPLE = re.compile(rf"({_NAME})(?:\{{(.*)\}})? (\S+)\Z")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(,|\Z)')
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?|Inf)\Z|NaN\Z")
_SUFFIXES = {"histogram": ("_bucket", "_sum", "_count")}
_UNESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


class Wrong(AssertionError):
    """The text is not in the format."""


class Family(NamedTuple):
    kind: str
    help: str
    samples: dict[tuple[str, tuple[tuple[str, str], ...]], float]
    """(sample's name, its labels in order of name) -> value"""

    def value(self, **labels: str) -> float:
        """The value of the one sample with these labels; of a histogram use `samples`."""
        (found,) = [value for (_, own), value in self.samples.items() if own == tuple(sorted(labels.items()))]
        return found


def read(text: bytes) -> dict[str, Family]:
    """Every family by its name; Wrong where the text breaks a rule."""
    families: dict[str, Family] = {}
    described: dict[str, str] = {}
    current = ""
    decoded = text.decode("utf-8", "strict")
    if not decoded.endswith("\n"):
        raise Wrong("the last line has no end")
    for line in decoded[:-1].split("\n"):
        if line.startswith("# HELP "):
            name, _, help_text = line[7:].partition(" ")
            if name in described or not re.fullmatch(_NAME, name) or not help_text:
                raise Wrong(line)
            if re.search(r"\\(?![\\n])", help_text):
                raise Wrong(f"a backslash alone: {line}")
            described[name] = help_text
            current = ""
        elif line.startswith("# TYPE "):
            name, _, kind = line[7:].partition(" ")
            if name not in described or name in families or kind not in ("counter", "gauge", "histogram"):
                raise Wrong(line)
            if (kind == "counter") != name.endswith("_total"):
                raise Wrong(f"a counter's name ends with _total, and no other's: {line}")
            families[name] = Family(kind, described[name], {})
            current = name
        elif line.startswith("#") or not line:
            raise Wrong(f"neither HELP nor TYPE nor a sample: {line!r}")
        else:
            _sample(line, current, families)
    if set(described) != set(families):
        raise Wrong(f"HELP without TYPE: {set(described) - set(families)}")
    for name, family in families.items():
        if family.kind == "histogram":
            _check_histogram(name, family)
        elif family.kind == "counter" and any(value < 0 for value in family.samples.values()):
            raise Wrong(f"{name} is below zero")
    return families


def _sample(line: str, current: str, families: dict[str, Family]) -> None:
    match = _SAMPLE.match(line)
    if not match or not current:
        raise Wrong(f"not a sample, or away from its family: {line!r}")
    name, labels, number = match.groups()
    family = families[current]
    if name not in {current + suffix for suffix in _SUFFIXES.get(family.kind, ("",))}:
        raise Wrong(f"{name} is not of the family {current}")
    if not _NUMBER.match(number):
        raise Wrong(f"not a number: {line!r}")
    key = (name, tuple(sorted(_labels(labels or "", line))))
    if key in family.samples:
        raise Wrong(f"twice: {line!r}")
    family.samples[key] = float(number)


def _labels(text: str, line: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    at = 0
    while at < len(text):
        match = _LABEL.match(text, at)
        if not match or (match[3] == "," and match.end() == len(text)):
            raise Wrong(f"labels: {line!r}")
        if match[1] in dict(found) or match[1].startswith("__"):
            raise Wrong(f"label {match[1]}: {line!r}")
        found.append((match[1], re.sub(r"\\.", lambda escaped: _UNESCAPED[escaped[0]], match[2])))
        at = match.end()
    return found


def _check_histogram(name: str, family: Family) -> None:
    buckets = [
        (dict(labels)["le"], value) for (own, labels), value in family.samples.items() if own.endswith("_bucket")
    ]
    bounds = [math.inf if bound == "+Inf" else float(bound) for bound, _ in buckets]
    counts = [value for _, value in buckets]
    if not bounds or bounds[-1] != math.inf or bounds != sorted(set(bounds)) or counts != sorted(counts):
        raise Wrong(f"{name}: the buckets do not grow to +Inf")
    if counts[-1] != family.samples[f"{name}_count", ()] or (f"{name}_sum", ()) not in family.samples:
        raise Wrong(f"{name}: count or sum")
