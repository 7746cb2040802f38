"""Path mode at the running gateway: redirects, cookies and Origin, as an application and a browser see them."""

from __future__ import annotations

import http.client
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.real.ingress.conftest import Gateway, StartGateway


class Application(BaseHTTPRequestHandler):
    """Answers with the header lines that the path's query asks for (`/?Location=/login`), and with what it was sent."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = json.dumps({"path": self.path, **{name.lower(): value for name, value in self.headers.items()}}).encode()
        self.send_response(200)
        if "?" in self.path:
            name, _, value = self.path.partition("?")[2].replace("+", " ").partition("=")
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def application() -> Iterator[int]:
    """Its port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Application)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


BOXES = {"box": {"host": "127.0.0.1"}, "other": {"host": "127.0.0.1"}}


def call(
    gateway: Gateway, path: str, method: str = "GET", **headers: str
) -> tuple[int, list[tuple[str, str]], dict[str, str]]:
    """Status, header lines and what the application was sent."""
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=20)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        body = answer.read()
        told = json.loads(body) if answer.status == 200 else {}
        return answer.status, answer.getheaders(), told
    finally:
        connection.close()


def values(headers: list[tuple[str, str]], wanted: str) -> list[str]:
    return [value for name, value in headers if name.lower() == wanted]


def test_a_redirect_gets_the_prefix_back(start_gateway: StartGateway, application: int) -> None:
    gateway = start_gateway(BOXES)
    prefix = f"/box/{application}"
    for said in (
        "/login",
        f"{prefix}/login",
        f"http://127.0.0.1:{gateway.port}/login",
        f"http://localhost:{application}/login",
    ):
        _, headers, told = call(gateway, f"{prefix}/?Location={said}")
        assert values(headers, "location") == [f"{prefix}/login"], said
        assert told["x-forwarded-prefix"] == prefix
    _, headers, _ = call(gateway, f"{prefix}/?Location=https://elsewhere.example/login")
    assert values(headers, "location") == ["https://elsewhere.example/login"]
    host = f"box-{application}.localhost"
    _, headers, told = call(gateway, "/?Location=/login", Host=host)
    assert values(headers, "location") == ["/login"]
    assert "x-forwarded-prefix" not in told


def test_a_trusted_proxys_own_prefix_belongs_to_it(start_gateway: StartGateway, application: int) -> None:
    """The application is told of both, so a redirect may come with both already."""
    trusting = start_gateway(BOXES, ["--trusted-proxies", "127.0.0.1/32"])
    prefix = f"/box/{application}"
    for said in ("/login", f"/sandboxes{prefix}/login"):
        _, headers, told = call(trusting, f"{prefix}/?Location={said}", X_Forwarded_Prefix="/sandboxes")
        assert values(headers, "location") == [f"/sandboxes{prefix}/login"], said
        assert told["x-forwarded-prefix"] == f"/sandboxes{prefix}"
    _, headers, _ = call(trusting, f"{prefix}/?Location=/login")
    assert values(headers, "location") == [f"{prefix}/login"]


def test_i3_a_prefix_that_a_client_makes_up_counts_for_nothing(start_gateway: StartGateway, application: int) -> None:
    gateway = start_gateway(BOXES)
    _, headers, told = call(gateway, f"/box/{application}/?Location=/login", X_Forwarded_Prefix="/sandboxes")
    assert values(headers, "location") == [f"/box/{application}/login"]
    assert told["x-forwarded-prefix"] == f"/box/{application}"


def test_a_cookie_comes_back_to_its_sandbox_by_absolute_links_too(
    start_gateway: StartGateway, application: int
) -> None:
    gateway = start_gateway(BOXES, ["--route-cookie"])
    _, headers, _ = call(gateway, f"/box/{application}/?Set-Cookie=sid=1;+Path=/")
    below, wide = values(headers, "set-cookie")
    assert below == f"sid=1; Path=/box/{application}/"
    assert wide.endswith("-sid=1; HttpOnly; Path=/")
    hidden = wide.partition(";")[0]

    def told(route: str, *cookies: str) -> str | None:
        cookie = "; ".join([f"sallyport-route={route}/{application}", *cookies])
        return call(gateway, "/api", Cookie=cookie, Sec_Fetch_Dest="empty")[2].get("cookie")

    assert told("box", hidden) == "sid=1"
    assert told("box", hidden, "sid=2") == "sid=2"
    assert told("other", hidden) is None  # what one sandbox keeps there is not for the next
    status, headers, _ = call(gateway, f"/other/{application}/", Cookie=hidden)
    assert status == 200
    assert call(gateway, f"/other/{application}/", Cookie=hidden)[2].get("cookie") is None


def test_a_page_without_its_prefix_is_moved_below_it(start_gateway: StartGateway, application: int) -> None:
    gateway = start_gateway(BOXES, ["--route-cookie"])
    cookie = f"sallyport-route=box/{application}"
    status, headers, _ = call(gateway, "/tree?a=b", Cookie=cookie, Sec_Fetch_Dest="document")
    assert (status, values(headers, "location")) == (307, [f"/box/{application}/tree?a=b"])
    assert call(gateway, "/tree", Cookie=cookie, Sec_Fetch_Dest="script")[2]["path"] == "/tree"
    assert call(gateway, "/tree", "POST", Cookie=cookie, Sec_Fetch_Dest="document")[2]["path"] == "/tree"


def test_origin_follows_host(start_gateway: StartGateway, application: int) -> None:
    """Where it was the same place; and what was decided for one section of headers is not for the next one's Origin."""
    gateway = start_gateway(BOXES, ["--upstream-host", "localhost"])
    host = f"box-{application}.sandboxes.test"
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=20)
    for origin, arrives in (
        (f"https://{host}", "https://localhost"),
        ("https://evil.example", "https://evil.example"),
    ) * 2:
        connection.request("GET", "/", headers={"Host": host, "Origin": origin, "X-Other": origin})
        told = json.loads(connection.getresponse().read())
        assert (told["host"], told["origin"], told["x-other"]) == ("localhost", arrives, origin)
    connection.close()


def test_location_follows_a_host_that_was_changed(start_gateway: StartGateway, application: int) -> None:
    """By host name too; the control is the gateway that leaves Host as it is."""
    host = f"box-{application}.sandboxes.test"
    told = "http://localhost:3000/login"
    changing = start_gateway(BOXES, ["--upstream-host", "localhost:3000"])
    for said, meant in ((told, "/login"), ("https://elsewhere.example/", "https://elsewhere.example/"), ("/a", "/a")):
        assert values(call(changing, f"/?Location={said}", Host=host)[1], "location") == [meant]
    assert values(call(changing, f"/?Set-Cookie=a={told}", Host=host)[1], "set-cookie") == [f"a={told}"]
    plain = start_gateway(BOXES)
    assert values(call(plain, f"/?Location={told}", Host=host)[1], "location") == [told]
