"""What of an answer's head reaches the client, and what only the gateway may say there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingress.admission.gate import STRIPPED as OWN
from ingress.http1.head import CHUNKED, UNTIL_CLOSE, read_response
from ingress.http1.headers import HOP_BY_HOP, WRITTEN, Rewrite, crossing_trailers, response_head

STRIPPED = OWN | WRITTEN


def relayed(
    *lines: bytes,
    status: int = 200,
    length: int | None = None,
    keep: bool = True,
    version: int = 11,
    rewrite: Rewrite | None = None,
    extra: bytes = b"",
) -> tuple[bytes, list[bytes]]:
    """The status line and the header lines that the client gets."""
    raw = b"HTTP/1.1 %d Reason\r\n" % status + b"".join(line + b"\r\n" for line in lines) + b"\r\n"
    head = read_response(raw)
    out = response_head(head, head.length if length is None else length, keep, version, rewrite, extra)
    assert out.endswith(b"\r\n\r\n")
    assert out.count(b"\r\n\r\n") == 1
    first, *rest = out[:-4].split(b"\r\n")
    return first, rest


def lines_of(*lines: bytes, **settings: object) -> list[bytes]:
    return relayed(*lines, **settings)[1]  # type: ignore[arg-type]


def test_ordinary_lines_cross_as_they_came() -> None:
    lines = [b"Content-Type: text/html", b"x-a:1", b"X-A:  2 ", b"Content-Length: 5", b"Set-Cookie: a=b", b"Date: now"]
    assert relayed(*lines, status=404) == (b"HTTP/1.1 404 Reason", lines)


def test_the_status_line_is_ours() -> None:
    head = read_response(b"HTTP/1.0 200 All Right\r\n\r\n")
    assert response_head(head, 0, True, 11, None, b"") == b"HTTP/1.1 200 All Right\r\n\r\n"


@pytest.mark.parametrize(
    ("length", "keep", "version", "said"),
    [
        (5, True, 11, []),
        (5, False, 11, [b"Connection: close"]),
        (5, True, 10, [b"Connection: keep-alive"]),
        (5, False, 10, [b"Connection: close"]),
        (CHUNKED, True, 11, [b"Transfer-Encoding: chunked"]),
        (CHUNKED, False, 11, [b"Transfer-Encoding: chunked", b"Connection: close"]),
        (UNTIL_CLOSE, False, 10, [b"Connection: close"]),
    ],
)
def test_framing_and_connection_are_said_anew(length: int, keep: bool, version: int, said: list[bytes]) -> None:
    assert lines_of(length=length, keep=keep, version=version) == said


def test_the_gateways_lines_are_added() -> None:
    extra = b"Set-Cookie: sallyport-route=1\r\nX-More: 2\r\n"
    assert lines_of(b"X-A: 1", length=0, extra=extra) == [b"X-A: 1", b"Set-Cookie: sallyport-route=1", b"X-More: 2"]


@pytest.mark.parametrize("status", [100, 103, 204])
def test_an_answer_without_a_body_has_no_length(status: int) -> None:
    assert lines_of(b"Content-Length: 5", b"X-A: 1", status=status, length=0) == [b"X-A: 1"]


def test_a_length_stays_where_only_the_body_is_left_out() -> None:
    assert lines_of(b"Content-Length: 5", status=304, length=0) == [b"Content-Length: 5"]
    assert lines_of(b"Content-Length: 5", status=200, length=0) == [b"Content-Length: 5"]  # to HEAD


@pytest.mark.parametrize("name", sorted(HOP_BY_HOP - {b"transfer-encoding"}))
def test_i2_hop_by_hop_fields_end_here(name: bytes) -> None:
    for spelled in (name, name.title(), name.upper()):
        assert lines_of(b"X-A: 1", spelled + b": x", b"X-B: 2", length=0) == [b"X-A: 1", b"X-B: 2"]


def test_i2_what_a_sandbox_nominates_ends_here() -> None:
    assert lines_of(b"Connection: close, X-A", b"X-A: 1", b"X-B: 2", length=0) == [b"X-B: 2"]


def test_i8_the_length_can_not_be_nominated_away() -> None:
    """Without it a client would read the next answer as the rest of this one."""
    assert lines_of(b"Connection: Content-Length", b"Content-Length: 5") == [b"Content-Length: 5"]


def test_i3_a_sandbox_can_not_speak_for_the_gateway() -> None:
    for name in (b"Sallyport-Error", b"sallyport-error", b"SALLYPORT-ERROR"):
        assert lines_of(name + b": access_denied", b"X-A: 1", length=0) == [b"X-A: 1"]


@pytest.mark.parametrize(
    "cookie",
    [
        b"sallyport-box=forged",
        b"sallyport-box=forged; Path=/; HttpOnly",
        b" \tsallyport-box=forged",
        b"sallyport-box",
        # A cookie without a name is sent back as its value alone, which then reads as a name and a value.
        b"=sallyport-box=forged; Path=/",
        b" = sallyport-box=forged",
        b"==sallyport-box=forged",
    ],
)
def test_i3_a_sandbox_can_not_set_the_gateways_cookies(cookie: bytes) -> None:
    assert lines_of(b"Set-Cookie: " + cookie, b"Set-Cookie: a=b", length=0) == [b"Set-Cookie: a=b"]


@pytest.mark.parametrize("cookie", [b"a=sallyport-box", b"Sallyport-box=1", b"my-sallyport-box=1", b"=a", b"a"])
def test_other_cookies_cross_as_they_came(cookie: bytes) -> None:
    assert lines_of(b"Set-Cookie: " + cookie, length=0) == [b"Set-Cookie: " + cookie]


def test_what_path_mode_rewrites() -> None:
    asked = []

    def rewrite(name: bytes, value: bytes) -> list[bytes]:
        asked.append((name, value))
        return [b"<" + value + b">", b"again"][: 1 + (name == b"set-cookie")]

    lines = [b"LOCATION:  /a ", b"Content-Location: /b", b"X-Location: /c", b"set-cookie: a=b", b"Link: </d>"]
    assert lines_of(*lines, length=0, rewrite=rewrite) == [
        b"LOCATION: </a>",
        b"Content-Location: </b>",
        b"X-Location: /c",
        b"set-cookie: <a=b>",
        b"set-cookie: again",
        b"Link: </d>",
    ]
    assert asked == [(b"location", b"/a"), (b"content-location", b"/b"), (b"set-cookie", b"a=b")]


# ---- trailers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        b"Content-Length",
        b"Transfer-Encoding",
        b"Host",
        b"Trailer",
        b"Connection",
        b"X-Forwarded-For",
        b"Forwarded",
        b"OpenSandbox-Ingress-To",
        b"OpenSandbox-Secure-Access",
        b"Authorization",
        b"Cookie",
        b"Set-Cookie",
        b"Location",
        b"Sallyport-Error",
        b"Content-Type",
        b"Content_Length",
        b"x.forwarded.for",
        b"Content-Encoding",
        b"TE",
    ],
)
def test_i2_trailers_do_not_frame_route_or_speak_for_us(name: bytes) -> None:
    allowed = (b"X-Checksum", b"abc")
    assert crossing_trailers([(name, b"x"), allowed, (name.upper(), b"x")], STRIPPED) == [allowed]


def test_other_trailers_cross() -> None:
    trailers = [(b"X-Checksum", b"abc"), (b"Server-Timing", b"a;dur=1"), (b"grpc-status", b"0"), (b"x_sum", b"")]
    assert crossing_trailers(trailers, STRIPPED) == trailers


# ---- properties --------------------------------------------------------------------------------------------------

NAME = st.sampled_from([*sorted(HOP_BY_HOP - {b"transfer-encoding"}), b"X-One", b"Set-Cookie", b"Sallyport-Error"])
VALUE = st.sampled_from(
    [b"", b"x", b"close, x-one", b"content-length, set-cookie", b"sallyport-a=b", b"a=b", b"=sallyport-"]
)
LINES = st.lists(st.builds(lambda name, value: name + b": " + value, NAME, VALUE), max_size=6)


@given(LINES, st.sampled_from([0, 5, CHUNKED]), st.booleans(), st.sampled_from([10, 11]))
def test_i8_the_framing_that_is_said_is_the_one_that_is_sent(
    lines: list[bytes], length: int, keep: bool, version: int
) -> None:
    said = [b"Transfer-Encoding: chunked"] if length == CHUNKED else [b"Content-Length: %d" % length]
    out = lines_of(*lines, *said, keep=keep, version=version)
    names = [line.partition(b":")[0].lower() for line in out]
    assert (b"transfer-encoding" in names, b"content-length" in names) == (length == CHUNKED, length >= 0)
    assert [line for line in out if line.startswith(b"Connection")] == (
        [b"Connection: close"] if not keep else [b"Connection: keep-alive"] if version == 10 else []
    )
    assert not {b"sallyport-error", b"upgrade", b"keep-alive", b"te"} & set(names)
    assert not [line for line in out if line.startswith(b"Set-Cookie") and b"sallyport-" in line]
