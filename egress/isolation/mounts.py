"""What the command sees of the files: the host's, without its sockets, its processes and its temporary folders.

The tree stays the host's (a command needs its libraries, its home and its project), and these are laid over it: fresh
folders where services keep their sockets (/run, /tmp, /var/tmp, /dev/shm), a /dev with the harmless devices only, a
/proc of the sandbox's own processes, resolver settings that lead to the guard, and nothing over each socket that some
process of the host listens on elsewhere. A path of the caller's (working folder, home, `--share-path`) that lies in
one of the fresh folders is brought back at its place.

As root the rest of the tree becomes read-only but for home, working folder and shared paths: root's files are the
system, and who writes them runs code outside in a minute. For an ordinary user the permissions do that already.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING, NamedTuple

from egress.isolation import syscalls as sys_

if TYPE_CHECKING:
    from collections.abc import Iterable

FRESH = ("/run", "/var/run", "/tmp", "/var/tmp")  # noqa: S108 - these are laid over, not used
HARMLESS = ("/run/current-system", "/run/booted-system", "/run/opengl-driver")
"""Parts of /run that hold programs (NixOS), never sockets."""
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
OWN = "/run/sallyport"


class MountPlan(NamedTuple):
    """All that the sandbox's init has to lay over the tree; made outside, where the host can still be seen."""

    fresh: tuple[str, ...]  # real paths of folders that are replaced by empty ones
    kept: tuple[str, ...]  # real paths that stay visible at their place, also in a fresh folder
    shared: tuple[str, ...]  # of --share-path: kept, and what lies below is never covered
    sockets: tuple[str, ...]  # sockets of the host to cover
    guarded: bool  # make the rest of the tree read-only
    runtime_folder: str
    resolv_conf: str  # text
    nsswitch_conf: str  # text, "" = the host has none
    terminal: str  # path of the terminal on standard input, "" = none


def make_plan(
    *, cwd: str, home: str, shared: tuple[str, ...], guarded: bool, runtime_folder: str, nameserver: str
) -> MountPlan:
    """Look at the host and say what to lay over it.

    Raises `FileNotFoundError` for a shared path that does not exist.
    """
    fresh = _distinct(path for path in FRESH if os.path.isdir(path))
    shared = tuple(os.path.realpath(path, strict=True) for path in shared)
    kept = [path for path in (os.path.realpath(cwd), os.path.realpath(home)) if path not in ("/", *fresh)]
    kept = [path for path in kept if os.path.isdir(path) and not any(below(root, path) for root in fresh)]
    kept += [path for path in HARMLESS if os.path.exists(path)]
    return MountPlan(
        fresh=fresh,
        kept=tuple(dict.fromkeys(kept)),
        shared=shared,
        sockets=tuple(path for path in listening_sockets() if not any(below(path, root) for root in shared)),
        guarded=guarded,
        runtime_folder=runtime_folder,
        resolv_conf=f"# the guard answers, whatever address stands here\nnameserver {nameserver}\noptions edns0\n",
        nsswitch_conf=_nsswitch(),
        terminal=_terminal(),
    )


def below(path: str, root: str) -> bool:
    """Whether `path` is `root` or lies in it."""
    return path == root or path.startswith(root.rstrip("/") + "/")


def listening_sockets() -> list[str]:
    """Paths of every unix socket that a process of this network namespace has bound (proc(5), /proc/net/unix)."""
    found = []
    try:
        with open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as file:
            next(file, None)
            for line in file:
                words = line.rstrip("\n").split(None, 7)  # the inode before the path is padded or not
                path = words[7] if len(words) == 8 else ""
                if path.startswith("/"):
                    found.append(path)
    except OSError:
        return []
    return list(dict.fromkeys(found))


def apply(plan: MountPlan) -> None:
    """Lay the plan over this process's mount namespace, which must be its own. Raises `OSError`."""
    sys_.mount("none", "/", flags=sys_.MS_REC | sys_.MS_PRIVATE)
    returning = [path for path in (*plan.kept, *plan.shared) if os.path.exists(path)]
    held = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in returning}
    resolver = os.path.realpath("/etc/resolv.conf")
    nodes = _open_devices(plan.terminal)
    if plan.guarded:
        _guard_tree(held)
    for path in plan.fresh:
        sys_.mount("tmpfs", path, "tmpfs", sys_.MS_NOSUID | sys_.MS_NODEV, _mode(path))
    for path, fd in held.items():
        if any(below(path, root) for root in plan.fresh) and not path.startswith("/dev/"):
            _bring_back(path, fd)
    _own_folders(plan)
    _cover_sockets(plan)
    _resolver(plan, resolver)
    _devices(nodes, {path: fd for path, fd in held.items() if path.startswith("/dev/")})
    _kernel_files(plan)
    for fd in (*held.values(), *nodes.values()):
        os.close(fd)


def _distinct(paths: Iterable[str]) -> tuple[str, ...]:
    real = dict.fromkeys(os.path.realpath(path) for path in paths)
    return tuple(path for path in real if not any(path != other and below(path, other) for other in real))


def _mode(path: str) -> str:
    return "mode=755" if path.endswith("run") else "mode=1777"


