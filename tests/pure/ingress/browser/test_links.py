"""A signed link, opened once, is a cookie and a clean URL; what a cookie is good for, and what not."""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingress.admission.access import KeyRing
from ingress.admission.browser import is_inner
from ingress.routes import Sandbox
from tests.pure.ingress.gate.asking import KEYS, NOW, SECRET, House, ask, signed

if TYPE_CHECKING:
    from ingress.admission.verdict import Reply

ROUTE = signed()
HOST = "safe-8080.example.com"


def header(reply: Reply, name: str) -> list[str]:
    lines = [line.partition(b": ") for line in reply.headers.split(b"\r\n")]
    return [value.decode() for key, _, value in lines if key.decode().lower() == name.lower()]


def enter(house: House, *lines: str, by_host: bool = False, to: str = "", secure: bool = False) -> Reply:
    query = ROUTE.link + (f"&to={quote(to, safe='')}" if to else "")
    head = ask(query, *lines, host=HOST) if by_host else ask("/safe/8080" + query, *lines)
    return house.reply(head, secure=secure)


def cookie_of(reply: Reply) -> str:
    """`name=value` of the first cookie that is set."""
    return header(reply, "set-cookie")[0].partition(";")[0]


def test_a_link_by_path_is_a_cookie_and_a_clean_url(house: House) -> None:
    reply = enter(house, to="/lab?reset&x=%2F")
    assert reply.status == 303
    assert header(reply, "location") == ["/safe/8080/lab?reset&x=%2F"]
    value = hmac.new(
        SECRET, f"v1\nsallyport cookie\nsafe\n8080\n{int(NOW) + 600}\nthe token".encode(), sha256
    ).hexdigest()
    assert header(reply, "set-cookie") == [
        f"sallyport-access=v1.{ROUTE.expires}.a.{value}; Max-Age=600; Path=/safe/8080; HttpOnly; SameSite=Lax"
    ]
    assert header(reply, "referrer-policy") == ["no-referrer"]
    assert header(reply, "cache-control") == ["no-store"]
    assert ROUTE.signature.encode() not in reply.body
    found = house.admit(ask("/safe/8080/lab", f"Cookie: theme=dark; {cookie_of(reply)}; x=y"))
    assert (found.target, found.prefix) == (b"/lab", b"/safe/8080")


def test_a_link_by_host_name_is_a_cookie_for_that_host(house: House) -> None:
    reply = enter(house, by_host=True, to="/lab", secure=True)
    assert header(reply, "location") == ["/lab"]
    (line,) = header(reply, "set-cookie")
    assert line.endswith("; Max-Age=600; Path=/; HttpOnly; SameSite=Lax; Secure")
    assert "domain" not in line.lower()
    assert house.status(ask("/lab", f"Cookie: {cookie_of(reply)}", host=HOST)) == 0


def test_a_link_is_good_once_in_every_form(house: House) -> None:
    assert house.status(ask(ROUTE.path)) == 0, "the control: a signed route before it"
    enter(house)
    assert house.status(ask("/safe/8080" + ROUTE.link)) == 401
    assert house.status(ask(ROUTE.link, host=HOST)) == 401
    assert house.status(ask(ROUTE.path)) == 401
    assert house.status(ask("/", f"OpenSandbox-Ingress-To: {ROUTE.token}")) == 401
    other = signed(until=NOW + 601)
    assert house.status(ask(other.path)) == 0, "the control: another signature"


def test_who_goes_back_to_his_link_is_let_through(house: House) -> None:
    cookie = cookie_of(enter(house))
    again = house.reply(ask("/safe/8080" + ROUTE.link + "&to=/x", f"Cookie: {cookie}"))
    assert (again.status, header(again, "location"), header(again, "set-cookie")) == (303, ["/safe/8080/x"], [])


def test_a_link_fetched_ahead_is_not_used_up(house: House) -> None:
    for line in ("Sec-Purpose: prefetch;prerender", "Purpose: prefetch"):
        assert house.status(ask("/safe/8080" + ROUTE.link, line)) == 503
    assert house.refused(ask("/safe/8080" + ROUTE.link, method="HEAD")).status == 405
    assert enter(house).status == 303


@pytest.mark.parametrize(
    "link",
    [
        ROUTE._replace(signature="00000000a").link,
        ROUTE._replace(signature="").link,
        ROUTE._replace(signature="0A1B2C3Da").link,
        ROUTE._replace(expires="0z").link,
        signed(until=NOW - 1).link,
        signed(port=81).link,
        signed("box").link,
    ],
)
def test_wrong_links_are_401_like_everything_wrong(house: House, link: str) -> None:
    assert house.refused(ask("/safe/8080" + link)).code == "access_denied"


