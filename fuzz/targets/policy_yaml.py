"""A policy file, JSON or YAML: as for JSON, and no surprise of YAML's gets through."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml

from fuzz.targets.policies import SAMPLES, VOCABULARY, holds
from fuzz.targets.policy_json import said
from policies.parser import PolicyError, parse_policy

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST = 500
WORDS = (
    *VOCABULARY, b"\n- ", b": ", b"\n  ", b"egress:\n- action: allow\n  target: ", b"'", b'"', b"&a ", b"*a",
    b"!!str ", b"---\n", b"<<: ", b"|\n ", b">-\n ", b"? ", b"# ", b"%YAML 1.1\n", b"22:30", b"0o17", b"~", b"no",
)  # fmt: skip


def seeds() -> Iterator[bytes]:
    """Policies in block and in flow style, and what a file should not hold."""
    for sample in SAMPLES:
        yield yaml.safe_dump(sample).encode()
        yield yaml.safe_dump(sample, default_flow_style=True, allow_unicode=True).encode()
    yield b"egress:\n- action: allow\n  target: '*.example.com' # all\n  ports: [22:30, 0x10, 1_0]\n"
    yield b"a: &a [1]\nb: *a\n"
    yield b"--- {}\n--- {}\n"
    yield b"defaultAction: no\n"
    yield b"egress:\n- target: |-\n    a.example\n  action: !!str deny\n"


def check(data: bytes) -> None:
    """The contract of `parse_policy(yaml=True)`."""
    try:
        policy = parse_policy(data, yaml=True)
    except PolicyError as error:
        said(error)
        return
    holds(policy)
