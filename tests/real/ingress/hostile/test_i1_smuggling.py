"""I1: one byte stream, one reading. Whatever is sent, the sandbox sees one whole, clear request, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ingress.refusal import SOURCE_HEADER
from tests.real.ingress.hostile import corpus, corpus_lines, strict
from tests.real.ingress.hostile.ground import soon
from tests.real.ingress.hostile.judge import exchange

if TYPE_CHECKING:
    from tests.real.ingress.hostile.conftest import OriginFactory
    from tests.real.ingress.hostile.corpus import Case
    from tests.real.ingress.hostile.gateway import Gateway
    from tests.real.ingress.hostile.ground import Origin
    from tests.real.ingress.hostile.judge import Verdict

SOURCE = SOURCE_HEADER.decode()
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
SMALL = 1500


def judge(case: Case, gate: Gateway, origin: Origin, pieces: int) -> None:
    check(case, exchange(gate, origin, case.raw, pieces=pieces, alone=case.alone))


def check(case: Case, verdict: Verdict) -> None:
    assert verdict.first in case.answers, verdict
    if verdict.first == 200:
        assert [message.body for message in verdict.arrived][:1] == [case.body]
        assert [message.target for message in verdict.arrived][1:] == ([] if case.alone else [b"/sentinel"])
        assert [answer.status for answer in verdict.answers] == ([200] if case.alone else [200, 200]) or (
            case.alone and verdict.answers[1].status == 400  # what stands behind it is no request
        )
        return
    if case.goes_on and len(verdict.answers) == 2:
        assert [message.target for message in verdict.arrived] == [b"/sentinel"]
        return
    assert verdict.arrived == []
    assert soon(lambda: all(link.ended for link in verdict.cut)), "a request cut short has to end its connection"
    assert len(verdict.answers) == (1 if verdict.first else 0), "nothing is read behind a refusal of this kind"
    for answer in verdict.answers:
        assert answer.one(SOURCE), "the gateway says that this is its own answer"
        assert answer.one("connection") == "close"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_i1_one_request_or_none(case: Case, gate: Gateway, module_origin: Origin) -> None:
    judge(case, gate, module_origin, 0)


@pytest.mark.parametrize("case", [case for case in CASES if len(case.raw) < SMALL], ids=lambda case: case.name)
def test_i1_the_same_octet_by_octet(case: Case, gate: Gateway, module_origin: Origin) -> None:
    """However the stream is cut into reads, it is the same stream."""
    judge(case, gate, module_origin, 1)


def twin(case: Case) -> bytes:
    """An honest request with the same fields in the same order as far as that can be; else a plain one."""
    head, _, _ = case.raw.partition(b"\r\n\r\n")
    lines = []
    for line in head.split(b"\r\n")[1:]:
        name, colon, _ = line.partition(b":")
        values = {b"content-length": b"5", b"transfer-encoding": b"chunked", b"host": b"app.test"}
        value = b"box-PORT" if name.lower() == b"opensandbox-ingress-to" else values.get(name.lower(), b"b")
        lines.append(name + colon + b" " + value)
    names = b"\r\n".join(lines).lower()
    body = b"hello" if b"content-length: 5" in names else b"5\r\nhello\r\n0\r\n\r\n" if b"chunked" in names else b""
    made = b"\r\n".join([b"POST /twin HTTP/1.1", *lines, b"", b""]) + body
    try:
        honest = len(strict.requests(made).messages) == 1 and len(lines) < 100 and len(made) < 60_000
    except strict.Unclear:
        honest = False
    return made if honest else corpus.head(b"POST /twin HTTP/1.1", b"Content-Length: 0")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_i1_the_same_after_an_honest_twin(case: Case, gate: Gateway, module_origin: Origin) -> None:
    """What a connection remembers of its last request makes no other reading of the next one."""
    verdict = exchange(gate, module_origin, case.raw, alone=case.alone, after=twin(case))
    assert [message.target for message in verdict.arrived][:1] == [b"/twin"]
    check(case, verdict._replace(arrived=verdict.arrived[1:]))


@pytest.mark.parametrize("cut", range(1, 30))
def test_i1_cut_once_anywhere_near_the_end(cut: int, gate: Gateway, module_origin: Origin) -> None:
    """A chunked body's last octets and the next request's first ones, on both sides of a read."""
    raw = corpus.chunked(b"5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n")
    verdict = exchange(gate, module_origin, raw, pieces=len(raw) - cut)
    assert [(message.target, message.body) for message in verdict.arrived] == [(b"/in", b"hello"), (b"/sentinel", b"")]


GOOD = corpus.get()


@pytest.mark.parametrize(
    "bad", ["length-then-chunked", "field-folded-space", "host-twice", "chunks-lf-size", "line-tab"]
)
@pytest.mark.parametrize("before", [1, 2, 5])
def test_i1_a_good_request_before_a_bad_one_is_answered(
    bad: str, before: int, gate: Gateway, module_origin: Origin
) -> None:
    """Pipelined: the good ones are served in order, the bad one is refused, nothing behind it is read."""
    case = next(case for case in CASES if case.name == bad)
    verdict = exchange(gate, module_origin, GOOD * before + case.raw + GOOD)
    assert [answer.status for answer in verdict.answers] == [200] * before + [400]
    assert [message.target for message in verdict.arrived] == [b"/in"] * before


def test_i1_many_pipelined_requests_are_answered_in_order(gate: Gateway, module_origin: Origin) -> None:
    raws = [corpus.head(b"GET /%d HTTP/1.1" % number) for number in range(15)]
    verdict = exchange(gate, module_origin, b"".join(raws))
    wanted = [b"GET /%d 0" % number for number in range(15)]
    assert [answer.body for answer in verdict.answers] == [*wanted, b"GET /sentinel 0"]


@pytest.mark.parametrize("method", corpus_lines.METHODS, ids=bytes.decode)
def test_i1_every_method_crosses_as_it_was_sent(method: bytes, gate: Gateway, module_origin: Origin) -> None:
    """With both framings and none, behind one another on one connection."""
    line = method + b" /\xc3\xa9 HTTP/1.1"
    framed = [corpus.head(line), corpus.head(line, corpus.CL) + b"hello", corpus.head(line, corpus.TE) + corpus.HELLO]
    verdict = exchange(gate, module_origin, b"".join(framed))
    assert [answer.status for answer in verdict.answers] == [200] * 4
    assert [message.start for message in verdict.arrived][:3] == [line] * 3
    assert [message.body for message in verdict.arrived] == [b"", b"hello", b"hello", b""]


def test_i1_what_looks_like_a_request_in_a_body_is_a_body(gate: Gateway, module_origin: Origin) -> None:
    inner = corpus.HIDDEN.replace(b"PORT", str(module_origin.port).encode())
    for raw in (
        corpus.post(b"Content-Length: %d" % len(inner), body=inner),
        corpus.chunked(b"%x\r\n%s\r\n0\r\n\r\n" % (len(inner), inner)),
    ):
        verdict = exchange(gate, module_origin, raw)
        assert [message.target for message in verdict.arrived] == [b"/in", b"/sentinel"]
        assert verdict.arrived[0].body == inner


def test_i1_a_second_request_behind_a_body_is_judged_by_itself(gate: Gateway, module_origin: Origin) -> None:
    """It is no smuggling when both sides see two requests: the second one goes where its own head says."""
    verdict = exchange(gate, module_origin, corpus.post(b"Content-Length: 5") + corpus.head(b"GET /two HTTP/1.1"))
    assert [message.target for message in verdict.arrived] == [b"/in", b"/two", b"/sentinel"]
    unrouted = corpus.post(b"Content-Length: 5") + b"GET /two HTTP/1.1\r\nHost: nowhere\r\n\r\n"
    verdict = exchange(gate, module_origin, unrouted)
    assert b"/two" not in [message.target for message in verdict.arrived]
    assert verdict.answers[1].status in (400, 404)


def test_i1_a_refusal_is_heard_by_a_client_that_is_still_sending(gate: Gateway, module_origin: Origin) -> None:
    """The 400 must not be lost in the reset that unread octets cause (RFC 9112 section 9.6)."""
    port = str(module_origin.port).encode()
    with gate.client() as client:
        client.send(corpus.post(b"Content-Length: 5", b"Content-Length: 6").replace(b"PORT", port))
        client.send(b"x" * 300_000)
        assert client.answer().status == 400


def test_i1_pipelined_requests_wait_in_bounded_memory(gate: Gateway, start_origin: OriginFactory) -> None:
    """Ten megabytes of requests at once: they are served one by one, the reader is paused meanwhile."""
    raw = corpus.get(b"X-A: " + b"a" * 4000).replace(b"PORT", str(start_origin().port).encode())
    before = gate.memory()
    with gate.client() as client:
        client.sock.setblocking(False)
        sent = 0
        for _ in range(2500):
            try:
                sent += client.sock.send(raw)
            except BlockingIOError:
                break
        assert gate.memory() - before < 8 << 20
    assert sent > len(raw)


def test_i1_empty_lines_without_end(gate: Gateway, start_origin: OriginFactory) -> None:
    """Four megabytes of empty lines cost nobody else's time, and the request behind them is served or refused."""
    with gate.client() as client:
        client.send(b"\r\n" * 2_000_000 + corpus.get().replace(b"PORT", str(start_origin().port).encode()))
        assert client.answer().status in (200, 400, 431)


def test_i1_the_sentinel_arrives(gate: Gateway, module_origin: Origin) -> None:
    """The control of `exchange`: by itself the sentinel is served, and seen."""
    verdict = exchange(gate, module_origin, b"")
    assert [message.target for message in verdict.arrived] == [b"/sentinel"]
