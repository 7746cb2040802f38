"""One network namespace: made, entered, removed.

A socket belongs for life to the namespace it was opened in. So most of what a test does "inside the sandbox" needs no
process there: `Namespace.socket` steps in, opens, and steps back. Processes (`popen`, `run`, `python`) are for what
depends on who asks: uid, capabilities, a program of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import itertools
import os
import re
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from lab.errors import LabError
from lab.identity import ROOT, Identity
from lab.lacking import search_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Self

_CLONE_NEWNET = 0x40000000  # include/uapi/linux/sched.h
_SIOCGIFFLAGS = 0x8913  # linux/sockios.h
_IFF_RUNNING = 0x40  # linux/if.h
_FOLDER = Path("/run/netns")
_OURS = re.compile(r"^sp-(\d+)-\d+-")
_libc = ctypes.CDLL(None, use_errno=True)
_serial = itertools.count()


def next_name(role: str) -> str:
    """`sp-<pid>-<n>-<role>`: unique on this machine, and its maker can be told from it."""
    return f"sp-{os.getpid()}-{next(_serial)}-{role}"


def sweep() -> None:
    """Remove namespaces of lab processes that no longer live (killed before they could clean up)."""
    if not _FOLDER.is_dir():
        return
    for entry in _FOLDER.iterdir():
        maker = _OURS.match(entry.name)
        if maker and not Path(f"/proc/{maker[1]}").exists():
            _ip("netns", "del", entry.name, check=False)


def _ip(*arguments: str, script: str | None = None, check: bool = True) -> str:
    done = subprocess.run(
        ["ip", *arguments], input=script, env={"PATH": search_path()}, capture_output=True, text=True, check=False
    )
    if check and done.returncode:
        raise LabError(f"ip {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def _setns(fd: int) -> None:
    # os.setns is there from Python 3.12 on only.
    if _libc.setns(fd, _CLONE_NEWNET):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _runs(sock: socket.socket, device: str) -> bool:
    """Whether a device in the socket's namespace is up, its link too (netdevice(7))."""
    answer = fcntl.ioctl(sock, _SIOCGIFFLAGS, struct.pack("=16sH22x", device.encode(), 0))
    return bool(struct.unpack_from("=16xH", answer)[0] & _IFF_RUNNING)


class Namespace:
    """A network namespace under /run/netns, with `lo` up. A context manager; `close` may be called twice."""

    def __init__(self, role: str) -> None:
        self.name = next_name(role)
        self.path = _FOLDER / self.name
        _ip("netns", "add", self.name)
        self.fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        self._processes: list[subprocess.Popen[Any]] = []
        self.ip("link", "set", "lo", "up")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End what `popen` started and is still running, and remove the namespace."""
        if self.fd < 0:
            return
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream:
                    stream.close()
        os.close(self.fd)
        self.fd = -1
        _ip("netns", "del", self.name, check=False)

    # -- from outside -------------------------------------------------------------------------------------------

    def ip(self, *arguments: str) -> str:
        """`ip -n <this> …`; its output. Raises LabError with ip's words."""
        return _ip("-n", self.name, *arguments)

    def ip_batch(self, lines: Sequence[str]) -> None:
        """Several `ip` commands in one process, stopped at the first that fails."""
        _ip("-n", self.name, "-batch", "-", script="\n".join(lines) + "\n")

    def wait_running(self, device: str, address6: str = "", seconds: float = 20.0) -> None:
        """Until a device that was set up carries packets, and neighbours can find `address6` there. Raises LabError.

        Both come in the kernel's own time, after `ip` has returned: the device's queue, and the multicast group that a
        neighbour asks. What is sent before is dropped without a word, and a neighbour asks again only after a second.
        """
        deadline = time.monotonic() + seconds
        with self.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            while not (_runs(sock, device) and (not address6 or self._solicited(device, address6))):
                if time.monotonic() > deadline:
                    raise LabError(f"{device} in {self.name} is not up after {seconds:g} s")
                time.sleep(0.001)

    def _solicited(self, device: str, address6: str) -> bool:
        """Whether the solicited-node group (RFC 4291, 2.7.1) of an address has been joined."""
        group = "ff0200000000000000000001ff" + socket.inet_pton(socket.AF_INET6, address6)[13:].hex()
        with self.entered():
            lines = Path("/proc/thread-self/net/igmp6").read_text().splitlines()
        return any(line.split()[1:3] == [device, group] for line in lines)

    def sysctl(self, settings: Mapping[str, int]) -> None:
        """Write net sysctls, `{"net.ipv4.ip_forward": 1}`; a missing one is passed over (IPv6 may be off)."""
        with self.entered():
            for key, value in settings.items():
                # /proc/sys/net shows the namespace of whoever opens it: this thread's, now.
                with contextlib.suppress(FileNotFoundError):
                    Path("/proc/sys", *key.split(".")).write_text(str(value))

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """This thread stands in the namespace inside the `with`; everything it opens there stays there."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _setns(self.fd)
            try:
                yield
            finally:
                _setns(home)
        finally:
            os.close(home)

    def socket(self, family: int, kind: int, protocol: int = 0) -> socket.socket:
        """A socket that belongs to this namespace; the test's process owns it."""
        with self.entered():
            return socket.socket(family, kind, protocol)

    # -- processes inside ---------------------------------------------------------------------------------------

    def argv(self, argv: Sequence[str], identity: Identity = ROOT) -> list[str]:
        """What to execute for `argv` to run here as `identity`. No process of ours stays in between."""
        return ["ip", "netns", "exec", self.name, *identity.prefix(), *argv]

    def popen(
        self,
        argv: Sequence[str],
        *,
        identity: Identity = ROOT,
        env: Mapping[str, str] | None = None,
        stdin: int | IO[Any] | None = subprocess.DEVNULL,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        cwd: str | Path | None = None,
        pass_fds: Sequence[int] = (),
        text: bool = False,
        process_group: int | None = None,
    ) -> subprocess.Popen[Any]:
        """Start a program here; it is killed when the namespace closes. `env` replaces the environment, PATH apart."""
        process = subprocess.Popen(
            self.argv(argv, identity),
            env={**(os.environ if env is None else env), "PATH": search_path()},
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=cwd,
            pass_fds=tuple(pass_fds),
            text=text,
            process_group=process_group,
        )
        self._processes.append(process)
        return process

    def run(
        self,
        argv: Sequence[str],
        *,
        identity: Identity = ROOT,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
        timeout: float = 60.0,
        check: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program here to its end; output as text. With `check`, LabError when it fails."""
        done = subprocess.run(
            self.argv(argv, identity),
            env={**(os.environ if env is None else env), "PATH": search_path()},
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and done.returncode:
            raise LabError(f"{' '.join(argv)}: exit {done.returncode}: {done.stderr.strip() or done.stdout.strip()}")
        return done

    def python(
        self, code: str, *arguments: str, identity: Identity = ROOT, timeout: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Run Python code (standard library only) here. Other users get the system's Python: ours may lie in a home."""
        system = "/usr/bin/python3"
        interpreter = system if identity.uid and os.path.exists(system) else sys.executable
        return self.run([interpreter, "-I", "-c", code, *arguments], identity=identity, timeout=timeout)

    def nft(self, script: str) -> str:
        """Run nft commands here; its output. Raises LabError with nft's words."""
        return str(self.run(["nft", "-f", "-"], stdin=script, check=True).stdout)
