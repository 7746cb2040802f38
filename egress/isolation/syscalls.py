"""System calls that Python 3.11 does not offer, by ctypes: namespaces, mounts, capabilities and prctl.

Every function raises `OSError` with the kernel's errno. Numbers come from the kernel's headers (sched.h, mount.h,
prctl.h, capability.h); system call numbers above 424 are the same on every architecture.
"""

from __future__ import annotations

import ctypes
import os
import platform

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_SET_SECUREBITS = 28
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
PR_CAP_AMBIENT_CLEAR_ALL = 4

# NOROOT, NO_SETUID_FIXUP off but locked as it is, KEEP_CAPS off and locked, NO_CAP_AMBIENT_RAISE: linux/securebits.h
SECUREBITS_LOCKED = 0x01 | 0x02 | 0x08 | 0x20 | 0x40 | 0x80

_KEYCTL_NUMBERS = {"x86_64": 250, "aarch64": 219, "riscv64": 219}
_KEYCTL_JOIN_SESSION_KEYRING = 1
_MOUNT_SETATTR = 442
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_MOUNT_ATTR_RDONLY = 1
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]
_libc.prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]
_libc.syscall.restype = ctypes.c_long


class _CapHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _MountAttr(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result


def unshare(flags: int) -> None:
    """Leave the namespaces of `flags` for fresh ones (unshare(2)); a new PID namespace is for children only."""
    _check(_libc.unshare(flags), "unshare")


def setns(fd: int, kind: int) -> None:
    """Enter the namespace that `fd` (an open /proc/PID/ns file) stands for; this thread only, but for user ones."""
    _check(_libc.setns(fd, kind), "setns")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """mount(2)."""
    _check(
        _libc.mount(os.fsencode(source), os.fsencode(target), kind.encode() or None, flags, options.encode() or None),
        target,
    )


def read_only(target: str, *, recursive: bool = True) -> None:
    """Make the mount at `target`, and all below it, read-only (mount_setattr(2), Linux 5.12)."""
    attributes = _MountAttr(_MOUNT_ATTR_RDONLY, 0, 0, 0)
    _check(
        _libc.syscall(
            ctypes.c_long(_MOUNT_SETATTR),
            ctypes.c_int(_AT_FDCWD),
            ctypes.c_char_p(os.fsencode(target)),
            ctypes.c_uint(_AT_RECURSIVE if recursive else 0),
            ctypes.byref(attributes),
            ctypes.c_size_t(ctypes.sizeof(attributes)),
        ),
        target,
    )


def writable(target: str) -> None:
    """Undo `read_only` for the one mount at `target`; fails where the mount was read-only before us and is locked."""
    attributes = _MountAttr(0, _MOUNT_ATTR_RDONLY, 0, 0)
    _check(
        _libc.syscall(
            ctypes.c_long(_MOUNT_SETATTR),
            ctypes.c_int(_AT_FDCWD),
            ctypes.c_char_p(os.fsencode(target)),
            ctypes.c_uint(0),
            ctypes.byref(attributes),
            ctypes.c_size_t(ctypes.sizeof(attributes)),
        ),
        target,
    )


def prctl(option: int, second: int = 0, third: int = 0, fourth: int = 0) -> int:
    """prctl(2); unused arguments are zero, as several options demand."""
    return _check(_libc.prctl(option, second, third, fourth, 0), f"prctl {option}")


def prctl_pointer(option: int, second: int, structure: ctypes.Structure) -> None:
    """prctl(2) with a structure as third argument."""
    _check(_libc.prctl(option, second, ctypes.addressof(structure), 0, 0), f"prctl {option}")


def capabilities() -> tuple[int, int, int]:
    """(effective, permitted, inheritable) of this thread, as bit sets."""
    header = _CapHeader(_CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)()
    _check(_libc.capget(ctypes.byref(header), data), "capget")
    return data[0] | data[3] << 32, data[1] | data[4] << 32, data[2] | data[5] << 32


def set_capabilities(effective: int, permitted: int, inheritable: int) -> None:
    """Replace the capability sets of this thread."""
    header = _CapHeader(_CAPABILITY_VERSION_3, 0)
    low = 0xFFFFFFFF
    data = (ctypes.c_uint32 * 6)(
        effective & low, permitted & low, inheritable & low, effective >> 32, permitted >> 32, inheritable >> 32
    )
    _check(_libc.capset(ctypes.byref(header), data), "capset")


def join_fresh_keyring() -> None:
    """Leave the session keyring for an empty anonymous one, where this machine's number of keyctl(2) is known."""
    number = _KEYCTL_NUMBERS.get(platform.machine())
    if number is not None:
        _check(
            _libc.syscall(ctypes.c_long(number), ctypes.c_int(_KEYCTL_JOIN_SESSION_KEYRING), ctypes.c_void_p(None)),
            "keyctl",
        )


def close_from(lowest: int) -> None:
    """Close every descriptor from `lowest` up."""
    os.closerange(lowest, os.sysconf("SC_OPEN_MAX"))
