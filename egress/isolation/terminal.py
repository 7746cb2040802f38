"""The terminal that the command shares with the caller's shell: who is in the foreground, who stops, who goes on.

The command has a process group of its own, in the caller's session: it can have job control and read Ctrl-C from the
terminal itself, and cannot name, stop or kill the caller's group. The price is the shell's work, done here in small:
hand the terminal over, take it back when the command stops or ends, stop with it, go on with it.
"""

from __future__ import annotations

import contextlib
import os
import signal


class Terminal:
    """The caller's side of standard input's terminal, if it is one and this process is in its foreground."""

    __slots__ = ("handed", "present")

    def __init__(self) -> None:
        self.present = False
        self.handed = False
        with contextlib.suppress(OSError):
            self.present = os.tcgetpgrp(0) == os.getpgrp()

    def wants_command_in_front(self) -> bool:
        """Whether to hand over at the start: not in a pipeline, whose other parts need the terminal too (a pager)."""
        return self.present and os.isatty(1) and os.isatty(2)

    def in_front(self) -> bool:
        """Whether this process's group has the terminal now (a shell may have put it in the background)."""
        with contextlib.suppress(OSError):
            return self.present and os.tcgetpgrp(0) == os.getpgrp()
        return False

    def take_back(self) -> None:
        """Make this process's group the foreground one again, if it was handed over."""
        if self.handed:
            self.handed = False
            give(os.getpgrp())


def give(group: int) -> None:
    """Make `group` (of this session) the terminal's foreground group; done from the background, hence the mask."""
    old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        with contextlib.suppress(OSError):
            os.tcsetpgrp(0, group)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
