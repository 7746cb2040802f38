"""Which intents there are to send, and when; the clock is an argument."""

from __future__ import annotations

import json
import os
from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ingress.renewal.intents import AGAIN, KEEP, LONGEST_URI, QUEUE, SEEN, Claims, Intent, Intents, rfc3339

WALL = 1_767_225_599_123_456_780


def note(intents: Intents, sandbox: str, now: float, uri: str = "") -> bool | None:
    """As the renewer does it; None: nothing new."""
    if now < intents.quiet.get(sandbox, 0.0):
        return None
    return intents.offer(sandbox, 8080, uri, now, WALL)


def sandboxes(taken: list[Intent]) -> list[str]:
    return [intent.sandbox for intent in taken]


def test_the_payload_is_what_the_server_reads() -> None:
    intent = Intent("box-1", 8080, "/a b/\u00e9", WALL, 0.0)
    assert intent.payload() == (
        '{"sandbox_id":"box-1","observed_at":"2025-12-31T23:59:59.123456780Z","port":8080,"request_uri":"/a b/\\u00e9"}'
    )
    assert json.loads(intent._replace(port=0, request_uri="").payload()) == {
        "sandbox_id": "box-1",
        "observed_at": "2025-12-31T23:59:59.123456780Z",
    }


def test_times() -> None:
    assert rfc3339(0) == "1970-01-01T00:00:00.000000000Z"
    assert rfc3339(1) == "1970-01-01T00:00:00.000000001Z"
    assert rfc3339(1_500_000_000) == "1970-01-01T00:00:01.500000000Z"


def test_one_intent_a_sandbox_in_each_interval() -> None:
    intents = Intents(60.0)
    assert note(intents, "a", 0.0)
    assert note(intents, "b", 1.0)
    assert note(intents, "a", 59.9) is None
    assert sandboxes(intents.take(10)) == ["a", "b"]
    intents.sent()
    assert note(intents, "a", 60.0)
    assert note(intents, "b", 60.0) is None
    assert sandboxes(intents.take(10)) == ["a"]


def test_without_an_interval_every_note_is_an_intent() -> None:
    intents = Intents(0.0)
    for _ in range(3):
        assert note(intents, "a", 0.0)
    assert sandboxes(intents.take(10)) == ["a"] * 3
    assert intents.quiet == {}


def test_of_a_sandbox_that_still_waits_the_latest_is_kept() -> None:
    intents = Intents(1.0)
    note(intents, "a", 0.0, "/old")
    note(intents, "b", 0.5)
    note(intents, "a", 1.0, "/new")
    taken = intents.take(10)
    assert sandboxes(taken) == ["b", "a"]
    assert taken[1].request_uri == "/new"


def test_a_full_queue_drops_and_soon_tries_again() -> None:
    intents = Intents(60.0)
    for number in range(QUEUE):
        assert note(intents, f"s{number}", 0.0)
    taken = intents.take(100)
    assert note(intents, "late", 0.0) is False  # what is under way still takes room
    assert note(intents, "late", 1.0) is None
    intents.sent()
    assert note(intents, "late", AGAIN)
    assert len(intents) == QUEUE - len(taken) + 1


def test_what_was_not_taken_is_kept_in_order_and_then_given_up() -> None:
    intents = Intents(600.0)
    for now, sandbox in ((0.0, "a"), (1.0, "b"), (2.0, "c")):
        note(intents, sandbox, now)
    taken = intents.take(2)
    assert intents.put_back(taken, 3.0) == 0
    assert sandboxes(taken := intents.take(10)) == ["a", "b", "c"]
    assert intents.put_back(taken, KEEP + 1.5) == 2
    assert sandboxes(taken := intents.take(10)) == ["c"]
    intents.sent()
    assert note(intents, "a", KEEP + 1.5 + AGAIN)  # and not only when the interval is over
    assert note(intents, "c", KEEP + 1.5 + AGAIN) is None


