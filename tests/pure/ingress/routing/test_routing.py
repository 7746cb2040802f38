"""Which sandbox and port a request names: each way, each odd spelling, one reading."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingress.admission.routing import (
    Authority,
    Route,
    authority_and_target,
    by_header,
    by_host,
    by_path,
    check_id,
    inner_target,
    parse_authority,
    parse_token,
    signed_part,
)
from ingress.http1.head import Fields, RequestHead
from ingress.refusal import Refusal

S = "0a1b2c3dz"

TOKENS = [
    ("box-8080", Route("box", 8080)),
    ("Box-1", Route("Box", 1)),
    ("my-long-box-65535", Route("my-long-box", 65535)),
    ("plain--1", Route("plain-", 1)),
    ("a.b_c-80", Route("a.b_c", 80)),
    ("-80", None),
    ("box", None),
    ("box-", None),
    ("box-0", None),
    ("box-080", None),
    ("box-65536", None),
    ("box-99999", None),
    ("box-123456", None),
    ("box-+80", None),
    ("box-80 ", None),
    ("box-\u0668\u0660", None),
    ("", None),
    ("box-8080.example.com", None),
    ("http://box-8080", None),
    ("box-8080:80", None),
    ("box-8080, box-8081", None),
    ("b/x-80", None),
    # signed, from the right
    (f"box-8080-tkuhsg-{S}", Route("box", 8080, "tkuhsg", S)),
    (f"my-box-80-0-{S}", Route("my-box", 80, "0", S)),
    (f"a-1-b-2-c-{S}", Route("a-1-b", 2, "c", S)),
    (f"plain--1-z-{S}", Route("plain-", 1, "z", S)),
    (f"-80-z-{S}", None),
    (f"box-0-z-{S}", None),
    (f"box-80-0z-{S}", None),
    (f"box-80--{S}", None),
    (f"box-80-Z-{S}", None),
    (f"box-80-12345678901234-{S}", None),
    (f"box-80-{'z' * 13}-{S}", Route("box", 80, "z" * 13, S)),  # more than 64 bits: thirteen digits are the bound
    (f"box-80-1{'0' * 13}-{S}", None),
    ("box-80-z-0a1b2c3D", None),
    ("box-80-z-0A1b2c3dz", None),
    ("box-80-z-0a1b2c3g1", None),
    ("box-80-z-0a1b2c3d", None),
    ("box-80-z-0a1b2c3d-", None),
    # not signed: what stands last is a port
    ("box-80-z-12345", Route("box-80-z", 12345)),
    # nine digits can't be a port
    ("box-80-z-123456789", Route("box", 80, "z", "123456789")),
]


@pytest.mark.parametrize(("token", "route"), TOKENS)
def test_a_token_has_this_reading(token: str, route: Route | None) -> None:
    assert parse_token(token.encode()) == route


def test_an_id_has_128_characters_at_most() -> None:
    assert parse_token(b"x" * 128 + b"-80") == Route("x" * 128, 80)
    assert parse_token(b"x" * 129 + b"-80") is None
    assert by_path(b"/" + b"x" * 128 + b"/80/") is not None
    assert by_path(b"/" + b"x" * 129 + b"/80/") is None


IDS = st.text("abcXYZ019-._", min_size=1, max_size=20)
PORTS = st.integers(1, 65535)
EXPIRES = st.from_regex(r"[1-9a-z][0-9a-z]{0,11}", fullmatch=True)
SIGNATURES = st.from_regex(r"[0-9a-f]{8}[0-9a-z]", fullmatch=True)


@given(IDS, PORTS)
def test_what_is_written_is_read(sandbox: str, port: int) -> None:
    assert parse_token(f"{sandbox}-{port}".encode()) == Route(sandbox, port)
    found = by_path(f"/{sandbox}/{port}/rest".encode())
    assert found is not None
    assert found[0] == Route(sandbox, port)


@given(IDS, PORTS, EXPIRES, SIGNATURES)
def test_what_is_written_signed_is_read_signed(sandbox: str, port: int, expires: str, signature: str) -> None:
    assert parse_token(f"{sandbox}-{port}-{expires}-{signature}".encode()) == Route(sandbox, port, expires, signature)


@given(st.text("ab0189-z", max_size=40))
def test_a_reading_says_everything_that_was_written(token: str) -> None:
    """So there is one reading at most: it can be written back."""
    route = parse_token(token.encode())
    if route is not None:
        back = f"{route.sandbox}-{route.port}"
        assert token == (f"{back}-{route.expires}-{route.signature}" if route.signature else back)


def naive(token: str) -> Route | None:
    """The contract's words once more: split at hyphens, the signed form tried first, from the right."""
    parts = token.split("-")

    def is_port(text: str) -> bool:
        return text.isdigit() and not text.startswith("0") and int(text) <= 65535

    def is_expiry(text: str) -> bool:
        return 0 < len(text) <= 13 and text.isalnum() and (text == "0" or text[0] != "0")

    def is_signature(text: str) -> bool:
        return len(text) == 9 and set(text[:8]) <= set("0123456789abcdef") and text[8].isalnum()

    sandbox = "-".join(parts[:-3])
    if len(parts) >= 4 and sandbox and is_port(parts[-3]) and is_expiry(parts[-2]) and is_signature(parts[-1]):
        return Route(sandbox, int(parts[-3]), parts[-2], parts[-1])
    sandbox = "-".join(parts[:-1])
    return Route(sandbox, int(parts[-1])) if sandbox and is_port(parts[-1]) else None


