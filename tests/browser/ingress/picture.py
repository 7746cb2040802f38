"""Takes the picture in docs: JupyterLab in a sandbox, reached by path, and asking for itself in all three ways.

.venv/bin/python -m tests.browser.ingress.picture docs/images/ingress-jupyter.png
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from tests.browser.ingress import applications
from tests.browser.ingress.test_jupyter import ENTER, FRESH, SHIFT, log_in
from tests.browser.ingress.webdriver import Driver
from tests.real.ingress.conftest import StartGateway

GATE, PORT = 28888, 8888
WAYS = f"""\
!curl -s -w "   by path\\n" http://localhost:{GATE}/box/{PORT}/api
!curl -s -w "   by host name\\n" http://box-{PORT}.localhost:{GATE}/api
!curl -s -w "   by header\\n" http://localhost:{GATE}/api -H "OpenSandbox-Ingress-To: box-{PORT}\""""


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="sallyport-picture-"))
    start = StartGateway(folder)
    jupyter = applications.jupyter(folder / "work", remote=True, port=PORT)
    driver = Driver(shutil.which("chromedriver") or "chromedriver")
    try:
        start({"box": {"host": "127.0.0.1"}}, ["--route-cookie", "--port", str(GATE)])
        browser = driver.session()
        browser.open(f"http://localhost:{GATE}/box/{PORT}/{FRESH}")
        log_in(browser)
        browser.click(".jp-LauncherCard[title^='Python 3']")
        browser.shows("Idle", "#jp-main-statusbar")
        browser.click(".jp-Notebook .jp-Cell .cm-content")
        browser.js("document.execCommand('insertText', false, arguments[0])", WAYS)
        browser.keys(f"{SHIFT}+{ENTER}")
        browser.shows("by header", ".jp-OutputArea-output")
        browser.until(lambda: "[1]" in browser.text(".jp-Notebook"), "the end of the cell")
        browser.screenshot(Path(sys.argv[1]))
        browser.close()
    finally:
        driver.stop()
        for gateway in start.started:
            gateway.stop()
        jupyter.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
