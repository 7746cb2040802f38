"""The filter, interpreted as the kernel does it, for every machine that is known."""

from __future__ import annotations

import errno

import pytest

from egress.isolation.seccomp import program

ALLOW = 0x7FFF0000
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7, "riscv64": 0xC00000F3}
SOCKET = {"x86_64": 41, "aarch64": 198, "riscv64": 198}
IOCTL = {"x86_64": 16, "aarch64": 29, "riscv64": 29}
KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219}
TIOCSTI, TCGETS = 0x5412, 0x5401


def judge(machine: str, architecture: int, number: int, first: int = 0, second: int = 0) -> int:
    """0 for allowed, else the errno."""
    lines = program(machine)
    assert lines is not None
    data = {0: number, 4: architecture, 16: first, 24: second}
    at = loaded = 0
    while True:
        code, true, false, constant = lines[at]
        if code == 0x20:
            loaded = data[constant]
        elif code == 0x06:
            return 0 if constant == ALLOW else constant & 0xFFFF
        else:
            hit = loaded == constant if code == 0x15 else loaded >= constant
            at += true if hit else false
        at += 1


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_the_filter(machine: str) -> None:
    own = ARCHITECTURES[machine]
    assert judge(machine, own, 0) == 0
    assert judge(machine, own, 999) == 0
    for family in (1, 2, 10, 16, 17, 38):
        assert judge(machine, own, SOCKET[machine], family) == 0
    for family in (0, 3, 31, 40, 44, 255):
        assert judge(machine, own, SOCKET[machine], family) == errno.EAFNOSUPPORT
    assert judge(machine, own, IOCTL[machine], 0, TIOCSTI) == errno.EPERM
    assert judge(machine, own, IOCTL[machine], 0, TCGETS) == 0
    assert judge(machine, own, KEYCTL[machine]) == errno.EPERM
    assert judge(machine, own, 425) == errno.ENOSYS
    assert judge(machine, 0x40000003, SOCKET[machine], 2) == errno.ENOSYS


def test_x32_is_another_table() -> None:
    assert judge("x86_64", ARCHITECTURES["x86_64"], 0x40000000 | 41, 2) == errno.ENOSYS


def test_an_unknown_machine_has_no_filter() -> None:
    assert program("pdp11") is None
