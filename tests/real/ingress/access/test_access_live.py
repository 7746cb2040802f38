"""Access at the running gateway: counters and links hold across workers, and nothing of it reaches a sandbox."""

from __future__ import annotations

import base64
import http.client
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from ingress.admission.access import KeyRing, to_base36

if TYPE_CHECKING:
    from collections.abc import Mapping

SECRET = b"0123456789abcdef0123456789abcdef"
RING = KeyRing({"a": SECRET})
KEYS = ["--secure-access-keys", f"a={base64.b64encode(SECRET).decode()}"]
SAFE: dict[str, Any] = {"safe": {"host": "127.0.0.1", "secure_access_token": "the token"}}
TOKEN = {"OpenSandbox-Secure-Access": "the token"}
Answered = tuple[int, dict[str, str]]


def ask(port: int, path: str, headers: Mapping[str, str] | None = None, *, source: str = "127.0.0.1") -> Answered:
    """Status and headers, on a connection of its own from an address of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20, source_address=(source, 0))
    try:
        connection.request("GET", path, headers=dict(headers or {}))
        response = connection.getresponse()
        response.read()
        return response.status, {name.lower(): value for name, value in response.getheaders()}
    finally:
        connection.close()


def signed(port: int, seconds: int = 600) -> tuple[str, str]:
    until = int(time.time()) + seconds
    return to_base36(until), RING.sign("a", "safe", port, until)


def test_i6_failures_are_counted_across_workers(start_gateway: Any, origin: Any) -> None:
    gateway = start_gateway(SAFE, KEYS, workers=2)
    path = f"/safe/{origin.port}/"
    began = time.monotonic()
    answers = [ask(gateway.port, path, {"OpenSandbox-Secure-Access": f"{n}"}) for n in range(60)]
    took = time.monotonic() - began
    statuses = [status for status, _ in answers]
    # Workers write without a lock; what such a race can lose is a count or two.
    assert 20 <= statuses.count(401) <= 22 + took
    assert statuses.count(429) == 60 - statuses.count(401)
    assert {headers["retry-after"] for status, headers in answers if status == 429} == {"1"}
    assert ask(gateway.port, path, TOKEN, source="127.0.0.2")[0] == 200, "the control: another address"
    deadline = time.monotonic() + 10
    while ask(gateway.port, path, TOKEN)[0] != 200:
        assert time.monotonic() < deadline, "a right token gets through after a second"
        time.sleep(0.1)
    assert len(origin.seen) == 2


def test_i6_a_signature_is_not_found_from_many_addresses(start_gateway: Any, origin: Any) -> None:
    gateway = start_gateway(SAFE, KEYS, workers=2)
    expires, right = signed(origin.port)
    begins = f"/safe/{origin.port}/{expires}"
    assert ask(gateway.port, f"{begins}/{right}/", source="127.0.9.9")[0] == 200, "the control"
    began = time.monotonic()
    statuses = []
    for n in range(300):
        guess = f"{n:08x}a"
        statuses.append(ask(gateway.port, f"{begins}/{guess}/", source=f"127.1.{n >> 8}.{n & 255}")[0])
    took = time.monotonic() - began
    assert statuses.count(401) <= 60 + 3 + 4 * took + 2
    assert statuses.count(429) >= 300 - 60 - 3 - 4 * took - 2
    assert ask(gateway.port, f"/safe/{origin.port}/", TOKEN, source="127.2.0.1")[0] == 200, "the owner, from anywhere"
    assert ask(gateway.port, f"{begins}/{right}/", source="127.0.9.9")[0] == 200, "whoever was let in lately"


def test_a_link_is_good_once_whichever_worker_gets_it(start_gateway: Any, origin: Any) -> None:
    gateway = start_gateway(SAFE, KEYS, workers=2)
    for _ in range(3):
        expires, signature = signed(origin.port, 600 + _)
        link = f"/safe/{origin.port}/.sallyport/enter?e={expires}&s={signature}&to=/in"
        answers: list[Answered] = []
        threads = [
            threading.Thread(target=lambda: answers.append(ask(gateway.port, link)))  # noqa: B023
            for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # 503: another worker was just at it
        assert sorted(status for status, _ in answers if status != 503) == [303] + [401] * (
            5 - sum(status == 503 for status, _ in answers)
        )
        assert ask(gateway.port, f"/safe/{origin.port}/{expires}/{signature}/")[0] == 401
        (entered,) = (headers for status, headers in answers if status == 303)
        cookie = entered["set-cookie"].partition(";")[0]
        assert ask(gateway.port, entered["location"], {"Cookie": f"theme=dark; {cookie}; x=y"})[0] == 200
    assert [headers.get("cookie") for _, headers in origin.seen] == ["theme=dark; x=y"] * 3


def test_what_opens_a_sandbox_never_reaches_it(start_gateway: Any, origin: Any) -> None:
    gateway = start_gateway(SAFE, KEYS)
    more = {"OpenSandbox_Secure_Access": "x", "OpenSandbox-Access-Renew": "skip", "Authorization": "Bearer own"}
    route = {"OpenSandbox-Ingress-To": f"safe-{origin.port}"}
    assert ask(gateway.port, "/", {**TOKEN, **more, **route})[0] == 200
    ((_, headers),) = origin.seen
    assert headers["authorization"] == "Bearer own"
    assert not [name for name in headers if "opensandbox" in name.replace("_", "-")]


@pytest.mark.parametrize("origin_header", ["https://evil.example", "null"])
def test_no_page_from_elsewhere_opens_a_websocket_by_cookie(
    start_gateway: Any, origin: Any, origin_header: str
) -> None:
    gateway = start_gateway(SAFE, KEYS)
    expires, signature = signed(origin.port)
    entered = ask(gateway.port, f"/safe/{origin.port}/.sallyport/enter?e={expires}&s={signature}")[1]
    upgrade = {
        "Cookie": entered["set-cookie"].partition(";")[0],
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    path = f"/safe/{origin.port}/ws"
    assert ask(gateway.port, path, {**upgrade, "Origin": origin_header})[0] == 401
    assert origin.seen == []
    here = f"http://127.0.0.1:{gateway.port}"
    assert ask(gateway.port, path, {**upgrade, "Origin": here})[0] == 200, (
        "the control: refused by the application only"
    )
    assert len(origin.seen) == 1


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1", "0.0.0.0", "localhost", "169.254.169.254"]
)
def test_i4_loopback_and_metadata_are_not_dialled(start_gateway: Any, origin: Any, host: str) -> None:
    start_gateway.write_routes({"box": {"host": host}})
    flags = ["--routes", str(start_gateway.routes_file), "--mode", "uri", "--host", "127.0.0.1", "--port", "0"]
    gateway = start_gateway(args=[*flags, "--admin-port", "any", "--workers", "1"], defaults=False)
    status, headers = ask(gateway.port, f"/box/{origin.port}/")
    assert (status, headers["sallyport-error"]) == (502, "forbidden_target")
    assert origin.seen == []


def test_i4_opened_on_purpose_the_gateway_itself_stays_closed(start_gateway: Any, origin: Any) -> None:
    hosts = {"box": "127.0.0.1", "other": "127.1.2.3", "name": "localhost", "zero": "0.0.0.0"}
    gateway = start_gateway(
        {name: {"host": host} for name, host in hosts.items()}, ["--allow-target", "127.0.0.0/8,::1,0.0.0.0"], workers=2
    )
    for name in hosts:
        for port in (gateway.port, gateway.admin_port):
            status, headers = ask(gateway.port, f"/{name}/{port}/livez")
            assert (status, headers["sallyport-error"]) == (502, "forbidden_target")
    for name in ("box", "name", "zero"):
        assert ask(gateway.port, f"/{name}/{origin.port}/")[0] == 200, "the control: another port"
