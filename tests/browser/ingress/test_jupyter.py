"""JupyterLab: a login with cookies, redirects, an XSRF token, checks of Host and Origin, and cells over WebSockets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.browser.ingress.applications import JUPYTER_TOKEN

if TYPE_CHECKING:
    from tests.browser.ingress.applications import Application
    from tests.browser.ingress.conftest import OpenGateway
    from tests.browser.ingress.webdriver import Browser

SHIFT, ENTER = "\ue008", "\ue007"


FRESH = "lab?reset"
"""Without what an earlier test had open."""


def log_in(browser: Browser) -> None:
    browser.type("#password_input", JUPYTER_TOKEN)
    browser.click("#login_submit")


def runs_a_cell(browser: Browser) -> None:
    """A new notebook; what its cell computes comes back from the kernel."""
    browser.click(".jp-LauncherCard[title^='Python 3']")
    browser.shows("Idle", "#jp-main-statusbar")
    browser.click(".jp-Notebook .jp-Cell .cm-content")
    browser.type(".jp-Notebook .jp-Cell .cm-content", "'from the ' + 'kernel', 6 * 7")
    browser.keys(f"{SHIFT}+{ENTER}")
    browser.shows("('from the kernel', 42)", ".jp-OutputArea-output")


def test_by_host_name(browser: Browser, gate: OpenGateway, jupyter: Application) -> None:
    gateway = gate()
    browser.open(f"http://box-{jupyter.port}.localhost:{gateway.port}/{FRESH}")
    log_in(browser)
    runs_a_cell(browser)


def test_by_path_with_a_route_cookie(browser: Browser, gate: OpenGateway, jupyter: Application) -> None:
    """Everything it links to is absolute; its redirects stay below the prefix, and its cookies its own."""
    gateway = gate("--route-cookie")
    base = f"http://localhost:{gateway.port}"
    prefix = f"/box/{jupyter.port}/"
    browser.open(base + prefix)
    assert browser.url.startswith(f"{base}{prefix}login?"), "a redirect that left the prefix"
    assert browser.cookies()["_xsrf"]["path"] == prefix
    browser.open(base + prefix + FRESH)
    log_in(browser)
    runs_a_cell(browser)
    for name, cookie in browser.cookies().items():
        assert name.startswith("sallyport-") or cookie["path"].startswith(prefix), cookie
    browser.open(f"{base}/lab/tree")
    assert browser.url.startswith(f"{base}{prefix}lab"), "a page goes back below its prefix"


def test_two_sandboxes_on_one_host_do_not_share_a_login(
    browser: Browser, gate: OpenGateway, jupyter: Application
) -> None:
    """To the browser they are one place; it sends one's cookies to the other, and the gateway keeps them."""
    gateway = gate("--route-cookie")
    base = f"http://localhost:{gateway.port}"
    browser.open(f"{base}/box/{jupyter.port}/{FRESH}")
    log_in(browser)
    browser.until(lambda: browser.js("return document.querySelector('.jp-LauncherCard') !== null"), "the launcher")
    browser.open(f"{base}/other/{jupyter.port}/{FRESH}")
    browser.until(lambda: "/login" in browser.url, "the other's login")
    log_in(browser)
    runs_a_cell(browser)
    browser.open(f"{base}/box/{jupyter.port}/lab")
    assert "/login" not in browser.url


def test_a_host_that_it_does_not_know(browser: Browser, gate: OpenGateway, local_jupyter: Application) -> None:
    """The control to the next: JupyterLab on a loopback address takes local names only."""
    gateway = gate()
    browser.open(f"http://box-{local_jupyter.port}.sandboxes.test:{gateway.port}/")
    browser.shows("403 : Forbidden")


def test_shown_localhost_it_takes_its_own_pages_for_its_own(
    browser: Browser, gate: OpenGateway, local_jupyter: Application
) -> None:
    """It compares Origin with Host at every WebSocket: both have to be what the gateway shows."""
    gateway = gate("--upstream-host", "localhost")
    browser.open(f"http://box-{local_jupyter.port}.sandboxes.test:{gateway.port}/{FRESH}")
    log_in(browser)
    runs_a_cell(browser)
