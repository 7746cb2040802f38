"""An interim answer is an answer: what path mode puts right in a head is put right in that one too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.real.ingress.hostile import ground
from tests.real.ingress.hostile.lies import PLAIN, answer

if TYPE_CHECKING:
    from tests.real.ingress.hostile.conftest import OriginFactory
    from tests.real.ingress.hostile.gateway import Gateway

HINTS = answer(
    b"Set-Cookie: a=1; Path=/; Domain=app.test",
    b"Set-Cookie: sallyport-access=1",
    b"Content-Location: /page",
    b"Link: </style.css>; rel=preload",
    line=b"HTTP/1.1 103 Early Hints",
)


def test_a_cookie_in_an_interim_answer_is_for_its_own_sandbox(gate: Gateway, start_origin: OriginFactory) -> None:
    """Some clients keep it (RFC 6265 section 3 lets them), and on a shared host the neighbour must not get it."""
    origin = start_origin(ground.saying(HINTS + PLAIN))
    with gate.client() as client:
        client.send(b"GET /box/%d/in HTTP/1.1\r\nHost: app.test\r\n\r\n" % origin.port)
        lines = client.head().split(b"\r\n")
        assert lines[0] == b"HTTP/1.1 103 Early Hints"
        assert lines[1:-2] == [
            b"Set-Cookie: a=1; Path=/box/%d/" % origin.port,
            b"Content-Location: /box/%d/page" % origin.port,
            b"Link: </style.css>; rel=preload",
        ]
        assert client.answer().body == b"hello"


def test_without_a_prefix_it_crosses_as_it_is_but_for_the_gateways_own(
    gate: Gateway, start_origin: OriginFactory
) -> None:
    origin = start_origin(ground.saying(HINTS + PLAIN))
    with gate.client() as client:
        route = b"OpenSandbox-Ingress-To: box-%d\r\n" % origin.port
        client.send(b"GET /in HTTP/1.1\r\nHost: app.test\r\n" + route + b"\r\n")
        assert client.head() == HINTS.replace(b"Set-Cookie: sallyport-access=1\r\n", b"")
        assert client.answer().body == b"hello"