def test_what_is_put_back_does_not_replace_what_came_since() -> None:
    intents = Intents(1.0)
    note(intents, "a", 0.0, "/old")
    taken = intents.take(10)
    note(intents, "a", 2.0, "/new")
    assert intents.put_back(taken, 2.0) == 0
    assert [intent.request_uri for intent in intents.take(10)] == ["/new"]


def test_memory_is_bounded() -> None:
    intents = Intents(60.0)
    for number in range(3 * SEEN):
        note(intents, f"s{number}", 0.0, "/" * 100_000 if number < 10 else "")
        if len(intents) == QUEUE:
            assert max(len(intent.request_uri) for intent in intents.take(QUEUE)) <= LONGEST_URI
            intents.sent()
        assert len(intents.quiet) <= SEEN
    note(intents, "x", 120.0)
    for number in range(SEEN):
        note(intents, f"t{number}", 120.0 + number)
    assert len(intents.quiet) < 2 * 1024  # what is over is forgotten


def test_workers_share_their_claims() -> None:
    claims = Claims()
    one, other = Intents(60.0, claims), Intents(60.0, claims)
    assert note(one, "a", 100.0)
    assert note(other, "a", 101.0)
    assert not other.waiting
    assert note(other, "a", 159.9) is None
    assert note(other, "a", 161.0)
    assert sandboxes(other.take(10)) == ["a"]
    assert note(one, "a", 161.0)
    assert sandboxes(one.take(10)) == ["a"]  # the first, from 100.0
    alone = Intents(60.0)
    assert note(alone, "a", 101.0)
    assert alone.waiting  # the control: without claims each worker sends


def test_a_claim_ends_when_its_intent_is_given_up() -> None:
    claims = Claims()
    one, other = Intents(600.0, claims), Intents(600.0, claims)
    note(one, "a", 0.0)
    assert one.put_back(one.take(1), KEEP + 1) == 1
    assert note(other, "a", KEEP + 2)
    assert other.waiting


def test_claims_hold_across_a_fork() -> None:
    claims = Claims()
    pid = os.fork()
    if not pid:
        try:
            claims.claim("a", 50.0)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert claims.until("a") == 50.0
    assert claims.until("b") == 0.0


@given(st.text(max_size=20), st.text(max_size=20), st.floats(0, 1e8))
def test_a_claim_is_for_one_sandbox(one: str, other: str, until: float) -> None:
    claims = Claims(bytearray(8 * 16_384))
    claims.claim(one, until)
    assert until - 0.0625 <= claims.until(one) <= until
    if one != other:
        assert claims.until(other) == 0.0


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", "c"]), st.floats(0, 20)) | st.sampled_from(["fail", "send"]), max_size=60
    )
)
def test_never_two_in_an_interval_and_none_is_lost_without_a_word(steps: list[tuple[str, float] | str]) -> None:
    intents = Intents(10.0)
    now = 0.0
    queued: Counter[str] = Counter()
    sent: list[Intent] = []
    given_up = 0
    for step in steps:
        if step == "send":
            sent += intents.take(2)
            intents.sent()
        elif step == "fail":
            given_up += intents.put_back(intents.take(2), now)
        else:
            assert isinstance(step, tuple)
            now += step[1]
            queued[step[0]] += bool(note(intents, step[0], now))
    for name in queued:
        times = [intent.since for intent in sent if intent.sandbox == name]
        gaps = [later - before for before, later in pairwise(times)]
        # An intent that was given up is no intent: its sandbox may follow sooner, but never at once.
        assert all(gap >= 10.0 or (given_up and gap >= AGAIN) for gap in gaps)
    # Superseded ones are told by the ones that took their place.
    assert len(sent) + given_up + len(intents) <= sum(queued.values())
    assert set(queued) == {intent.sandbox for intent in sent + intents.take(99)} or given_up or not sum(queued.values())
