"""With a route cookie: pages are moved below their prefix, everything else goes on from where it is, with its jar."""

from __future__ import annotations

import pytest

from ingress.http1.prefix import jar
from tests.pure.ingress.gate.asking import House, ask, signed

COOKIE = "Cookie: sallyport-route=box/8080"


@pytest.fixture
def house() -> House:
    return House(route_cookie=True)


@pytest.mark.parametrize(
    "lines",
    [
        ("Sec-Fetch-Dest: document",),
        ("Sec-Fetch-Dest: iframe",),
        ("Accept: text/html,*/*",),
    ],
)
def test_a_page_is_moved_below_its_prefix(house: House, lines: tuple[str, ...]) -> None:
    reply = house.reply(ask("/tree//a?b=%2F", COOKIE, *lines))
    assert reply.status == 307
    assert b"Location: /box/8080/tree//a?b=%2F\r\n" in reply.headers
    assert house.admit(ask("/box/8080/tree//a?b=%2F", COOKIE, *lines)).target == b"/tree//a?b=%2F"


@pytest.mark.parametrize(
    ("method", "lines"),
    [
        ("GET", ("Sec-Fetch-Dest: script", "Accept: */*")),
        ("GET", ("Sec-Fetch-Dest: empty", "Accept: text/html")),
        ("POST", ("Sec-Fetch-Dest: document",)),  # a form: its body and its method go where it was sent
        ("GET", ("Connection: Upgrade", "Upgrade: websocket")),
    ],
)
def test_all_else_goes_on_without_the_prefix(house: House, method: str, lines: tuple[str, ...]) -> None:
    admission = house.admit(ask("/api/x", COOKIE, *lines, method=method))
    assert (admission.target, admission.prefix) == (b"/api/x", b"/box/8080")
    assert admission.jar == jar(b"/box/8080")


def test_a_signed_page_is_moved_with_its_signature(house: House) -> None:
    route = signed()
    page = f"Referer: http://gw.example.com{route.path}/"
    reply = house.reply(ask("/next", page, "Sec-Fetch-Dest: document"))
    assert f"Location: {route.path}/next\r\n".encode() in reply.headers
    admission = house.admit(ask("/api", page))
    assert admission.jar == jar(b"/safe/8080")
    assert house.admit(ask(route.path + "/x")).jar == admission.jar


def test_a_page_that_may_not_be_seen_is_not_moved(house: House) -> None:
    assert house.status(ask("/next", "Cookie: sallyport-route=safe/8080", "Sec-Fetch-Dest: document")) == 401


def test_the_jar_is_remembered_with_the_header_section(house: House) -> None:
    head = ask("/box/8080/a", "X: 1")
    first = house.admit(head)
    head.target = b"/box/8080/b"
    second = house.admit(head)
    assert (first.jar, second.jar) == (jar(b"/box/8080"), jar(b"/box/8080"))


def test_without_a_route_cookie_there_is_no_jar() -> None:
    house = House()
    assert house.admit(ask("/box/8080/a")).jar == b""
    assert house.admit(ask("/a", host="box-8080.example.com")).jar == b""


def test_by_host_name_there_is_no_jar(house: House) -> None:
    assert house.admit(ask("/a", host="box-8080.example.com")).jar == b""


# ---- a prefix without its slash ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "there"),
    [("/box/8080", b"8080/"), ("/box/8080?a=b", b"8080/?a=b")],
)
def test_a_page_at_the_bare_prefix_gets_its_slash(target: str, there: bytes) -> None:
    """Or its relative links, `./main.js`, would be looked for beside it. With a route cookie and without one."""
    for house in (House(), House(route_cookie=True)):
        for _ in range(2):
            head = ask(target, "Sec-Fetch-Dest: document")
            assert house.reply(head).headers.startswith(b"Location: " + there + b"\r\n")


def test_who_is_no_browser_gets_the_page_itself() -> None:
    """The contract: nothing left means /."""
    house = House()
    for lines in ((), ("Accept: text/html",), ("Sec-Fetch-Dest: empty",)):
        assert house.admit(ask("/box/8080", *lines)).target == b"/"
    assert house.admit(ask("/box/8080", "Sec-Fetch-Dest: document", method="POST")).target == b"/"
    assert house.admit(ask("/box/8080/", "Sec-Fetch-Dest: document")).target == b"/"


def test_a_signed_prefix_gets_its_slash_too() -> None:
    house = House()
    route = signed()
    reply = house.reply(ask(route.path, "Sec-Fetch-Dest: document"))
    assert f"Location: {route.signature}/\r\n".encode() in reply.headers


def test_what_is_remembered_of_a_section_does_not_hide_the_slash() -> None:
    house = House()
    head = ask("/box/8080/", "Sec-Fetch-Dest: document")
    house.admit(head)
    head.target = b"/box/8080"
    assert house.reply(head).status == 307
    head.method = b"POST"
    assert house.admit(head).target == b"/"
