"""A real loop that a thread of its own runs."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from egress.loop import Loop

if TYPE_CHECKING:
    from collections.abc import Callable


class ThreadedLoop:
    """`loop`, from `start` to `close`; what it could not handle is in `errors`, which `close` wants empty."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self.loop = Loop(self.errors.append)
        self._thread = threading.Thread(target=self.loop.run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def do(self, work: Callable[[], None]) -> None:
        """Run `work` on the loop's thread and wait for it."""
        done = threading.Event()
        self.loop.call_threadsafe(work)
        self.loop.call_threadsafe(done.set)
        assert done.wait(10)

    def close(self) -> None:
        if self._thread.ident is not None:
            self.loop.call_threadsafe(self.loop.stop)
            self._thread.join(10)
            assert not self._thread.is_alive()
        self.loop.close()
        assert self.errors == []
