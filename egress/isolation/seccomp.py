"""A small system call filter for what no namespace contains.

Namespaces hold the network, the processes and the mounts; a few kernel facilities are global all the same and would
lead around the guard. Only those are refused here, everything else is left to the capabilities that are gone:

- sockets of families that ignore the network namespace or leave the machine beside it: of AF_VSOCK (the hypervisor
  answers on it), Bluetooth, NFC and the like only the families that programs need are left;
- io_uring, which opens such sockets without a system call that could be judged;
- key management: user keyrings are shared by all processes of a user id;
- TIOCSTI and TIOCLINUX, which type into the terminal that the command shares with the caller's shell.

Programs of a foreign system call table (32-bit, x32) get ENOSYS for every call, as their numbers mean other things.
"""

from __future__ import annotations

import ctypes
import errno
import platform
from typing import NamedTuple

from egress.isolation import syscalls as sys_

_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2
_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000

# classic BPF, linux/bpf_common.h
_LOAD = 0x20
_AND = 0x54
_EQUAL = 0x15
_AT_LEAST = 0x35
_RETURN = 0x06

# struct seccomp_data
_NUMBER = 0
_ARCHITECTURE = 4
_ARGUMENT_0 = 16
_ARGUMENT_1 = 24

_FAMILIES = (1, 2, 10, 16, 17, 38)  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK, AF_PACKET, AF_ALG
_IOCTLS = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
_IO_URING = (425, 426, 427)


class _Table(NamedTuple):
    audit: int
    socket: int
    ioctl: int
    keys: tuple[int, ...]  # add_key, request_key, keyctl


_TABLES = {
    "x86_64": _Table(0xC000003E, 41, 16, (248, 249, 250)),
    "aarch64": _Table(0xC00000B7, 198, 29, (217, 218, 219)),
    "riscv64": _Table(0xC00000F3, 198, 29, (217, 218, 219)),
}


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.POINTER(_Instruction)))


def program(machine: str) -> list[tuple[int, int, int, int]] | None:
    """The filter for `machine` (as uname -m) as (code, jump if true, jump if false, constant); None: not known."""
    table = _TABLES.get(machine)
    if table is None:
        return None
    lines: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, table.audit),
        _refuse(errno.ENOSYS),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine == "x86_64":
        lines += [(_AT_LEAST, 0, 1, 0x40000000), _refuse(errno.ENOSYS)]
    for number in _IO_URING:
        lines += [(_EQUAL, 0, 1, number), _refuse(errno.ENOSYS)]
    for number in table.keys:
        lines += [(_EQUAL, 0, 1, number), _refuse(errno.EPERM)]
    families: list[tuple[int, int, int, int]] = [(_LOAD, 0, 0, _ARGUMENT_0)]
    for family in _FAMILIES:
        families += [(_EQUAL, 0, 1, family), (_RETURN, 0, 0, _ALLOW)]
    families.append(_refuse(errno.EAFNOSUPPORT))
    lines += [(_EQUAL, 0, len(families), table.socket), *families]
    terminal: list[tuple[int, int, int, int]] = [(_LOAD, 0, 0, _ARGUMENT_1)]
    for request in _IOCTLS:
        terminal += [(_EQUAL, 0, 1, request), _refuse(errno.EPERM)]
    terminal.append((_RETURN, 0, 0, _ALLOW))
    lines += [(_EQUAL, 0, len(terminal), table.ioctl), *terminal]
    lines.append((_RETURN, 0, 0, _ALLOW))
    return lines


def install() -> bool:
    """Put the filter over this process and all that come from it; needs no new privileges set. False: unknown CPU."""
    lines = program(platform.machine())
    if lines is None:
        return False
    instructions = (_Instruction * len(lines))(*(_Instruction(*line) for line in lines))
    whole = _Program(len(lines), ctypes.cast(instructions, ctypes.POINTER(_Instruction)))
    sys_.prctl_pointer(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, whole)
    return True


def _refuse(number: int) -> tuple[int, int, int, int]:
    return (_RETURN, 0, 0, _ERRNO | number)
