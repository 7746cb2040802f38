"""Into a running container's network: a descriptor of its namespace, of this container's and of nobody else's; and by
one of us at a time.

Where it is, the daemon says by the number of its first process, and it hears of an end later than the kernel does. By
then the process may be a zombie, which has no namespaces any more, or gone, or its number another process's: the host's
own network, or another container's, would be guarded in its place. So the daemon is asked again behind the opening, and
what was opened is held against what the daemon keeps open itself.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING

from egress.docker.api import DockerError
from egress.docker.containers import read

if TYPE_CHECKING:
    from egress.docker.api import Docker
    from egress.docker.containers import Container

_OWN = "/proc/self/ns/net"


class OverError(Exception):
    """This life of the container is over; one line."""


class UnseenError(Exception):
    """The daemon says that it runs, and its process is not to be seen: it is ending, or processes here are others than
    the daemon's. One line."""


class HeldError(Exception):
    """Another of us guards this network; one line."""


def alone(name: str) -> socket.socket | None:
    """A name in this process's network, until that is closed or the process ends; None where another has it. Raises
    OSError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.bind(f"\0sallyport-{name}")
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return sock


def claim(fd: int) -> socket.socket:
    """This network for us alone, as `alone` does: two guards would take each other's rules away, over and over. Raises
    HeldError, OSError."""
    network = os.fstat(fd)
    held = alone(f"guard-{network.st_dev}-{network.st_ino}")
    if held is None:
        raise HeldError("another egress attach, or egress docker watch, guards it already; end that one first")
    return held


def ended(pid: int) -> bool:
    """Whether a process is gone or on its way: one that exits gives up its namespaces before its number."""
    for _ in range(2):  # one that goes in the middle of a look is as good as forbidden (EACCES), once
        try:
            os.stat(f"/proc/{pid}/ns/net")
        except (FileNotFoundError, ProcessLookupError):
            return True
        except OSError:
            continue
        return False
    return False


def inspect(docker: Docker, identity: str) -> Container | None:
    """What the daemon says of a container now, None where it knows none. Raises DockerError."""
    try:
        return read(docker.inspect(identity))
    except DockerError as error:
        if error.status == 404:
            return None
        raise


def enter(docker: Docker, container: Container) -> int:
    """Its network namespace, for the caller to close. Raises OverError, UnseenError, DockerError, and OSError where the
    namespace of a process that lives cannot be opened."""
    try:
        fd = os.open(f"/proc/{container.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        if ended(container.pid):
            raise _unseen(container) from None
        raise
    try:
        again = inspect(docker, container.id)
        if again is None or not again.running:
            raise OverError("it has ended")
        if (again.pid, again.started) != (container.pid, container.started):
            raise OverError("it was restarted just now; try again")
        if _is(fd, _OWN) or _is(fd, again.sandbox) is False:
            raise _unseen(container)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _is(fd: int, path: str) -> bool | None:
    """Whether that is this namespace; None where nothing here says so: the daemon's files may lie elsewhere."""
    try:
        there = os.stat(path)
    except (OSError, ValueError):
        return None
    here = os.fstat(fd)
    return here.st_ino == there.st_ino if here.st_dev == there.st_dev else None


def _unseen(container: Container) -> UnseenError:
    return UnseenError(
        f"its process {container.pid} can't be seen from here; is this on its machine, in the daemon's PID namespace?"
    )
