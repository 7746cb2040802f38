"""What `egress docker watch` costs: the time from a container's start event to its guard, and the memory of each.

    .venv/bin/python -m bench.docker [CONTAINERS]     default 50; root, a minute; prints, writes nothing

Memory is the proportional set size of the one process, as the kernel tells it (proc(5), smaps_rollup). The time is the
daemon's own time stamp of the event until the host's gate is open, as the watch logs it: rules loaded, DNS answering.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path

from lab import Internet, Lab
from tests.docker.daemon import Daemon
from tests.docker.watching import Watching

SETTLED = 2.5  # seconds after which a container's start has given back what it needed


def memory(pid: int) -> int:
    """Proportional set size in KiB."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    return 0


def seconds(pid: int) -> float:
    """Processor time so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main(count: int) -> None:
    load = os.getloadavg()[0]
    with Internet() as internet, Lab(internet) as lab, Daemon(lab) as host, Watching(host) as watching:
        lab.dns.a("api.example.com", lab.site("web"))
        time.sleep(SETTLED)
        print(f"load of the machine before: {load:.1f} on {os.cpu_count()} processors")
        idle = memory(watching.pid)
        print(f"nothing guarded: {idle} KiB")
        sizes = {0: idle}
        for number in range(1, count + 1):
            watching.run(f"box{number}")
            watching.guarded(f"box{number}")
            if number in (1, 2, 3, 5, 10, 20, 30, 40, 50, count):
                time.sleep(SETTLED)
                sizes[number] = memory(watching.pid)
                print(f"{number:3} guarded: {sizes[number]} KiB, {watching.descriptors()} descriptors")
        print(f"a second one: {sizes[2] - sizes[1]} KiB; each of {count}: {(sizes[count] - idle) / count:.0f} KiB")
        times = [entry["after_ms"] for entry in watching.entries() if "after_ms" in entry]
        assert len(times) == count
        times.sort()
        print(
            f"start event to guard, {count} containers one after the other: median {statistics.median(times):.1f} ms, "
            f"least {times[0]:.1f}, 90 of 100 within {times[int(0.9 * count) - 1]:.1f}, most {times[-1]:.1f}"
        )
        held = [watching.reaches(f"box{number}", "http://api.example.com/") for number in range(1, count + 1)]
        loose = [watching.reaches(f"box{number}", "http://198.51.100.20/") for number in range(1, count + 1)]
        print(f"reach what they may: {sum(held)} of {count}; reach what they may not: {sum(loose)}")
        before = seconds(watching.pid)
        time.sleep(10)
        print(f"idle with {count}: {(seconds(watching.pid) - before) * 10:.1f} % of a processor")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