PIECES = st.sampled_from(
    ["box", "", "80", "0", "080", "65535", "65536", "z", "0z", "z" * 13, "z" * 14, "0a1b2c3dz"]
) | st.text("09afz", max_size=10)


@given(st.lists(PIECES, max_size=6).map("-".join))
def test_a_token_is_read_as_a_plain_reading_of_the_contract_reads_it(token: str) -> None:
    assert parse_token(token.encode()) == naive(token)


# -- header -----------------------------------------------------------------------------------------------------------

HEADERS: list[tuple[list[str], Route | int | None]] = [
    ([], None),
    (["OpenSandbox-Ingress-To: box-80"], Route("box", 80)),
    (["OPEN-SANDBOX-INGRESS: box-80"], Route("box", 80)),
    (["OPEN-SANDBOX-INGRESS: old-1", "OpenSandbox-Ingress-To: new-2"], Route("new", 2)),
    (["OpenSandbox-Ingress-To:", "OPEN-SANDBOX-INGRESS: old-1"], Route("old", 1)),
    (["OpenSandbox-Ingress-To:  ", "OPEN-SANDBOX-INGRESS:"], None),
    (["OpenSandbox-Ingress-To: a-1", "OpenSandbox-Ingress-To: a-1"], 400),
    (["OpenSandbox-Ingress-To: a-1", "OpenSandbox-Ingress-To:"], 400),
    (["OpenSandbox-Ingress-To: a-1", "OPEN-SANDBOX-INGRESS: b-1", "OPEN-SANDBOX-INGRESS: c-1"], 400),
    (["OpenSandbox-Ingress-To: box-80.example.com"], 400),
    (["OpenSandbox-Ingress-To: https://box-80"], 400),
    (["OpenSandbox-Ingress-To: box"], 400),
    (["OpenSandbox-Ingress-To: box-80-z-0a1b2c3D1"], 400),
    (["OpenSandbox_Ingress_To: box-80"], None),
    (["OpenSandbox.Ingress.To: box-80"], None),
]


@pytest.mark.parametrize(("lines", "expected"), HEADERS)
def test_the_routing_header(lines: list[str], expected: Route | int | None) -> None:
    fields = Fields([line.encode() for line in lines])
    if isinstance(expected, int):
        with pytest.raises(Refusal) as caught:
            by_header(fields)
        assert (caught.value.status, caught.value.code) == (expected, "bad_route")
    else:
        assert by_header(fields) == expected


# -- host -------------------------------------------------------------------------------------------------------------

