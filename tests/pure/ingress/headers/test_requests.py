"""What of a request's header section reaches the sandbox, and what the gateway says there itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingress.admission.gate import STRIPPED as OWN
from ingress.http1.head import Fields, keeps_alive
from ingress.http1.headers import FORWARDED, HOP_BY_HOP, WRITTEN, Outside, is_websocket, request_recipe

STRIPPED = OWN | WRITTEN
CLIENT = Outside("203.0.113.7", secure=False)
BEHIND_TLS = Outside("203.0.113.7", secure=True)
BY_PROXY = Outside("203.0.113.7", secure=True, trusted=True, peer="10.0.0.1")


def sent(
    *lines: bytes,
    outside: Outside = CLIENT,
    authority: bytes = b"box.example",
    prefix: bytes = b"",
    websocket: bool = False,
    jar: bytes = b"",
) -> list[tuple[bytes, bytes]]:
    """The fields that arrive: lower-case name and value."""
    fields = Fields(list(lines))
    out = request_recipe(fields, outside, STRIPPED, authority, prefix, websocket, jar).apply(fields)
    assert out.endswith(b"\r\n")
    assert b"\r\n\r\n" not in out
    pairs = [line.partition(b":") for line in out[:-2].split(b"\r\n")]
    assert all(colon for _, colon, _ in pairs)
    return [(name.lower(), value.strip()) for name, _, value in pairs]


def own(**more: str) -> list[tuple[bytes, bytes]]:
    """What the gateway says itself, in its order."""
    said = {"for": "203.0.113.7", "proto": "http", "host": "", "prefix": ""} | more
    return [(b"x-forwarded-" + name.encode(), value.encode()) for name, value in said.items() if value]


def aliases(name: bytes) -> list[bytes]:
    """The name, and others that servers which make variables of headers can't tell from it."""
    return [name, name.replace(b"-", b"_"), name.replace(b"-", b"."), name.replace(b"-", b"_", 1)]


def test_ordinary_fields_cross_in_their_order_and_spelling() -> None:
    lines = [b"Accept: */*", b"X-B: 2", b"x-a:1", b"X-B:  3 ", b"Authorization: Bearer t"]
    fields = Fields([b"Host: h", *lines])
    out = request_recipe(fields, CLIENT, STRIPPED, b"h", b"", False).apply(fields)
    assert out.split(b"\r\n")[:-4] == [b"Host: h", *lines]


def test_host_is_said_once_and_first() -> None:
    assert sent(b"X-A: 1", b"Host: client.example", authority=b"localhost:5173")[0] == (b"host", b"localhost:5173")
    fields = sent(b"Host: client.example", authority=b"localhost:5173")
    assert fields == [(b"host", b"localhost:5173"), *own(host="client.example")]


# ---- I2: hop-by-hop ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(HOP_BY_HOP))
def test_i2_hop_by_hop_fields_end_here(name: bytes) -> None:
    for spelled in (name.title(), name.upper(), *aliases(name)):
        assert sent(b"X-Before: 1", spelled + b": x", b"X-After: 2") == [
            (b"host", b"box.example"),
            (b"x-before", b"1"),
            (b"x-after", b"2"),
            *own(),
        ]


def test_i2_what_a_client_nominates_ends_here() -> None:
    fields = sent(b"Connection: close, X-One", b"X-One: 1", b"X-Two: 2", b"connection: x-three", b"X-Three: 3")
    assert fields == [(b"host", b"box.example"), (b"x-two", b"2"), *own()]


@pytest.mark.parametrize(
    "name",
    [b"Host", b"Authorization", b"Cookie", b"Origin", b"X-Forwarded-For", b"X-Forwarded-Proto", b"X-Forwarded-Prefix"],
)
def test_i2_what_counts_can_not_be_nominated_away(name: bytes) -> None:
    fields = sent(b"Host: h", b"Connection: " + name, name + b": spoofed", prefix=b"/box/80")
    assert name.lower() in [name for name, _ in fields]


def test_i2_the_gateways_own_fields_are_said_though_they_be_nominated() -> None:
    nominating = b"Connection: Host, X-Forwarded-For, X-Forwarded-Proto, X-Forwarded-Host, X-Forwarded-Prefix"
    fields = sent(b"Host: h", nominating, prefix=b"/box/80")
    assert fields == [(b"host", b"box.example"), *own(host="h", prefix="/box/80")]


def test_i2_only_a_websocket_upgrade_goes_on() -> None:
    asked = [b"Connection: keep-alive, Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Key: k"]
    assert sent(*asked, websocket=True) == [
        (b"host", b"box.example"),
        (b"sec-websocket-key", b"k"),
        (b"connection", b"Upgrade"),
        (b"upgrade", b"websocket"),
        *own(),
    ]
    assert sent(*asked) == [(b"host", b"box.example"), (b"sec-websocket-key", b"k"), *own()]
    assert sent(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABk") == [
        (b"host", b"box.example"),
        *own(),
    ]


