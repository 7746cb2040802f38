"""Ctrl-C in a run with children: they must not hear it, or each would die in its own way, with its own words.

A terminal sends SIGINT to the whole foreground group. Blocked signals stay blocked over fork and exec, so it is blocked
in the thread that starts everything, a second thread waits for it, and passes it on to the first as SIGUSR1, which
interrupts whatever call that is in. See pthread_sigmask(3), sigwait(3).
"""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


class Interrupted(KeyboardInterrupt):
    """The person wants it to end; `number` is the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Inside, SIGINT, SIGTERM and SIGHUP raise Interrupted in this thread, once; cleaning up is left in peace."""
    main = threading.main_thread().ident
    assert main == threading.get_ident()
    over = threading.Event()

    def once(number: int, _: FrameType | None) -> NoReturn:
        for each in (signal.SIGUSR1, signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(signal.SIGINT if number == signal.SIGUSR1 else number)

    def watch() -> None:
        while signal.sigwait({signal.SIGINT}) and not over.is_set():
            signal.pthread_kill(main, signal.SIGUSR1)

    before = {number: signal.signal(number, once) for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGHUP)}
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        signal.pthread_kill(watcher.ident or 0, signal.SIGINT)
        watcher.join()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        for number, handler in before.items():
            signal.signal(number, handler)
