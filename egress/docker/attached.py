"""One container guarded until it ends: what `egress attach` does."""

from __future__ import annotations

import os
import signal
import socket
from typing import TYPE_CHECKING

from egress.docker.api import DockerError
from egress.docker.containers import read
from egress.docker.ward import Ward
from egress.loop import Loop

if TYPE_CHECKING:
    from egress.config import Config
    from egress.docker.api import Docker
    from egress.docker.containers import Container, Said

_STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def guard(docker: Docker, container: Container, said: Said, config: Config) -> str:
    """Guard it until it ends or a signal says so; "", or why it could not be guarded."""
    try:
        fd = os.open(f"/proc/{container.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        return f"its network can't be opened: {error.strerror}; is it on this machine, and this in its PID namespace?"
    try:
        again = read(docker.inspect(container.id))  # else the number may be another process's by now
    except DockerError as error:
        os.close(fd)
        return str(error)
    if (again.pid, again.started) != (container.pid, container.started):
        os.close(fd)
        return "it was restarted just now; try again"
    problem: list[str] = []

    def unexpected(error: BaseException) -> None:
        ward.log.error("unexpected", error=f"{type(error).__name__}: {error}")

    loop = Loop(unexpected)
    ward = Ward(loop, config, container, said, fd)

    def started(reason: str) -> None:
        if reason:
            problem.append(f"{reason}; what stands of the rules stays")
            loop.stop()
        else:
            ward.tell_loaded(**{"opensandbox.container": "guarded"})

    def ended() -> None:
        ward.log.info(f"{container.name} has ended", **{"opensandbox.container": "ended"})
        loop.stop()

    try:
        pidfd = os.pidfd_open(container.pid)
    except OSError:
        return "it has ended"
    loop.add_reader(pidfd, ended)  # the first process and not the daemon, which may be restarted meanwhile
    theirs, ours = socket.socketpair()
    theirs.setblocking(False)
    signal.set_wakeup_fd(theirs.fileno())
    for number in _STOP:
        signal.signal(number, lambda *_: None)

    def leave() -> None:
        ward.log.info("leaving; the rules stand, names are not answered any more")
        loop.stop()

    loop.add_reader(ours.fileno(), leave)
    ward.start(started, lock=True)
    loop.run()
    return problem[0] if problem else ""
