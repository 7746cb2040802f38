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
    heard = threading.Event()

    def once(number: int, _: FrameType | None) -> NoReturn:
        for each in (signal.SIGUSR1, signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(signal.SIGINT if number == signal.SIGUSR1 else number)

    def watch() -> None:
        while signal.sigwait({signal.SIGINT, signal.SIGUSR2}) == signal.SIGINT:
            heard.set()
            signal.pthread_kill(main, signal.SIGUSR1)

    def stop() -> bool:
        """End the watch; whether it has heard anything."""
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        if watcher.is_alive():
            signal.pthread_kill(watcher.ident or 0, signal.SIGUSR2)
            watcher.join()
        return heard.is_set()

    before = {number: signal.signal(number, once) for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGHUP)}
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGUSR2})
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})
    try:
        try:
            yield
        except Exception as error:
            # A child that takes signals all the same may have ended of this one, and what missed it came here first.
            if stop():
                raise Interrupted(signal.SIGINT) from error
            raise
        if stop():
            raise Interrupted(signal.SIGINT)
    finally:
        stop()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        for number, handler in before.items():
            signal.signal(number, handler)
