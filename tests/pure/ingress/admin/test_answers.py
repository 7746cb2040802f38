"""What the admin port answers to which request."""

from __future__ import annotations

import pytest

from ingress.http1.head import read_request
from ingress.telemetry.admin import Admin


def ask(target: str, method: str = "GET", state: tuple[bool, str] = (True, "ok")) -> tuple[int, bytes, bytes, bytes]:
    admin = Admin(lambda: state, lambda: b"numbers\n", lambda _: False)
    return admin.answer(read_request(f"{method} {target} HTTP/1.1\r\nHost: gateway\r\n\r\n".encode()))


@pytest.mark.parametrize(
    ("target", "status", "body"),
    [
        ("/livez", 200, b"ok\n"),
        ("/readyz", 200, b"ok\n"),
        ("/status.ok", 200, b"OK"),
        ("/metrics", 200, b"numbers\n"),
        ("/metrics?name[]=x", 200, b"numbers\n"),
        ("/readyz?verbose", 200, b"ok\n"),
        ("http://gateway/livez", 200, b"ok\n"),
        ("HTTP://gateway:8080/livez?x=/metrics", 200, b"ok\n"),
        ("http://gateway", 404, None),
        ("http://livez", 404, None),
        ("/", 404, None),
        ("//livez", 404, None),
        ("/livez/", 404, None),
        ("/LIVEZ", 404, None),
        ("/livez%20", 404, None),
        ("/../livez", 404, None),
        ("*", 404, None),
    ],
)
def test_targets(target: str, status: int, body: bytes | None) -> None:
    found, _, _, said = ask(target)
    assert found == status
    assert body is None or said == body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_methods(method: str) -> None:
    status, _, lines, _ = ask("/livez", method)
    assert (status, lines) == (405, b"Allow: GET, HEAD\r\n")
    assert ask("/elsewhere", method)[0] == 404


@pytest.mark.parametrize(
    ("state", "status"),
    [
        ((True, "degraded: the API server can't be reached"), 200),
        ((False, "starting: no routes yet"), 503),
        ((False, "draining"), 503),
    ],
)
def test_readiness_is_told_with_its_reason(state: tuple[bool, str], status: int) -> None:
    found, kind, _, body = ask("/readyz", state=state)
    assert (found, body.decode()) == (status, state[1] + "\n")
    assert kind.startswith(b"text/plain")
    assert ask("/livez", state=state)[0] == 200  # a gateway that drains is no reason to kill it
    assert ask("/status.ok", state=state)[0] == 200


def test_metrics_have_their_own_type() -> None:
    assert ask("/metrics")[1] == b"text/plain; version=0.0.4; charset=utf-8"
