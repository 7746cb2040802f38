"""A request for a sandbox that is known but not ready: 503 at once, or held for as long as `--wait-ready` says."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from typing import Any

NOT_READY = {"box": {"host": "127.0.0.1", "ready": False}}
READY = {"box": {"host": "127.0.0.1"}}


def test_without_the_flag_it_is_503_at_once(start_gateway: Any, origin: Any) -> None:
    gateway = start_gateway(NOT_READY)
    answer = gateway.get(origin.path())
    assert (answer.status, answer.headers["sallyport-error"]) == (503, "not_ready")
    assert answer.headers["retry-after"]


def test_a_held_request_goes_on_when_the_sandbox_is_ready(start_gateway: Any, origin: Any) -> None:
    gateway = start_gateway(NOT_READY, ["--wait-ready", "20s"])
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=20)
    connection.request("GET", origin.path())
    posted = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=20)
    posted.request("POST", f"/box/{origin.port}/upload", b"x" * 300_000)
    assert not origin.seen
    timer = threading.Timer(0.3, start_gateway.write_routes, [READY])
    timer.start()
    try:
        response = connection.getresponse()
        assert (response.status, response.read()) == (200, b"hello from /hello")
        response = posted.getresponse()
        assert (response.status, response.read()) == (200, b"took 300000")
    finally:
        timer.join()
        connection.close()
        posted.close()


def test_a_held_request_is_refused_when_the_wait_is_over(start_gateway: Any, origin: Any) -> None:
    gateway = start_gateway(NOT_READY, ["--wait-ready", "1s"])
    before = time.monotonic()
    answer = gateway.get(origin.path())
    assert (answer.status, answer.headers["sallyport-error"]) == (503, "not_ready")
    assert time.monotonic() - before > 0.8
    assert gateway.get("/gone/80/").status == 404  # and who isn't known isn't waited for


def test_a_held_request_ends_with_its_client_or_its_sandbox(start_gateway: Any, origin: Any) -> None:
    gateway = start_gateway(NOT_READY, ["--wait-ready", "20s"])
    with socket.create_connection(("127.0.0.1", gateway.port)) as leaving:
        leaving.sendall(b"GET %b HTTP/1.1\r\nHost: h\r\n\r\n" % origin.path().encode())
    staying = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=20)
    staying.request("GET", origin.path())
    time.sleep(0.2)  # it is held by now; were it not, the table would answer the same
    start_gateway.write_routes({})
    response = staying.getresponse()
    assert response.status == 404
    staying.close()
    assert not origin.seen
