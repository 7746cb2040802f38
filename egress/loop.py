"""The sidecar's reactor: one epoll, timers, and a door for threads.

The sidecar must answer its first query within milliseconds of its start and stay small, so it does without asyncio
(44 ms and 11 MB to import). What remains is little: readiness callbacks, timers on CLOCK_MONOTONIC, and one helper
thread for slow work (fsync, loading a ruleset) that would otherwise hold up answers.

A turn of the loop: poll, run every ready callback, run everything that was scheduled with `call_soon` meanwhile, run
due timers. DNS relies on that order: sockets that are gathered are only noted, and one call does the whole round.
"""

from __future__ import annotations

import _thread
import heapq
import os
import select
import sys
import time
from collections import deque

from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    T = TypeVar("T")
    Items = list[Any]
else:
    Items = list

_READ = select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP
_EVENTS = 128  # taken in a turn; by itself Python makes room for a thousand each time
_clock = time.monotonic
_WRITE = select.EPOLLOUT | select.EPOLLERR | select.EPOLLHUP


class Timer:
    """A scheduled call; `cancel` is idempotent."""

    __slots__ = ("callback", "order", "when")

    def __init__(self, when: float, order: int, callback: Callable[[], None]) -> None:
        self.when = when
        self.order = order
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None

    def __lt__(self, other: Timer) -> bool:
        return (self.when, self.order) < (other.when, other.order)


