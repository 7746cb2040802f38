"""The filters of system calls, interpreted as the kernel does it, for every machine that is known."""

from __future__ import annotations

import errno

import pytest

from egress.callfilter import MACHINES, REFUSED, Line, assembled, supervisor_filter, worker_filter

ALLOW, KILL = 0x7FFF0000, 0x80000000
THREAD, PROCESS = 0x3D0F00, 17  # the flags of pthread_create, and of fork
# (x86_64, aarch64): what the guard lives from
NEEDED = {
    "read": (0, 63), "sendto": (44, 206), "recvfrom": (45, 207), "epoll_pwait": (281, 22), "openat": (257, 56),
    "renameat2": (316, 276), "unlinkat": (263, 35), "fsync": (74, 82), "futex": (202, 98), "mmap": (9, 222),
    "mprotect": (10, 226), "brk": (12, 214), "kill": (62, 129), "wait4": (61, 260), "exit_group": (231, 94),
    "getrandom": (318, 278), "prctl": (157, 167), "capset": (126, 91), "setsockopt": (54, 208), "bind": (49, 200),
    "rt_sigtimedwait": (128, 137), "memfd_create": (319, 279), "eventfd2": (290, 19),
}  # fmt: skip


def judge(lines: list[Line], architecture: int, number: int, first: int = 0, second: int = 0) -> int:
    """0 for allowed, -1 for the end of the process, else the errno."""
    data = {0: number, 4: architecture, 16: first, 24: second}
    at = loaded = 0
    while True:
        code, true, false, constant = lines[at]
        if code == 0x20:
            loaded = data[constant]
        elif code == 0x54:
            loaded &= constant
        elif code == 0x06:
            return 0 if constant == ALLOW else -1 if constant == KILL else constant & 0xFFFF
        else:
            hit = {0x15: loaded == constant, 0x35: loaded >= constant, 0x45: bool(loaded & constant)}[code]
            at += true if hit else false
        at += 1


@pytest.mark.parametrize("name", MACHINES)
def test_what_is_refused_and_what_is_not(name: str) -> None:
    machine = MACHINES[name]
    lines = supervisor_filter(machine)
    for call, numbers in REFUSED.items():
        if numbers[machine.column]:
            assert judge(lines, machine.audit, numbers[machine.column]) == errno.EPERM, call
    for both in (lines, worker_filter(machine)):
        for call, numbers in NEEDED.items():
            assert judge(both, machine.audit, numbers[machine.column]) == 0, call


@pytest.mark.parametrize("name", MACHINES)
def test_sockets_are_of_four_families_and_never_raw(name: str) -> None:
    machine = MACHINES[name]
    lines = supervisor_filter(machine)
    flags = 0x80800  # SOCK_CLOEXEC | SOCK_NONBLOCK
    for family in (1, 2, 10):
        for kind in (1, 2):
            assert judge(lines, machine.audit, machine.socket, family, kind | flags) == 0
    assert judge(lines, machine.audit, machine.socket, 16, 3 | flags) == 0, "netlink is raw by name only"
    for family in (2, 10):
        assert judge(lines, machine.audit, machine.socket, family, 3 | flags) == errno.EPERM
    for family in (0, 3, 17, 29, 38, 40, 44):
        assert judge(lines, machine.audit, machine.socket, family, 2) == errno.EAFNOSUPPORT


@pytest.mark.parametrize("name", MACHINES)
def test_a_worker_has_threads_and_no_processes(name: str) -> None:
    machine = MACHINES[name]
    supervisor, worker = supervisor_filter(machine), worker_filter(machine)
    assert judge(supervisor, machine.audit, machine.clone, PROCESS) == 0
    assert judge(worker, machine.audit, machine.clone, PROCESS) == errno.EPERM
    assert judge(worker, machine.audit, machine.clone, THREAD) == 0
    assert judge(worker, machine.audit, 435) == errno.ENOSYS
    for number in machine.forks:
        assert judge(worker, machine.audit, number) == errno.EPERM


@pytest.mark.parametrize("name", MACHINES)
def test_other_architectures_numbers_end_the_process(name: str) -> None:
    machine = MACHINES[name]
    for lines in (supervisor_filter(machine), worker_filter(machine)):
        assert judge(lines, 0x40000003, 1) == -1
        if name == "x86_64":
            assert judge(lines, machine.audit, 0x40000000 | 59) == -1


def test_every_jump_lands_inside() -> None:
    for machine in MACHINES.values():
        for lines in (supervisor_filter(machine), worker_filter(machine)):
            assert len(assembled(lines)) == 8 * len(lines)
            assert lines[-1][0] == 0x06
            for at, (code, true, false, _) in enumerate(lines):
                if code in (0x15, 0x35, 0x45):
                    assert at + 1 + max(true, false) < len(lines)
                    assert max(true, false) < 256
