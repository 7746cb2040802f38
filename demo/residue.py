"""What a run could leave behind: namespaces, processes in them, files."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from lab.lacking import search_path

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lab import Namespace

_NAMESPACES = Path("/run/netns")


class Watch:
    """Holds on to namespaces, so that the kernel gives their numbers to nobody else, and knows who is in them."""

    def __init__(self, namespaces: Iterable[Namespace]) -> None:
        self._fds = [os.dup(namespace.fd) for namespace in namespaces]
        self._numbers = {os.fstat(fd).st_ino for fd in self._fds}

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()

    def inside(self) -> list[int]:
        """The processes in them."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):
                    if os.stat(entry / "ns" / "net").st_ino in self._numbers:
                        found.append(int(entry.name))
        return found


def left_behind(watch: Watch, folders: Iterable[Path], seconds: float = 10.0) -> list[str]:
    """What is still there, in words; empty when nothing is. Waits up to `seconds` for the killed to be gone."""
    deadline = time.monotonic() + seconds
    while True:
        found = [f"namespace {name}" for name in _names()]
        found += [f"process {pid}" for pid in watch.inside()]
        found += [f"folder {folder}" for folder in folders if folder.exists()]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.01)


def sweep() -> None:
    """Remove our own namespaces that nobody holds on to any more: an interrupt can come between making and noting."""
    for name in _names():
        subprocess.run(["ip", "netns", "del", name], env={"PATH": search_path()}, capture_output=True, check=False)


def _names() -> list[str]:
    prefix = f"sp-{os.getpid()}-"
    with contextlib.suppress(FileNotFoundError):
        return sorted(entry.name for entry in _NAMESPACES.iterdir() if entry.name.startswith(prefix))
    return []
