"""I3: what a client says about itself in a proxy's name doesn't count, under any spelling."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.real.ingress.hostile import strict
from tests.real.ingress.hostile.corpus import get, post
from tests.real.ingress.hostile.gateway import Gateway
from tests.real.ingress.hostile.ground import saying

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.real.ingress.hostile.conftest import OriginFactory
    from tests.real.ingress.hostile.ground import Origin

SPOOF = "evil-6.6.6.6"
NAMES = [
    "X-Forwarded-For",
    "X-Forwarded-Host",
    "X-Forwarded-Proto",
    "X-Forwarded-Port",
    "X-Forwarded-Prefix",
    "X-Forwarded-Server",
    "Forwarded",
    "X-Real-IP",
    "OpenSandbox-Access-Renew",
    "OpenSandbox-Secure-Access",
]
ALIASES = [
    "x_forwarded_for",
    "X.Forwarded.For",
    "X-Forwarded_For",
    "X_Forwarded-Host",
    "x_forwarded_proto",
    "X_Forwarded_Prefix",
    "X_Real_IP",
    "OpenSandbox_Ingress_To",
    "OpenSandbox.Ingress.To",
    "OPEN_SANDBOX_INGRESS",
    "OpenSandbox_Secure_Access",
    "OpenSandbox_Access_Renew",
    "Content_Length",
    "Transfer_Encoding",
]


def seen_by(origin: Origin, gate: Gateway, raw: bytes) -> strict.Message:
    mark = origin.mark()
    answer = gate.ask(raw.replace(b"PORT", str(origin.port).encode()))
    assert answer.status == 200, answer
    ((_, data),) = origin.since(mark)
    (message,) = strict.requests(data).messages
    return message


def everything(message: strict.Message) -> str:
    return repr(message.headers)


@pytest.mark.parametrize("spelling", [str, str.lower, str.swapcase])
@pytest.mark.parametrize("name", [*NAMES, *ALIASES])
def test_i3_a_clients_word_is_dropped(
    name: str, spelling: Callable[[str], str], gate: Gateway, module_origin: Origin
) -> None:
    seen = seen_by(module_origin, gate, get(f"{spelling(name)}: {SPOOF}".encode(), b"X-Kept: kept"))
    assert SPOOF not in everything(seen)
    assert seen.one("x-kept") == "kept"


def test_i3_the_gateways_own_word_stands(gate: Gateway, module_origin: Origin) -> None:
    lines = [f"{name}: {SPOOF}".encode() for name in NAMES if name.startswith("X-")]
    seen = seen_by(module_origin, gate, get(*lines, *lines))
    assert seen.one("x-forwarded-for") == "127.0.0.1"
    assert seen.one("x-forwarded-host") == "app.test"
    assert seen.one("x-forwarded-proto") == "http"
    assert seen.one("x-forwarded-prefix") is None


def test_i3_the_address_is_the_peers(gate: Gateway, module_origin: Origin) -> None:
    """Not one address for everybody: a client from elsewhere is told apart."""
    mark = module_origin.mark()
    gate.ask(get(b"X-Forwarded-For: 6.6.6.6").replace(b"PORT", str(module_origin.port).encode()), source="127.0.0.9")
    ((_, data),) = module_origin.since(mark)
    assert strict.requests(data).messages[0].one("x-forwarded-for") == "127.0.0.9"


@pytest.mark.parametrize("header", [b"OpenSandbox-Ingress-To", b"OPEN-SANDBOX-INGRESS", b"opensandbox-ingress-to"])
def test_i3_routing_headers_stay_here(header: bytes, gate: Gateway, module_origin: Origin) -> None:
    raw = b"GET /in HTTP/1.1\r\nHost: app.test\r\n" + header + b": box-PORT\r\n\r\n"
    seen = seen_by(module_origin, gate, raw)
    assert f"box-{module_origin.port}" not in everything(seen)


def test_i3_both_routing_headers_at_once_have_one_reading(gate: Gateway, module_origin: Origin) -> None:
    """Whichever wins, neither is seen by the sandbox, and `other` isn't reached by the one that was checked less."""
    raw = get(b"OPEN-SANDBOX-INGRESS: other-1").replace(b"PORT", str(module_origin.port).encode())
    mark = module_origin.mark()
    answer = gate.ask(raw)
    arrived = [strict.requests(data).messages[0] for _, data in module_origin.since(mark)]
    assert answer.status in (200, 400)
    assert all(b"other-1" not in everything(message).encode() for message in arrived)
    twice = get(b"OpenSandbox-Ingress-To: box-PORT").replace(b"PORT", str(module_origin.port).encode())
    assert gate.ask(twice).status == 400


@pytest.fixture(scope="module")
def trusting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(tmp_path_factory.mktemp("trusting"), "--trusted-proxies", "127.0.0.1/32") as made:
        yield made


def test_i3_a_trusted_proxys_word_counts(trusting: Gateway, module_origin: Origin) -> None:
    """The control: who is trusted is believed, and nobody else."""
    lines = [b"X-Forwarded-For: 198.51.100.7", b"X-Forwarded-Proto: https", b"X-Forwarded-Host: public.test"]
    seen = seen_by(module_origin, trusting, get(*lines))
    assert (seen.one("x-forwarded-for") or "").split(", ")[0] == "198.51.100.7"
    assert seen.one("x-forwarded-proto") == "https"
    assert seen.one("x-forwarded-host") == "public.test"
    mark = module_origin.mark()
    trusting.ask(get(*lines).replace(b"PORT", str(module_origin.port).encode()), source="127.0.0.2")
    ((_, data),) = module_origin.since(mark)
    (stranger,) = strict.requests(data).messages
    assert stranger.one("x-forwarded-for") == "127.0.0.2"
    assert stranger.one("x-forwarded-proto") == "http"
    assert stranger.one("x-forwarded-host") == "app.test"


def test_i3_trailers_cannot_say_it_either(gate: Gateway, module_origin: Origin) -> None:
    trailers = [*NAMES, *ALIASES, "Host", "Content-Length", "Authorization", "Cookie"]
    body = b"0\r\n" + b"".join(f"{name}: {SPOOF}\r\n".encode() for name in trailers) + b"X-Sum: 1\r\n\r\n"
    seen = seen_by(module_origin, gate, post(b"Transfer-Encoding: chunked", body=body))
    assert seen.trailers == [(b"x-sum", b"1")]


@pytest.mark.parametrize("name", ["Sallyport-Error", "sallyport-error"])
def test_i3_a_client_is_not_told_that_a_sandboxs_answer_is_the_gateways(
    name: str, gate: Gateway, start_origin: OriginFactory
) -> None:
    text = f"HTTP/1.1 502 Bad\r\n{name}: fake\r\nContent-Length: 0\r\n\r\n".encode()
    origin = start_origin(saying(text))
    assert gate.ask(get().replace(b"PORT", str(origin.port).encode())).one(name) is None


def test_i3_the_gateways_cookies_stay_here(gate: Gateway, module_origin: Origin) -> None:
    seen = seen_by(module_origin, gate, get(b"Cookie: a=b; sallyport-route=x; c=d", b"Cookie: sallyport-access=y"))
    assert seen.all("cookie") == ["a=b; c=d"]
