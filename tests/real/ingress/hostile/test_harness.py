"""The tools of these tests, tried on what needs no gateway: does the reader see what it should, is every byte kept?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.real.ingress.hostile import corpus, corpus_lines, strict
from tests.real.ingress.hostile.client import Client
from tests.real.ingress.hostile.ground import Link, soon

if TYPE_CHECKING:
    from tests.real.ingress.hostile.conftest import OriginFactory

CASES = [
    *corpus.lengths(),
    *corpus.codings(),
    *corpus.chunks(),
    *corpus.line_ends(),
    *corpus_lines.request_lines(),
    *corpus_lines.hosts(),
    *corpus_lines.absolute_forms(),
    *corpus_lines.foreign(),
]


def clear(data: bytes) -> bool:
    """Exactly one whole request, in one reading."""
    try:
        reading = strict.requests(data)
    except strict.Unclear:
        return False
    return len(reading.messages) == 1 and not reading.partial


def test_names_of_cases_are_names() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", [case for case in CASES if case.smuggles], ids=lambda case: case.name)
def test_a_trick_that_arrives_untouched_is_seen(case: corpus.Case) -> None:
    """The positive control of the whole corpus: a gateway that passed it on would be found out."""
    assert not clear(case.raw.replace(b"PORT", b"80"))


@pytest.mark.parametrize("case", [case for case in CASES if case.answers == (200,)], ids=lambda case: case.name)
def test_an_honest_request_is_read(case: corpus.Case) -> None:
    reading = strict.requests(case.raw.replace(b"PORT", b"80"))
    assert [message.body for message in reading.messages] == [case.body]


async def _silent(link: Link) -> None:
    await link.end()


def test_the_origin_keeps_every_byte(start_origin: OriginFactory) -> None:
    origin = start_origin(_silent)
    sent = bytes(range(256)) * 300
    with Client(origin.port) as client:
        client.send(sent, pieces=999)
        client.half_close()
        assert client.rest() == b""
    assert soon(lambda: origin.links[0].ended)
    assert bytes(origin.links[0].data) == sent


def test_pipelined_requests_are_told_apart(start_origin: OriginFactory) -> None:
    origin = start_origin()
    one = corpus.post(b"Content-Length: 5") + corpus.chunked(corpus.HELLO) + corpus.get()
    with Client(origin.port) as client:
        client.send(one, pieces=7)
        assert [client.answer().body for _ in range(3)] == [b"POST /in 5", b"POST /in 5", b"GET /in 0"]


@pytest.mark.parametrize(
    "heard",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"junk",
    ],
)
def test_an_answer_that_is_cut_or_crooked_is_seen(heard: bytes) -> None:
    with pytest.raises(strict.Unclear):
        strict.responses(heard, [b"GET"], closed=True)


def test_an_answer_too_many_is_seen() -> None:
    one = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    assert strict.responses(one + one, [b"GET"], closed=True).partial == one
