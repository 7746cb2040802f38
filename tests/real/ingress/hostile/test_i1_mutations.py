"""I1, searched: heads and bodies with faults made at random. What arrives is what h11 reads in what was sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.real.ingress.hostile import corpus, strict
from tests.real.ingress.hostile.judge import SENTINEL, exchange

if TYPE_CHECKING:
    from tests.real.ingress.hostile.gateway import Gateway
    from tests.real.ingress.hostile.ground import Origin

SEEDS = [
    corpus.get(b"X-A: b"),
    corpus.post(b"Content-Length: 5"),
    corpus.chunked(corpus.HELLO),
    corpus.chunked(b"3;a=b\r\nhel\r\n2\r\nlo\r\n0\r\nX-Sum: 1\r\n\r\n"),
    corpus.post(b"Content-Length: 5") + corpus.chunked(corpus.HELLO) + corpus.get(),
    corpus.head(b"POST /in HTTP/1.0", b"Connection: keep-alive", b"Content-Length: 5") + b"hello",
]
PIECES = [
    b"\r", b"\n", b"\r\n", b"\n\n", b"\r\r", b"\r\n\r\n", b" ", b"\t", b"\x00", b"\x0b", b":", b",", b";", b"=", b'"',
    b"0", b"5", b"f", b"-", b"+", b"0x", b"\x7f", b"\xff", b"\x85", b"\xa0", b"\xc3\xa9", b"#", b"%00", b"HTTP/1.1",
    b"HTTP/1.0", b"GET /x HTTP/1.1", b"VERSION-CONTROL", b"head", b"connect",
    b"Content-Length: 3\r\n", b"Content-Length: 5\r\n", b"Content-Length:\r\n", b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: identity\r\n", b"Connection: close\r\n", b"Connection: Content-Length\r\n", b"Host: x\r\n",
    b"Expect: 100-continue\r\n", b"Upgrade: h2c\r\nConnection: Upgrade\r\n", b"0\r\n\r\n", b"\r\n0\r\n\r\n",
]  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    seed = raw = draw(st.sampled_from(SEEDS))
    before = seed if draw(st.booleans()) else b""  # what a connection remembers of its last request must not matter
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(raw)))
        kind = draw(st.sampled_from(("insert", "replace", "delete", "copy", "before-line")))
        piece = draw(st.sampled_from(PIECES))
        if kind == "insert":
            raw = raw[:at] + piece + raw[at:]
        elif kind == "replace":
            raw = raw[:at] + piece + raw[at + len(piece) :]
        elif kind == "delete":
            raw = raw[:at] + raw[at + draw(st.integers(1, 8)) :]
        elif kind == "copy":
            other = draw(st.integers(0, len(raw)))
            raw = raw[:at] + raw[other : other + draw(st.integers(1, 40))] + raw[at:]
        else:
            line = raw.find(b"\r\n", at)
            raw = raw[: line + 2] + piece + raw[line + 2 :] if line >= 0 else raw
    return before + raw


def legible(data: bytes) -> list[strict.Message]:
    """The requests that can be read up to the first fault."""
    found: list[strict.Message] = []
    while data:
        while data.startswith(b"\r\n"):  # RFC 9112 section 2.2 lets a server skip these
            data = data[2:]
        try:
            message, data = strict.request(data)
        except strict.Unclear:
            break
        if message is None:
            break
        found.append(message)
    return found


@given(raw=mutated(), pieces=st.sampled_from((0, 0, 1, 7)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_i1_what_arrives_is_what_was_sent(raw: bytes, pieces: int, gate: Gateway, module_origin: Origin) -> None:
    verdict = exchange(gate, module_origin, raw, pieces=pieces, alone=True)
    port = str(module_origin.port).encode()
    sent = iter(legible(raw.replace(b"PORT", port)))
    for seen in verdict.arrived:
        for meant in sent:
            if (meant.method, meant.body) == (seen.method, seen.body) and meant.target.endswith(seen.target):
                break
        else:
            raise AssertionError(f"{seen} is in nothing that was sent: {raw!r}")
        for name, value in seen.headers:
            if name.startswith(b"x-a"):
                assert (name, value) in meant.headers


@given(raw=mutated())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_i1_a_request_behind_it_is_never_doubled(raw: bytes, gate: Gateway, module_origin: Origin) -> None:
    verdict = exchange(gate, module_origin, raw + SENTINEL, alone=True)  # which may become a part of it
    targets = [message.target for message in verdict.arrived]
    assert targets.count(b"/sentinel") <= 1
    assert len(verdict.arrived) <= len(verdict.answers)
