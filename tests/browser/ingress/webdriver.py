"""A real Chromium, driven by the W3C WebDriver protocol: JSON over HTTP to chromedriver, so nothing is needed but both.

Every wait has an end and says what was waited for; nothing sleeps for a fixed time. No names but those of localhost and
sandboxes.test are resolved: whatever a page or the browser itself would like to fetch from the world stays unfetched.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WITHIN = 60.0
"""Seconds for anything; a browser's first start on two busy cores takes some."""
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
_NAMES = "MAP *.sandboxes.test 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE *.localhost, EXCLUDE 127.0.0.1"
_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # root may not have one
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--no-first-run",
    "--no-proxy-server",
    "--window-size=1200,760",
    f"--host-resolver-rules={_NAMES}",
)


class WebDriverError(Exception):
    """What chromedriver says went wrong, such as `no such element`."""


class Driver:
    """One chromedriver; `session` starts browsers."""

    def __init__(self, program: str) -> None:
        self._home = tempfile.mkdtemp(prefix="sallyport-browser-")
        self._process = subprocess.Popen(
            [program, "--port=0"],
            env={**os.environ, "HOME": self._home, "TMPDIR": self._home},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self.port = 0
        for line in self._process.stdout:
            if "started successfully on port" in line:
                self.port = int(line.rstrip(". \n").rpartition(" ")[2])
                break
        assert self.port, "chromedriver did not start"

    def session(self) -> Browser:
        """A browser of its own: no cookies, no cache."""
        return Browser(self)

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """One command; its value."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WITHIN)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            value = json.loads(connection.getresponse().read())["value"]
        finally:
            connection.close()
        if isinstance(value, dict) and "error" in value:
            raise WebDriverError(f"{value['error']}: {value['message'].splitlines()[0]}")
        return value

    def stop(self) -> None:
        """End it, and whatever it started: they are one process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(5)
        if self._process.stdout is not None:
            self._process.stdout.close()
        shutil.rmtree(self._home, ignore_errors=True)


class Browser:
    """One window."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        options = {"args": list(_FLAGS)}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}, "pageLoadStrategy": "normal"}
        made = driver.call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._path = f"/session/{made['sessionId']}"
        self.version: str = made["capabilities"]["browserVersion"]

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        return self._driver.call(method, self._path + path, body)

    def close(self) -> None:
        """End the browser."""
        self._call("DELETE", "")

    def open(self, url: str) -> None:
        """Go there; returns when the page has loaded."""
        self._call("POST", "/url", {"url": url})

    @property
    def url(self) -> str:
        """What the address bar says."""
        return str(self._call("GET", "/url"))

    def js(self, script: str, *arguments: Any) -> Any:
        """Run a function's body in the page; a promise is waited for."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector: str = "body") -> str:
        """What a person reads in the first element of this selector; "" where there is none."""
        found = self.js("const found = document.querySelector(arguments[0]); return found && found.innerText", selector)
        return str(found or "")

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """The first true value of the condition."""
        deadline = time.monotonic() + WITHIN
        while True:
            value = condition()
            if value:
                return value
            if time.monotonic() > deadline:
                said = "\n".join(self.console())
                raise AssertionError(f"{what} did not come; {self.url} shows:\n{self.text()[:2000]}\nconsole:\n{said}")
            time.sleep(0.05)

    def shows(self, text: str, selector: str = "body") -> None:
        """Wait until a person reads this text there."""
        self.until(lambda: text in self.text(selector), f"{text!r} in {selector}")

    def click(self, selector: str) -> None:
        """Click the first element of this selector, once it is there."""
        self._call("POST", f"/element/{self._find(selector)}/click", {})

    def type(self, selector: str, text: str) -> None:
        """Type into the first element of this selector."""
        self._call("POST", f"/element/{self._find(selector)}/value", {"text": text})

    def _find(self, selector: str) -> str:
        found = self.until(
            lambda: self._call("POST", "/elements", {"using": "css selector", "value": selector}), selector
        )
        return str(found[0][_ELEMENT])

    def keys(self, *chords: str) -> None:
        """Press keys where the focus is; the parts of a chord are held together, as in "\\ue008+\\ue007"."""
        actions = []
        for chord in chords:
            held = chord.split("+")
            actions += [{"type": "keyDown", "value": key} for key in held]
            actions += [{"type": "keyUp", "value": key} for key in reversed(held)]
        self._call("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def cookies(self) -> dict[str, dict[str, Any]]:
        """The cookies of this page, HttpOnly ones too, by name."""
        return {cookie["name"]: cookie for cookie in self._call("GET", "/cookie")}

    def console(self) -> list[str]:
        """What the page and the browser complained of since it was last asked."""
        return [f"{entry['level']}: {entry['message']}" for entry in self._call("POST", "/se/log", {"type": "browser"})]

    def screenshot(self, path: Path) -> None:
        """What the window shows, as PNG."""
        path.write_bytes(base64.b64decode(self._call("GET", "/screenshot")))
