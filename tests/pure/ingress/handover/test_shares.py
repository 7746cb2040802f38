"""Which worker serves which listening socket, whatever their numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ingress.process.listeners import shares


@given(st.integers(1, 40), st.integers(1, 40))
def test_every_socket_is_served_and_every_worker_serves(sockets: int, workers: int) -> None:
    names = list(range(sockets))
    found = shares(names, workers)
    assert len(found) == workers
    assert all(found)
    assert {name for share in found for name in share} == set(names)
    if sockets >= workers:  # nobody competes for a queue where there are enough
        assert sum(map(len, found)) == sockets
        assert max(map(len, found)) - min(map(len, found)) <= 1


def test_as_many_as_there_are_workers() -> None:
    assert shares(["a", "b", "c"], 3) == [["a"], ["b"], ["c"]]
