"""A network namespace for trying things: made in a forked child, gone with it.

Nothing that is tried there can touch the namespace we were called in: the child leaves it before it does anything,
and the kernel takes the scratch namespace, with all that was loaded into it, when the child ends.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = 20.0  # seconds
NOBODY = 65534


class ScratchError(Exception):
    """There is no scratch namespace, or what was tried in it did not come back; the text says why."""


def within(work: Callable[[], object], *, user: bool = False) -> Any:
    """Run `work` in a fresh network namespace, with `user` in a fresh user namespace too; returns what it returned.

    The result crosses a pipe as JSON. Raises ScratchError.
    """

    def inside() -> object:
        from egress.isolation import syscalls

        flags = syscalls.CLONE_NEWNET | (syscalls.CLONE_NEWUSER if user else 0)
        syscalls.unshare(flags)
        return work()

    return apart(inside)


def as_nobody(work: Callable[[], object]) -> Any:
    """Run `work` in a child that is an ordinary user. Raises ScratchError."""

    def inside() -> object:
        if os.getuid() == 0:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            from egress.isolation import syscalls

            syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)  # a change of user takes our own /proc away from us
        return work()

    return apart(inside)


def apart(work: Callable[[], object]) -> Any:
    """Run `work` in a forked child and return its result. Raises ScratchError, with the words of what it raised."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            answer: dict[str, object] = {"result": work()}
        except OSError as error:
            answer = {"error": error.strerror or str(error)}
        except BaseException as error:  # noqa: BLE001 - told to the parent
            answer = {"error": str(error) or type(error).__name__}
        try:
            _write(writer, json.dumps(answer).encode())
        finally:
            os._exit(0)
    os.close(writer)
    try:
        data = _read(reader, time.monotonic() + PATIENCE)
    finally:
        os.close(reader)
        os.kill(pid, signal.SIGKILL)  # ended already, but for one that hangs
        os.waitpid(pid, 0)
    try:
        found: dict[str, Any] = json.loads(data)
    except ValueError:
        raise ScratchError(f"no result within {PATIENCE:g} s, or the process died") from None
    if "error" in found:
        raise ScratchError(str(found["error"]))
    return found["result"]


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _read(fd: int, end: float) -> bytes:
    parts: list[bytes] = []
    while True:
        ready, _, _ = select.select([fd], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            return b""
        part = os.read(fd, 1 << 16)
        if not part:
            return b"".join(parts)
        parts.append(part)
