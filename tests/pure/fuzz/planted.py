"""A target with a fault in it, behind three doors that only one who is led by coverage finds."""

from __future__ import annotations

LONGEST = 16
WORDS = (b"never",)


def seeds() -> list[bytes]:
    return [b"0000"]


def check(data: bytes) -> None:
    if data[:1] != b"o":
        return
    if data[1:2] != b"p":
        return
    if data[2:3] == b"e":
        raise RuntimeError("the planted fault")
