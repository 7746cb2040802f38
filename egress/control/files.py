"""The policy file: read without trusting what stands there, written so that a crash leaves the old or the new one.

A change goes: temporary file beside it, written and fsynced (`stage`), then, once the kernel holds the new policy, a
rename over the old one and an fsync of the folder (`commit`). What can fail, fails in `stage`, where nothing has
happened yet.

Links are not followed and only regular files are read, opened so that a FIFO or a device cannot make us wait.
"""

from __future__ import annotations

import errno
import os
import stat

from policies.model import PolicyError
from policies.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from policies.model import NetworkPolicy

LIMIT = 16 * 1024 * 1024
"""Bytes of a policy file at most."""
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class FileError(Exception):
    """A file that cannot be used; `str()` is one line with its path and the reason.

    `kind` is "unreadable" (there, but not to be read), "invalid" (read, but no policy) or "unwritable".
    """

    def __init__(self, path: str, reason: str, kind: str = "unreadable") -> None:
        super().__init__(f"{_shown(path)}: {reason}")
        self.kind = kind


class Stamp(NamedTuple):
    """What tells one version of a file from another without reading it."""

    device: int
    inode: int
    size: int
    modified: int  # nanoseconds
    changed: int  # nanoseconds; a rename or chmod moves it too


def stamp_of(info: os.stat_result) -> Stamp:
    return Stamp(info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)


def look(path: str) -> Stamp | None:
    """The stamp of what stands at `path`, a link's own included; None where nothing can be seen."""
    try:
        return stamp_of(os.lstat(path))
    except (OSError, ValueError):
        return None


def read_regular(path: str, limit: int) -> tuple[bytes, Stamp] | None:
    """The content of a regular file of at most `limit` bytes; None where there is none. Raises FileError."""
    try:
        fd = os.open(path, _OPEN)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FileError(path, _why(error)) from None
    except ValueError:
        raise FileError(path, "is not a path") from None
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise FileError(path, "is not a regular file")
        if info.st_size > limit:
            raise FileError(path, f"is larger than {limit} bytes")
        parts: list[bytes] = []
        size = 0
        while size <= limit:
            part = os.read(fd, min(1 << 20, limit + 1 - size))
            if not part:
                return b"".join(parts), stamp_of(info)
            parts.append(part)
            size += len(part)
        raise FileError(path, f"is larger than {limit} bytes")
    except OSError as error:
        raise FileError(path, _why(error)) from None
    finally:
        os.close(fd)


