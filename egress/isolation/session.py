"""The first process of a run: stands between the sandbox and the caller until the command has ended.

Nothing here runs inside the sandbox or can be named from it. A run leaves nothing behind: see the package's picture.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import time
from typing import TYPE_CHECKING, Any

from egress.isolation import keeper, mounts
from egress.isolation.building import Bell, Interrupted, Options, Sandbox
from egress.isolation.channel import Closed, SetupError
from egress.isolation.report import Report
from egress.isolation.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Callable

    from egress.isolation.guard import Seat

__all__ = ["FAILED", "NAMESERVER", "Interrupted", "Options", "SetupError", "run"]

FAILED = 125  # the sandbox could not be built, or lost its guard
NOT_EXECUTABLE = 126
NOT_FOUND = 127

NAMESERVER = "127.0.0.1"
"""What the sandbox's resolv.conf says. Any address would do, port 53 is the guard's; this one needs no route."""

_GROUP = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGWINCH)  # a terminal sends these to a whole group
_STOP_AND_GO = (signal.SIGTSTP, signal.SIGCONT)
_PASSED = (*_GROUP, *_STOP_AND_GO, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def run(options: Options, guard: Callable[[Seat], int]) -> tuple[int, Report]:
    """Run the command in a sandbox of its own; returns the exit code to leave with and what was refused.

    Exit codes: the command's; 128 + its signal; 125, 126 and 127 where it never ran. Raises `SetupError`, and
    `Interrupted` where a signal came before the command had started.
    """
    bell = Bell(_PASSED)
    sandbox = Sandbox()
    terminal = Terminal()
    report = Report()
    try:
        sandbox.build(options, guard, bell, report)
        return _Relay(options, sandbox, terminal, bell, report).run(), report
    except Closed as error:
        raise SetupError("a process of the sandbox ended before its time (is memory short?)") from error
    finally:
        terminal.take_back()
        sandbox.end()
        bell.take_down()


class _Relay:
    """Signals in, exit status out, the guard's reports between."""

    def __init__(self, options: Options, sandbox: Sandbox, terminal: Terminal, bell: Bell, report: Report) -> None:
        self._options = options
        self._sandbox = sandbox
        self._terminal = terminal
        self._bell = bell
        self._report = report
        self._feeding = True

    def run(self) -> int:
        """Start the command and wait for its end; returns the exit code."""
        sandbox = self._sandbox
        front = self._terminal.wants_command_in_front()
        self._terminal.handed = front
        sandbox.inner.send("start", in_front=front)
        while True:
            sources: list[Any] = [sandbox.inner, sandbox.keeper, self._bell]
            if self._feeding:
                sources.append(sandbox.feed)
            ready, _, _ = select.select(sources, [], [])
            if self._bell in ready:
                for number in self._bell.heard():
                    self._pass_on(number)
            if sandbox.feed in ready:
                self._listen()
            if sandbox.inner in ready:
                code = self._inside(sandbox.inner.receive())
                if code is not None:
                    self._finish()
                    return code
            if sandbox.keeper in ready:
                self._beside(sandbox.keeper.receive())

    def _inside(self, message: dict[str, Any]) -> int | None:
        """A word of the sandbox's init; the exit code when it is the last one."""
        if message["kind"] == "ended":
            return int(message["code"])
        if message["kind"] == "stopped":
            self._stop_too(int(message["number"]))
        elif message["kind"] == "unstarted":
            return self._explain(message["where"], int(message["errno"]))
        return None

    def _beside(self, message: dict[str, Any]) -> None:
        """A word of the keeper."""
        if message["kind"] == "guard ended":
            self._sandbox.last_words()
            raise SetupError("the guard has ended; the command was stopped with it")
        if message["kind"] == "network ended":
            self._options.say("the network program has ended; the sandbox has only its loopback now")

    def _listen(self) -> None:
        """A word of the guard."""
        try:
            message = self._sandbox.feed.receive()
        except Closed:
            self._feeding = False
            return
        if message["kind"] == "warn":
            self._options.say(message["text"])
        elif message["kind"] == "failed":
            raise SetupError(message["why"])
        else:
            self._report.take(message)

    def _explain(self, where: str, number: int) -> int:
        """Say why the command could not be started."""
        options = self._options
        if where == "cwd":
            options.say(f"cannot enter the working folder {options.cwd} in the sandbox: {os.strerror(number)}")
            return FAILED
        name = options.command[0]
        if number == errno.EACCES and os.sep not in name and not _on_path(name, options.environ):
            number = errno.ENOENT  # a folder on PATH that this user may not search counts for nothing
        hidden = next((root for root in options.plan.fresh if mounts.below(os.path.realpath(name), root)), "")
        hint = f" ({hidden} is a fresh folder in the sandbox: --share-path brings a path in)" if hidden else ""
        options.say(f"cannot run {name}: {os.strerror(number)}{hint}")
        return NOT_FOUND if number in (errno.ENOENT, errno.ENOTDIR) else NOT_EXECUTABLE

    def _pass_on(self, number: int) -> None:
        if number not in _PASSED:
            return
        inner = self._sandbox.inner
        if number == signal.SIGCONT and self._terminal.in_front() and self._terminal.wants_command_in_front():
            self._terminal.handed = True
            inner.tell("front")
        inner.tell("signal", number=number, group=number in _GROUP or number in _STOP_AND_GO)

    def _stop_too(self, number: int) -> None:
        """The command has stopped: for want of the terminal, which it gets, or in earnest: then this stops as well."""
        inner = self._sandbox.inner
        if number in (signal.SIGTTIN, signal.SIGTTOU) and self._terminal.in_front():
            self._terminal.handed = True
            inner.tell("front")
            inner.tell("signal", number=int(signal.SIGCONT), group=True)
            return
        self._terminal.take_back()
        os.kill(os.getpid(), signal.SIGSTOP)

    def _finish(self) -> None:
        """The command is gone: let the guard say what it still has to say."""
        self._terminal.take_back()
        self._sandbox.keeper.tell("stop")
        end = time.monotonic() + keeper.LEAVE_WITHIN + 0.5
        while self._feeding and time.monotonic() < end:
            ready, _, _ = select.select([self._sandbox.feed], [], [], max(0.0, end - time.monotonic()))
            if ready:
                with contextlib.suppress(SetupError):
                    self._listen()


def _on_path(name: str, environ: dict[str, str]) -> bool:
    folders = environ.get("PATH", os.defpath).split(os.pathsep)
    return any(os.path.exists(os.path.join(folder, name)) for folder in folders)
