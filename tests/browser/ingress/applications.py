"""Applications that run in a sandbox, started as people start them, on loopback; stopped with all they started."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from lab.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CHECKOUT = Path(__file__).resolve().parents[3]
TOOLS = CHECKOUT / "build" / "browser"
"""Where tools/setup-browser puts them."""
HERE = Path(__file__).parent / "apps"
WITHIN = 60.0

JUPYTER_TOKEN = "a-token-of-the-notebook"


class Application:
    """One running server. It listens on `port` once it has been made."""

    def __init__(self, argv: Sequence[str], port: int, folder: Path, environ: Mapping[str, str] | None = None) -> None:
        self.port = port
        self.folder = folder
        self._log = folder.parent / f"{folder.name}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                argv,
                cwd=folder,
                env={**os.environ, "HOME": str(folder.parent), **(environ or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + WITHIN
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                gone = self._process.poll() is not None
                if gone or time.monotonic() > deadline:
                    self.stop()
                    raise AssertionError(f"{argv[0]} does not listen:\n{self.said()}") from None
                time.sleep(0.05)

    def said(self) -> str:
        """Its output so far."""
        return self._log.read_text(errors="replace")

    def stop(self) -> None:
        """End it and its children: they are one process group."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
                return


def vite(folder: Path) -> Application:
    """Vite's dev server on a copy of apps/vite, with hot reload."""
    shutil.copytree(HERE / "vite", folder)
    port = free_port()
    program = TOOLS / "node_modules" / "vite" / "bin" / "vite.js"
    argv = ["node", str(program), "--host", "127.0.0.1", "--port", str(port), "--strictPort", "--clearScreen=false"]
    return Application(argv, port, folder)


def jupyter(folder: Path, *, remote: bool, port: int = 0) -> Application:
    """JupyterLab with a token. remote: it may be called by any Host, as when it listens on all addresses."""
    folder.mkdir()
    port = port or free_port()
    argv = [str(TOOLS / "venv" / "bin" / "jupyter-lab"), "--no-browser", "--allow-root"]
    argv += ["--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    argv += [f"--IdentityProvider.token={JUPYTER_TOKEN}", f"--ServerApp.root_dir={folder}"]
    argv += [f"--ServerApp.allow_remote_access={remote}"]
    own = folder.parent / "jupyter"
    # Or it asks whether to fetch news, in the middle of the page.
    quiet = own / "config" / "labconfig" / "page_config.json"
    quiet.parent.mkdir(parents=True)
    quiet.write_text('{"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": true}}')
    places = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "run",
        "IPYTHONDIR": "i",
    }
    # The environment's own bin first: it is where the kernel's python is looked for.
    path = f"{TOOLS / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return Application(argv, port, folder, {"PATH": path} | {name: str(own / place) for name, place in places.items()})


def desktop(folder: Path) -> Application:
    """A desktop as noVNC shows one: apps/desktop.py, which also serves noVNC's own files."""
    folder.mkdir()
    port = free_port()
    novnc = TOOLS / "node_modules" / "@novnc" / "novnc"
    python = CHECKOUT / ".venv" / "bin" / "python"
    return Application([str(python), str(HERE / "desktop.py"), str(port), str(novnc)], port, folder)
