"""What was learned from one head is used for the next of its connection, with no other outcome than reading it anew.

Two requests, or two answers, of which the second is a mutation of the first, go through one connection; the second
alone goes through a fresh one. What the other side is sent has to be the same.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pure.ingress.memory.pair import Pair

ID = b"OpenSandbox-Ingress-To: box-8080"


LINES = st.sampled_from(
    [
        b"Host: box-8080.example.com",
        b"Host: other.example.com",
        b"host: box-8080.example.com",
        ID,
        b"OpenSandbox-Ingress-To: box-8081",
        b"OpenSandbox-Ingress-To: safe-8080",
        b"OpenSandbox-Ingress-To: gone-8080",
        b"OpenSandbox-Secure-Access: right",
        b"OpenSandbox-Secure-Access: wrong",
        b"Connection: close",
        b"Connection: x-a",
        b"Connection: keep-alive",
        b"Content-Length: 0",
        b"Content-Length: 3",
        b"Content-Length: x",
        b"Transfer-Encoding: chunked",
        b"Cookie: a=1",
        b"Cookie: sallyport-access=1; b=2",
        b"X-Forwarded-For: 1.2.3.4",
        b"X_Forwarded_For: 1.2.3.4",
        b"X-A: 1",
        b"X-A: 2",
        b"x-a:3 ",
        b"X-B: 1",
        b"Accept: text/html",
        b"Accept: application/json",
        b"Upgrade: websocket",
        b"Sec-WebSocket-Key: k",
        b"OpenSandbox-Access-Renew: skip",
        b"Trailer: x",
        b"Bad\x00: 1",
        b"X-A:\x011",
    ]
)
STARTS = st.sampled_from(
    [
        b"GET / HTTP/1.1",
        b"GET /a?b HTTP/1.1",
        b"GET /safe/8080/x HTTP/1.1",
        b"POST /box/8081/y HTTP/1.1",
        b"HEAD / HTTP/1.1",
        b"GET / HTTP/1.0",
        b"CONNECT / HTTP/1.1",
        b"GET /\x80 HTTP/1.1",
        b"NONE / HTTP/1.1",
    ]
)


def head(start: bytes, lines: list[bytes]) -> bytes:
    """A message's head."""
    return b"\r\n".join([start, *lines, b"", b""])


@st.composite
def neighbours(draw: st.DrawFn, starts: st.SearchStrategy[bytes], lines: st.SearchStrategy[bytes]) -> list[bytes]:
    """Two heads, the second with a line or two of the first replaced, added or left out."""
    first = draw(st.lists(lines, min_size=1, max_size=6))
    second = list(first)
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(second) - 1)) if second else 0
        second[at : at + draw(st.integers(0, 1))] = [draw(lines)] if draw(st.integers(0, 3)) else []
    start = draw(starts)
    return [head(start, first), head(start if draw(st.booleans()) else draw(starts), second)]


def run(play: Any) -> Any:
    """Gateways want a loop; nothing here ever waits."""

    async def inside() -> Any:
        return play()

    return asyncio.run(inside())


@pytest.mark.hypothesis
@given(neighbours(STARTS, LINES))
def test_a_request_like_the_last_one_is_sent_as_if_it_were_the_first(heads: list[bytes]) -> None:
    def play() -> None:
        used, fresh = Pair(), Pair()
        used.ask(heads[0])
        used.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        if used.client.state != 0:
            return  # the connection is over, or the first request's body is awaited
        assert used.ask(heads[1]) == fresh.ask(heads[1])

    run(play)


ANSWER_LINES = st.sampled_from(
    [
        b"Content-Length: 0",
        b"Content-Length: 2",
        b"content-length: 1",
        b"Content-Length: 1, 1",
        b"Transfer-Encoding: chunked",
        b"Connection: close",
        b"Connection: x-a",
        b"Keep-Alive: timeout=5",
        b"Date: Mon",
        b"Date: Tue",
        b"X-A: 1",
        b"x-a: 2",
        b"Set-Cookie: a=1; Path=/",
        b"Set-Cookie: sallyport-x=1",
        b"Location: /there",
        b"Location: /elsewhere",
        b"Sallyport-Error: forged",
        b"Upgrade: h2c",
        b"Trailer: x",
        b"Bad\x00: 1",
        b"X-A:\x011",
    ]
)
ANSWER_STARTS = st.sampled_from(
    [
        b"HTTP/1.1 200 OK",
        b"HTTP/1.1 204 No Content",
        b"HTTP/1.1 304 Not Modified",
        b"HTTP/1.1 100 Continue",
        b"HTTP/1.0 200 OK",
        b"HTTP/1.1 500 Oh",
        b"HTTP/1.1 200",
        b"HTTP/2 200 OK",
    ]
)


@pytest.mark.hypothesis
@given(neighbours(ANSWER_STARTS, ANSWER_LINES), st.sampled_from([b"", b"x", b"xy", b"0\r\n\r\n"]))
def test_an_answer_like_the_last_one_arrives_as_if_it_were_the_first(heads: list[bytes], body: bytes) -> None:
    request = head(b"GET /box/8080/a HTTP/1.1", [b"Host: h"])

    def play() -> None:
        used, fresh = Pair(), Pair()
        used.ask(request)
        used.answer(heads[0])
        if used.client.state != 0 or used.inner.closed:
            return
        used.ask(request)
        fresh.ask(request)
        assert used.answer(heads[1] + body) == fresh.answer(heads[1] + body)

    run(play)


def test_what_is_derived_from_a_header_is_not_carried_over_when_it_changes() -> None:
    def play() -> None:
        pair = Pair()
        first, _ = pair.ask(head(b"GET / HTTP/1.1", [b"Host: h", ID, b"X-A: 1"]))
        pair.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        same, _ = pair.ask(head(b"GET / HTTP/1.1", [b"Host: h", ID, b"X-A: 2"]))
        pair.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        _, refused = pair.ask(head(b"GET / HTTP/1.1", [b"Host: h", ID[:-8] + b"safe-8080", b"X-A: 2"]))
        assert first.replace(b"X-A: 1", b"X-A: 2") == same
        assert b"X-A: 2" in same
        assert refused.startswith(b"HTTP/1.1 401 ")

    run(play)
