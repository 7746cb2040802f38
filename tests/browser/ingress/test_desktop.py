"""A desktop as noVNC shows one: binary frames over a WebSocket that asks for a subprotocol, pixels and clicks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.browser.ingress.applications import Application
    from tests.browser.ingress.conftest import OpenGateway
    from tests.browser.ingress.webdriver import Browser

PIXEL = """
const screen = document.querySelector("#screen canvas");
return screen && Array.from(screen.getContext("2d").getImageData(160, 100, 1, 1).data).slice(0, 3);
"""
BLUE, GREEN = [0x20, 0x50, 0xC8], [0x30, 0xA0, 0x40]


def draws_and_takes_a_click(browser: Browser) -> None:
    browser.shows("connected", "#state")
    browser.until(lambda: browser.js(PIXEL) == BLUE, "a blue screen")
    assert browser.js("return document.title") == "a sandbox's screen"
    browser.click("#screen canvas")
    browser.until(lambda: browser.js(PIXEL) == GREEN, "a green screen")


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:{gate}/box/{port}/",
        "http://localhost:{gate}/box/{port}",  # as people type it
        "http://box-{port}.localhost:{gate}/",
    ],
)
def test_by_path_and_by_host_name(browser: Browser, gate: OpenGateway, desktop: Application, url: str) -> None:
    """Its links are relative: path mode needs nothing more."""
    browser.open(url.format(gate=gate().port, port=desktop.port))
    draws_and_takes_a_click(browser)


def test_the_screen_goes_with_its_sandbox(browser: Browser, gate: OpenGateway, desktop: Application) -> None:
    gateway = gate()
    browser.open(f"http://localhost:{gateway.port}/box/{desktop.port}/")
    browser.shows("connected", "#state")
    gateway.stop()
    browser.shows("disconnected", "#state")
