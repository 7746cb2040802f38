"""The wire of agent-sandbox's router, spoken to the running gateway without its SDK: what its clients may rely on."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from tests.real.ingress.agent_sandbox.ground import ZIPPED

if TYPE_CHECKING:
    from tests.real.ingress.agent_sandbox.ground import Cluster

BOX = {"X-Sandbox-ID": "box"}


def test_a_request_reaches_its_sandbox_and_shows_nothing_of_the_caller(cluster: Cluster, start_router: Any) -> None:
    pod = cluster.sandbox()
    router = start_router(token="0123456789abcdef0")
    headers = {
        **BOX,
        "X-Sandbox-Namespace": "default",
        "X-Sandbox-Port": "8888",
        "X-Sandbox-Pod-IP": pod.address,
        "X-Sandbox-Timeout": "30",
        "Authorization": "Bearer 0123456789abcdef0",
        "Host": "router.example",
        "X-Request-ID": "r-1",
        "Connection": "close, X-Hop",
        "X-Hop": "1",
    }
    answer = router.get("/a//b/%2e%2e/c%2Fd;e?q=%20&r", headers=headers)
    assert (answer.status, answer.json()) == (200, {"target": "/a//b/%2e%2e/c%2Fd;e?q=%20&r"})
    seen = pod.last
    assert seen.all("host") == [f"{pod.address}:8888"]
    assert seen.all("x-request-id") == ["r-1"]
    names = {name for name, _ in seen.headers}
    assert not names & {"authorization", "x-hop"}
    assert "router.example" not in " ".join(value for _, value in seen.headers)
    assert not [name for name in names if name.startswith("x-sandbox")]


def test_methods_and_bodies(cluster: Cluster, start_router: Any) -> None:
    pod = cluster.sandbox()
    router = start_router()
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
        assert router.get("/any", method=method, headers=BOX, body=b"x" * 100_000).status == 200
        assert (pod.last.method, pod.last.body) == (method, b"x" * 100_000)


def test_health_and_what_is_refused(cluster: Cluster, start_router: Any) -> None:
    cluster.sandbox()
    cluster.put("late", ready=False)
    router = start_router("--wait-ready", "0")
    healthy = router.get("/healthz")
    assert (healthy.status, healthy.headers["content-type"]) == (200, "application/json")
    assert healthy.json() == {"status": "ok"}
    for status, code, headers in (
        (400, "bad_route", {}),
        (400, "bad_route", {"X-Sandbox-ID": "box.evil.example"}),
        (400, "bad_route", {**BOX, "X-Sandbox-Namespace": "bad namespace!"}),
        (400, "bad_route", {**BOX, "X-Sandbox-Port": "100000"}),
        (400, "bad_route", {**BOX, "X-Sandbox-Pod-IP": "169.254.169.254"}),
        (502, "unknown_sandbox", {"X-Sandbox-ID": "nobody"}),
        (502, "unknown_sandbox", {**BOX, "X-Sandbox-Namespace": "other"}),
        (502, "connect_failed", {**BOX, "X-Sandbox-Port": "1"}),
        (503, "not_ready", {"X-Sandbox-ID": "late"}),
    ):
        answer = router.get("/", headers=headers)
        assert (answer.status, answer.headers["sallyport-error"]) == (status, code), headers
        assert list(answer.json()) == ["detail"], "the shape its clients read"
        assert "retry-after" not in answer.headers
    assert router.get("/status/404", headers=BOX).headers.get("sallyport-error") is None, "the control: the sandbox's"


def test_the_token(cluster: Cluster, start_router: Any) -> None:
    pod = cluster.sandbox()
    router = start_router(token="0123456789abcdef0")
    assert router.get("/healthz").status == 200
    for sent in ({}, {"Authorization": "Bearer x"}, {"Authorization": "Basic 0123456789abcdef0"}):
        answer = router.get("/", headers={**BOX, **sent})
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert list(answer.json()) == ["detail"]
    assert not pod.seen
    assert router.get("/", headers={**BOX, "Authorization": "Bearer 0123456789abcdef0"}).status == 200
    for _ in range(30):  # somebody with last month's token, behind the same address
        router.get("/", headers={**BOX, "Authorization": "Bearer old"})
    assert router.get("/", headers={**BOX, "Authorization": "Bearer 0123456789abcdef0"}).status == 200


def test_namespaces(cluster: Cluster, start_router: Any) -> None:
    here, there = cluster.sandbox(), cluster.pod("there")
    cluster.put("box", there.address, namespace="team")
    router = start_router()
    assert router.get("/", headers=BOX).status == 200
    assert (len(here.seen), len(there.seen)) == (1, 0)
    assert router.get("/", headers={**BOX, "X-Sandbox-Namespace": "team"}).status == 200
    assert (len(here.seen), len(there.seen)) == (1, 1)


def test_i4_an_address_of_another_sandbox_is_not_dialled(cluster: Cluster, start_router: Any) -> None:
    mine, other = cluster.sandbox(), cluster.sandbox("other")
    router = start_router()
    assert router.get("/", headers={**BOX, "X-Sandbox-Pod-IP": "10.77.0.1"}).status == 200
    assert router.get("/", headers={**BOX, "X-Sandbox-Pod-IP": other.address}).status == 400, (
        "loopback, and not its own"
    )
    assert (len(mine.seen), len(other.seen)) == (1, 0)
    assert router.get("/", headers={**BOX, "X-Sandbox-Pod-IP": mine.address}).status == 200, "the control"


def test_the_timeout_is_for_the_head_and_no_stream_is_cut_by_it(cluster: Cluster, start_router: Any) -> None:
    pod = cluster.sandbox()
    router = start_router(PROXY_TIMEOUT_SECONDS="3")
    for asked in ("0.5", "1000"):
        answer = router.get("/slow", headers={**BOX, "X-Sandbox-Timeout": asked})
        assert (answer.status, answer.headers["sallyport-error"]) == (504, "response_timeout")
        assert ("0.5 s" if asked == "0.5" else "3 s") in answer.json()["detail"]
    connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=20)
    connection.request("GET", "/stream", headers={**BOX, "X-Sandbox-Timeout": "3"})
    response = connection.getresponse()
    assert response.readline() == b"first\n"
    assert router.get("/slow", headers=BOX).status == 504, "longer than the stream's own time-out has passed"
    pod.release.set()
    assert response.readline() == b"last\n"
    assert response.read() == b""
    connection.close()


def test_an_answer_is_neither_decoded_nor_reframed(cluster: Cluster, start_router: Any) -> None:
    cluster.sandbox()
    router = start_router()
    answer = router.get("/gzip", headers={**BOX, "Accept-Encoding": "gzip"})
    assert (answer.body, answer.headers["content-encoding"]) == (ZIPPED, "gzip")
    assert answer.headers["content-length"] == str(len(ZIPPED))
    assert "transfer-encoding" not in answer.headers
    with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
        router.get("/broken", headers=BOX)


def test_websockets(cluster: Cluster, start_router: Any) -> None:
    pod = cluster.sandbox()
    router = start_router(token="0123456789abcdef0")
    headers = {**BOX, "Authorization": "Bearer 0123456789abcdef0", "X-Sandbox-Pod-IP": pod.address}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    with socket.create_connection(("127.0.0.1", router.port), timeout=20) as sock:
        sock.sendall(
            f"GET /kernels HTTP/1.1\r\nHost: router.example\r\n{head}Connection: keep-alive, Upgrade\r\n"
            "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
        )
        got = b""
        while b"\r\n\r\n" not in got:
            got += sock.recv(65536)
        assert got.startswith(b"HTTP/1.1 101 ")
        sock.sendall(b"\x82\x83\0\0\0\0abc")
        assert sock.recv(100) == b"\x82\x83\0\0\0\0abc", "octets as they were sent"
    assert pod.last.all("authorization") == []
    assert pod.last.all("host") == [f"{pod.address}:8888"]

    async def refused() -> int:
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.WSServerHandshakeError) as fault:
                await session.ws_connect(f"{router.base}/kernels", headers=BOX)
            return int(fault.value.status)

    assert asyncio.run(refused()) == 401


def becomes(router: Any, status: int, headers: dict[str, str]) -> list[int]:
    """What a caller is answered until it is this."""
    deadline = time.monotonic() + 20
    answered = [router.get("/", headers=headers).status]
    while answered[-1] != status:
        assert time.monotonic() < deadline, answered[-1]
        answered.append(router.get("/", headers=headers).status)
    return answered


def test_a_pod_made_anew_behind_its_name(cluster: Cluster, start_router: Any) -> None:
    """Suspended and resumed: the Sandbox is the same, its pod and address are others."""
    old = cluster.sandbox()
    router = start_router()
    stale = {**BOX, "X-Sandbox-Pod-IP": old.address}
    assert router.get("/1", headers=stale).status == 200
    cluster.put("box", ready=False)
    cluster.sandbox("behind")  # its news come after the other's: who knows of it knows that the box isn't ready
    becomes(router, 200, {"X-Sandbox-ID": "behind"})
    cluster.ends(old)
    new = cluster.pod("new")
    answers: list[int] = []
    asking = threading.Thread(target=lambda: answers.append(router.get("/2", headers=BOX, method="POST").status))
    asking.start()  # held while it isn't ready, as its SDK doesn't send a POST again
    cluster.put("box", new.address)
    asking.join(20)
    assert answers == [200]
    assert [seen.target for seen in new.seen] == ["/2"]


def test_a_sandbox_that_appears_and_goes(cluster: Cluster, start_router: Any) -> None:
    router = start_router()
    assert router.get("/", headers=BOX).status == 502
    cluster.sandbox()
    statuses = becomes(router, 200, BOX)
    cluster.delete("box")
    statuses += becomes(router, 502, BOX)
    assert set(statuses) == {200, 502}


def test_details_name_the_sandbox(cluster: Cluster, start_router: Any) -> None:
    answer = start_router().get("/", headers={"X-Sandbox-ID": "nobody", "Accept": "text/plain"})
    assert "nobody" in json.loads(answer.body)["detail"]