def test_wrong_links_are_counted(house: House) -> None:
    wrong = ask("/safe/8080" + ROUTE._replace(signature="00000000a").link)
    assert [house.status(wrong) for _ in range(21)] == [401] * 20 + [429]


def test_without_keys_a_link_is_503(house: House) -> None:
    house.gate.keys = KeyRing()
    assert house.status(ask("/safe/8080" + ROUTE.link)) == 503


def test_a_link_to_an_open_sandbox_leads_there(house: House) -> None:
    reply = house.reply(ask("/box/80/.sallyport/enter?e=z&s=00000000a&to=/x"))
    assert (reply.status, header(reply, "location"), header(reply, "set-cookie")) == (303, ["/box/80/x"], [])


def test_only_the_one_path_is_reserved(house: House) -> None:
    for path in (
        "/.sallyport/",
        "/.sallyport/enterx",
        "/.sallyport/enter/x",
        "/%2esallyport/enter",
        "//.sallyport/enter",
    ):
        assert house.admit(ask("/box/80" + path)).target == path.encode()


# -- where to --------------------------------------------------------------------------------------------------------

OUTSIDE = [
    "//evil.example/",
    "///evil.example/",
    "/\\evil.example/",
    "\\\\evil.example",
    "https://evil.example/",
    "javascript:alert(1)",
    "evil",
    "",
    "/a\r\nSet-Cookie: x=y",
    "/a\nb",
    "/a\tb",
    "/a b",
    "/a\x00b",
    "/\x7f",
    "/caf\u00e9",
    "/../other/80/",
    "/a/../../other/80/",
    "/a/./b",
    "/%2e%2e/other/80/",
    "/.%2E/other",
    "/a/..",
    "/..?x",
    "/..#x",
]


@pytest.mark.parametrize("to", OUTSIDE)
def test_no_link_leads_out_of_its_sandbox(house: House, to: str) -> None:
    for head in (
        ask(f"/safe/8080{ROUTE.link}&to={quote(to, safe='')}"),
        ask(f"{ROUTE.link}&to={quote(to, safe='')}", host=HOST),
    ):
        refusal = house.refused(head)
        assert (refusal.status, refusal.code) == (400, "bad_link")
    assert enter(house, to="/a//b;c/...%2F?x=//y#/../z").status == 303, "the control, and the link is still good"


@pytest.mark.parametrize(
    "query", ["", "?", "?e=z", "?s=00000000a", "?e=z&e=z&s=00000000a", "?e=z&s=00000000a&x=y", "?&"]
)
def test_a_link_that_is_not_whole_is_400(house: House, query: str) -> None:
    assert house.refused(ask("/safe/8080/.sallyport/enter" + query)).code == "bad_link"


@given(st.binary(max_size=30))
def test_an_inner_path_has_nothing_that_a_browser_reads_otherwise(path: bytes) -> None:
    if is_inner(path):
        assert path.startswith(b"/")
        assert not path.startswith(b"//")
        assert b"\\" not in path
        assert all(33 <= octet <= 126 for octet in path)


# -- the cookie ------------------------------------------------------------------------------------------------------


def test_i6_a_cookie_is_for_one_sandbox_one_port_one_time_one_token(house: House) -> None:
    house.routes.put(Sandbox("other", "10.0.0.4", token="the token"))
    cookie = f"Cookie: {cookie_of(enter(house))}"
    assert house.status(ask("/safe/8080/", cookie)) == 0, "the control"
    assert house.status(ask("/safe/8081/", cookie)) == 401
    assert house.status(ask("/other/8080/", cookie)) == 401
    name, _, value = cookie.partition("=")
    version, expires, key_id, mac = value.split(".")
    for forged in (
        f"v1.zzzzzz.{key_id}.{mac}",
        f"v1.{expires}.b.{mac}",
        f"v1.{expires}.c.{mac}",
        f"v1.{expires}.{key_id}.{mac[:-1]}{'0' if mac[-1] != '0' else '1'}",
        f"v1.{expires}.{key_id}.{mac[:8]}",
        f"v2.{expires}.{key_id}.{mac}",
        f"v1.{expires}.{key_id}.{mac.upper()}",
        "",
    ):
        assert house.status(ask("/safe/8080/", f"{name}={forged}")) == 401
    house.now = NOW + 600.9
    assert house.status(ask("/safe/8080/", cookie)) == 0
    house.now = NOW + 601
    assert house.status(ask("/safe/8080/", cookie)) == 401
    house.now = NOW
    house.routes.put(Sandbox("safe", "10.0.0.2", token="a new token"))
    assert house.status(ask("/safe/8080/", cookie)) == 401
    assert version == "v1"


