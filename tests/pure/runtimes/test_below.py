"""Which kernels are none that our rules hold."""

from __future__ import annotations

import pytest

from egress.runtimes import below

BOOT = "[    0.000000] Starting gVisor...\n[    0.3] Rewriting the kernel in Rust...\n"


@pytest.mark.parametrize(
    ("release", "log", "foreign"),
    [
        ("4.19.0-gvisor", "", True),
        ("4.4.0", BOOT, True),  # before it said so in its release
        ("4.4.0", "[    0.000000] Linux version 4.4.0\n", False),
        ("6.1.0-18-amd64", BOOT, False),  # its log is read of that one release only
        ("6.18.44-kata", "", False),  # a guest's kernel is a real one
    ],
)
def test_only_gvisor_is_refused(release: str, log: str, foreign: bool) -> None:
    assert bool(below(release, log)) is foreign


def test_the_words_say_what_to_do() -> None:
    assert "runsc --network=host" in below("4.19.0-gvisor")


def test_this_kernel_is_a_real_one() -> None:
    assert below() == ""
