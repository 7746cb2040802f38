"""A daemon of the test's own making, and what a `Register` tells of it."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import egress.docker.register
from egress.docker.api import Docker
from egress.docker.register import Register
from egress.loop import Loop
from tests.real.docker.daemon import NETWORK, Daemon

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from egress.docker.register import Refused, Seen
    from lab import Namespace


class Heard:
    """A register on a loop of its own, and all that it has told so far."""

    def __init__(self, daemon: Daemon) -> None:
        self.seen: list[Seen] = []
        self.refused: list[Refused] = []
        self.gone: list[str] = []
        self.said: list[str] = []
        self.listed = 0
        self.loop = Loop()
        self.register = Register(
            Docker(daemon.host), self.loop, NETWORK, lambda: None, self._see, self.refused.append, self.gone.append,
            self._list, lambda level, text: self.said.append(f"{level}: {text}"),
        )  # fmt: skip
        self._follows = False
        self._thread = threading.Thread(target=self.loop.run)
        self._thread.start()

    def _see(self, seen: Seen) -> None:
        os.close(seen.fd)
        self.seen.append(seen)

    def _list(self) -> None:
        self.listed += 1

    def follow(self) -> None:
        """Follow the daemon's events from now on; that ends with this process."""
        self._follows = True
        self.register.start()
        self.until(lambda: self.said)

    def look(self) -> None:
        """Have it look at everything; what it has to tell has been told when this returns."""
        self.register.resync()
        self.heard()

    def heard(self) -> None:
        """Until the loop has told all that it was given."""
        told = threading.Event()
        self.loop.call_threadsafe(told.set)
        assert told.wait(20)

    def names(self) -> list[str]:
        """Who was seen, again and again."""
        return [seen.container.name for seen in self.seen]

    def until(self, true: Callable[[], Any]) -> None:
        end = time.monotonic() + 20
        while not true():
            assert time.monotonic() < end, (self.names(), self.refused, self.gone, self.said)
            time.sleep(0.005)

    def close(self) -> None:
        self.loop.call_threadsafe(self.loop.stop)
        self._thread.join()
        if not self._follows:
            self.loop.close()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path) as made:
        yield made


@pytest.fixture
def heard(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[Heard]:
    monkeypatch.setattr(egress.docker.register, "AGAIN", 3600.0)  # by itself it looks again where a test says so
    made = Heard(daemon)
    yield made
    made.close()


class Processes:
    """Processes that stand for containers' first ones."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, namespace: Namespace) -> int:
        """One that lives in this network; its number."""
        with namespace.entered():
            self._started.append(subprocess.Popen(["sleep", "600"]))
        return self._started[-1].pid

    def zombie(self) -> int:
        """One that has ended and was not waited for, as a container's is until the daemon hears of it."""
        self._started.append(process := subprocess.Popen(["true"]))
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        return process.pid

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()


@pytest.fixture
def processes() -> Iterator[Processes]:
    made = Processes()
    yield made
    made.close()
