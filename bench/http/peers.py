"""The peers' programs: what is installed is used, what is missing is installed here and said aloud, pinned.

Python's and Node's go into a folder of the bench's own (`build/bench-http`, ignored by git); Debian's packages into the
system where this is root, their services never started. What can't be had is named in the report and left out.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bench.place import CHECKOUT
from lab.lacking import search_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

CACHE = CHECKOUT / "build" / "bench-http"
PINNED = Path(__file__).with_name("peers.txt")
NODE_PACKAGE = "configurable-http-proxy"
NODE_PINNED = "5.3.0"
DEBIAN = {"nginx": "nginx", "haproxy": "haproxy", "wrk": "wrk", "node": "nodejs", "npm": "npm"}
PYTHON, NODE = "python", NODE_PACKAGE  # the venv with the Python peers; configurable-http-proxy
IN_VENV = ("caddy", "traefik", PYTHON)
_HOW_TO_ASK = {
    "nginx": "-v", "haproxy": "-v", "caddy": "version", "traefik": "version", "node": "--version", NODE: "--version",
}  # fmt: skip
_PATIENCE = 300  # seconds for one installation


class Peers:
    """Which programs there are. `program` gives a path or None, `why` then says why."""

    def __init__(self, *, install: bool) -> None:
        self._install = install
        self.why: dict[str, str] = {}

    def provide(self, names: Iterable[str]) -> None:
        """See to it that these can be found, as far as that can be done here."""
        wanted = set(names)
        if NODE in wanted:
            wanted |= {"node", "npm"}
        with _alone():
            self._debian([name for name in DEBIAN if name in wanted])
            if wanted & set(IN_VENV):
                self._try(sorted(wanted & set(IN_VENV)), self._venv)
            if NODE in wanted:
                self._try([NODE], self._node)

    def program(self, name: str) -> str | None:
        """The path of a program."""
        if name in IN_VENV:
            path = CACHE / "venv" / "bin" / name
        elif name == NODE:
            path = CACHE / "npm" / "node_modules" / ".bin" / NODE_PACKAGE
        else:
            return shutil.which(name, path=search_path())
        return str(path) if path.exists() and name not in self.why else None

    def version(self, name: str) -> str:
        """What it says of itself: `1.22.1`; "" where it says nothing."""
        if name in _pins():
            return _pins()[name]
        program = self.program(name)
        if program is None or name not in _HOW_TO_ASK:
            return ""
        argv = [program, _HOW_TO_ASK[name]]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30, env=_environment())
        found = re.search(r"\d+\.\d+[.\d]*", done.stdout + done.stderr)
        return found[0] if found else ""

    def _try(self, names: Sequence[str], how: object) -> None:
        assert callable(how)
        try:
            how()
        except (OSError, subprocess.SubprocessError, RuntimeError) as error:
            for name in names:
                self.why[name] = str(error)

    def _debian(self, names: Sequence[str]) -> None:
        absent = [name for name in names if not self.program(name)]
        if not absent:
            return
        packages = [DEBIAN[name] for name in absent]
        if not self._install or os.geteuid() != 0 or not shutil.which("apt-get"):
            why = f"not installed; as root: apt-get install --no-install-recommends {' '.join(packages)}"
        else:
            _say(f"installing Debian's packages {' '.join(packages)}; their services are not started")
            try:
                _apt(packages)
                why = "Debian's package was not to be had"
            except (OSError, subprocess.SubprocessError, RuntimeError) as error:
                why = str(error)
        for name in absent:
            if not self.program(name):
                self.why[name] = why

    def _venv(self) -> None:
        folder = CACHE / "venv"
        stamp = folder / ".installed"
        wanted = hashlib.sha256(PINNED.read_bytes() + sys.version.encode()).hexdigest()
        if stamp.exists() and stamp.read_text() == wanted:
            return
        if not self._install:
            raise RuntimeError("not installed; a run without --dry installs it")
        pins = " ".join(f"{name} {version}" for name, version in _pins().items() if name in _NAMED)
        _say(f"installing {pins} and what they need into {folder.relative_to(CHECKOUT)}")
        _run([sys.executable, "-m", "venv", "--clear", str(folder)])
        pip = [str(folder / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
        _run([*pip, "install", "--no-deps", "--only-binary=:all:", "--requirement", str(PINNED)])
        stamp.write_text(wanted)

    def _node(self) -> None:
        folder = CACHE / "npm"
        package = folder / "node_modules" / NODE_PACKAGE / "package.json"
        if package.exists() and f'"version": "{NODE_PINNED}"' in package.read_text():
            return
        for needed in ("node", "npm"):
            if not self.program(needed):
                raise RuntimeError(f"{needed} is {self.why.get(needed, 'missing')}")
        if not self._install:
            raise RuntimeError("not installed; a run without --dry installs it")
        _say(f"installing {NODE_PACKAGE} {NODE_PINNED} into {folder.relative_to(CHECKOUT)}")
        folder.mkdir(parents=True, exist_ok=True)
        _run(["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--no-save",
              f"{NODE_PACKAGE}@{NODE_PINNED}"])  # fmt: skip


_NAMED = ("caddy", "traefik", "aiohttp", "fastapi", "httpx", "uvicorn", "uvloop", "httptools")


def _pins() -> dict[str, str]:
    """Distribution to version, as pinned; the packages that carry a program go by the program's name."""
    found = {}
    for line in PINNED.read_text().splitlines():
        name, equals, version = line.partition("==")
        if equals:
            found[name.removesuffix("-bin")] = version
    return found


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """One installation at a time."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _apt(packages: Sequence[str]) -> None:
    """Install without starting anything: Debian asks policy-rc.d before it starts a service."""
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        _run(["apt-get", "update", "-qq"])
        _run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages])
    finally:
        if ours:
            policy.unlink(missing_ok=True)


def _run(argv: Sequence[str]) -> None:
    done = subprocess.run(
        list(argv), capture_output=True, text=True, check=False, timeout=_PATIENCE, env=_environment()
    )
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
        raise RuntimeError(f"{Path(argv[0]).name}: {said[:160]}")


def _environment() -> dict[str, str]:
    return {**os.environ, "PATH": search_path(), "DEBIAN_FRONTEND": "noninteractive"}


def _say(what: str) -> None:
    print(f"bench: {what}", flush=True)
