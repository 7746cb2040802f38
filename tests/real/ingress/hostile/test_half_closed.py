"""A client that closes its sending side behind several requests has asked for several answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.real.ingress.hostile import lies
from tests.real.ingress.hostile.ground import saying

if TYPE_CHECKING:
    from tests.real.ingress.hostile.conftest import OriginFactory
    from tests.real.ingress.hostile.gateway import Gateway

REFUSED = b"GET / HTTP/1.1\r\nHost: h\r\nOpenSandbox-Ingress-To: gone-80\r\n\r\n"


def test_every_request_before_the_end_is_answered(gate: Gateway, start_origin: OriginFactory) -> None:
    origin = start_origin(saying(*[lies.PLAIN] * 4))
    one = b"GET / HTTP/1.1\r\nHost: h\r\nOpenSandbox-Ingress-To: box-%d\r\n\r\n" % origin.port
    with gate.client() as client:
        client.send(one * 2 + REFUSED + one)
        client.half_close()
        assert [client.answer().status for _ in range(4)] == [200, 200, 404, 200]
        assert client.rest() == b""


def test_half_a_request_before_the_end_is_none(gate: Gateway, start_origin: OriginFactory) -> None:
    origin = start_origin(saying(*[lies.PLAIN] * 4))
    one = b"GET / HTTP/1.1\r\nHost: h\r\nOpenSandbox-Ingress-To: box-%d\r\n\r\n" % origin.port
    with gate.client() as client:
        client.send(one + one[:-2])
        client.half_close()
        assert client.answer().status == 200
        assert client.rest() == b""
    assert len(origin.requests()) == 1


def test_half_a_body_before_the_end_is_given_up(gate: Gateway, start_origin: OriginFactory) -> None:
    origin = start_origin(saying(*[lies.PLAIN] * 4))
    one = b"GET / HTTP/1.1\r\nHost: h\r\nOpenSandbox-Ingress-To: box-%d\r\n\r\n" % origin.port
    with gate.client() as client:
        client.send(one + one[:-2] + b"Content-Length: 5\r\n\r\nell")
        client.half_close()
        assert client.answer().status == 200
        assert client.rest() == b""
