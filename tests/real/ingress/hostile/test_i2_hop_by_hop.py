"""I2: what belongs to one hop never crosses, in either direction; and nothing that matters can be nominated away."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.real.ingress.hostile import strict
from tests.real.ingress.hostile.corpus import get, post
from tests.real.ingress.hostile.ground import saying

if TYPE_CHECKING:
    from tests.real.ingress.hostile.conftest import OriginFactory
    from tests.real.ingress.hostile.gateway import Gateway
    from tests.real.ingress.hostile.ground import Origin


def through(gate: Gateway, origin: Origin, raw: bytes) -> tuple[strict.Message, strict.Message]:
    """What the sandbox saw and what the client heard of one request."""
    mark = origin.mark()
    with gate.client() as client:
        answer = client.ask(raw.replace(b"PORT", str(origin.port).encode()))
    ((_, data),) = origin.since(mark)
    (seen,) = strict.requests(data).messages
    return seen, answer


HOP = [
    (b"Keep-Alive: timeout=5, max=9", "keep-alive"),
    (b"Proxy-Connection: keep-alive", "proxy-connection"),
    (b"Proxy-Authorization: Basic eDp5", "proxy-authorization"),
    (b'Proxy-Authenticate: Basic realm="x"', "proxy-authenticate"),
    (b"Upgrade: h2c", "upgrade"),
    (b"Upgrade: TLS/1.3", "upgrade"),
    (b"HTTP2-Settings: AAA", "http2-settings"),
    (b"Connection: keep-alive", "connection"),
    (b"Connection: keep-alive, Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAA", "upgrade"),
    (b"TE: gzip;q=1.0", "te"),
    (b"Connection: X-Hop\r\nX-Hop: mine", "x-hop"),
    (b"Connection: a, b\r\nConnection: X-Hop\r\nX-Hop: mine\r\nx-HOP: again", "x-hop"),
    (b"Connection:,, x-hop ,\r\nX-Hop: mine", "x-hop"),
]


@pytest.mark.parametrize(("lines", "name"), HOP, ids=[lines.decode().replace("\r\n", " + ") for lines, _ in HOP])
def test_i2_hop_by_hop_ends_here(lines: bytes, name: str, gate: Gateway, module_origin: Origin) -> None:
    seen, answer = through(gate, module_origin, get(lines, b"X-End: to end"))
    assert answer.status == 200
    assert seen.one(name) in (None, "keep-alive" if name == "connection" else None)
    assert seen.one("x-end") == "to end"


NOMINATED = [
    b"X-Forwarded-For",
    b"X-Forwarded-Proto",
    b"X-Forwarded-Host",
    b"Host",
    b"Content-Length",
    b"OpenSandbox-Ingress-To",
    b"OpenSandbox-Secure-Access",
    b"close, te, Host, Content-Length, X-Forwarded-For, X-Forwarded-Proto, X-Forwarded-Host",
]


@pytest.mark.parametrize("nominated", NOMINATED, ids=lambda value: value.decode())
def test_i2_what_the_gateway_says_cannot_be_nominated_away(
    nominated: bytes, gate: Gateway, module_origin: Origin
) -> None:
    seen, answer = through(gate, module_origin, post(b"Content-Length: 5", b"Connection: " + nominated))
    assert answer.status == 200
    assert seen.one("x-forwarded-for") == "127.0.0.1"
    assert seen.one("x-forwarded-proto") == "http"
    assert seen.one("x-forwarded-host") == "app.test"
    assert seen.one("host") == "app.test"
    assert seen.body == b"hello"


def test_i2_access_cannot_be_nominated_away(gate: Gateway, module_origin: Origin) -> None:
    """Neither the check nor the secrecy of the token."""
    raw = get(b"Connection: OpenSandbox-Secure-Access").replace(b": box-", b": locked-")
    port = str(module_origin.port).encode()
    assert gate.ask(raw.replace(b"PORT", port)).status == 401
    wrong = get(b"Connection: OpenSandbox-Secure-Access", b"OpenSandbox-Secure-Access: wrong")
    assert gate.ask(wrong.replace(b": box-", b": locked-").replace(b"PORT", port)).status == 401
    right = get(b"Connection: OpenSandbox-Secure-Access", b"OpenSandbox-Secure-Access: secret")
    seen, answer = through(gate, module_origin, right.replace(b": box-", b": locked-"))
    assert answer.status == 200
    assert b"secret" not in b"".join(value for _, value in seen.headers)


BACK = [
    (b"Keep-Alive: timeout=5", "keep-alive"),
    (b"Proxy-Connection: close", "proxy-connection"),
    (b'Proxy-Authenticate: Basic realm="x"', "proxy-authenticate"),
    (b'Proxy-Authentication-Info: nextnonce="x"', "proxy-authentication-info"),
    (b"Upgrade: h2c\r\nConnection: Upgrade", "upgrade"),
    (b"Connection: X-Hop\r\nX-Hop: mine", "x-hop"),
    (b"Connection: keep-alive", "connection"),
]


@pytest.mark.parametrize(("lines", "name"), BACK, ids=[lines.decode().replace("\r\n", " + ") for lines, _ in BACK])
def test_i2_the_sandbox_speaks_of_its_own_hop_only(
    lines: bytes, name: str, gate: Gateway, start_origin: OriginFactory
) -> None:
    origin = start_origin(saying(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-End: y\r\n" + lines + b"\r\n\r\nok"))
    _, answer = through(gate, origin, get())
    assert (answer.status, answer.body, answer.one("x-end")) == (200, b"ok", "y")
    assert answer.one(name) is None


@pytest.mark.parametrize(
    "nominated", [b"Content-Length", b"Transfer-Encoding, Content-Length", b"Date, Content-Length"]
)
def test_i2_a_sandbox_cannot_nominate_the_framing_away(
    nominated: bytes, gate: Gateway, start_origin: OriginFactory
) -> None:
    """An answer whose length went missing would swallow the next one on the client's connection."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: " + nominated + b"\r\n\r\nok"
    origin = start_origin(saying(answer, answer))
    raw = get().replace(b"PORT", str(origin.port).encode())
    with gate.client() as client:
        assert [client.ask(raw).body, client.ask(raw).body] == [b"ok", b"ok"]


def test_i2_end_to_end_fields_arrive_as_sent(gate: Gateway, module_origin: Origin) -> None:
    """The control: everything else crosses, bytes untouched, doubled fields doubled and in their order."""
    fields = [
        (b"authorization", b"Bearer abc"),
        (b"cookie", b"a=b; c=d"),
        (b"accept-encoding", b"br"),
        (b"x-twice", b"one"),
        (b"x-twice", b"two, three"),
        (b"x-latin", b"caf\xe9"),
        (b"x-odd", b'"a b"; c="\\""'),
        (b"range", b"bytes=0-1"),
        (b"if-none-match", b'W/"x"'),
        (b"origin", b"https://app.test"),
        (b"sec-fetch-site", b"same-origin"),
    ]
    seen, _ = through(gate, module_origin, get(*[name + b": " + value for name, value in fields]))
    names = {name for name, _ in fields}
    arrived = [field for field in seen.headers if field[0] in names]
    assert sorted(arrived, key=lambda field: field[0]) == sorted(fields, key=lambda field: field[0])


def test_i2_nothing_is_asked_for_on_a_clients_behalf(gate: Gateway, module_origin: Origin) -> None:
    seen, _ = through(gate, module_origin, get())
    assert {name for name, _ in seen.headers} <= {
        b"host",
        b"x-forwarded-for",
        b"x-forwarded-proto",
        b"x-forwarded-host",
        b"connection",
    }