def _nsswitch() -> str:
    """The host's name service switch with names from files and DNS only: other sources are daemons behind sockets."""
    try:
        with open("/etc/nsswitch.conf", encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError:
        return ""
    others = [line for line in lines if line.partition(":")[0].strip() != "hosts"]
    return "\n".join([*others, "hosts: files dns", ""])


def _terminal() -> str:
    try:
        return os.ttyname(0)
    except OSError:
        return ""


def _open_devices(terminal: str) -> dict[str, int]:
    nodes = {}
    for name, path in (*((name, "/dev/" + name) for name in DEVICES), ("console", terminal)):
        with contextlib.suppress(OSError):
            nodes[name] = os.open(path, os.O_PATH | os.O_CLOEXEC)
    return nodes


def _guard_tree(held: dict[str, int]) -> None:
    open_paths = [path for path in held if path not in HARMLESS and path != "/"]
    for path in open_paths:
        sys_.mount(f"/proc/self/fd/{held[path]}", path, flags=sys_.MS_BIND | sys_.MS_REC)
        os.close(held[path])
        held[path] = os.open(path, os.O_PATH | os.O_CLOEXEC)
    sys_.read_only("/")
    for path in open_paths:
        with contextlib.suppress(OSError):  # read-only on the host already: it stays so
            sys_.writable(path)


def _bring_back(path: str, fd: int) -> None:
    """Bind what `fd` holds to its old place in a folder that is empty now."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        os.makedirs(path, exist_ok=True)
    elif not os.path.lexists(path):
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    sys_.mount(f"/proc/self/fd/{fd}", path, flags=sys_.MS_BIND | sys_.MS_REC)


def _own_folders(plan: MountPlan) -> None:
    os.makedirs(OWN, mode=0o755, exist_ok=True)
    for name, text in (("resolv.conf", plan.resolv_conf), ("nsswitch.conf", plan.nsswitch_conf), ("nothing", "")):
        with open(f"{OWN}/{name}", "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
        os.chmod(file.name, 0o666 if name == "nothing" else 0o644)  # so that connecting is refused, not forbidden
    if below(plan.runtime_folder, "/run"):
        os.makedirs(os.path.dirname(plan.runtime_folder), exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(plan.runtime_folder, 0o700)
    os.makedirs("/run/lock", exist_ok=True)
    os.chmod("/run/lock", 0o1777)  # noqa: S103 - as on every Debian


def _cover_sockets(plan: MountPlan) -> None:
    for path in plan.sockets:
        try:
            if not stat.S_ISSOCK(os.lstat(path).st_mode):
                continue
            sys_.mount(f"{OWN}/nothing", path, flags=sys_.MS_BIND)
        except OSError as error:
            # not there any more, in a folder that is fresh now, or where this user cannot go (nor can the command)
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP):
                raise


def _resolver(plan: MountPlan, resolver: str) -> None:
    if any(below(resolver, root) for root in plan.fresh):
        os.makedirs(os.path.dirname(resolver), exist_ok=True)
        with open(resolver, "w", encoding="utf-8") as file:
            file.write(plan.resolv_conf)
    elif os.path.exists(resolver):
        _lay_over(f"{OWN}/resolv.conf", resolver)
    if plan.nsswitch_conf:
        _lay_over(f"{OWN}/nsswitch.conf", os.path.realpath("/etc/nsswitch.conf"))


def _lay_over(source: str, target: str) -> None:
    sys_.mount(source, target, flags=sys_.MS_BIND)
    sys_.mount("none", target, flags=sys_.MS_BIND | sys_.MS_REMOUNT | sys_.MS_RDONLY | sys_.MS_NOSUID | sys_.MS_NODEV)


def _devices(nodes: dict[str, int], shared: dict[str, int]) -> None:
    """A /dev of our own: no disks, no tun, no vsock; terminals and shared memory of the sandbox alone."""
    sys_.mount("tmpfs", "/dev", "tmpfs", sys_.MS_NOSUID, "mode=755,size=64k")
    for name, fd in nodes.items():
        os.close(os.open("/dev/" + name, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        sys_.mount(f"/proc/self/fd/{fd}", "/dev/" + name, flags=sys_.MS_BIND)
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink("/proc/self/fd" + target, "/dev/" + name)
    for name in ("pts", "shm", "mqueue"):
        os.mkdir("/dev/" + name)
    quiet = sys_.MS_NOSUID | sys_.MS_NOEXEC
    sys_.mount("devpts", "/dev/pts", "devpts", quiet, "newinstance,ptmxmode=0666,mode=620")
    os.symlink("pts/ptmx", "/dev/ptmx")
    sys_.mount("tmpfs", "/dev/shm", "tmpfs", sys_.MS_NOSUID | sys_.MS_NODEV, "mode=1777")  # noqa: S108
    with contextlib.suppress(OSError):  # kernels without POSIX message queues
        sys_.mount("mqueue", "/dev/mqueue", "mqueue", quiet | sys_.MS_NODEV)
    for path, fd in shared.items():
        _bring_back(path, fd)


def _kernel_files(plan: MountPlan) -> None:
    """/proc of the sandbox's processes; the knobs of the kernel for reading only.

    They belong to user 0 by number, not by capability: a command run as root could turn them without one.
    """
    try:
        sys_.mount("proc", "/proc", "proc", sys_.MS_NOSUID | sys_.MS_NODEV | sys_.MS_NOEXEC)
    except PermissionError as error:
        raise OSError(
            error.errno,
            "the kernel refuses a fresh /proc here, as it does in containers that cover parts of theirs "
            "(start the container with an uncovered /proc, such as docker run --security-opt systempaths=unconfined)",
        ) from error
    for path in ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs"):
        if os.path.exists(path):
            sys_.mount(path, path, flags=sys_.MS_BIND | sys_.MS_REC)
            sys_.mount("none", path, flags=sys_.MS_BIND | sys_.MS_REMOUNT | sys_.MS_RDONLY | _QUIET)
    try:
        sys_.read_only("/sys")
    except OSError as error:
        if plan.guarded or error.errno not in (errno.ENOSYS, errno.EINVAL):
            raise


_QUIET = sys_.MS_NOSUID | sys_.MS_NODEV | sys_.MS_NOEXEC
