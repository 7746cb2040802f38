"""A routes file, followed at once: the default, and all that a laptop needs.

The kernel says when something happened (inotify), and a look every second finds what it could not say: network file
systems, a folder that was mounted over. What is seen to be finished (closed, renamed into place) is read at once; what
may still be written, when it has stopped changing. A file that is broken or gone leaves the routes as they were.
"""

from __future__ import annotations

import asyncio
import os
import stat
from typing import TYPE_CHECKING, NamedTuple

from ingress.providers.base import Health
from ingress.providers.inotify import Watcher, trail
from ingress.providers.routesfile import RoutesError, parse_routes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingress.providers.base import Say
    from ingress.routes import Routes

DEFAULT_PATHS = ("/etc/sallyport/routes.yaml", "routes.yaml", "routes.json")
"""Where a gateway without a `--routes` looks; the first that is there is followed."""
LIMIT = 64 * 1024 * 1024
"""Bytes of a routes file at most."""
POLL = 1.0
"""Seconds between two looks that nothing asked for."""
SETTLE = 0.1
"""Seconds without a change after which a file that was not closed is taken for finished."""
_PATIENCE = 1.0  # and this long at most: a writer that never stops
_ASIDE = 262_144  # bytes from which on a file is parsed in a thread: the loop has requests to serve


class _Stamp(NamedTuple):
    """What tells one version of a file from another without reading it."""

    device: int
    inode: int
    size: int
    modified: int  # nanoseconds
    changed: int  # nanoseconds; a rename moves it too


class StaticProvider:
    """Follows the first of `paths` that is there; once one was, only that one."""

    def __init__(self, paths: Sequence[str], routes: Routes, say: Say, *, inotify: bool = True) -> None:
        self._paths = tuple(paths)
        self._routes = routes
        self._say = say
        self._health = Health(loaded=False, source=self._searched())
        self._seen: _Stamp | None = None
        self._told = ""
        self._looked = False
        self._wake = asyncio.Event()
        self._whole = False
        self._trails: dict[str, set[str]] = {}
        self._watcher: Watcher | None = None
        self._blind = "" if inotify else "inotify is switched off"
        self._wanted = inotify

    def health(self) -> Health:
        """No file is no sandboxes: loaded, and `degraded` says where it looks. One broken at start isn't."""
        return self._health

    async def run(self) -> None:
        """Follow the file until cancelled."""
        self._open()
        try:
            while True:
                self._watch()
                await self._look()
                await self._pause()
        finally:
            await self.close()

    async def close(self) -> None:
        """Give the watch back."""
        if self._watcher is not None:
            asyncio.get_running_loop().remove_reader(self._watcher.fd)
            self._watcher.close()
            self._watcher = None

    def _open(self) -> None:
        if not self._wanted:
            return
        try:
            self._watcher = Watcher()
        except (OSError, AttributeError) as error:
            self._blind = f"no inotify ({error})"
            return
        asyncio.get_running_loop().add_reader(self._watcher.fd, self._heard)

    def _watch(self) -> None:
        """Watch the folders that the paths lead through now."""
        self._trails = {}
        for path in self._paths:
            for folder, names in trail(path).items():
                self._trails.setdefault(folder, set()).update(names)
        if self._watcher is not None:
            complete = self._watcher.watch(set(self._trails))
            self._blind = "" if complete else "the kernel's limit of inotify watches is reached"

    def _heard(self) -> None:
        """inotify has something to say; what doesn't concern the paths is passed over."""
        if self._watcher is None:
            return
        for event in self._watcher.events():
            if not event.name or event.name in self._trails.get(event.folder, ()):
                self._whole = self._whole or event.whole
                self._wake.set()

    async def _pause(self) -> None:
        """Until something happens, or a second."""
        try:
            async with asyncio.timeout(POLL):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _look(self) -> None:
        """Read the file where it is another one than at the last look."""
        whole, self._whole = self._whole, False
        self._wake.clear()
        path = next((path for path in self._paths if _there(path)), "")
        if not path:
            self._missing()
            self._looked = True
            return
        stamp = _stamp(path)
        if stamp == self._seen:
            return
        if self._looked and not whole and stamp is not None:
            stamp = await self._settled(path, stamp)
        self._paths = (path,)
        self._looked = True
        await self._read(path, stamp)

    async def _settled(self, path: str, stamp: _Stamp | None) -> _Stamp | None:
        """Wait until the file stops changing, or is said to be finished."""
        waited = 0.0
        while waited < _PATIENCE and not self._whole:
            await asyncio.sleep(SETTLE / 4)
            waited += SETTLE / 4
            now = _stamp(path)
            if now == stamp and waited >= SETTLE:
                break
            stamp = now
        return stamp

    async def _read(self, path: str, stamp: _Stamp | None) -> None:
        try:
            data = _contents(path)
            if len(data) > _ASIDE:
                sandboxes = await asyncio.to_thread(parse_routes, data, path)
            else:
                sandboxes = parse_routes(data, path)
        except RoutesError as error:
            self._seen = stamp
            self._trouble(path, str(error))
            return
        except OSError as error:
            self._seen = None  # it may become readable without changing
            self._trouble(path, f"{path}: {_why(error)}")
            return
        self._seen = stamp
        self._routes.replace(sandboxes)
        self._health = Health(loaded=True, source=self._source(path))
        self._told = ""
        count = len(sandboxes)
        self._say("info", f"{path}: {count} sandbox{'' if count == 1 else 'es'}")

    def _missing(self) -> None:
        if len(self._paths) == 1 and self._seen is not None:
            self._seen = None
            self._trouble(self._paths[0], f"{self._paths[0]}: it is gone")
        elif self._seen is None and not self._told:
            places = " or ".join(self._paths)
            self._health = Health(
                loaded=True,
                degraded=f"no routes file yet; write one to {places}, or name another with --routes",
                source=self._searched(),
            )
            self._told = self._health.degraded
            self._say("warn", self._told)

    def _trouble(self, path: str, words: str) -> None:
        """Say what is wrong, once; the routes stay."""
        kept = len(self._routes)
        rest = f"; the last routes go on ({kept})" if kept else "; there are no routes"
        self._health = Health(self._health.loaded, words + rest, self._source(path))
        if self._told != words:
            self._told = words
            self._say("error", words + rest)

    def _source(self, path: str) -> str:
        return f"{os.path.abspath(path)}" + (f", looked at every second: {self._blind}" if self._blind else "")

    def _searched(self) -> str:
        return " or ".join(os.path.abspath(path) for path in self._paths)


def _stamp(path: str) -> _Stamp | None:
    try:
        info = os.stat(path)
    except (OSError, ValueError):
        return None
    return _Stamp(info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)


def _contents(path: str) -> bytes:
    """All of a regular file. Raises OSError; a FIFO or a device can't make us wait."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise OSError(0, "is not a regular file")
        if info.st_size > LIMIT:
            raise OSError(0, f"is larger than {LIMIT} bytes")
        with open(fd, "rb", closefd=False) as file:
            return file.read(LIMIT)
    finally:
        os.close(fd)


def _there(path: str) -> bool:
    """Something stands there, or what stands there can't be known: then reading it will say why."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError):
        pass
    return True


def _why(error: OSError) -> str:
    words = error.strerror or "can't be read"
    return words[0].lower() + words[1:]
