"""Vite's dev server with hot reload, which breaks first: its module graph, its WebSocket, its Host check."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.browser.ingress.applications import Application
    from tests.browser.ingress.conftest import OpenGateway
    from tests.browser.ingress.webdriver import Browser


def connected(browser: Browser) -> None:
    """Wait for the WebSocket of hot reload: before it, an edit would go unnoticed."""
    browser.until(lambda: any("[vite] connected" in line for line in browser.console()), "Vite's WebSocket")


def reloads_hot(browser: Browser, vite: Application) -> None:
    """The page, its modules and its style are there; an edited module is exchanged, and the page goes on."""
    browser.shows("Hello from the sandbox", "#greeting")
    assert browser.js("return getComputedStyle(document.body).backgroundColor") == "rgb(240, 246, 252)"
    connected(browser)
    browser.click("#count")
    browser.click("#count")
    module = vite.folder / "src" / "greeting.js"
    module.write_text('export const greeting = "Edited while you watch";\n')
    browser.shows("Edited while you watch", "#greeting")
    assert browser.text("#count") == "2", "the page was loaded anew"


def test_by_host_name(browser: Browser, gate: OpenGateway, vite: Application) -> None:
    gateway = gate()
    browser.open(f"http://box-{vite.port}.localhost:{gateway.port}/")
    reloads_hot(browser, vite)
    assert browser.cookies() == {}


def test_by_path_with_a_route_cookie(browser: Browser, gate: OpenGateway, vite: Application) -> None:
    """Its links are absolute: `/src/main.js`, `/@vite/client`, and a WebSocket at `/`."""
    gateway = gate("--route-cookie")
    browser.open(f"{gateway.base.replace('127.0.0.1', 'localhost')}/box/{vite.port}/")
    reloads_hot(browser, vite)
    cookie = browser.cookies()["sallyport-route"]
    assert cookie["httpOnly"]
    assert cookie["value"] == f"box/{vite.port}"


def test_by_path_without_one_the_absolute_links_lead_nowhere(
    browser: Browser, gate: OpenGateway, vite: Application
) -> None:
    """The control, and the reason for the cookie."""
    gateway = gate()
    browser.open(f"{gateway.base}/box/{vite.port}/")
    browser.shows("not loaded", "#greeting")
    assert browser.js("return document.scripts[0].src").endswith("/@vite/client")
    assert any("Failed to load resource" in line for line in browser.console())


def test_its_host_check_sees_the_host_as_sent(browser: Browser, gate: OpenGateway, vite: Application) -> None:
    gateway = gate()
    browser.open(f"http://box-{vite.port}.sandboxes.test:{gateway.port}/")
    browser.shows("Blocked request")
    browser.shows(f"box-{vite.port}.sandboxes.test")


@pytest.mark.parametrize("of", ["the gateway", "the route"])
def test_its_host_check_is_content_with_localhost(
    browser: Browser, gate: OpenGateway, vite: Application, of: str
) -> None:
    """For pages and upgrades alike, or hot reload would not come up."""
    gateway = gate("--upstream-host", "localhost") if of == "the gateway" else gate(upstream_host="localhost")
    browser.open(f"http://box-{vite.port}.sandboxes.test:{gateway.port}/")
    reloads_hot(browser, vite)
