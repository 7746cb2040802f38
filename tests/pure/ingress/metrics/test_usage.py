"""What a process says of itself."""

from __future__ import annotations

import gc
import os

from ingress.telemetry.usage import usage


def test_usage_is_this_process() -> None:
    gc.collect()
    gc.disable()  # what other tests have left to the collector may hold descriptors: it goes before, or after
    try:
        before = usage()
        descriptors = [os.open(os.devnull, os.O_RDONLY) for _ in range(10)]
        sum(range(1_000_000))
        after = usage()
    finally:
        gc.enable()
    assert before["resident_bytes"] > 1_000_000
    assert after["open_fds"] == before["open_fds"] + 10
    assert after["cpu_seconds"] > before["cpu_seconds"]
    for descriptor in descriptors:
        os.close(descriptor)