def test_no_secret_stands_in_for_a_key_that_is_not_there(house: House) -> None:
    message = f"v1\nsallyport cookie\nsafe\n8080\n{int(NOW) + 600}\nthe token".encode()
    for stand_in in (b"", b"\0" * 32):
        forged = f"v1.{ROUTE.expires}.z.{hmac.new(stand_in, message, sha256).hexdigest()}"
        assert house.status(ask("/safe/8080/", f"Cookie: sallyport-access={forged}")) == 401


def test_a_cookie_ends_with_its_key(house: House) -> None:
    cookie = f"Cookie: {cookie_of(enter(house))}"
    secret = KEYS.secret("b")
    assert secret is not None
    house.gate.keys = KeyRing({"b": secret})
    assert house.status(ask("/safe/8080/", cookie)) == 401


def test_the_access_header_decides_where_it_is_present(house: House) -> None:
    cookie = f"Cookie: {cookie_of(enter(house))}"
    assert house.status(ask("/safe/8080/", cookie, "OpenSandbox-Secure-Access: wrong")) == 401
    assert house.status(ask("/safe/8080/", cookie, "OpenSandbox-Secure-Access:")) == 401
    assert house.status(ask("/safe/8080/", "Cookie: sallyport-access=x", "OpenSandbox-Secure-Access: the token")) == 0


def test_wrong_cookies_are_counted(house: House) -> None:
    wrong = ask("/safe/8080/", "Cookie: sallyport-access=v1.zzzzzz.a." + "0" * 64)
    assert [house.status(wrong) for _ in range(21)] == [401] * 20 + [429]


def test_a_wrong_cookie_beside_a_right_one_or_a_right_signature_does_no_harm(house: House) -> None:
    cookie = cookie_of(enter(house))
    old = "sallyport-access=v1.z.a." + "0" * 64
    for _ in range(30):
        assert house.status(ask("/safe/8080/", f"Cookie: {old}; {cookie}")) == 0
        assert house.status(ask(signed(until=NOW + 700).path, f"Cookie: {old}")) == 0


WEBSOCKET = ("Connection: Upgrade", "Upgrade: websocket")


@pytest.mark.parametrize(
    ("method", "lines", "origin", "status"),
    [
        ("GET", (), "https://evil.example", 0),
        ("HEAD", (), "https://evil.example", 0),
        ("POST", (), None, 0),
        ("POST", (), "https://gw.example.com", 0),
        ("POST", (), "http://GW.example.com:80", 0),
        ("POST", (), "https://gw.example.com:443", 0),
        ("POST", (), "https://gw.example.com:444", 401),
        ("POST", (), "https://evil.example", 401),
        ("POST", (), "https://box-80.gw.example.com", 401),
        ("POST", (), "https://gw.example.com.evil.example", 401),
        ("POST", (), "https://gw.example.com@evil.example", 401),
        ("POST", (), "null", 401),
        ("POST", (), "", 401),
        ("POST", (), "https://gw.example.com, https://evil.example", 401),
        ("DELETE", (), "https://evil.example", 401),
        ("PROPFIND", (), "https://evil.example", 401),
        ("GET", WEBSOCKET, None, 0),
        ("GET", WEBSOCKET, "https://gw.example.com", 0),
        ("GET", WEBSOCKET, "https://evil.example", 401),
        ("GET", WEBSOCKET, "https://neighbour-80.gw.example.com", 401),
        ("GET", WEBSOCKET, "null", 401),
    ],
)
def test_no_page_from_elsewhere_acts_by_cookie(
    house: House, method: str, lines: tuple[str, ...], origin: str | None, status: int
) -> None:
    cookie = cookie_of(enter(house))
    more = () if origin is None else (f"Origin: {origin}",)
    assert house.status(ask("/safe/8080/", f"Cookie: {cookie}", *lines, *more, method=method)) == status
    token = "OpenSandbox-Secure-Access: the token"
    assert house.status(ask("/safe/8080/", token, *lines, *more, method=method)) == 0, "the control: it is the cookie"


def test_a_connection_that_is_known_by_a_safe_method_is_asked_again_for_another(house: House) -> None:
    head = ask("/safe/8080/", f"Cookie: {cookie_of(enter(house))}", "Origin: https://evil.example")
    assert house.status(head) == 0
    head.method = b"POST"
    assert house.status(head) == 401


# -- the route cookie ------------------------------------------------------------------------------------------------

PAGE = "Accept: text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"


