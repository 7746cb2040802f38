"""Where a WebSocket frame ends, however the stream is cut; and which 101 is an agreement."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingress.http1.head import BadHead, Fields, read_response
from ingress.http1.tunnel import Boundaries, accepts


def frame(payload: int, first: int = 0x82, wide: int = 0) -> bytes:
    """A server's frame with so many octets of payload. wide: the length in 2 or 8 octets though it needn't be."""
    if payload < 126 and not wide:
        return bytes((first, payload)) + b"\x88" * payload
    if payload < 65_536 and wide != 8:
        return bytes((first, 126)) + payload.to_bytes(2) + b"\x88" * payload
    return bytes((first, 127)) + payload.to_bytes(8) + b"\x88" * payload


FRAME = st.builds(
    frame,
    st.integers(0, 300) | st.sampled_from([0, 1, 125, 126, 127, 65_535, 65_536]),
    st.sampled_from([0x01, 0x02, 0x80, 0x81, 0x82, 0x88, 0x89, 0x8A, 0xC1, 0xC2]),
    st.sampled_from([0, 0, 2, 8]),
)


@given(st.lists(FRAME, min_size=1, max_size=6), st.lists(st.integers(0, 1_000_000), max_size=20))
def test_i10_between_is_true_exactly_at_boundaries(frames: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(frames)
    ends, at = {0}, 0
    for one in frames:
        at += len(one)
        ends.add(at)
    near = {end + step for end in ends for step in range(-2, 12) if 0 <= end + step <= len(stream)}
    edges = sorted({0, len(stream)} | near | {cut % (len(stream) + 1) for cut in cuts})
    boundaries = Boundaries()
    assert boundaries.between
    for start, end in itertools.pairwise(edges):
        boundaries.feed(stream[start:end])
        assert boundaries.between == (end in ends), (start, end)
    whole = Boundaries()
    whole.feed(stream)
    assert whole.between
    whole.feed(frame(5)[:-1])
    assert not whole.between


@given(st.lists(FRAME, max_size=3), st.integers(1, 9))
def test_i10_octet_by_octet_is_the_same(frames: list[bytes], step: int) -> None:
    stream = b"".join(frames)[:2_000]
    slow, fast = Boundaries(), Boundaries()
    for at in range(0, len(stream), step):
        slow.feed(stream[at : at + step])
    fast.feed(stream)
    assert (slow.between, slow.lost) == (fast.between, fast.lost)


@pytest.mark.parametrize("length", [0, 5, 126, 127])
def test_i10_after_a_masked_frame_nothing_is_known(length: int) -> None:
    """A server must not mask (RFC 6455 section 5.1): whatever this is, the gateway never speaks into it again."""
    for before in (b"", frame(3)):
        for cut in (1, 2, 3):
            boundaries = Boundaries()
            stream = before + bytes((0x82, 0x80 | length)) + b"\0" * 200
            boundaries.feed(stream[: len(before) + cut])
            boundaries.feed(stream[len(before) + cut :])
            assert boundaries.lost
            boundaries.feed(frame(3))
            assert not boundaries.between


def test_i10_a_frame_of_any_size_costs_nothing_to_follow() -> None:
    boundaries = Boundaries()
    boundaries.feed(b"\x82\x7f" + (2**63 - 1).to_bytes(8) + b"x")
    for _ in range(100):
        boundaries.feed(b"x" * 65_536)
    assert not boundaries.between
    assert not boundaries.lost


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_any_octets_are_followed(one: bytes, two: bytes) -> None:
    cut, whole = Boundaries(), Boundaries()
    cut.feed(one)
    cut.feed(two)
    whole.feed(one + two)
    assert (cut.between, cut.lost) == (whole.between, whole.lost)


# ---- the agreement -----------------------------------------------------------------------------------------------

# RFC 6455 section 1.3
KEY = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
ACCEPT = b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
UPGRADE = [b"Connection: Upgrade", b"Upgrade: websocket"]


def agreed(*lines: bytes, key: tuple[bytes, ...] = (KEY,), version: bytes = b"1.1") -> bool:
    raw = b"HTTP/%b 101 Switching Protocols\r\n%b\r\n" % (version, b"".join(line + b"\r\n" for line in lines))
    return accepts(Fields(list(key)), read_response(raw))


def test_the_right_answer() -> None:
    assert agreed(*UPGRADE, ACCEPT)
    assert agreed(b"connection: keep-alive, UPGRADE", b"UPGRADE: WebSocket", ACCEPT, b"Sec-WebSocket-Protocol: binary")


@pytest.mark.parametrize(
    "lines",
    [
        [*UPGRADE],
        [*UPGRADE, b"Sec-WebSocket-Accept: "],
        [*UPGRADE, b"Sec-WebSocket-Accept: S3PPLMBITXAQ9KYGZZHZRBK+XOO="],
        [*UPGRADE, b"Sec-WebSocket-Accept: \xff"],
        [*UPGRADE, ACCEPT, ACCEPT],
        [*UPGRADE, ACCEPT, b"Sec-WebSocket-Accept: other"],
        [b"Connection: Upgrade", b"Upgrade: h2c", ACCEPT],
        [b"Connection: Upgrade", b"Upgrade: websocket", b"Upgrade: h2c", ACCEPT],
    ],
)
def test_i10_a_wrong_agreement_is_none(lines: list[bytes]) -> None:
    assert not agreed(*lines)


@pytest.mark.parametrize("key", [(), (KEY, KEY), (b"Sec-WebSocket-Key: other",)])
def test_i10_an_agreement_to_another_question_is_none(key: tuple[bytes, ...]) -> None:
    assert not agreed(*UPGRADE, ACCEPT, key=key)


def test_i10_a_101_that_names_no_upgrade_is_no_answer() -> None:
    for lines in ([ACCEPT], [b"Connection: upgraded", b"Upgrade: websocket", ACCEPT], [b"Upgrade: websocket", ACCEPT]):
        with pytest.raises(BadHead):
            agreed(*lines)


def test_i10_an_agreement_in_http_1_0_is_none() -> None:
    assert not agreed(*UPGRADE, ACCEPT, version=b"1.0")
