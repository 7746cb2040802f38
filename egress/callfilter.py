"""The system calls that the guard never makes, as a seccomp filter: classic BPF (seccomp(2), linux/seccomp.h).

What is refused is what somebody who has taken the process over would do next: start a program, read another process,
mount, load code into the kernel, look for other doors into the network. The rest is what Python, libnftables and the C
library of tomorrow may call: a list of all that is allowed would break the guard on an upgrade, and a broken guard is
a closed sandbox.

A refused call gets EPERM, not a signal: PID 1 must not be killed by a library that tries something and would do
without. A call by another architecture's numbers ends the process: no code of ours makes one.

Pure: the filter is a function of the machine's name. The kernel remembers for each call number that a filter always
allows it, so sendto and recvfrom cost what they cost without one (Linux 5.11).
"""

from __future__ import annotations

import errno
import struct

from policies.values import NamedTuple

Line = tuple[int, int, int, int]  # code, jump if true, jump if false, constant

_LOAD, _EQUAL, _AT_LEAST, _BITS, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06  # linux/bpf_common.h
_NUMBER, _ARCHITECTURE, _ARGUMENT_0, _ARGUMENT_1 = 0, 4, 16, 24  # struct seccomp_data, low halves
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_X32 = 0x40000000
_FAMILIES = (1, 2, 10, 16)  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK
_INTERNET = (2, 10)
_KIND, _RAW = 0xF, 3  # SOCK_TYPE_MASK, SOCK_RAW
_CLONE_THREAD = 0x10000
_CLONE3 = 435

# (x86_64, aarch64), 0 where there is none: arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h
REFUSED = {
    "execve": (59, 221), "execveat": (322, 281),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "process_madvise": (440, 440), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "open_tree_attr": (467, 467),
    "unshare": (272, 97), "setns": (308, 268),
    "mknod": (133, 0), "mknodat": (259, 33), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262), "quotactl": (179, 60), "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142), "syslog": (103, 116),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "memfd_secret": (447, 447),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "clock_adjtime": (305, 266), "adjtimex": (159, 171),
    "sethostname": (170, 161), "setdomainname": (171, 162), "personality": (135, 92), "vhangup": (153, 58),
    "iopl": (172, 0), "ioperm": (173, 0), "modify_ldt": (154, 0), "move_pages": (279, 239), "migrate_pages": (256, 238),
}  # fmt: skip


class Machine(NamedTuple):
    """What differs between architectures."""

    column: int  # of REFUSED
    audit: int  # AUDIT_ARCH_*
    seccomp: int  # the numbers of these calls
    socket: int
    clone: int
    forks: tuple[int, ...]  # fork, vfork


MACHINES = {
    "x86_64": Machine(0, 0xC000003E, 317, 41, 56, (57, 58)),
    "aarch64": Machine(1, 0xC00000B7, 277, 198, 220, ()),
}


def supervisor_filter(machine: Machine) -> list[Line]:
    """For the process that forks workers, and by inheritance for these."""
    refused = sorted({numbers[machine.column] for numbers in REFUSED.values()} - {0})
    lines = _begin(machine)
    for at, number in enumerate(refused):
        lines.append((_EQUAL, len(refused) + 1 - at, 0, number))
    lines += [(_EQUAL, 2, 0, machine.socket), (_RETURN, 0, 0, _ALLOW), _refusal(errno.EPERM)]
    lines += [(_LOAD, 0, 0, _ARGUMENT_0)]
    for at, family in enumerate(_FAMILIES):
        lines.append((_EQUAL, len(_FAMILIES) - at, 0, family))
    lines.append(_refusal(errno.EAFNOSUPPORT))
    lines += [(_EQUAL, 2, 0, _INTERNET[0]), (_EQUAL, 1, 0, _INTERNET[1]), (_RETURN, 0, 0, _ALLOW)]
    lines += [(_LOAD, 0, 0, _ARGUMENT_1), (_AND, 0, 0, _KIND), (_EQUAL, 0, 1, _RAW), _refusal(errno.EPERM)]
    lines.append((_RETURN, 0, 0, _ALLOW))
    return lines


def worker_filter(machine: Machine) -> list[Line]:
    """On top of that for the worker: threads, but no processes. clone3(2), whose flags lie in memory where a filter
    cannot look, is "not there": C libraries then call clone(2)."""
    lines = _begin(machine)
    lines += [(_EQUAL, 0, 1, _CLONE3), _refusal(errno.ENOSYS)]
    for number in machine.forks:
        lines += [(_EQUAL, 0, 1, number), _refusal(errno.EPERM)]
    lines += [(_EQUAL, 1, 0, machine.clone), (_RETURN, 0, 0, _ALLOW)]
    lines += [(_LOAD, 0, 0, _ARGUMENT_0), (_BITS, 1, 0, _CLONE_THREAD), _refusal(errno.EPERM), (_RETURN, 0, 0, _ALLOW)]
    return lines


def assembled(lines: list[Line]) -> bytes:
    """As the kernel takes it: an array of struct sock_filter."""
    return b"".join([struct.pack("=HBBI", *line) for line in lines])


def _begin(machine: Machine) -> list[Line]:
    lines = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, machine.audit),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine.forks:  # x86_64, whose second table of numbers shares its architecture
        lines += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _KILL)]
    return lines


def _refusal(number: int) -> Line:
    return (_RETURN, 0, 0, _ERRNO | number)