@pytest.mark.parametrize(
    ("lines", "asks"),
    [
        ([b"Connection: Upgrade", b"Upgrade: websocket"], True),
        ([b"Connection: keep-alive, upgrade", b"Upgrade: WebSocket"], True),
        ([b"Connection: keep-alive", b"Connection: Upgrade", b"Upgrade: websocket"], True),
        ([b"Upgrade: websocket"], False),
        ([b"Connection: keep-alive", b"Upgrade: websocket"], False),
        ([b"Connection: upgraded", b"Upgrade: websocket"], False),
        ([b"Connection: Upgrade"], False),
        ([b"Connection: Upgrade", b"Upgrade: h2c"], False),
        ([b"Connection: Upgrade", b"Upgrade: websocket, h2c"], False),
        ([b"Connection: Upgrade", b"Upgrade: websocket", b"Upgrade: h2c"], False),
        ([], False),
    ],
)
def test_who_asks_for_a_websocket(lines: list[bytes], asks: bool) -> None:
    assert is_websocket(Fields(lines)) is asks


@pytest.mark.parametrize(
    ("lines", "in_10", "in_11"),
    [
        ([], False, True),
        ([b"Connection: close"], False, False),
        ([b"Connection: Close"], False, False),
        ([b"Connection: keep-alive"], True, True),
        ([b"Connection: Keep-Alive"], True, True),
        ([b"Connection: keep-alive, close"], False, False),
        ([b"Connection: close", b"Connection: keep-alive"], False, False),
        ([b"Connection: upgrade"], False, True),
        ([b"Connection: ,"], False, True),
        ([b"Connection:"], False, True),
        ([b"Connection: x-close"], False, True),
        ([b"Keep-Alive: timeout=5"], False, True),
        ([b"Proxy-Connection: close"], False, True),
    ],
)
def test_which_connections_go_on(lines: list[bytes], in_10: bool, in_11: bool) -> None:
    assert keeps_alive(Fields(lines), 10) is in_10
    assert keeps_alive(Fields(lines), 11) is in_11


# ---- I3: spoofing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(FORWARDED))
def test_i3_what_a_client_says_of_proxies_is_dropped(name: bytes) -> None:
    for spelled in (
        name,
        name.title(),
        name.replace(b"-", b"_"),
        name.replace(b"-", b"."),
        name.replace(b"-", b"_", 1),
    ):
        fields = sent(b"Host: h", spelled + b": 198.51.100.66")
        assert fields == [(b"host", b"box.example"), *own(host="h")]


@pytest.mark.parametrize("name", sorted(OWN))
def test_i3_the_gateways_fields_and_their_aliases_never_arrive(name: bytes) -> None:
    for spelled in (
        name,
        name.upper(),
        name.replace(b"-", b"_"),
        name.replace(b"-", b"."),
        name.replace(b"-", b"_", 1),
    ):
        assert sent(spelled + b": secret", b"X-After: 1") == [(b"host", b"box.example"), (b"x-after", b"1"), *own()]


def test_i3_other_names_with_underscores_and_dots_cross() -> None:
    assert sent(b"X_Custom.Name: 1")[1] == (b"x_custom.name", b"1")


def test_i3_a_length_under_another_name_never_arrives() -> None:
    for name in (b"Content_Length", b"content.length", b"Transfer_Encoding", b"Content-Length"):
        assert sent(name + b": 5") == [(b"host", b"box.example"), *own()]


def test_i3_the_client_is_named_as_it_is() -> None:
    assert sent(b"Host: h:8080") == [(b"host", b"box.example"), *own(host="h:8080")]
    assert sent(outside=BEHIND_TLS, prefix=b"/box/80")[1:] == own(proto="https", prefix="/box/80")


def test_i3_a_trusted_proxy_is_believed_and_named() -> None:
    fields = sent(
        b"Host: inner",
        b"X-Forwarded-For: 198.51.100.66, 203.0.113.7",
        b"X-Forwarded-Proto: https",
        b"X-Forwarded-Host: public.example",
        b"X-Forwarded-Prefix: /sandboxes/",
        b"X-Real-IP: 198.51.100.66",
        outside=BY_PROXY,
        prefix=b"/box/80",
    )
    chain = "198.51.100.66, 203.0.113.7, 10.0.0.1"
    told = {"for": chain, "proto": "https", "host": "public.example", "prefix": "/sandboxes/box/80"}
    assert fields[1:] == own(**told)


def test_i3_a_trusted_proxy_that_says_nothing() -> None:
    assert sent(b"Host: h", outside=BY_PROXY)[1:] == own(**{"for": "10.0.0.1", "proto": "https", "host": "h"})


