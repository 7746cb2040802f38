"""What a stack beside us is told as, look by look."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from egress import runtimes
from egress.runtimes import Stack, Watch

if TYPE_CHECKING:
    from collections.abc import Callable

TAP = Stack(False, "tc redirects")
BARE = Stack(True, "no address")
LACKING = OSError(24, "Too many open files")


class Looks:
    """A loop whose helper looks at once, and again when the test says so."""

    def __init__(self) -> None:
        self.again: Callable[[], None] = lambda: None

    def call_later(self, _: float, work: Callable[[], None]) -> None:
        self.again = work

    def run_in_thread(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        try:
            result = work()
        except OSError as error:
            done(None, error)
        else:
            done(result, None)


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        ([None, TAP, TAP, None, None], ["tc redirects", ""]),
        ([None, BARE, None, BARE, BARE, None, None], ["no address", ""]),  # addresses may be on their way
        ([BARE], ["no address"]),  # what is lacking at the start is told at the start
        ([TAP, LACKING, LACKING, LACKING], ["tc redirects"]),  # what could not be looked for is not gone
        ([TAP, None, LACKING, None], ["tc redirects", ""]),
        ([LACKING, TAP], ["tc redirects"]),
    ],
)
def test_what_is_told(seen: list[Stack | OSError | None], told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    left = iter(seen)

    def beside(_: object) -> Stack | None:
        found = next(left)
        if isinstance(found, OSError):
            raise found
        return found

    monkeypatch.setattr(runtimes, "beside", beside)
    loop: Any = Looks()
    heard: list[str] = []
    Watch(loop, namespace=None, tell=heard.append)  # type: ignore[arg-type]
    for _ in seen[1:]:
        loop.again()
    assert heard == told
