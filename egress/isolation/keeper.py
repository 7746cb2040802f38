"""The keeper: first process of the PID namespace in which the guard and the network helper live.

The kernel ends a PID namespace with its first process, so neither can be left behind: not a daemon that put itself
into the background, not after SIGKILL to whoever started all this.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from typing import TYPE_CHECKING, Any

from egress.isolation import connectivity, guard
from egress.isolation import syscalls as sys_
from egress.isolation.channel import Channel, Closed, SetupError

if TYPE_CHECKING:
    from collections.abc import Callable

    from egress.config import Config
    from policies.model import NetworkPolicy

LEAVE_WITHIN = 2.0  # seconds the guard has to say its last words


def enter(
    channel: Channel,
    feed: Channel,
    user_fd: int,
    network_fd: int,
    main: Callable[[guard.Seat], int],
    config: Config,
    policy: NetworkPolicy,
) -> None:
    """Enter the user namespace, fork the keeper into its PID namespace, and leave. Never returns in either.

    `channel` leads to the first process of the run (commands "go on", "connect", "stop"); the guard speaks over
    `feed`. Says "kept" with the keeper's PID, "connected", "guard ended", "failed".
    """
    try:
        sys_.prctl(sys_.PR_SET_PDEATHSIG, signal.SIGKILL)
        sys_.setns(user_fd, sys_.CLONE_NEWUSER)
        sys_.unshare(sys_.CLONE_NEWPID)
        pid = os.fork()
        if pid:
            channel.send("kept", pid=pid)
            os._exit(0)
        os.setsid()
        channel.expect("go on")
        sys_.prctl(sys_.PR_SET_PDEATHSIG, signal.SIGKILL)
        _Keeper(channel, feed, network_fd).run(main, config, policy)
    except (OSError, SetupError) as error:
        channel.tell("failed", why=f"the guard's process: {error}")
    except Closed:
        pass
    os._exit(1)


class _Keeper:
    def __init__(self, channel: Channel, feed: Channel, network_fd: int) -> None:
        self._channel = channel
        self._feed = feed
        self._network_fd = network_fd
        self._guard = 0
        self._helper = 0
        self._stop = -1

    def run(self, main: Callable[[guard.Seat], int], config: Config, policy: NetworkPolicy) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP):
            signal.signal(number, signal.SIG_IGN)
        wake, ring = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(ring, warn_on_full_buffer=False)
        stop, self._stop = os.pipe2(os.O_CLOEXEC)
        self._guard = os.fork()
        if self._guard == 0:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGTSTP):
                signal.signal(number, signal.SIG_DFL)
            os.close(self._stop)
            self._channel.close()
            guard.occupy(self._feed, self._network_fd, stop, main, config, policy)
        os.close(stop)
        self._feed.close()
        while True:
            sources: list[Any] = [self._channel, wake]
            ready, _, _ = select.select(sources, [], [])
            if wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 4096)
                self._reap()
            if self._channel in ready:
                self._obey(self._channel.receive())

    def _obey(self, message: dict[str, Any]) -> None:
        if message["kind"] == "connect":
            helper = connectivity.Helper(message["name"], message["path"])
            self._helper, problem = connectivity.start(helper, self._network_fd)
            self._channel.send("connected", problem=problem)
        elif message["kind"] == "stop":
            os.close(self._stop)
            end = time.monotonic() + LEAVE_WITHIN
            while self._guard and time.monotonic() < end:
                self._reap()
                time.sleep(0.002)
            os._exit(0)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._guard:
                self._guard = 0
                self._channel.tell("guard ended", code=os.waitstatus_to_exitcode(status))
            else:
                self._channel.tell("network ended")
