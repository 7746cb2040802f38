"""The loop's end, while its threads are at work."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from egress.loop import Loop

if TYPE_CHECKING:
    import pytest


def test_a_thread_that_wakes_a_loop_while_it_closes_writes_to_nobody_elses_descriptor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A loop that was awake already takes the call, ends and closes before the one who called has rung."""
    write, ringing, goes_on = os.eventfd_write, threading.Event(), threading.Event()
    failed: list[OSError] = []

    def slowly(fd: int, value: int) -> None:
        ringing.set()
        assert goes_on.wait(20)
        try:
            write(fd, value)
        except OSError as error:
            failed.append(error)

    monkeypatch.setattr(os, "eventfd_write", slowly)
    loop = Loop()
    threads = [threading.Thread(target=loop.call_threadsafe, args=(lambda: None,)), threading.Thread(target=loop.close)]
    threads[0].start()
    assert ringing.wait(20)
    threads[1].start()
    threads[1].join(0.2)
    goes_on.set()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert failed == []
    loop.call_threadsafe(lambda: None)  # and behind its end it is not rung at all
    assert failed == []
