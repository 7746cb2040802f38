"""Word from the kernel that a file may have changed: inotify(7) by ctypes, for asyncio.

The folders that the path leads through are watched, not the file: a file replaced by rename is another inode, and what
Kubernetes mounts from a ConfigMap is a link to a link that is swapped two folders up.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_MODIFY, _ATTRIB, _CLOSE_WRITE = 0x2, 0x4, 0x8
_MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _IGNORED, _OVERFLOW = 0x400, 0x800, 0x8000, 0x4000
_ONLYDIR = 0x01000000
_MASK = _MODIFY | _ATTRIB | _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
_MASK |= _DELETE_SELF | _MOVE_SELF | _ONLYDIR
_HEAD = struct.Struct("iIII")
_MOST_LINKS = 40  # as the kernel, path_resolution(7)


class Event(NamedTuple):
    """Something happened to an entry of a watched folder."""

    folder: str
    name: str
    """The entry's; "": the folder itself, or events were lost."""
    whole: bool
    """What stands there is finished: closed by its writer, or moved to its place."""


class Watcher:
    """Watches folders; `fd` is readable when `events` has something to say. Raises OSError without inotify."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self.fd < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        self._folders: dict[int, str] = {}

    def watch(self, folders: set[str]) -> bool:
        """Watch exactly these folders; one that isn't there is left out. False where the kernel's limit is reached."""
        complete = True
        found: dict[int, str] = {}
        for folder in folders:
            wd = self._libc.inotify_add_watch(self.fd, os.fsencode(folder), ctypes.c_uint32(_MASK))
            if wd >= 0:
                found[wd] = folder
            elif ctypes.get_errno() in (errno.ENOSPC, errno.ENOMEM):
                complete = False
        for wd in self._folders.keys() - found.keys():
            self._libc.inotify_rm_watch(self.fd, wd)  # one that is gone has taken its watch along
        self._folders = found
        return complete

    def events(self) -> Iterator[Event]:
        """What has happened since; never waits."""
        while True:
            try:
                data = os.read(self.fd, 65536)
            except (BlockingIOError, InterruptedError):
                return
            at = 0
            while at < len(data):
                wd, mask, _, length = _HEAD.unpack_from(data, at)
                at += _HEAD.size
                name = os.fsdecode(data[at : at + length].rstrip(b"\0"))
                at += length
                if mask & _OVERFLOW:
                    yield Event("", "", whole=False)
                elif not mask & _IGNORED and wd in self._folders:
                    yield Event(self._folders[wd], name, whole=bool(mask & (_CLOSE_WRITE | _MOVED_TO)))

    def close(self) -> None:
        """Give the descriptor back; harmless twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def trail(path: str) -> dict[str, set[str]]:
    """The entries by folder whose change can change what `path` leads to: the links on its way, and its end.

    Where the way breaks off, the entry that is missing is the last one.
    """
    places: dict[str, set[str]] = {}
    current = "/"
    ahead = os.path.abspath(path).split("/")[::-1]
    links = 0
    while ahead:
        name = ahead.pop()
        if name in ("", "."):
            continue
        if name == "..":
            current = os.path.dirname(current)
            continue
        full = os.path.join(current, name)
        try:
            target = os.readlink(full)
        except OSError as error:
            if error.errno != errno.EINVAL or not ahead:  # it isn't there, or it is the end; else an ordinary folder
                places.setdefault(current, set()).add(name)
            if error.errno != errno.EINVAL:
                return places
            current = full
            continue
        places.setdefault(current, set()).add(name)
        links += 1
        if links > _MOST_LINKS:
            return places
        ahead.extend(target.split("/")[::-1])
        if target.startswith("/"):
            current = "/"
    return places
