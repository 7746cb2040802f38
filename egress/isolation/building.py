"""Building a sandbox in the right order; see `session` for what happens in it.

namespaces born (no route, no device but loopback)
  -> guard: deny-all stands ("locked")
    -> network connected | policy loaded, DNS answers ("ready") | files laid over ("built")
      -> the command may start
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from egress.isolation import child, connectivity, keeper, privileges
from egress.isolation import syscalls as sys_
from egress.isolation.channel import Channel, Closed, SetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from egress.config import Config
    from egress.isolation.guard import Seat
    from egress.isolation.mounts import MountPlan
    from egress.isolation.report import Report
    from policies.model import NetworkPolicy

BUILD_WITHIN = 30.0  # seconds
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Options(NamedTuple):
    """One run, checked."""

    command: Sequence[str]
    environ: dict[str, str]
    cwd: str
    plan: MountPlan
    config: Config
    policy: NetworkPolicy
    offline: bool
    say: Callable[[str], None]  # one line for the person in front


class Interrupted(Exception):
    """A signal came while the sandbox was being built."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by signal {number}")
        self.number = number


class Bell:
    """Signals as numbers in a pipe, to be waited for beside channels. Put up first, taken down last."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in numbers:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup stays nohup
                signal.signal(number, lambda *_: None)

    def fileno(self) -> int:
        return self._read

    def heard(self) -> list[int]:
        with contextlib.suppress(BlockingIOError):
            return list(os.read(self._read, 4096))
        return []

    def take_down(self) -> None:
        signal.set_wakeup_fd(-1)
        os.close(self._read)
        os.close(self._write)


class Sandbox:
    """The processes of a sandbox, as the first process of the run holds them."""

    def __init__(self) -> None:
        self.inner, self._inner_end = Channel.pair()  # to the sandbox's init
        self.keeper, self._keeper_end = Channel.pair()  # to the keeper
        self.feed, self._feed_end = Channel.pair()  # from the guard
        self._pids: list[int] = []

    def build(self, options: Options, guard: Callable[[Seat], int], bell: Bell, report: Report) -> None:
        """Make everything stand. Raises `SetupError`, `Interrupted`, `Closed`; `end` is due in any case."""
        sys_.prctl(sys_.PR_SET_CHILD_SUBREAPER, 1)
        user_fd, network_fd = self._found(options)
        helper, problem = (None, "") if options.offline else connectivity.find()
        self._keep(options, guard, user_fd, network_fd)
        os.close(user_fd)
        os.close(network_fd)
        waiting = {"ready", "built"}
        if helper is not None:
            waiting.add("connected")
        elif problem:
            options.say(problem)
        self._gather(waiting, helper, options, bell, report)

    def last_words(self) -> None:
        """Read what the guard's feed still holds; a failure in it is raised as `SetupError`."""
        with contextlib.suppress(Closed):
            while select.select([self.feed], [], [], 0)[0]:
                message = self.feed.receive()
                if message["kind"] == "failed":
                    raise SetupError(message["why"])

    def end(self) -> None:
        """End every process of the sandbox and collect it."""
        for channel in (self.inner, self.keeper, self.feed, self._inner_end, self._keeper_end, self._feed_end):
            channel.close()
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)

    def _found(self, options: Options) -> tuple[int, int]:
        """Have the namespaces made; their init waits in them. Returns descriptors of the user and network ones."""
        first = os.fork()
        if first == 0:
            signal.set_wakeup_fd(-1)
            for channel in (self.inner, self.keeper, self.feed, self._keeper_end, self._feed_end):
                channel.close()
            child.enter(self._inner_end, options.plan, options.command, options.environ, options.cwd)
        self._inner_end.close()
        pid = self.inner.expect("unshared")["pid"]
        self.inner.send("mapped", done=_map(pid))
        born = self.inner.expect("born")
        self._pids.append(born["pid"])
        os.waitpid(first, 0)
        self.inner.send("go on")
        user_fd, network_fd = born["fds"]
        return user_fd, network_fd

    def _keep(self, options: Options, guard: Callable[[Seat], int], user_fd: int, network_fd: int) -> None:
        first = os.fork()
        if first == 0:
            signal.set_wakeup_fd(-1)
            for channel in (self.inner, self.keeper, self.feed):
                channel.close()
            keeper.enter(self._keeper_end, self._feed_end, user_fd, network_fd, guard, options.config, options.policy)
        self._keeper_end.close()
        self._feed_end.close()
        self._pids.append(self.keeper.expect("kept")["pid"])
        os.waitpid(first, 0)
        self.keeper.send("go on")

    def _gather(
        self, waiting: set[str], helper: connectivity.Helper | None, options: Options, bell: Bell, report: Report
    ) -> None:
        """Wait until everything stands; connect the network once the sandbox is locked down."""
        end = time.monotonic() + BUILD_WITHIN
        # the guard's own words before the news that it has ended: they say more
        channels = (self.feed, self.inner, self.keeper)
        sources: list[Any] = [*channels, bell]
        while waiting:
            ready, _, _ = select.select(sources, [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise SetupError(f"nothing came of it within {BUILD_WITHIN:.0f} s, missing: {', '.join(waiting)}")
            if bell in ready:
                for number in bell.heard():
                    if number in _ENDING:
                        raise Interrupted(number)
            for channel in channels:
                if channel not in ready:
                    continue
                message = channel.receive()
                kind = message["kind"]
                if kind == "failed":
                    raise SetupError(message["why"])
                if kind == "guard ended":
                    self.last_words()
                    raise SetupError(f"the guard ended before it was ready (exit {message['code']})")
                if kind == "locked" and helper is not None:
                    self.keeper.send("connect", name=helper.name, path=helper.path)
                elif kind == "connected" and message["problem"]:
                    options.say(f"{message['problem']}; the sandbox has only its loopback")
                elif kind == "warn":
                    options.say(message["text"])
                else:
                    report.take(message)
                waiting.discard(kind)


def _map(pid: int) -> bool:
    """Give the new user namespace every id that this one has, which takes root's rights; False: it maps itself."""
    if not privileges.has(privileges.CAP_SYS_ADMIN) or not privileges.has(privileges.CAP_SETUID):
        return False
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/self/{name}", encoding="ascii") as file:
            lines = [line.split() for line in file]
        try:
            with open(f"/proc/{pid}/{name}", "w", encoding="ascii") as file:
                file.write("".join(_extents(int(inside), int(count)) for inside, _, count in lines))
        except OSError as error:
            raise SetupError(f"the kernel refuses the ids of the sandbox ({name}): {error.strerror}") from error
    return True


def _extents(first: int, count: int) -> str:
    """The same ids inside, root in an extent of its own: pasta takes one extent of all ids for the host itself."""
    if first == 0 and count > 1:
        return f"0 0 1\n1 1 {count - 1}\n"
    return f"{first} {first} {count}\n"
