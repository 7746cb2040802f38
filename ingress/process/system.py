"""What the kernel is asked for besides sockets: processors, descriptors, and a word when the parent is gone."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal


def cores() -> int:
    """How many cores this process may use: its affinity, and the processor quota of its cgroup (v2)."""
    count = len(os.sched_getaffinity(0))
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
            quota, _, period = file.read(64).strip().partition(" ")
        if quota != "max" and int(period) > 0:
            count = min(count, -(-int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return max(1, count)


def raise_file_limit() -> int:
    """Every connection is a descriptor, and one to the sandbox: take what there is. How many a process may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    except (OSError, ValueError):
        pass
    return soft if soft != resource.RLIM_INFINITY else 1 << 30


def spare_memory() -> None:
    """To be called before forking: what the start has used goes back, and what is kept is shared.

    One arena for all threads (mallopt(3)), free pages back to the kernel (malloc_trim(3)), and the collector leaves
    alone what there is, so that the workers share these pages for as long as nobody writes to them.
    """
    gc.collect()
    gc.freeze()
    library = ctypes.CDLL(None)
    try:
        library.mallopt(-8, 1)  # M_ARENA_MAX
        library.malloc_trim(0)
    except AttributeError:
        pass  # a C library without these


def die_with_parent(parent: int) -> None:
    """PR_SET_PDEATHSIG (prctl(2)): a worker whose master is gone drains and leaves."""
    ctypes.CDLL(None, use_errno=True).prctl(1, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)
