"""Policies as people name them on a command line: a file, `-` for standard input, or a preset.

A file that exists wins over a preset of the same name, as for `egress run`.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from typing import TYPE_CHECKING, NamedTuple

from egress.commands.output import CommandError, printable, reason_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from policies.model import NetworkPolicy, Rule

LIMIT = 16 * 1024 * 1024
"""Bytes of a policy file at most, as `egress serve` has it."""


class Source(NamedTuple):
    """A policy's text and where it came from."""

    label: str  # printable: a path, `standard input` or `preset web-only`
    data: bytes
    yaml: bool  # may it be YAML; else it is strict JSON
    format: str  # "JSON" or "YAML": what it is read as


def read(text: str) -> Source:
    """Read a policy's source. Raises CommandError with what to do."""
    if text == "-":
        if sys.stdin is None:
            raise CommandError("standard input is closed; name a file")
        return _source("standard input", _limited(sys.stdin.fileno(), "standard input"), "")
    if not text:
        raise CommandError("an empty file name; name a policy file or a preset")
    from policies import presets

    known = presets.names()
    folder = os.path.isdir(text)
    if text in known and (folder or not os.path.lexists(text)):
        return Source(f"preset {text}", presets.text(text).encode(), yaml=True, format="YAML")
    label = printable(text)
    if folder:
        raise CommandError(f"{label}: a folder; name a policy file in it")
    try:
        fd = os.open(text, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENOENT and os.sep not in text:
            raise CommandError(f"{label}: neither a file nor a preset; presets: {', '.join(known)}") from None
        raise CommandError(f"{label}: {reason_of(error)}") from None
    except ValueError:
        raise CommandError(f"{label}: no file name has a NUL in it") from None
    try:
        if stat.S_ISBLK(os.fstat(fd).st_mode):
            raise CommandError(f"{label}: a block device; name a policy file")
        return _source(label, _limited(fd, label), text)
    finally:
        os.close(fd)


def _limited(fd: int, label: str) -> bytes:
    parts: list[bytes] = []
    size = 0
    try:
        while size <= LIMIT:
            part = os.read(fd, 1 << 16)
            if not part:
                return b"".join(parts)
            parts.append(part)
            size += len(part)
    except OSError as error:
        raise CommandError(f"{label}: {reason_of(error)}") from None
    raise CommandError(f"{label}: more than {LIMIT >> 20} MiB; no policy is that long")


def _source(label: str, data: bytes, path: str) -> Source:
    """The format by the name's ending, else by content: what starts with a brace or bracket is JSON."""
    ending = os.path.splitext(path)[1].lower()
    strict = ending == ".json"
    looks = data[:4096].lstrip(b" \t\r\n")[:1]
    blank = not data.strip(b" \t\r\n") or data.strip() == b"null"
    is_json = strict or looks in (b"{", b"[") or (blank and ending not in (".yaml", ".yml"))
    return Source(label, data, yaml=not strict, format="JSON" if is_json else "YAML")


def load(text: str) -> NetworkPolicy:
    """Read and parse; errors name the source and the place in it. Raises CommandError."""
    from policies.model import PolicyError
    from policies.parser import parse_policy

    source = read(text)
    try:
        return parse_policy(source.data, yaml=source.yaml)
    except PolicyError as error:
        raise CommandError(f"{source.label}: {error}; egress check says more") from None


def inline_rules(allow: Sequence[str], deny: Sequence[str]) -> tuple[Rule, ...]:
    """The rules of --allow and --deny, denials first, as `egress run` orders them. Raises CommandError."""
    from policies.model import Action, PolicyError
    from policies.parser import parse_target_list

    rules: list[Rule] = []
    for action, flag, targets in ((Action.DENY, "--deny", deny), (Action.ALLOW, "--allow", allow)):
        for target in targets:
            try:
                found = parse_target_list(target, action, flag)
            except PolicyError as error:
                raise CommandError(f"{flag} {error.message}") from None
            if not found:
                raise CommandError(f"{flag}: an empty target; write a name or an address")
            rules.extend(rule._replace(origin=flag) for rule in found)
    return tuple(rules)
