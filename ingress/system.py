"""What the kernel is asked for besides sockets: processors, descriptors, and a word when the parent is gone."""

from __future__ import annotations

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


def die_with_parent(parent: int) -> None:
    """PR_SET_PDEATHSIG (prctl(2)): a worker whose master is gone drains and leaves."""
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(1, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)
