"""The gateway's own answers, and what comes behind them on the connection: a body stays a body."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.real.ingress.hostile.corpus import HIDDEN, get, head, post
from tests.real.ingress.hostile.gateway import Gateway
from tests.real.ingress.hostile.ground import soon

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.real.ingress.hostile.conftest import OriginFactory
    from tests.real.ingress.hostile.ground import Origin

REFUSED = {
    "unknown": (b"nobody-PORT", 404),
    "denied": (b"locked-PORT", 401),
    "bad-route": (b"box-0PORT", 400),
    "no-server": (b"box-1", 502),
}


def to(origin: Origin, raw: bytes, route: bytes = b"box-PORT") -> bytes:
    return raw.replace(b"box-PORT", route).replace(b"PORT", str(origin.port).encode())


@pytest.mark.parametrize("why", REFUSED)
@pytest.mark.parametrize("framing", ["length", "chunked", "waiting"])
def test_a_refused_requests_body_is_not_read_as_a_request(
    why: str, framing: str, gate: Gateway, start_origin: OriginFactory
) -> None:
    """Its sender may have sent the body already, may send it now, or (Expect) never: so the connection ends, unless all
    of it had come before the refusal."""
    route, status = REFUSED[why]
    origin = start_origin()
    hidden = to(origin, HIDDEN)
    if framing == "chunked":
        raw = post(b"Transfer-Encoding: chunked", body=b"%x\r\n%s\r\n0\r\n\r\n" % (len(hidden), hidden))
    else:
        raw = post(b"Content-Length: %d" % len(hidden), b"Expect: 100-continue", body=hidden)
    start, _, body = to(origin, raw, route).partition(b"\r\n\r\n")
    with gate.client() as client:
        client.send(start + b"\r\n\r\n" + (b"" if framing == "waiting" else body))
        answer = client.answer()
        assert (answer.status, answer.interim) == (status, ())
        if why != "no-server" or framing == "waiting":
            assert answer.one("connection") == "close"
        if framing == "waiting":
            client.send(hidden)
        client.half_close()
        assert client.rest() == b""
    assert origin.requests() == []


@pytest.mark.parametrize("why", REFUSED)
def test_a_refused_request_without_a_body_ends_where_it_ends(
    why: str, gate: Gateway, start_origin: OriginFactory
) -> None:
    """The control: there the connection goes on, and the next request is served."""
    route, status = REFUSED[why]
    origin = start_origin()
    with gate.client() as client:
        client.send(to(origin, get(b"Accept: application/json"), route) + to(origin, get()))
        refusal = client.answer()
        assert refusal.status == status
        told = json.loads(refusal.body)["error"]
        assert told["code"] == refusal.one("sallyport-error")
        assert told["message"]
        assert client.answer().body == b"GET /in 0"


def test_a_refusal_of_head_has_no_body(gate: Gateway, start_origin: OriginFactory) -> None:
    origin = start_origin()
    raw = to(origin, head(b"HEAD /in HTTP/1.1"), b"nobody-PORT")
    with gate.client() as client:
        client.send(raw + to(origin, get()))
        refusal = client.answer(b"HEAD")
        assert (refusal.status, refusal.body) == (404, b"")
        assert int(refusal.one("content-length") or 0) > 0
        assert client.answer().body == b"GET /in 0"


def test_a_person_is_told_in_words(gate: Gateway, start_origin: OriginFactory) -> None:
    raw = to(start_origin(), get(b"Accept: text/html,application/xhtml+xml,*/*;q=0.8"), b"nobody-PORT")
    answer = gate.ask(raw)
    assert (answer.one("content-type") or "").startswith("text/")
    assert b"there is no sandbox" in answer.body
    assert b"<script" not in gate.ask(raw.replace(b"nobody", b"<script>")).body


def test_an_http10_client_is_refused_in_its_way(gate: Gateway, start_origin: OriginFactory) -> None:
    raw = to(start_origin(), head(b"GET /in HTTP/1.0"), b"nobody-PORT")
    with gate.client() as client:
        client.send(raw)
        assert client.answer().status == 404
        assert client.rest() == b""


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(tmp_path_factory.mktemp("patient"), "--wait-ready", "5s", sandboxes={}) as made:
        yield made


def boxes(*, ready: bool) -> dict[str, dict[str, object]]:
    return {"box": {"host": "127.0.0.1", "ready": ready}}


def test_a_held_request_is_served_whole(patient: Gateway, start_origin: OriginFactory) -> None:
    """While its sandbox starts nothing reaches it; then all of it does, what was pipelined behind it too."""
    origin = start_origin()
    patient.route(boxes(ready=False))
    assert soon(lambda: _known(patient, origin))
    raws = [
        post(b"Content-Length: 5") + head(b"GET /next HTTP/1.1"),
        post(b"Transfer-Encoding: chunked", body=b"5\r\nhello\r\n0\r\n\r\n") + head(b"GET /next HTTP/1.1"),
    ]
    clients = [patient.client() for _ in raws]
    for client, raw in zip(clients, raws, strict=True):
        client.send(to(origin, raw))
    try:
        assert all(client.quiet(0.05) for client in clients)
        assert origin.links == []
        patient.route(boxes(ready=True))
        for client in clients:
            assert client.answer().body == b"POST /in 5"
            assert client.answer().body == b"GET /next 0"
    finally:
        for client in clients:
            client.sock.close()


def test_a_held_request_is_held_for_so_long_only(patient: Gateway, start_origin: OriginFactory) -> None:
    """503 then; who has left meanwhile, or whose sandbox is deleted, is not waited for."""
    origin = start_origin()
    patient.route(boxes(ready=False))
    assert soon(lambda: _known(patient, origin))
    with patient.client() as client, patient.client() as leaver:
        for one in (client, leaver):
            one.send(to(origin, get()))
        assert client.quiet(0.05)
        leaver.reset()
        assert client.answer().status == 503
        client.send(to(origin, get()))
        assert client.quiet(0.05)
        patient.route({})
        assert client.answer().status == 404
    assert origin.links == []


def _known(gate: Gateway, origin: Origin) -> bool:
    """Is the sandbox in the table, and not ready? Asked so that nothing is held."""
    with gate.client() as client:
        client.send(to(origin, get()))
        return client.quiet(0.05)
