"""A guard that loads its rules and then cannot answer: whoever waits for it hears of it."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from egress import outside
from egress.config import from_env
from policies.parser import parse_policy

if TYPE_CHECKING:
    import pytest


class Loaded:
    """A guard whose rules are in place at once."""

    service = SimpleNamespace(round=None)

    def __init__(self, *_: object) -> None:
        """Whatever it is given."""

    def start(self, compiled: object, document: object, done: Any) -> None:
        done(None)


def test_what_keeps_it_from_answering_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> object:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(outside, "Guard", Loaded)
    monkeypatch.setattr(outside, "Upstream", refuse)
    nothing: Any = None
    config = from_env({}, "nameserver 192.0.2.53")
    guard = outside.Outside(nothing, nothing, ((), ()), config, nothing, nothing, nothing, nothing)
    told: list[BaseException | None] = []
    guard.start(parse_policy(b"{}"), told.append)
    (error,) = told
    assert isinstance(error, OSError)
    assert error.errno == errno.EMFILE