class Gather(Items):
    """What is ready among descriptors that are served together. `call` runs once in a turn that found any, behind the
    turn's callbacks, and has to empty the list."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        super().__init__()
        self.call = call


class Loop:
    """A single-threaded reactor. Only `call_threadsafe` may be used from another thread."""

    def __init__(self, on_error: Callable[[BaseException], None] | None = None) -> None:
        self._epoll = select.epoll()
        self.turns = 0
        self._readers: dict[int, Callable[[], None] | tuple[Gather, Any]] = {}
        self._writers: dict[int, Callable[[], None]] = {}
        self._masks: dict[int, int] = {}
        self._soon: deque[Callable[[], None]] = deque()
        self._timers: list[Timer] = []
        self._order = 0
        self._running = False
        self._from_threads: deque[Callable[[], None]] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._waking = _thread.allocate_lock()  # no thread writes there while it is closed
        self._thread: _Helper | None = None
        self._on_error = on_error or _report
        self.add_reader(self._wake, self._woken)

    now = staticmethod(time.monotonic)

    # -- descriptors ---------------------------------------------------------------------------------------------
    def add_reader(self, fd: int, callback: Callable[[], None]) -> None:
        """Call `callback` whenever `fd` can be read (or has hung up)."""
        self._readers[fd] = callback
        self._register(fd)

    def add_gathered(self, fd: int, gather: Gather, item: Any) -> None:
        """Put `item` into `gather` whenever `fd` can be read; `remove_reader` ends it."""
        self._readers[fd] = (gather, item)
        self._register(fd)

    def remove_reader(self, fd: int) -> None:
        if self._readers.pop(fd, None) is not None:
            self._register(fd)

    def add_writer(self, fd: int, callback: Callable[[], None]) -> None:
        """Call `callback` whenever `fd` can be written."""
        self._writers[fd] = callback
        self._register(fd)

    def remove_writer(self, fd: int) -> None:
        if self._writers.pop(fd, None) is not None:
            self._register(fd)

    def forget(self, fd: int) -> None:
        """Neither read nor write it any more; to be closed next, which is how the kernel hears of it."""
        self._readers.pop(fd, None)
        self._writers.pop(fd, None)
        self._masks.pop(fd, None)

    def _register(self, fd: int) -> None:
        mask = (_READ if fd in self._readers else 0) | (select.EPOLLOUT if fd in self._writers else 0)
        old = self._masks.get(fd, 0)
        if mask == old:
            return
        if not mask:
            del self._masks[fd]
            try:
                self._epoll.unregister(fd)
            except OSError:
                pass  # the owner closed it first; the kernel has forgotten it already
            return
        self._masks[fd] = mask
        if old:
            self._epoll.modify(fd, mask)
        else:
            self._epoll.register(fd, mask)

    # -- calls ---------------------------------------------------------------------------------------------------
    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run `callback` in this turn, after the callbacks of everything that is ready."""
        self._soon.append(callback)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        self._order += 1
        timer = Timer(time.monotonic() + seconds, self._order, callback)
        heapq.heappush(self._timers, timer)
        return timer

    def call_threadsafe(self, callback: Callable[[], None]) -> None:
        """Run `callback` on the loop; may be called from any thread. After `close` it is not run."""
        self._from_threads.append(callback)
        with self._waking:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def run_in_thread(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Run `work` on the helper thread, in order of submission; then `done(result, error)` on the loop."""
        if self._thread is None:
            self._thread = _Helper()

        def job() -> None:
            result: Any = None
            error: BaseException | None = None
            try:
                result = work()
            except BaseException as caught:  # noqa: BLE001 - handed to the loop, which decides
                error = caught
            self.call_threadsafe(lambda: done(result, error))

        self._thread.submit(job)

    # -- running -------------------------------------------------------------------------------------------------
    def run(self) -> None:
        """Run until `stop`; an exception in a callback is reported and the loop goes on."""
        self._running = True
        while self._running:
            self._turn()

    def stop(self) -> None:
        self._running = False

    def close(self) -> None:
        self._epoll.close()
        with self._waking:
            wake, self._wake = self._wake, -1
            os.close(wake)

    def _turn(self) -> None:
        soon = self._soon
        timers = self._timers
        readers = self._readers
        timeout = -1.0
        if soon:
            timeout = 0.0
        elif timers:
            timeout = timers[0].when - _clock()
            if timeout < 0.0:
                timeout = 0.0
        self.turns += 1
        for fd, mask in self._epoll.poll(timeout, _EVENTS):
            if mask & _READ:
                reader = readers.get(fd)
                if type(reader) is tuple:
                    gather, item = reader
                    if not gather:
                        soon.append(gather.call)
                    gather.append(item)
                elif reader is not None:
                    try:  # as in `_call`, which is one call more, and this is where all work begins
                        reader()  # type: ignore[operator]
                    except Exception as error:  # noqa: BLE001
                        self._on_error(error)
            if mask & _WRITE:
                writer = self._writers.get(fd)
                if writer is not None:
                    self._call(writer)
        for _ in range(len(soon)):  # what these schedule waits for the next turn
            callback = soon.popleft()
            try:  # as `_call`
                callback()
            except Exception as error:  # noqa: BLE001
                self._on_error(error)
        if timers:
            now = _clock()
            while timers and timers[0].when <= now:
                timer = heapq.heappop(timers)
                if timer.callback is not None:
                    self._call(timer.callback)

    def _call(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception as error:  # noqa: BLE001 - one broken callback must not stop the guard
            self._on_error(error)

    def _woken(self) -> None:
        os.eventfd_read(self._wake)
        while self._from_threads:
            self._call(self._from_threads.popleft())


class _Helper:
    """One thread that runs jobs in order, made without `threading`: a start has no time to import it."""

    def __init__(self) -> None:
        self._jobs: deque[Callable[[], None]] = deque()
        self._bell = _thread.allocate_lock()
        self._bell.acquire()
        _thread.start_new_thread(self._run, ())

    def submit(self, job: Callable[[], None]) -> None:
        self._jobs.append(job)
        try:
            self._bell.release()
        except RuntimeError:
            pass  # it has rung already and was not heard yet

    def _run(self) -> None:
        while True:
            self._bell.acquire()
            while self._jobs:
                self._jobs.popleft()()


def _report(error: BaseException) -> None:
    print(f"unexpected: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