def test_a_page_sets_the_route_cookie_and_nothing_else_does(cookie_house: House) -> None:
    page = cookie_house.admit(ask("/box/80/", PAGE))
    assert page.set_cookie == b"Set-Cookie: sallyport-route=box/80; Path=/; HttpOnly; SameSite=Lax\r\n"
    secure = cookie_house.admit(ask("/box/80/", "Sec-Fetch-Dest: document"), secure=True)
    assert secure.set_cookie.endswith(b"; Secure\r\n")
    for head in (
        ask("/box/80/", PAGE, method="POST"),
        ask("/box/80/", "Accept: */*"),
        ask("/box/80/", PAGE, "Sec-Fetch-Dest: empty"),
        ask("/box/80/", PAGE, "Cookie: sallyport-route=box/80"),
        ask("/", PAGE, "OpenSandbox-Ingress-To: box-80"),
    ):
        assert cookie_house.admit(head).set_cookie == b""
    again = ask("/box/80/", PAGE)
    assert cookie_house.admit(again).set_cookie
    assert cookie_house.admit(again).set_cookie, "also for a connection that is known"


def test_without_the_setting_there_is_no_route_cookie(house: House) -> None:
    assert house.admit(ask("/box/80/", PAGE)).set_cookie == b""
    assert house.refused(ask("/static/app.js", "Cookie: sallyport-route=box/80")).status == 400


@pytest.mark.parametrize("target", ["/static/app.js", "/", "/api/8080x", "/nobody/80/x", "//x", "/?q", "/status.ok"])
def test_what_is_no_sandbox_path_goes_where_the_cookie_says(cookie_house: House, target: str) -> None:
    found = cookie_house.admit(ask(target, "Cookie: a=b; sallyport-route=box/80"))
    assert (found.sandbox.id, found.port, found.prefix) == ("box", 80, b"/box/80")
    assert found.target == target.encode()
    assert found.request_uri == target.partition("?")[0]


def test_a_sandbox_path_is_one_whatever_the_cookie_says(cookie_house: House) -> None:
    cookie_house.routes.put(Sandbox("other", "10.0.0.4"))
    found = cookie_house.admit(ask("/other/81/x", "Cookie: sallyport-route=box/80"))
    assert (found.sandbox.id, found.target) == ("other", b"/x")


def test_the_page_a_request_comes_from_says_more_than_the_cookie(cookie_house: House) -> None:
    cookie_house.routes.put(Sandbox("other", "10.0.0.4"))
    cookie = "Cookie: sallyport-route=box/80"
    mine = "Referer: http://gw.example.com/other/81/page?x"
    assert cookie_house.admit(ask("/app.js", cookie, mine)).sandbox.id == "other"
    assert cookie_house.admit(ask("/app.js", mine)).sandbox.id == "other"
    for referer in ("http://evil.example/other/81/", "/other/81/", "http://gw.example.com/static/app.css", "x"):
        assert cookie_house.admit(ask("/app.js", cookie, f"Referer: {referer}")).sandbox.id == "box"


@pytest.mark.parametrize("value", ["", "box", "box/0", "nobody/80", "box/80/x", "/80", "box/80?x", "../80"])
def test_a_route_cookie_that_says_nothing(cookie_house: House, value: str) -> None:
    assert cookie_house.status(ask("/app.js", f"Cookie: sallyport-route={value}")) in (400, 404)


def test_access_still_applies(cookie_house: House) -> None:
    routed = "Cookie: sallyport-route=safe/8080"
    assert cookie_house.status(ask("/app.js", routed)) == 401
    assert cookie_house.status(ask("/app.js", routed, "OpenSandbox-Secure-Access: the token")) == 0
    signed_page = f"Referer: http://gw.example.com{ROUTE.path}/page"
    assert cookie_house.status(ask("/app.js", signed_page)) == 0, "the page's own signature"
    wrong_page = f"Referer: http://gw.example.com{ROUTE._replace(signature='00000000a').path}/page"
    assert cookie_house.status(ask("/app.js", wrong_page)) == 401


def test_with_the_route_cookie_a_link_opens_absolute_links_too(cookie_house: House) -> None:
    cookies = header(enter(cookie_house), "set-cookie")
    assert [line.split("; ")[2] for line in cookies] == ["Path=/safe/8080", "Path=/"]
    wide = cookies[1].partition(";")[0]
    assert not wide.startswith("sallyport-access=")
    assert cookie_house.status(ask("/app.js", f"Cookie: sallyport-route=safe/8080; {wide}")) == 0
    assert cookie_house.status(ask("/app.js", "Cookie: sallyport-route=safe/8080")) == 401, "the control"


def test_two_sandboxes_keep_their_cookies_apart(cookie_house: House) -> None:
    cookie_house.routes.put(Sandbox("two", "10.0.0.4", token="the token"))
    second = signed("two", 80)
    one = header(enter(cookie_house), "set-cookie")[1].partition(";")[0]
    two = header(cookie_house.reply(ask("/two/80" + second.link)), "set-cookie")[1].partition(";")[0]
    both = f"Cookie: {one}; {two}"
    for page in ("/safe/8080/", "/two/80/"):
        assert cookie_house.status(ask("/app.js", both, f"Referer: http://gw.example.com{page}")) == 0
