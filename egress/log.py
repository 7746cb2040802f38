"""One JSON object a line on stdout, and never a reason to wait.

Whoever reads the sidecar's output may be slow, stuck or gone, and the guard must not care: a line that cannot be
written at once is dropped and counted, and the count is told with the next line that gets through. `O_NONBLOCK` on
the descriptor itself would do that, but it belongs to the open file, which a shell or a test may share with us; so
a pipe or a terminal is opened again through /proc for a description of its own. Lines stay within `PIPE_BUF`, because
only that much is written whole or not at all (pipe(7)).

The `logging` module would cost 15 ms at start and has locks where this has none: only the loop's thread writes.
"""

from __future__ import annotations

import errno
import json
import os
import select
import socket
import stat
import time

from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_LEVELS = {"debug": 0, "info": 1, "warn": 2, "error": 3}
_LINE = 4096  # PIPE_BUF on Linux
_encode = json.JSONEncoder(separators=(",", ":"), default=str).encode


def timestamp(seconds: float) -> str:
    """RFC 3339 in UTC with milliseconds; `seconds` since the Unix epoch."""
    whole, milliseconds = divmod(int(seconds * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{milliseconds:03d}Z"


class Log:
    """Writes lines at or above `level` to `fd`; `fields` are added to each of them, a line's own fields win."""

    __slots__ = ("_fd", "_kind", "_level", "_rest", "_socket", "_told", "dropped", "fields")

    def __init__(self, fd: int = 1, level: str = "info", fields: Mapping[str, object] | None = None) -> None:
        self._level = _LEVELS[level]
        self._rest = b""  # what a terminal or a socket did not take of the last line
        self._told = 0
        self._socket: socket.socket | None = None
        self.dropped = 0
        self.fields = dict(fields or {})
        self._fd, self._kind = self._open(fd)

    def _open(self, fd: int) -> tuple[int, str]:
        try:
            mode = os.fstat(fd).st_mode
            if stat.S_ISSOCK(mode):
                self._socket = socket.socket(fileno=os.dup(fd))
                return fd, "socket"
        except OSError:  # nothing is there, or no descriptor is left
            return -1, "gone"
        if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            try:
                return os.open(f"/proc/self/fd/{fd}", flags), "own"
            except OSError:
                return fd, "shared"  # no /proc, or another user's pipe: ask before each write whether it would block
        return fd, "file"

    def enabled(self, level: str) -> bool:
        return _LEVELS[level] >= self._level

    def debug(self, message: str, **fields: object) -> None:
        self.write("debug", message, fields)

    def info(self, message: str, **fields: object) -> None:
        self.write("info", message, fields)

    def warning(self, message: str, **fields: object) -> None:
        self.write("warn", message, fields)

    warn = warning

    def error(self, message: str, **fields: object) -> None:
        self.write("error", message, fields)

    def write(self, level: str, message: str, fields: Mapping[str, object]) -> None:
        """Write one line, or drop it; never raises and never waits."""
        if _LEVELS[level] < self._level:
            return
        entry: dict[str, object] = {"time": timestamp(time.time()), "level": level, "msg": message}
        entry.update({key: value for key, value in self.fields.items() if key not in entry})
        entry.update(fields)
        if self.dropped > self._told:
            entry["log.dropped"] = self.dropped
        if self._put(_line(entry)):
            self._told = self.dropped
        else:
            self.dropped += 1

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        elif self._kind == "own":
            os.close(self._fd)
        self._kind = "gone"

    def _put(self, line: bytes) -> bool:
        """Hand `line` to the kernel; False when nothing of it was taken."""
        if self._rest:
            self._rest = self._rest[self._send(self._rest) :]
            if self._rest:
                return False
        sent = self._send(line)
        if not sent:
            return False
        self._rest = line[sent:]
        return True

    def _send(self, data: bytes) -> int:
        """The number of bytes taken, 0 for none."""
        try:
            if self._kind == "gone":
                return 0
            if self._socket is not None:
                return self._socket.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            if self._kind == "shared":
                poll = select.poll()
                poll.register(self._fd, select.POLLOUT)
                if not poll.poll(0):
                    return 0
            return os.write(self._fd, data)
        except OSError as error:
            if error.errno in (errno.EBADF, errno.EINVAL):
                self._kind = "gone"
            if error.errno not in (errno.EAGAIN, errno.EINTR):
                self._rest = b""  # the reader is gone: half a line is of no use to the next one
            return 0


def emit(level: str, message: str, **fields: object) -> None:
    """One line on stdout from a process that keeps no log open."""
    log = Log()
    log.write(level, message, fields)
    log.close()


def _line(entry: dict[str, object]) -> bytes:
    """`entry` as one line of at most `_LINE` bytes; what is too long is cut inside its values."""
    data = _encode(entry).encode()
    for texts, items in ((400, 20), (80, 5), (30, 1)):
        if len(data) < _LINE:
            break
        entry = {key: _shorten(value, texts, items) for key, value in entry.items()}
        entry["log.shortened"] = True
        data = _encode(entry).encode()
    if len(data) >= _LINE:
        kept = ("time", "level", "msg", "opensandbox.event")
        data = _encode({key: entry[key] for key in kept if key in entry} | {"log.shortened": True}).encode()
    return data + b"\n"


def _shorten(value: object, texts: int, items: int) -> object:
    if isinstance(value, str):
        return value if len(value) <= texts else value[:texts] + "..."
    if isinstance(value, (list, tuple)):
        return [_shorten(item, texts, items) for item in value[:items]]
    if isinstance(value, dict):
        return {key: _shorten(item, texts, items) for key, item in value.items()}
    return value
