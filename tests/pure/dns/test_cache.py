"""The cache: bounded in number and in memory, whatever is put in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from egress.dns.cache import LARGEST, Cache, Entry
from egress.dns.wire import render
from tests.pure.dns.plays import AAAA, A, query, read

TEMPLATE = render("api.example.com", ())


def entry(octets: int = 1000, until: float = 100.0) -> Entry:
    return Entry(TEMPLATE, 0.0, until, octets)


def test_the_oldest_makes_room() -> None:
    cache = Cache(capacity=2)
    for name in ("a", "b", "c"):
        cache.put(name, A, entry())
    assert [cache.get(name, A, 0.0) is not None for name in ("a", "b", "c")] == [False, True, True]


def test_memory_makes_room_too_and_the_largest_are_not_kept() -> None:
    cache = Cache(octets=3000)
    for name in ("a", "b", "c"):
        cache.put(name, A, entry(1400))
    assert [cache.get(name, A, 0.0) is not None for name in ("a", "b", "c")] == [False, True, True]
    cache.put("b", A, entry(LARGEST + 1))
    assert cache.get("b", A, 0.0) is None, "what it replaced is gone all the same"
    assert len(cache) == 1


def test_names_are_forgotten_in_every_type() -> None:
    cache = Cache()
    for name, qtype in (("a", A), ("a", AAAA), ("b", A)):
        cache.put(name, qtype, entry())
    cache.forget({"a"})
    assert len(cache) == 1
    assert cache.get("b", A, 0.0) is not None


def test_an_entry_ends_to_the_second() -> None:
    cache = Cache()
    cache.put("a", A, entry(until=10.0))
    assert cache.get("a", A, 9.999) is not None
    assert cache.get("a", A, 10.0) is None
    assert len(cache) == 0


def test_an_entry_is_served_to_any_query_of_its_question() -> None:
    assert read(entry().serve(query("API.example.com"), 1.0, 512)).question == "API.example.com."


@given(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), st.integers(1, 4000), st.sampled_from(["put", "get", "forget", "clear"])),
        max_size=60,
    )
)
def test_the_sum_of_what_is_kept_is_right_and_within_bounds(steps: list[tuple[str, int, str]]) -> None:
    cache = Cache(capacity=4, octets=6000)
    for at, (name, octets, what) in enumerate(steps):
        if what == "put":
            cache.put(name, A, entry(octets, at + octets % 7))
        elif what == "get":
            cache.get(name, A, float(at))
        elif what == "forget":
            cache.forget({name})
        elif at % 9 == 0:
            cache.clear()
        held = sum(kept.octets for kept in cache._entries.values())
        assert held <= 6000
        assert held + cache._free == 6000
        assert len(cache) <= 4
