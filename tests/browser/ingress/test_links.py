"""A signed link, opened by a person: a cookie that no script reads, a clean URL, and good once."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.browser.ingress.applications import CHECKOUT

if TYPE_CHECKING:
    from tests.browser.ingress.applications import Application
    from tests.browser.ingress.conftest import OpenGateway
    from tests.browser.ingress.webdriver import Browser, Driver

KEY = "a=MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="


def sign(base: str, port: int, form: str, to: str = "/") -> str:
    """A link from `ingress sign`."""
    argv = ["--key", KEY, "--expires", "10m", "--form", form, "--base", base, "--to", to, "box", str(port)]
    done = subprocess.run(
        [sys.executable, "-m", "ingress", "sign", *argv],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("form", ["link", "host-link"])
def test_a_link_is_good_once(
    browser: Browser, driver: Driver, gate: OpenGateway, desktop: Application, form: str
) -> None:
    gateway = gate("--secure-access-keys", KEY, secure_access_token="the owner's")
    link = sign(f"http://localhost:{gateway.port}", desktop.port, form, "/?from=link")
    clean = (
        f"http://localhost:{gateway.port}/box/{desktop.port}/?from=link"
        if form == "link"
        else f"http://box-{desktop.port}.localhost:{gateway.port}/?from=link"
    )
    browser.open(clean)
    browser.shows("sign")  # the control: nobody is let in without it
    assert browser.text("#state") == ""

    browser.open(link)
    assert browser.url == clean
    browser.shows("connected", "#state")  # its files and its WebSocket come by the cookie too
    cookie = browser.cookies()["sallyport-access"]
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Lax"
    assert cookie["path"] == (f"/box/{desktop.port}" if form == "link" else "/")
    assert browser.js("return document.cookie") == ""

    other = driver.session()
    try:
        other.open(link)
        assert other.text("#state") == ""
        assert "sallyport-access" not in other.cookies()
        other.shows("sign")
    finally:
        other.close()

    browser.open(clean)  # who came first is still in
    browser.shows("connected", "#state")


def test_a_link_to_an_application_with_absolute_links(browser: Browser, gate: OpenGateway, vite: Application) -> None:
    """With a route cookie the way in holds for those as well, hot reload's WebSocket included."""
    gateway = gate("--secure-access-keys", KEY, "--route-cookie", secure_access_token="the owner's")
    browser.open(sign(f"http://localhost:{gateway.port}", vite.port, "link"))
    assert browser.url == f"http://localhost:{gateway.port}/box/{vite.port}/"
    browser.shows("Hello from the sandbox", "#greeting")
    browser.until(lambda: any("[vite] connected" in line for line in browser.console()), "Vite's WebSocket")
