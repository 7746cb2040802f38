"""What the gateway's benchmark computes, and what its origin and load understand."""

from __future__ import annotations

import itertools
import re
import socket
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.http import load, peers, websocket
from bench.http.contenders import KINDS
from bench.http.load import Burst, Spread
from bench.http.origin import Connection
from bench.http.place import ANSWER
from bench.http.run import Row, carried, faster, roomier, slower

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def pair() -> Iterator[tuple[Connection, socket.socket]]:
    """An origin's connection without its loop, and the client's end."""
    theirs, ours = socket.socketpair()
    theirs.setblocking(False)
    ours.settimeout(20)
    with theirs, ours:
        yield Connection(theirs), ours


def row(rates: list[float], cpus: list[float], busy: float = 1.0) -> Row:
    contender: Any = None
    made = Row(contender)
    made.bursts["32"] = [Burst(rate, cpu, busy) for rate, cpu in zip(rates, cpus, strict=True)]
    return made


def test_what_wrk_prints_becomes_figures() -> None:
    output = "Running 1s test\n  2 requests in 1s\nBENCH requests=200 us=1000000 bytes=300000 bad=1 p50=105 p99=2210\n"
    found = load.wrk_figures(output)
    assert found == {"requests": 200, "us": 1_000_000, "bytes": 300_000, "bad": 1, "p50": 105, "p99": 2210}


def test_wrk_that_did_not_get_far_has_no_figures() -> None:
    assert load.wrk_figures("unable to connect to 127.0.0.1:1 Connection refused\n") == {}


@pytest.mark.parametrize(
    ("data", "whole"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n1", False),
        (b"HTTP/1.1 200 OK\r\ncontent-length:2\r\n\r\n12", True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n12\r\n", False),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n12\r\n0\r\n\r\n", True),
    ],
)
def test_a_response_is_whole_when_its_length_or_its_last_chunk_is_there(data: bytes, whole: bool) -> None:
    assert load.complete(data) is whole


def test_of_the_two_readings_the_smaller_one_counts() -> None:
    value, text = carried(row([100.0], [10.0]), row([50.0], [15.0]), "32")
    assert value == 1.5
    assert "2.00x by count" in text
    assert "1.50x by CPU" in text


def test_a_round_that_failed_is_forgotten_the_ones_before_stay() -> None:
    measured = row([1.0, 2.0], [1.0, 1.0])
    measured.spreads["1"] = [Spread(1, 1), Spread(2, 2)]
    measured.forget(1)
    assert measured.rates("32") == [1.0]
    assert measured.spreads["1"] == [Spread(1, 1)]


def test_a_count_that_the_load_limited_does_not_decide() -> None:
    limited, other = row([60.0], [10.0], busy=0.8), row([50.0], [20.0])
    assert carried(limited, other, "32")[0] == 2
    assert carried(row([60.0], [10.0], busy=0.95), other, "32")[0] == 1.2


def test_ratios_are_taken_round_by_round() -> None:
    ours, other = row([100.0, 300.0, 90.0], [1.0, 1.0, 1.0]), row([50.0, 100.0, 30.0], [2.0, 4.0, 3.0])
    assert faster(ours, other, "32") == "x3.00 (2.00..3.00)"
    assert roomier(ours, other, "32") == "x3.00 (2.00..4.00)"
    assert faster(ours, ours, "32") == ""
    ours.spreads["1"], other.spreads["1"] = [Spread(110, 0)], [Spread(100, 0)]
    assert slower(ours, other, "1")[0] == pytest.approx(1.1)


@given(st.binary(max_size=125), st.binary(min_size=4, max_size=4), st.integers(min_value=1, max_value=40))
def test_the_origin_sends_a_message_back_however_it_arrives(text: bytes, mask: bytes, piece: int) -> None:
    masked = bytes(a ^ b for a, b in zip(text, itertools.cycle(mask), strict=False))
    frames = (b"\x82" + bytes((0x80 | len(text),)) + mask + masked) * 3
    theirs, ours = socket.socketpair()
    with theirs, ours:
        connection = Connection(theirs)
        for at in range(0, len(frames), piece):
            assert connection.echo(frames[at : at + piece])
        ours.settimeout(20)
        assert ours.recv(4096) == (b"\x82" + bytes((len(text),)) + text) * 3


def test_the_load_and_the_origin_agree_about_a_message(pair: tuple[Connection, socket.socket]) -> None:
    connection, client = pair
    client.sendall(b"GET /echo HTTP/1.1\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
    assert connection.readable()
    assert b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in client.recv(4096)  # RFC 6455, 1.3
    connection.echo(websocket._SENT)
    assert client.recv(4096) == websocket._ECHOED


@pytest.mark.parametrize(
    ("request_", "body"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"x" * ANSWER),
        (b"POST /up HTTP/1.1\r\nContent-Length: 5\r\n\r\nabcde", b"5\n"),
        (b"POST /up HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n", b"chunked, 15\n"),
    ],
)
@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_the_origin_answers_requests_however_they_arrive(
    pair: tuple[Connection, socket.socket], request_: bytes, body: bytes, piece: int
) -> None:
    connection, client = pair
    for _ in range(2):
        for at in range(0, len(request_), piece):
            client.sendall(request_[at : at + piece])
            assert connection.readable()
        answer = client.recv(8192)
        assert load.complete(answer)
        assert answer.partition(b"\r\n\r\n")[2] == body


def test_every_peer_is_pinned_and_no_place_is_named() -> None:
    lines = [line for line in peers.PINNED.read_text().splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9_-]+==[0-9.]+", line) for line in lines)
    named = {name.partition("==")[0].removesuffix("-bin") for name in lines}
    assert named >= set(peers._NAMED)


def test_contenders_have_keys_and_names_of_their_own() -> None:
    assert len({kind.key for kind in KINDS}) == len({kind.name for kind in KINDS}) == len(KINDS)
