"""The gateway's own answers: whole responses, in the shape that was asked for, which a sandbox can't be taken for."""

from __future__ import annotations

import json

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingress.refusal import Refusal

NOT_READY = Refusal(503, "not_ready", "the sandbox box is starting", sandbox="box", retry_after=2)


def read(octets: bytes, method: str = "GET") -> tuple[h11.Response, bytes, bool]:
    """The response as a strict client reads it, its body, and whether the connection may go on."""
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method=method, target="/", headers=[("Host", "h")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(octets)
    response = connection.next_event()
    assert isinstance(response, h11.Response)
    body = b""
    while isinstance(event := connection.next_event(), h11.Data):
        body += event.data
    assert isinstance(event, h11.EndOfMessage)
    assert connection.trailing_data == (b"", False)
    return response, body, connection.their_state is h11.DONE


def test_json_with_the_cause_the_words_and_the_sandbox() -> None:
    response, body, keeps = read(NOT_READY.render())
    assert (response.status_code, response.reason) == (503, b"Service Unavailable")
    assert json.loads(body) == {
        "error": {"code": "not_ready", "message": "the sandbox box is starting", "sandbox": "box"}
    }
    headers = dict(response.headers)
    assert headers[b"content-type"] == b"application/json"
    assert headers[b"sallyport-error"] == b"not_ready"
    assert headers[b"retry-after"] == b"2"
    assert headers[b"cache-control"] == b"no-store"
    assert keeps


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        (b"", b"application/json"),
        (b"*/*", b"application/json"),
        (b"application/json", b"application/json"),
        (b"application/json, text/plain, */*", b"application/json"),
        (b"application/problem+json, text/html", b"application/json"),
        (b"image/png", b"application/json"),
        (b"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", b"text/plain; charset=utf-8"),
        (b"text/plain", b"text/plain; charset=utf-8"),
        (b"text/*", b"text/plain; charset=utf-8"),
        (b"TEXT/Plain", b"text/plain; charset=utf-8"),
        (b"text/plain, application/json;q=0.5", b"text/plain; charset=utf-8"),
        (b"application/json; q=0, text/plain;q=0.1", b"text/plain; charset=utf-8"),
        (b"text/html, */*", b"text/plain; charset=utf-8"),
        (b"text/html;level=1;q=0.4, */*;q=0.3", b"text/plain; charset=utf-8"),
        (b"application/json, text/plain;q=0.9", b"application/json"),
        (b"text/plain;q=0", b"application/json"),
        (b"text/html;q=0.1, */*", b"application/json"),
        (b"Application/JSON, TEXT/plain", b"application/json"),
    ],
)
def test_json_or_text_as_accepted(accept: bytes, kind: bytes) -> None:
    response, body, _ = read(NOT_READY.render(accept=accept))
    assert dict(response.headers)[b"content-type"] == kind
    if kind.startswith(b"text/"):
        assert body == b"the sandbox box is starting\n"
    else:
        assert json.loads(body)["error"]["sandbox"] == "box"


def test_the_shape_of_agent_sandbox() -> None:
    response, body, _ = read(NOT_READY.render(accept=b"text/html", detail=True))
    assert json.loads(body) == {"detail": "the sandbox box is starting"}
    assert dict(response.headers)[b"sallyport-error"] == b"not_ready"


def test_head_has_the_length_and_not_the_body() -> None:
    _, body, _ = read(NOT_READY.render())
    octets = NOT_READY.render(head_only=True)
    response, nothing, keeps = read(octets, "HEAD")
    assert nothing == b""
    assert dict(response.headers)[b"content-length"] == b"%d" % len(body)
    assert octets.endswith(b"\r\n\r\n")
    assert keeps


def test_nothing_is_said_of_another_try_where_none_helps() -> None:
    assert b"retry-after" not in Refusal(404, "unknown_sandbox", "no").render().lower()


@pytest.mark.parametrize(("close", "keep_alive", "closes"), [(0, 1, False), (0, 0, True), (1, 1, True), (1, 0, True)])
def test_the_connection(close: int, keep_alive: int, closes: bool) -> None:
    octets = Refusal(400, "bad_request", "no", close=bool(close)).render(keep_alive=bool(keep_alive))
    assert (b"\r\nConnection: close\r\n" in octets) == closes
    assert read(octets)[2] != closes


def test_further_lines() -> None:
    octets = Refusal(405, "method_not_allowed", "no", headers=b"Allow: GET\r\nX-More: 1\r\n").render()
    headers = dict(read(octets)[0].headers)
    assert (headers[b"allow"], headers[b"x-more"]) == (b"GET", b"1")


def test_it_is_an_exception_with_its_words() -> None:
    assert str(NOT_READY) == "the sandbox box is starting"


@given(st.text(max_size=40), st.text(max_size=20), st.booleans(), st.booleans())
def test_no_words_break_the_response(message: str, sandbox: str, text: bool, detail: bool) -> None:
    """An id comes from the request: quotes, line ends and all."""
    message = message.encode("utf-8", "replace").decode()
    refusal = Refusal(404, "unknown_sandbox", message, sandbox=sandbox)
    _, body, keeps = read(refusal.render(accept=b"text/plain" if text else b"", detail=detail))
    assert keeps
    if detail:
        assert json.loads(body) == {"detail": message}
    elif text:
        assert body.decode() == message + "\n"
    else:
        assert json.loads(body)["error"] == {"code": "unknown_sandbox", "message": message, "sandbox": sandbox}