HOSTS = [
    ("box-8080.example.com", Route("box", 8080)),
    ("Box-8080.EXAMPLE.com", Route("box", 8080)),
    ("box-8080.example.com:28888", Route("box", 8080)),
    ("box-8080", Route("box", 8080)),
    ("box-8080.", Route("box", 8080)),
    (f"box-8080-z-{S}.example.com", Route("box", 8080, "z", S)),
    ("www.example.com", None),
    ("127.0.0.1:28888", None),
    ("[::1]:28888", None),
    ("localhost", None),
    ("box-0.example.com", None),
    ("", None),
]


@pytest.mark.parametrize(("host", "route"), HOSTS)
def test_the_first_label_of_a_host_name(host: str, route: Route | None) -> None:
    assert by_host(parse_authority(host.encode())) == route


BAD_HOSTS = [
    "box-80.example.com/x",
    "box 80",
    "user@box-80",
    "user:pass@box-80",
    "a..b",
    ".example.com",
    "example.com:http",
    "example.com:65536",
    "example.com:123456",
    "example.com:80:80",
    "[::1",
    "::1",
    "[::1]x",
    "[1.2.3.4]",
    "[fe80::1%25eth0]",
    "a,b",
    "a\tb",
    "box%2d80.example.com",
    "b\u00f6x-80.example.com",
    "box-80.example.com\x00",
]


@pytest.mark.parametrize("host", BAD_HOSTS)
def test_a_malformed_host_is_400(host: str) -> None:
    with pytest.raises(Refusal) as caught:
        parse_authority(host.encode("latin-1"))
    assert caught.value.status == 400


def test_a_v6_literal_has_one_spelling() -> None:
    assert parse_authority(b"[2001:DB8:0::1]:80") == Authority(b"[2001:db8::1]", 80)


# -- path -------------------------------------------------------------------------------------------------------------

PATHS = [
    ("/box/8080/", "box", 8080, "/"),
    ("/box/8080", "box", 8080, "/"),
    ("/box/8080?a=/b/1", "box", 8080, "/?a=/b/1"),
    ("/box/8080/?a", "box", 8080, "/?a"),
    ("/Box/8080/x", "Box", 8080, "/x"),
    ("/a.b_c/1/x", "a.b_c", 1, "/x"),
    ("/b%6Fx/80/x", "b%6Fx", 80, "/x"),
    ("/plain-/1//", "plain-", 1, "//"),
    ("/box/80//double//slash/", "box", 80, "//double//slash/"),
    ("/box/80/../../other/81/", "box", 80, "/../../other/81/"),
    ("/box/80/..%2f..%2Fx;y=1%00#z", "box", 80, "/..%2f..%2Fx;y=1%00#z"),
]


@pytest.mark.parametrize(("target", "sandbox", "port", "inner"), PATHS)
def test_a_path_is_cut_and_what_follows_is_not_touched(target: str, sandbox: str, port: int, inner: str) -> None:
    found = by_path(target.encode())
    assert found is not None
    assert found[0] == Route(sandbox, port)
    assert inner_target(target.encode(), found[1]) == inner.encode()


@pytest.mark.parametrize(
    "target",
    [
        "/",
        "/box",
        "/box/",
        "//80/",
        "/box//80/",
        "//box/80/",
        "/box/x/",
        "/box/080/",
        "/box/0/",
        "/box/65536/",
        "/box/80;a/",
        "/box/80#x",
        "/box/%38%30/",
        "/box%2f80/",
        "/box?/80/",
        "/b x/80/",
        "/b;Domain=example.com/80/",
        "/b,x/80/",
        '/b"x/80/',
        "/b\\x/80/",
        "/user@b:x/80/",
        "/<b>/80/",
        "/b\x00x/80/",
        "/b\xffx/80/",
        "/b\u00f6x/80",
        "*",
        "",
        "box/80/",
    ],
)
def test_what_is_no_sandbox_path(target: str) -> None:
    assert by_path(target.encode("latin-1")) is None