class PolicyFile:
    """The file that `OPENSANDBOX_EGRESS_POLICY_FILE` names."""

    def __init__(self, path: str) -> None:
        self.path = path
        # Told by its ending, else by its content.
        self.yaml = {".json": False, ".yaml": True, ".yml": True}.get(os.path.splitext(path)[1].lower())
        self._folder, self._name = os.path.split(os.path.abspath(path))
        self._seen: Stamp | None = None
        self._staged = 0

    def check(self) -> None:
        """Make sure that a change could be written here: raises FileError with kind "unwritable".

        The folder must take a new file, and the file must not be a mount point of its own, which no rename can
        replace (EBUSY). Left-overs of a crash are removed.
        """
        try:
            folder = os.open(self._folder, _FOLDER)
        except OSError as error:
            raise FileError(self._folder, _why(error), "unwritable") from None
        try:
            for name in os.listdir(folder):
                if name.startswith(f".{self._name}.") and name.endswith(".staged"):
                    _unlink(name, folder)
            probe = self._temporary()
            try:
                os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder))
            except OSError as error:
                raise FileError(
                    self._folder, f"{_why(error)}; the policy file's folder must be writable", "unwritable"
                ) from None
            _unlink(probe, folder)
            self._check_mount(folder)
        finally:
            os.close(folder)

    def _check_mount(self, folder: int) -> None:
        try:
            fd = os.open(self._name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        except OSError:
            return  # not there yet
        try:
            kind = os.fstat(fd).st_mode
            here, there = _mount_of(fd), _mount_of(folder)
        finally:
            os.close(fd)
        if stat.S_ISDIR(kind):
            raise FileError(self.path, "is a folder", "unwritable")
        if here and there and here != there:
            raise FileError(
                self.path,
                "is a mount point of its own, which cannot be replaced; mount its folder instead",
                "unwritable",
            )

    def load(self) -> NetworkPolicy | None:
        """The policy in the file, None where there is no file. Raises FileError, "unreadable" or "invalid"."""
        self._seen = look(self.path)  # before reading: a change in between is seen as one
        found = read_regular(self.path, LIMIT)
        if found is None:
            return None
        data, self._seen = found
        from policies.parser import parse_policy

        try:
            yaml = self.yaml if self.yaml is not None else data.lstrip()[:1] not in (b"", b"{", b"n")
            return parse_policy(data, yaml=yaml)
        except PolicyError as error:
            raise FileError(self.path, str(error), "invalid") from None

    def changed_since(self) -> bool:
        """Whether the file is another one than `load` saw last, or `commit` wrote."""
        return look(self.path) != self._seen

    def stamp(self) -> Stamp | None:
        """Which version of the file stands there now."""
        return look(self.path)

    def stage(self, data: bytes) -> Staged:
        """Write the next version beside the file; it replaces it with `commit`. Raises FileError ("unwritable")."""
        try:
            folder = os.open(self._folder, _FOLDER)
        except OSError as error:
            raise FileError(self._folder, _why(error), "unwritable") from None
        name = self._temporary()
        try:
            self._write(folder, name, data)
        except BaseException as error:
            _unlink(name, folder)
            os.close(folder)
            if isinstance(error, OSError):
                raise FileError(self.path, _why(error), "unwritable") from None
            raise
        return Staged(self, folder, name)

    def _write(self, folder: int, name: str, data: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=folder)
        try:
            try:
                old = os.stat(self._name, dir_fd=folder, follow_symlinks=False)
                mode = stat.S_IMODE(old.st_mode) & 0o777 if stat.S_ISREG(old.st_mode) else 0o644
            except FileNotFoundError:
                mode = 0o644
            os.fchmod(fd, mode)
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)

    def _temporary(self) -> str:
        self._staged += 1
        return f".{self._name}.{os.getpid()}-{self._staged}.staged"

    def replaced(self, folder: int, name: str) -> None:
        """Rename a staged file over ours; used by `Staged.commit`."""
        try:
            os.rename(name, self._name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError as error:
            raise FileError(self.path, _why(error), "unwritable") from None
        self._seen = look(self.path)
        try:
            os.fsync(folder)
        except OSError:
            pass  # the new name already stands and cannot be taken back; not every file system syncs folders


class Staged:
    """A version of the policy file that is written, but not yet in its place."""

    __slots__ = ("_file", "_folder", "_name")

    def __init__(self, file: PolicyFile, folder: int, name: str) -> None:
        self._file = file
        self._folder = folder
        self._name = name

    def commit(self) -> None:
        """Put it in its place. Raises FileError when it cannot be; then the old version stands."""
        if self._folder < 0:
            raise FileError(self._file.path, "was already committed or discarded", "unwritable")
        try:
            self._file.replaced(self._folder, self._name)
        except FileError:
            self.discard()
            raise
        self._close()

    def discard(self) -> None:
        """Throw it away; harmless after a commit."""
        if self._folder >= 0:
            _unlink(self._name, self._folder)
            self._close()

    def _close(self) -> None:
        os.close(self._folder)
        self._folder = -1


def _unlink(name: str, folder: int) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except OSError:
        pass  # gone already, or the folder became unwritable: a left-over that `check` removes


def _mount_of(fd: int) -> str:
    """The mount that a descriptor lies on (proc(5), fdinfo), "" where /proc does not say.

    `st_dev` would not tell: a file bound onto itself from the same file system keeps its device number.
    """
    try:
        info = os.open(f"/proc/self/fdinfo/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        for line in os.read(info, 4096).decode("ascii", "replace").splitlines():
            if line.startswith("mnt_id:"):
                return line[7:].strip()
    except OSError:
        pass
    finally:
        os.close(info)
    return ""


def _why(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "is a symbolic link, which is not followed"
    return (error.strerror or "cannot be used").lower()


def _shown(path: str) -> str:
    return path.encode("unicode_escape").decode("ascii")[:300]
