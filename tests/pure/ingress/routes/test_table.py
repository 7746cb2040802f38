"""The table of sandboxes: what changes is told, in order and once; what is equal is left alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingress.routes import Ambiguous, Entry, Routes, Sandbox, sandboxes

ONE = Sandbox("one", "10.0.0.1")
MOVED = Sandbox("one", "10.0.0.9")
TWO = Sandbox("two", "10.0.0.2")
TWICE = Ambiguous(
    "one", ("a", "b"), (Sandbox("one", "10.0.0.1", namespace="a"), Sandbox("one", "10.0.0.2", namespace="b"))
)

Told = list[tuple[str, Entry | None, Entry | None]]


@pytest.fixture
def routes() -> Routes:
    return Routes()


@pytest.fixture
def told(routes: Routes) -> Told:
    changes: Told = []
    routes.watch(lambda key, before, after: changes.append((key, before, after)))
    return changes


def test_put_and_drop(routes: Routes, told: Told) -> None:
    routes.put(ONE)
    routes.put(MOVED)
    routes.put(TWICE)
    routes.drop("one")
    routes.drop("one")
    assert told == [("one", None, ONE), ("one", ONE, MOVED), ("one", MOVED, TWICE), ("one", TWICE, None)]
    assert routes.find("one") is None
    assert routes.generation == 4


def test_what_is_equal_is_left_alone(routes: Routes, told: Told) -> None:
    routes.put(ONE)
    first = routes.find("one")
    told.clear()
    generation = routes.generation
    routes.put(Sandbox("one", "10.0.0.1"))
    routes.replace([Sandbox("one", "10.0.0.1")])
    assert told == []
    assert routes.generation == generation
    assert routes.find("one") is first


def test_replace_drops_first_and_then_puts(routes: Routes, told: Told) -> None:
    routes.put(ONE)
    routes.put(TWO)
    told.clear()
    three = Sandbox("three", "10.0.0.3")
    routes.replace([three, MOVED])
    assert told == [("two", TWO, None), ("three", None, three), ("one", ONE, MOVED)]
    assert routes.entries() == [MOVED, three]
    assert len(routes) == 2
    routes.replace([])
    assert len(routes) == 0


def test_of_two_entries_for_an_id_the_last_counts(routes: Routes, told: Told) -> None:
    routes.replace([ONE, MOVED])
    assert told == [("one", None, MOVED)]


def test_watchers_are_called_in_the_order_of_subscription_and_see_the_change(routes: Routes) -> None:
    seen: list[tuple[str, Entry | None, int]] = []
    routes.watch(lambda key, *_: seen.append(("first", routes.find(key), routes.generation)))
    routes.watch(lambda key, *_: seen.append(("second", routes.find(key), routes.generation)))
    routes.put(ONE)
    assert seen == [("first", ONE, 1), ("second", ONE, 1)]


def test_case_counts(routes: Routes) -> None:
    routes.put(ONE)
    assert routes.find("One") is None


def test_candidates_are_tried_in_order(routes: Routes) -> None:
    routes.put(ONE)
    routes.put(TWO)
    routes.candidates = lambda wanted: (wanted.lower(), f"sandbox-{wanted}", "two")
    assert routes.find("ONE") == ONE
    assert routes.find("unheard-of") == TWO
    routes.drop("two")
    assert routes.find("unheard-of") is None


def test_a_namespace(routes: Routes) -> None:
    routes.put(TWICE)
    routes.put(TWO)
    assert routes.find_in("a", "one") == TWICE.choices[0]
    assert routes.find_in("b", "one") == TWICE.choices[1]
    assert routes.find_in("c", "one") is None
    assert routes.find_in("c", "two") == TWO  # its provider knows no namespaces
    assert routes.find_in("a", "three") is None


def test_what_an_entry_stands_for() -> None:
    assert sandboxes(None) == ()
    assert sandboxes(ONE) == (ONE,)
    assert sandboxes(TWICE) == TWICE.choices


ENTRIES = st.builds(Sandbox, st.sampled_from(["a", "b", "c", "d"]), st.sampled_from(["10.0.0.1", "10.0.0.2"]))


@given(st.lists(st.lists(ENTRIES, max_size=5) | ENTRIES | st.sampled_from(["a", "b"]), max_size=8))
def test_who_follows_the_changes_knows_the_table(steps: list[list[Sandbox] | Sandbox | str]) -> None:
    routes, copy = Routes(), dict[str, Entry]()

    def follow(key: str, before: Entry | None, after: Entry | None) -> None:
        assert copy.get(key) == before != after
        if after is None:
            del copy[key]
        else:
            copy[key] = after

    routes.watch(follow)
    for step in steps:
        generation, before = routes.generation, dict(copy)
        if isinstance(step, list):
            routes.replace(step)
            assert {entry.id for entry in routes.entries()} == {entry.id for entry in step}
        elif isinstance(step, str):
            routes.drop(step)
        else:
            routes.put(step)
        assert (routes.generation == generation) == (before == copy)
        assert routes.entries() == [copy[key] for key in sorted(copy)]
