"""Back-off, health in words, and how long a source's last word holds; lines out of a stream."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingress.providers import lines as module
from ingress.providers.lines import Garbage, Lines
from ingress.providers.standing import Backoff, Standing


def test_delays_double_up_to_the_cap_and_begin_again() -> None:
    backoff = Backoff(0.1, 1.0, chance=lambda: 0.0)
    assert [backoff.delay() for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    backoff.reset()
    assert backoff.delay() == 0.1


@given(st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=9))
def test_chance_shortens_a_delay_by_half_at_most(chances: list[float]) -> None:
    drawn = iter(chances)
    backoff = Backoff(0.1, 4.0, chance=lambda: next(drawn))
    for number in range(len(chances)):
        full = min(0.1 * 2**number, 4.0)
        assert full / 2 <= backoff.delay() <= full


class Ground:
    def __init__(self, keep: float) -> None:
        self.now = 0.0
        self.count = 2
        self.said: list[tuple[str, str]] = []
        self.standing = Standing(
            lambda *line: self.said.append(line), "there", keep, lambda: self.count, lambda: self.now
        )


def test_each_change_is_said_once() -> None:
    ground = Ground(0)
    ground.standing.good()
    ground.standing.good()
    ground.standing.bad("gone")
    ground.standing.bad("gone")
    assert ground.standing.health() == (True, "gone; the last routes go on (2)", "there")
    ground.standing.good()
    assert ground.standing.health() == (True, "", "there")
    assert ground.said == [
        ("info", "there: followed, 2 sandboxes"),
        ("warn", "there: gone; the last routes go on (2)"),
        ("info", "there: followed again, 2 sandboxes"),
    ]


def test_i11_the_routes_go_when_their_time_is_over_and_not_before() -> None:
    ground = Ground(10)
    ground.standing.good()
    assert not ground.standing.bad("gone")
    ground.now = 9.9
    assert not ground.standing.bad("gone")
    ground.now = 10
    assert ground.standing.bad("gone")
    assert not ground.standing.bad("gone"), "once"
    ground.standing.good()
    assert not ground.standing.bad("gone"), "the time begins anew"


def test_without_a_limit_they_stay_for_good() -> None:
    ground = Ground(0)
    ground.standing.good()
    assert not ground.standing.bad("gone")
    ground.now = 1e9
    assert not ground.standing.bad("gone")


@given(st.lists(st.dictionaries(st.text(), st.integers())), st.data())
def test_lines_come_whole_however_they_are_cut(documents: list[dict[str, int]], data: st.DataObject) -> None:
    stream = b"".join(json.dumps(document).encode() + b"\n\n" for document in documents)
    lines, found = Lines(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        found += lines.feed(stream[:size])
        stream = stream[size:]
    assert found == documents


@pytest.mark.parametrize("data", [b"x\n", b"[]\n", b"1\n", b"\xff\n", b'{"a":\n', b"[" * 100_000 + b"\n"])
def test_what_is_no_object_is_garbage(data: bytes) -> None:
    with pytest.raises(Garbage):
        Lines().feed(data)


def test_a_line_without_end_is_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST", 100)
    lines = Lines()
    lines.feed(b"x" * 60)
    with pytest.raises(Garbage, match="more than 100 bytes"):
        lines.feed(b"x" * 60)