@pytest.mark.parametrize(
    ("rest", "inner"),
    [
        (f"/z/{S}", "/"),
        (f"/z/{S}/", "/"),
        (f"/z/{S}?q", "/?q"),
        (f"/z/{S}//x", "//x"),
        (f"/Z/{S}/", None),
        (f"/0z/{S}/", None),
        (f"//{S}/", None),
        (f"/z/{S}x/", None),
        (f"/z/{S}#/", None),
        (f"/z?/{S}/", None),
        (f"/12345678901234/{S}/", None),
        (f"/1{'0' * 13}/{S}/", None),
    ],
)
def test_the_signed_part_of_a_path(rest: str, inner: str | None) -> None:
    target = b"/box/80" + rest.encode()
    part = signed_part(target, 7)
    assert (None if part is None else inner_target(target, part[2]).decode()) == inner


# -- the request line -------------------------------------------------------------------------------------------------


def line(target: str, host: str | None, method: str = "GET") -> tuple[Authority, bytes]:
    fields = Fields([] if host is None else [b"Host: " + host.encode()])
    return authority_and_target(RequestHead(method.encode(), target.encode(), 11, fields, 0))


@pytest.mark.parametrize(
    ("target", "host", "origin_form"),
    [
        ("/x?y", "a.example", "/x?y"),
        ("http://a.example/x//y", "a.example", "/x//y"),
        ("HTTP://A.EXAMPLE/x", "a.example", "/x"),
        ("http://a.example:80/x", "a.example", "/x"),
        ("http://a.example/x", "a.example:80", "/x"),
        ("http://a.example:/x", "a.example", "/x"),
        ("https://a.example:443/", "a.example", "/"),
        ("http://a.example:8080/", "A.example:8080", "/"),
        ("http://a.example", "a.example", "/"),
        ("http://a.example?x", "a.example", "/?x"),
        ("http://[::1]/", "[0::1]", "/"),
        ("http://a.example/http://b.example/", "a.example", "/http://b.example/"),
        ("http://a.example/x", None, "/x"),
    ],
)
def test_absolute_form_that_agrees_with_host(target: str, host: str | None, origin_form: str) -> None:
    assert line(target, host)[1] == origin_form.encode()


@pytest.mark.parametrize(
    ("target", "host"),
    [
        ("http://a.example/", "b.example"),
        ("http://a.example:443/", "a.example"),
        ("https://a.example:80/", "a.example"),
        ("http://a.example:81/", "a.example:82"),
        ("http://a.example/", ""),
        ("http:///x", ""),
        ("http://user@a.example/", "a.example"),
        ("http://user:pw@a.example/", "a.example"),
        ("http://a.example#x", "a.example"),
        ("http://a.example\\@b.example/", "a.example"),
        ("ws://a.example/", "a.example"),
        ("ftp://a.example/", "a.example"),
        ("a.example:80", "a.example:80"),
        ("x", "a.example"),
        ("*", "a.example"),
        ("?x", "a.example"),
    ],
)
def test_request_lines_that_are_refused(target: str, host: str) -> None:
    with pytest.raises(Refusal) as caught:
        line(target, host)
    assert caught.value.status == 400


def test_options_for_the_whole_server() -> None:
    assert line("*", "a.example", "OPTIONS")[1] == b"*"
    assert line("http://a.example", "a.example", "OPTIONS")[1] == b"*"
    assert line("http://a.example/", "a.example", "OPTIONS")[1] == b"/"


def test_without_a_host_the_url_stands_for_one() -> None:
    assert line("http://box-80.example/x", None)[0] == Authority(b"box-80.example", None)


@given(st.binary(max_size=60), st.binary(max_size=40), st.binary(max_size=40))
def test_any_octets_are_read_or_refused(target: bytes, host: bytes, token: bytes) -> None:
    fields = Fields([b"Host:" + host.replace(b"\n", b""), b"OpenSandbox-Ingress-To:" + token.replace(b"\n", b"")])
    head = RequestHead(b"GET", target, 11, fields, 0)
    status = 400
    try:
        authority, inner = authority_and_target(head)
        by_header(fields)
        by_host(authority)
        by_path(inner)
    except Refusal as refusal:
        status = refusal.status
    assert status == 400


def test_what_providers_may_call_a_sandbox() -> None:
    assert check_id("My_box.1-") == ""
    for bad in ("", "a/b", "a b", "a?b", "x" * 129, ".", "..", "b\u00f6x", "a%41"):
        assert check_id(bad)
