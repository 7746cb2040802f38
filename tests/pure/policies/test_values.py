"""Our NamedTuple is typing's, as far as anybody here uses it."""

from __future__ import annotations

import copy
import typing
from typing import Any

import pytest

from policies import values


class _Ours(values.NamedTuple):
    """A value."""

    first: int
    second: str = "two"
    third: tuple[int, ...] = ()

    @property
    def both(self) -> str:
        return f"{self.first}{self.second}"


class _Theirs(typing.NamedTuple):
    """A value."""

    first: int
    second: str = "two"
    third: tuple[int, ...] = ()

    @property
    def both(self) -> str:
        return f"{self.first}{self.second}"


@pytest.mark.parametrize(
    ("positional", "named"),
    [
        ((1,), {}),
        ((1, "b"), {}),
        ((1, "b", (2,)), {}),
        ((), {"first": 1}),
        ((1,), {"third": (3,)}),
        ((), {"third": (3,), "first": 1, "second": "b"}),
        ((), {}),
        ((1, "b", (2,), 4), {}),
        ((1,), {"first": 2}),
        ((1,), {"fourth": 4}),
        ((1, "b", (2,)), {"fourth": 4}),
    ],
)
def test_it_is_made_as_typing_s(positional: tuple[Any, ...], named: dict[str, Any]) -> None:
    try:
        theirs = _Theirs(*positional, **named)
    except TypeError:
        with pytest.raises(TypeError, match="_Ours"):
            _Ours(*positional, **named)
        return
    ours = _Ours(*positional, **named)
    assert tuple(ours) == tuple(theirs)
    assert hash(ours) == hash(theirs)
    assert (ours.first, ours.second, ours.third, ours.both) == (theirs.first, theirs.second, theirs.third, theirs.both)
    assert repr(ours) == repr(theirs).replace("_Theirs", "_Ours")
    assert ours._asdict() == theirs._asdict()
    assert tuple(ours._replace(second="c")) == tuple(theirs._replace(second="c"))
    assert type(ours._replace(second="c")) is _Ours
    assert copy.copy(ours) == ours


def test_it_takes_no_other_attribute_and_no_other_field() -> None:
    value = _Ours(1)
    with pytest.raises(AttributeError):
        value.fourth = 4  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        value.first = 4  # type: ignore[misc]
    with pytest.raises(ValueError, match="fourth"):
        value._replace(fourth=4)  # type: ignore[call-arg]


def test_it_can_be_taken_apart_by_pattern() -> None:
    match _Ours(1, "b"):
        case _Ours(first, second):
            assert (first, second) == (1, "b")
