"""The cache: bounded in number and in memory, whatever is put in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from egress.dns.cache import ENTRY, LARGEST, Cache, Entry, weight
from egress.dns.wire import Template, render
from tests.pure.dns.plays import AAAA, A, query, read

TEMPLATE = render("api.example.com", ())


def template(octets: int) -> Template:
    """One that is counted as so many octets, more than an entry without any has."""
    return TEMPLATE._replace(records=bytes(octets - ENTRY))


def put(cache: Cache, name: str, qtype: int = A, octets: int = 1000, until: float = 100.0) -> None:
    kept = template(octets)
    cache.put((name, qtype), kept, weight(kept), 0.0, until)


def kept(cache: Cache, *names: str) -> list[bool]:
    return [cache.get(name, A, 0.0) is not None for name in names]


def test_the_oldest_makes_room() -> None:
    cache = Cache(capacity=2)
    for name in ("a", "b", "c"):
        put(cache, name)
    assert kept(cache, "a", "b", "c") == [False, True, True]


def test_at_least_the_younger_half_is_always_there() -> None:
    cache = Cache(capacity=100)
    for number in range(1000):
        put(cache, f"n{number}")
        assert all(kept(cache, *[f"n{before}" for before in range(max(0, number - 49), number + 1)]))
        assert len(cache) <= 100


def test_memory_makes_room_too_and_the_largest_are_not_kept() -> None:
    cache = Cache(octets=3000)
    for name in ("a", "b", "c"):
        put(cache, name, octets=1400)
    assert kept(cache, "a", "b", "c") == [False, True, True]
    put(cache, "b", octets=LARGEST + 1)
    assert kept(cache, "b") == [False], "what it replaced is gone all the same"
    assert len(cache) == 1


def test_names_are_forgotten_in_every_type() -> None:
    cache = Cache()
    for name, qtype in (("a", A), ("a", AAAA), ("b", A)):
        put(cache, name, qtype)
    cache.forget({"a"})
    assert len(cache) == 1
    assert cache.get("b", A, 0.0) is not None


def test_an_entry_ends_to_the_second() -> None:
    cache = Cache()
    put(cache, "a", until=10.0)
    assert cache.get("a", A, 9.999) is not None
    assert cache.get("a", A, 10.0) is None
    assert len(cache) == 0


def test_an_entry_is_served_to_any_query_of_its_question() -> None:
    assert read(Entry(TEMPLATE, 0.0, 100.0).serve(query("API.example.com"), 1.0, 512)).question == "API.example.com."


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcdef"), st.integers(ENTRY, 4000), st.sampled_from(["put", "get", "forget", "clear"])
        ),
        max_size=60,
    )
)
def test_what_is_kept_is_within_bounds_and_the_newest_of_its_name(steps: list[tuple[str, int, str]]) -> None:
    cache = Cache(capacity=4, octets=9000)
    last: dict[str, int] = {}
    for at, (name, octets, what) in enumerate(steps):
        if what == "put":
            put(cache, name, A, octets, at + octets % 7)
            last[name] = octets
            assert (cache.get(name, A, -1.0) is not None) is (octets <= 4500)
        elif what == "get":
            cache.get(name, A, float(at))
        elif what == "forget":
            cache.forget({name})
        elif at % 9 == 0:
            cache.clear()
        both = [*cache.young.items(), *cache.old.items()]
        assert len({key for key, _ in both}) == len(both)
        for (known, _), (found, *_) in both:
            assert len(found.records) + ENTRY == last[known]
        assert sum(ENTRY + len(found.records) for _, (found, *_) in both) <= 9000
        assert len(cache) <= 4
