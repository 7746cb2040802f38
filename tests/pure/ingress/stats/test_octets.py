"""What was sent to a client is counted once, whenever the second's tick comes."""

from __future__ import annotations

import asyncio

from tests.pure.ingress.memory.pair import Pair

REQUEST = b"GET /box/8080/ HTTP/1.1\r\nHost: h\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n"


async def one_answer(ticks: str) -> tuple[int, int]:
    """Octets sent, and octets counted, for an answer in two reads. ticks: `m` for one in the middle, `e` at the end."""
    pair = Pair()
    pair.ask(REQUEST)
    pair.answer(HEAD + b"abc")
    sent = len(pair.outer.written)
    if "m" in ticks:
        pair.client.tick()
    pair.answer(b"def")
    sent += len(pair.outer.written)
    for _ in range(ticks.count("e")):
        pair.client.tick()
    return sent, pair.stats.bytes_out


def test_octets_sent_are_counted_once() -> None:
    for ticks in ("", "m", "e", "ee", "me"):
        sent, counted = asyncio.run(one_answer(ticks))
        assert sent > len(HEAD)
        assert counted == sent, ticks
