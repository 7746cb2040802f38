"""A policy as JSON: the one error, or a policy that survives its own document and decides as a plain reading does."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from fuzz.targets.policies import SAMPLES, VOCABULARY, holds
from policies.parser import PolicyError, parse_policy

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST = 600
WORDS = (
    *VOCABULARY, b'{"', b'":', b'"}', b'","', b"[]", b'{"egress":[{"action":"allow","target":"', b'"}]}',
    b'"ports":[',
)  # fmt: skip
_DEEP = b"[" * 500


def seeds() -> Iterator[bytes]:
    """Policies of every kind, and what nearly is one."""
    for sample in SAMPLES:
        yield json.dumps(sample).encode()
        yield json.dumps(sample, ensure_ascii=False, indent=1).encode()
    yield b" \n"
    yield b"null"
    yield b'{"defaultAction": "allow", "defaultAction": "deny"}'
    yield _DEEP


def check(data: bytes) -> None:
    """The contract of `parse_policy`."""
    try:
        policy = parse_policy(data)
    except PolicyError as error:
        said(error)
        return
    holds(policy)


def said(error: PolicyError) -> None:
    """One line that can be printed anywhere, and says where."""
    assert error.path
    assert error.message
    assert str(error).isprintable(), repr(str(error))
    assert len(str(error)) < 1000
