"""Run inside the sandbox: each word of the command line is tried, and what came of it printed as one JSON object.

Stands alone, as nothing of the project need be visible in there.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import signal
import socket
import sys
from typing import Any


def unix(path: str) -> str:
    """Connect to a unix socket; a leading @ means an abstract one."""
    return _connect(socket.AF_UNIX, "\0" + path[1:] if path.startswith("@") else path)


def tcp(place: str) -> str:
    """Connect to HOST/PORT."""
    return _tcp(place, 2)


def reached(place: str) -> str:
    """The same of what has to be reached, by way of a program that a busy machine may keep waiting."""
    return _tcp(place, 20)


def _tcp(place: str, patience: float) -> str:
    host, _, port = place.rpartition("/")
    return _connect(socket.AF_INET6 if ":" in host else socket.AF_INET, (host, int(port)), patience)


def kill(pid: str) -> str:
    """Send SIGKILL to a process as the host counts them."""
    return _name(lambda: os.kill(int(pid), signal.SIGKILL))


def ptrace(pid: str) -> str:
    """PTRACE_ATTACH."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(16, int(pid), None, None) == 0:
        return "done"
    return errno.errorcode[ctypes.get_errno()]


def family(number: str) -> str:
    """Open a stream socket of an address family."""
    return _name(lambda: socket.socket(int(number), socket.SOCK_STREAM).close())


def raw(_: str) -> str:
    """Open a raw socket."""
    return _name(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close())


def packet(_: str) -> str:
    """Open a packet socket."""
    return _name(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close())


def call(number: str) -> str:
    """A system call without arguments."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    result = libc.syscall(ctypes.c_long(int(number)), 0, 0, 0, 0)
    return "done" if result >= 0 else errno.errorcode[ctypes.get_errno()]


def tiocsti(_: str) -> str:
    """Type into the terminal of standard input."""
    return _name(lambda: fcntl.ioctl(0, 0x5412, b"x"))


def write(path: str) -> str:
    """Open a file for writing and leave it as it is."""
    return _name(lambda: os.close(os.open(path, os.O_WRONLY)))


def create(path: str) -> str:
    """Make a file and remove it."""

    def make() -> None:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        os.unlink(path)

    return _name(make)


def read(path: str) -> str:
    """The first kilobytes of a file, or why not."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(4096)
    except OSError as error:
        return errno.errorcode[error.errno or 0]


def listed(path: str) -> list[str]:
    """The names in a folder."""
    return sorted(os.listdir(path))


def environment(name: str) -> str | None:
    """A variable."""
    return os.environ.get(name)


def descriptors(_: str) -> list[int]:
    """Open descriptors, but for the one that looks."""
    return [number for number in range(256) if _open(number)]


def _open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _connect(family: int, address: Any, patience: float = 20) -> str:
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.settimeout(patience)
        try:
            sock.connect(address)
        except TimeoutError:
            return "ETIMEDOUT"
        except OSError as error:
            return errno.errorcode[error.errno or 0]
        return "connected"


def _name(action: Any) -> str:
    try:
        action()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "done"


if __name__ == "__main__":
    print(json.dumps({word: globals()[word.partition("=")[0]](word.partition("=")[2]) for word in sys.argv[1:]}))
