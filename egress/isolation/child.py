"""The sandbox's side: build the namespaces, be their first process, run the command and tell what became of it.

`enter` runs in a process forked for it and forks twice: the first process unshares (a PID namespace is for children
only) and leaves, the second is the init of the new PID namespace. Its death kills everything in there, and it dies
with the process outside: by the parent-death signal, and by the end of the channel where that came too late.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
from typing import TYPE_CHECKING, Any, NoReturn

from egress.isolation import mounts, privileges, seccomp, terminal
from egress.isolation import syscalls as sys_
from egress.isolation.channel import Channel, Closed, SetupError

if TYPE_CHECKING:
    from collections.abc import Sequence

NAMESPACES = sys_.CLONE_NEWNET | sys_.CLONE_NEWPID | sys_.CLONE_NEWNS | sys_.CLONE_NEWIPC | sys_.CLONE_NEWUTS

_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1


def enter(channel: Channel, plan: mounts.MountPlan, command: Sequence[str], environ: dict[str, str], cwd: str) -> None:
    """Build the namespaces and leave; the init that was forked goes on. Never returns in either of them.

    Says over `channel`: "unshared" (waits for "mapped"), "born" with the user and network namespaces and the init's
    PID, and from the init "built", then what happens to the command; "failed" with the reason instead.
    """
    try:
        uid, gid = os.getuid(), os.getgid()
        sys_.prctl(sys_.PR_SET_PDEATHSIG, signal.SIGKILL)
        _unshare_user()
        channel.send("unshared", pid=os.getpid())
        mapped = channel.expect("mapped")
        if not mapped["done"]:
            _map_self(uid, gid)
        sys_.unshare(NAMESPACES)
        with contextlib.suppress(OSError):
            sys_.unshare(sys_.CLONE_NEWCGROUP)
        _raise_loopback()
        user = os.open("/proc/self/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        network = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        pid = os.fork()
        if pid:
            channel.send("born", user, network, pid=pid)
            os._exit(0)
        os.close(user)
        os.close(network)
        _build(channel, plan, nested=not mapped["done"])
        _Init(channel, command, environ, cwd).run()
    except (OSError, SetupError) as error:
        channel.tell("failed", why=_words(error))
    except Closed:
        pass
    os._exit(125)


def _unshare_user() -> None:
    try:
        sys_.unshare(sys_.CLONE_NEWUSER)
    except OSError as error:
        raise SetupError(no_user_namespaces(error)) from error


def no_user_namespaces(error: OSError) -> str:
    """Why the kernel gives no user namespace, and what to do about it."""
    words = f"this kernel gives no user namespace here ({os.strerror(error.errno or 0)})"
    for path, value, cure in (
        ("/proc/sys/kernel/unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"),
        (
            "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile that allows userns",
        ),
        ("/proc/sys/user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces=10000"),
    ):
        with contextlib.suppress(OSError), open(path, encoding="ascii") as file:
            if file.read().strip() == value:
                return f"{words}: {path} is {value}; an administrator can change that: {cure}"
    return f"{words}: inside a container its seccomp profile is the usual reason; run on the host or allow unshare"


def _map_self(uid: int, gid: int) -> None:
    """The one mapping that needs no right: this user, under its own number (user_namespaces(7))."""
    try:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)
    except OSError as error:
        raise SetupError(no_user_namespaces(error)) from error


def _raise_loopback() -> None:
    import fcntl
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = fcntl.ioctl(probe, _SIOCGIFFLAGS, struct.pack("16sH14x", b"lo", 0))
        flags = struct.unpack("16sH14x", request)[1]
        fcntl.ioctl(probe, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))


def _build(channel: Channel, plan: mounts.MountPlan, *, nested: bool) -> None:
    """Shape this process into the sandbox's init: its files, then the rights it gives up."""
    os.setpgid(0, 0)
    channel.expect("go on")  # the process between has left: the parent is the one whose death must end this
    mounts.apply(plan)
    with contextlib.suppress(OSError):
        sys_.join_fresh_keyring()
    if nested:
        privileges.nest_user_namespace(os.getuid(), os.getgid())
    privileges.drop_all()
    seccomp.install()
    sys_.prctl(sys_.PR_SET_DUMPABLE, 0)
    sys_.prctl(sys_.PR_SET_PDEATHSIG, signal.SIGKILL)  # last: a change of credentials clears it
    channel.send("built")


def _words(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename else ""
        return place + error.strerror
    return str(error)


_INHERITED = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class _Init:
    """PID 1 of the sandbox: reaps, passes signals on, and reports. Holds no right that the command lacks."""

    def __init__(self, channel: Channel, command: Sequence[str], environ: dict[str, str], cwd: str) -> None:
        self._channel = channel
        self._command = command
        self._environ = environ
        self._cwd = cwd
        self._pid = 0
        # what the caller ignores (nohup, a script's background job) the command ignores; the rest is our own doing
        self._ignored = [n for n in _INHERITED if signal.getsignal(n) == signal.SIG_IGN]

    def run(self) -> NoReturn:
        start = self._channel.expect("start")
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTOU, signal.SIGTTIN, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        wake, ring = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(ring, warn_on_full_buffer=False)
        self._start(in_front=start["in_front"])
        while True:
            sources: list[Any] = [self._channel, wake]
            ready, _, _ = select.select(sources, [], [])
            if wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 4096)
                self._reap()
            if self._channel in ready:
                try:
                    self._obey(self._channel.receive())
                except Closed:
                    os._exit(0)

    def _start(self, *, in_front: bool) -> None:
        good, bad = os.pipe2(os.O_CLOEXEC)
        self._pid = os.fork()
        if self._pid == 0:
            _become(self._command, self._environ, self._cwd, bad, self._ignored, in_front=in_front)
        os.close(bad)
        reason = os.read(good, 64)
        os.close(good)
        if reason:
            where, _, number = reason.decode().partition(" ")
            self._channel.tell("unstarted", where=where, errno=int(number))
            os._exit(0)

    def _obey(self, message: dict[str, Any]) -> None:
        if message["kind"] == "front":
            terminal.give(self._pid)
        elif message["kind"] == "signal":
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if message["group"]:
                    os.killpg(self._pid, message["number"])
                else:
                    os.kill(self._pid, message["number"])

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid != self._pid:
                continue
            if os.WIFSTOPPED(status):
                self._channel.tell("stopped", number=os.WSTOPSIG(status))
            else:
                code = os.waitstatus_to_exitcode(status)
                self._channel.tell("ended", code=code if code >= 0 else 128 - code)
                os._exit(0)


def _become(
    command: Sequence[str], environ: dict[str, str], cwd: str, bad: int, ignored: Sequence[int], *, in_front: bool
) -> NoReturn:
    """In the forked child: be the command. What fails is told through `bad`, which a successful exec closes."""
    where = "cwd"
    try:
        os.setpgid(0, 0)
        if in_front:
            terminal.give(os.getpid())
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals():
            if number not in (signal.SIGKILL, signal.SIGSTOP):
                with contextlib.suppress(OSError, ValueError):
                    signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.closerange(3, bad)
        sys_.close_from(bad + 1)
        os.chdir(cwd)
        where = "exec"
        os.execvpe(command[0], list(command), environ)  # noqa: S606 - running what it is given is the point
    except OSError as error:
        os.write(bad, f"{where} {error.errno}".encode())
    except ValueError:
        os.write(bad, f"{where} {errno.EINVAL}".encode())
    os._exit(127)
