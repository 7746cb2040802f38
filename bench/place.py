"""Where it is measured: an internet namespace, a sandbox namespace for each contender, one core for each side.

    sandbox n                                        internet
    load ──▶ redirect ──▶ 127.0.0.1: contender ── veth ──▶ 10.78.n.1:5300 fake resolver
    [load's core]         [server's core]                  [load's core]

What is measured has a core for itself. Load and fake resolver share the other one: what a contender costs there is the
same for all. The veth crossing to the resolver is paid on the contender's core, as on a host.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.namespace import Namespace, sweep

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Self

CHECKOUT = Path(__file__).resolve().parent.parent
UPSTREAM_PORT = 5300
_TICK = os.sysconf("SC_CLK_TCK")


class Cores:
    """Which core is whose. The measuring process itself lives on the load's."""

    def __init__(self) -> None:
        cores = sorted(os.sched_getaffinity(0))
        self.before = set(cores)
        self.server = {cores[0]}
        self.load = {cores[-1]}
        self.shared = len(cores) < 2

    @contextlib.contextmanager
    def pinned(self, cores: set[int]) -> Iterator[None]:
        """Whatever this thread starts inside the `with` runs on `cores`."""
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores)
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)


class Sandbox:
    """One contender's namespace and its cable."""

    def __init__(self, number: int, role: str, internet: Namespace) -> None:
        self.namespace = Namespace(f"bench-{role}")
        self.address = f"10.78.{number}.2"
        self.gateway = f"10.78.{number}.1"
        outer = f"bn{number}"
        self.namespace.ip("link", "add", "eth0", "type", "veth", "peer", "name", outer, "netns", internet.name)
        internet.ip_batch([f"addr add {self.gateway}/24 dev {outer}", f"link set {outer} up"])
        self.namespace.ip_batch(
            [f"addr add {self.address}/24 dev eth0", "link set eth0 up", f"route add default via {self.gateway}"]
        )

    def close(self) -> None:
        self.namespace.close()


class Place:
    """The internet with its fake resolver, and sandboxes on demand. A context manager; nothing is left behind."""

    def __init__(self) -> None:
        sweep()
        self.cores = Cores()
        os.sched_setaffinity(0, self.cores.load)
        self._sandboxes: list[Sandbox] = []
        self._processes: list[Process] = []
        self._numbers = iter(range(1, 250))
        self.internet = Namespace("bench-internet")
        try:
            self.internet.sysctl({"net.ipv4.conf.all.rp_filter": 0, "net.ipv4.conf.default.rp_filter": 0})
            # Every address that anybody learns is here, so that packets to it arrive and can be counted.
            self.internet.ip("route", "add", "local", "default", "dev", "lo", "table", "main")
            self.resolver = self.start(
                self.internet, [sys.executable, "-m", "bench.resolver", str(UPSTREAM_PORT)], self.cores.load
            )
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def sandbox(self, role: str) -> Sandbox:
        sandbox = Sandbox(next(self._numbers), role, self.internet)
        self._sandboxes.append(sandbox)
        return sandbox

    def start(
        self, namespace: Namespace, argv: Sequence[str], cores: set[int], env: Mapping[str, str] | None = None
    ) -> Process:
        process = Process(namespace, argv, self.cores, cores, env or {})
        self._processes.append(process)
        return process

    def close(self) -> None:
        for process in self._processes:
            process.close()
        for sandbox in self._sandboxes:
            sandbox.close()
        self.internet.close()
        os.sched_setaffinity(0, self.cores.before)


class Process:
    """A program in a namespace, on a core, executed directly: no shell and no `ip netns exec` in between."""

    def __init__(
        self, namespace: Namespace, argv: Sequence[str], all_cores: Cores, cores: set[int], env: Mapping[str, str]
    ) -> None:
        settings = {"PATH": os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin", **env}
        # A child is where its parent's thread is: namespace and core are inherited.
        with namespace.entered(), all_cores.pinned(cores):
            self.started = time.monotonic()
            self._popen: subprocess.Popen[bytes] = subprocess.Popen(
                list(argv), env=settings, cwd=CHECKOUT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
            )
        self.pid = self._popen.pid

    def alive(self) -> bool:
        return self._popen.poll() is None

    def wait(self) -> None:
        self._popen.wait(10)

    def pids(self) -> list[int]:
        """The process and its children."""
        return [self.pid, *children(self.pid)]

    def cpu(self) -> float:
        """Seconds of processor that the process and its living children have used."""
        return sum(map(_cpu, self.pids()))

    def pss(self) -> float:
        """MB of memory, shared pages divided by who shares them (proc(5), smaps_rollup), children included."""
        return sum(map(_pss, self.pids()))

    def close(self) -> None:
        if self._popen.poll() is None:
            self._popen.terminate()
            try:
                self._popen.wait(3)
            except subprocess.TimeoutExpired:
                self._popen.kill()
                self._popen.wait()


def program(
    place: Place, namespace: Namespace, module: str, *arguments: object, talk: bool = False
) -> subprocess.Popen[str]:
    """One of our own programs on the load's core, whose output is read, and with `talk` its input written."""
    argv = [sys.executable, "-m", module, *map(str, arguments)]
    stdin = subprocess.PIPE if talk else subprocess.DEVNULL
    with namespace.entered(), place.cores.pinned(place.cores.load):
        return subprocess.Popen(argv, cwd=CHECKOUT, stdout=subprocess.PIPE, stdin=stdin, text=True)


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _cpu(pid: int) -> float:
    total = 0.0
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            try:
                total += int((task / "schedstat").read_text().split()[0]) / 1e9
            except OSError:  # a kernel without it: clock ticks are coarser
                fields = (task / "stat").read_text().rpartition(")")[2].split()
                total += (int(fields[11]) + int(fields[12])) / _TICK
    return total


def _pss(pid: int) -> float:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    return 0.0


def neighbours(seconds: float = 1.0) -> float:
    """The share of this machine's processor time that somebody else uses, steal included (proc(5), stat)."""

    def read() -> tuple[int, int]:
        fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return sum(fields), fields[3] + fields[4]

    before, idle_before = read()
    time.sleep(seconds)
    after, idle_after = read()
    return 1 - (idle_after - idle_before) / max(after - before, 1)


def wait_for(what: str, ready: Any, seconds: float = 10.0) -> None:
    """Until `ready()` is true. Raises TimeoutError."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(0.005)
