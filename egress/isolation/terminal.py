"""The terminal that the command shares with the caller's shell: who is in the foreground, who stops, who goes on.

The command has a process group of its own, in the caller's session: it can have job control and read Ctrl-C from the
terminal itself, and cannot name, stop or kill the caller's group. The price is the shell's work, done here in small:
hand the terminal over, take it back when the command stops or ends, stop with it, go on with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import BinaryIO


class Terminal:
    """The caller's side of the session's terminal, if there is one and this process is in its foreground."""

    __slots__ = ("handed", "present")

    def __init__(self) -> None:
        self.handed = False
        self.present = _foreground() == os.getpgrp()

    def wants_command_in_front(self) -> bool:
        """Whether to hand over at the start: not in a pipeline, whose other parts need the terminal too (a pager).

        There a command that reads the terminal all the same is stopped by it, and is handed it then.
        """
        return self.present and all(os.isatty(number) for number in (0, 1, 2))

    def in_front(self) -> bool:
        """Whether this process's group has the terminal now (a shell may have put it in the background)."""
        return self.present and _foreground() == os.getpgrp()

    def take_back(self) -> None:
        """Make this process's group the foreground one again, if it was handed over."""
        if self.handed:
            self.handed = False
            give(os.getpgrp())


def give(group: int) -> None:
    """Make `group` (of this session) the terminal's foreground group; done from the background, hence the mask."""
    old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        with contextlib.suppress(OSError), _opened() as terminal:
            os.tcsetpgrp(terminal.fileno(), group)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)


def _foreground() -> int:
    """The terminal's foreground group, -1 without a terminal."""
    try:
        with _opened() as terminal:
            return os.tcgetpgrp(terminal.fileno())
    except OSError:
        return -1


def _opened() -> BinaryIO:
    """The session's controlling terminal, whatever the standard streams are. Raises `OSError` without one."""
    return open("/dev/tty", "rb", buffering=0)