# ---- the gateway's cookies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cookie", "arrives"),
    [
        (b"a=b", b"a=b"),
        (b"sallyport-box=secret", None),
        (b"a=b; sallyport-box=secret; c=d", b"a=b; c=d"),
        (b"sallyport-box=secret; a=b", b"a=b"),
        (b"a=b; sallyport-box=secret", b"a=b"),
        (b"a=b;sallyport-1=s;sallyport-2=s;c=d", b"a=b; c=d"),
        (b"a=sallyport-box", b"a=sallyport-box"),
        (b"my-sallyport-box=1", b"my-sallyport-box=1"),
        (b'a="x; sallyport-box=secret"', b'a="x'),  # no browser lets a semicolon into a value: so it is a cookie
    ],
)
def test_own_cookies_stay_here(cookie: bytes, arrives: bytes | None) -> None:
    found = [value for name, value in sent(b"Cookie: " + cookie) if name == b"cookie"]
    assert found == ([] if arrives is None else [arrives])


@pytest.mark.parametrize(
    ("cookie", "arrives"),
    [
        (b"sallyport-jar-1-sid=s", b"sid=s"),
        (b"a=b; sallyport-jar-1-sid=s; sallyport-jar-1-x=y", b"a=b; sid=s; x=y"),
        (b"sallyport-jar-1-sid=wide; sid=below", b"sid=below"),  # below the prefix both are sent, and that one is exact
        (b"sallyport-jar-2-sid=s", None),
        (b"sallyport-jar-11-sid=s; sallyport-jar-=s", None),
        (b"sallyport-access=s; sallyport-jar-1-a=b", b"a=b"),
    ],
)
def test_a_sandbox_gets_its_own_jar_and_no_other(cookie: bytes, arrives: bytes | None) -> None:
    found = [value for name, value in sent(b"Cookie: " + cookie, jar=b"sallyport-jar-1-") if name == b"cookie"]
    assert found == ([] if arrives is None else [arrives])
    assert not [value for name, value in sent(b"Cookie: " + cookie) if b"sallyport-" in value or b"=s" in value]


# ---- the Host that an application is shown, and Origin -----------------------------------------------------------


@pytest.mark.parametrize(
    ("authority", "origin", "arrives"),
    [
        (b"localhost", b"https://box.example:8443", b"https://localhost"),
        (b"localhost:5173", b"http://BOX.example:8443", b"http://localhost:5173"),
        (b"localhost", b"https://other.example", b"https://other.example"),
        (b"localhost", b"https://box.example", b"https://box.example"),
        (b"localhost", b"https://evil-box.example:8443", b"https://evil-box.example:8443"),
        (b"localhost", b"null", b"null"),
        (b"localhost", b"", b""),
        (b"localhost", b"box.example:8443", b"box.example:8443"),
        (b"box.example:8443", b"https://box.example:8443", b"https://box.example:8443"),
    ],
)
def test_a_page_of_its_own_stays_one_under_another_host(authority: bytes, origin: bytes, arrives: bytes) -> None:
    """Applications compare Origin with Host to refuse other people's pages: what was equal is, what was not is not."""
    fields = sent(b"Host: box.example:8443", b"Origin: " + origin, authority=authority)
    assert (b"host", authority) in fields
    assert [value for name, value in fields if name == b"origin"] == [arrives]


# ---- properties --------------------------------------------------------------------------------------------------

NAME = st.sampled_from([*sorted(HOP_BY_HOP | FORWARDED | OWN), b"x-one", b"cookie", b"accept", b"content-length"])
SPELLED = st.builds(
    lambda name, alias, upper: (name.upper() if upper else name).replace(b"-", alias),
    NAME,
    st.sampled_from([b"-", b"-", b"_", b"."]),
    st.booleans(),
)
VALUE = st.sampled_from([b"", b"1", b"close, X-One", b"x-forwarded-for, cookie", b"sallyport-a=b; c=d", b"websocket"])
LINE = st.builds(lambda name, value: name + b": " + value, SPELLED, VALUE)


@given(st.lists(LINE, max_size=8), st.booleans(), st.booleans())
def test_i2_i3_of_any_section_only_what_may_cross_does(lines: list[bytes], websocket: bool, prefixed: bool) -> None:
    fields = sent(*lines, websocket=websocket, prefix=b"/box/80" if prefixed else b"")
    names = [name.replace(b"_", b"-").replace(b".", b"-") for name, _ in fields]
    assert names.count(b"host") == 1
    assert names.count(b"x-forwarded-for") == 1
    assert dict(fields)[b"x-forwarded-for"] == b"203.0.113.7"
    assert names.count(b"x-forwarded-prefix") == prefixed
    assert not set(names) & OWN
    assert names.count(b"upgrade") == names.count(b"connection") == websocket
    crossing = HOP_BY_HOP - {b"upgrade", b"connection"} | (FORWARDED - {n for n in FORWARDED if b"x-forwarded" in n})
    assert not set(names) & crossing
    assert b"content-length" not in names
    assert not [value for name, value in fields if name == b"cookie" and b"sallyport-" in value]
