"""One container guarded until it ends: what `egress attach` does."""

from __future__ import annotations

import os
import signal
import socket
from typing import TYPE_CHECKING

from egress.docker.api import DockerError
from egress.docker.entrance import HeldError, OverError, UnseenError, ended, enter
from egress.docker.ward import Ward, words_of
from egress.loop import Loop

if TYPE_CHECKING:
    from egress.config import Config
    from egress.docker.api import Docker
    from egress.docker.containers import Container, Said

_STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def guard(docker: Docker, container: Container, said: Said, config: Config) -> str:
    """Guard it until it ends or a signal says so; "", or why it could not be guarded."""
    try:
        pidfd = os.pidfd_open(container.pid)  # before its number is confirmed: what ends this is its end and no other's
        fd = enter(docker, container)
    except ProcessLookupError:
        return "it has ended"
    except (OverError, UnseenError, DockerError) as error:
        return str(error)
    except OSError as error:
        return f"its network can't be opened: {error.strerror}"
    problem: list[str] = []

    def unexpected(error: BaseException) -> None:
        ward.log.error("unexpected", error=f"{type(error).__name__}: {error}")

    try:
        loop = Loop(unexpected)
        ward = Ward(loop, config, container, said, fd)
    except (HeldError, OSError) as error:
        os.close(fd)
        return words_of(error)

    def started(reason: str) -> None:
        if reason and ended(container.pid):
            return  # its network was taken apart under our hands, and `over` is about to be called
        if reason:
            problem.append(f"{reason}; what stands of the rules stays")
            loop.stop()
        else:
            ward.tell_loaded(**{"opensandbox.container": "guarded"})

    def over() -> None:
        ward.log.info(f"{container.name} has ended", **{"opensandbox.container": "ended"})
        loop.stop()

    loop.add_reader(pidfd, over)  # the first process and not the daemon, which may be restarted meanwhile
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
    with theirs, ours:
        loop.run()
        signal.set_wakeup_fd(-1)
    ward.close()
    return problem[0] if problem else ""
