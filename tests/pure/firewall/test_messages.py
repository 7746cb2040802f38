"""What comes from the kernel and from the sandbox is taken apart without a slip, whatever it holds."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress.firewall.netlink import SetWriter, _version
from egress.firewall.nflog import Denied, parse
from egress.firewall.nfnetlink import NEWSETELEM, attribute, attributes, batch, message, messages, nested, text, walk

V4 = bytes.fromhex("4500003c000040004006000a") + bytes([10, 0, 0, 2]) + bytes([192, 0, 2, 1])


@given(st.binary(max_size=200))
def test_any_packet_is_a_denial_or_nothing(packet: bytes) -> None:
    found = parse(packet)
    assert found is None or len(found.source) == len(found.destination) in (4, 16)


@given(st.binary(max_size=200))
def test_any_attributes_end(data: bytes) -> None:
    assert sum(4 + len(value) for _, value in walk(data)) <= len(data)
    list(messages(data))


def test_packets() -> None:
    assert parse(V4 + struct.pack(">HH", 40000, 443)) == Denied("tcp", bytes([10, 0, 0, 2]), bytes([192, 0, 2, 1]), 443)
    assert parse(V4) == Denied("tcp", bytes([10, 0, 0, 2]), bytes([192, 0, 2, 1]), 0)
    options = bytes([0x46]) + V4[1:] + bytes(4) + struct.pack(">HH", 40000, 443)
    assert parse(options) == Denied("tcp", bytes([10, 0, 0, 2]), bytes([192, 0, 2, 1]), 443)
    head = struct.pack(">IHBB", 0x60000000, 16, 60, 64) + bytes(15) + b"\1" + bytes(15) + b"\2"
    found = parse(head + bytes([17, 0]) + bytes(6) + struct.pack(">HH", 1, 53))
    assert found == Denied("udp", bytes(15) + b"\1", bytes(15) + b"\2", 53)


@given(st.lists(st.tuples(st.integers(0, 0x3FFF), st.binary(max_size=40)), max_size=6))
def test_attributes_come_back(entries: list[tuple[int, bytes]]) -> None:
    data = b"".join(attribute(kind, value) for kind, value in entries)
    assert len(data) % 4 == 0
    assert list(walk(data)) == entries
    assert attributes(nested(7, data))[7] == data


def test_a_batch_is_numbered_through() -> None:
    data = batch([(1, 0, 1, b"abcd"), (2, 0, 5, b"")], 10)
    assert [(kind, sequence) for kind, _, sequence, _ in messages(data)] == [(16, 10), (1, 11), (2, 12), (17, 13)]
    ((_, _, _, body),) = messages(message(3, 0, 1, 5, b"wxyz", 7))
    assert body == struct.pack(">BBH", 5, 0, 7) + b"wxyz"


class Kernel:
    """A netlink socket, and the namespace that it is opened in: it takes everything and acknowledges the second."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []

    def netlink(self, _protocol: int, **_: object) -> Kernel:
        return self

    def setsockopt(self, *_: object) -> None:
        """All sizes are the same to it."""

    def send(self, data: bytes) -> None:
        self.taken.append(data)

    def recv(self, *_: object) -> bytes:
        (number,) = struct.unpack_from("=I", self.taken[-1], 8)
        return struct.pack("=IHHIIi", 36, 2, 0, number + 1, 0, 0) + bytes(16)


@given(
    st.sampled_from([4, 16]).flatmap(lambda size: st.sets(st.binary(min_size=size, max_size=size), min_size=1)),
    st.text("abc_4", min_size=1, max_size=20),
    st.integers(1, 1 << 40),
)
def test_new_elements_are_written_as_the_builder_writes_them(keys: set[bytes], name: str, left: int) -> None:
    kernel = Kernel()
    writer = SetWriter(kernel, "sallyport")  # type: ignore[arg-type]
    entries = dict.fromkeys(keys, left)
    for _ in range(2):
        if len(keys) == 1:
            writer.put(name, min(keys), left)
        else:
            writer.write({name: entries}, new=True)
    listed = b"".join(nested(1, nested(1, attribute(1, key)), attribute(4, left.to_bytes(8, "big"))) for key in entries)
    body = text(1, "sallyport") + text(2, name) + nested(3, listed)
    acknowledged, created, exclusive = 0x4, 0x400, 0x200
    change = (NEWSETELEM, acknowledged | created | exclusive, 1, body)
    assert kernel.taken == [batch([change], 1), batch([change], 4)]


@pytest.mark.parametrize(
    ("release", "version"),
    [
        ("6.12.0", (6, 12)),
        ("6.1.0-18-amd64", (6, 1)),
        ("5.15", (5, 15)),
        ("6.18-rc1", (6, 18)),
        ("4.4.0-gvisor", (4, 4)),
        ("", (0, 0)),
        ("x.y", (0, 0)),
        ("6.", (0, 0)),
    ],
)
def test_a_kernels_version(release: str, version: tuple[int, int]) -> None:
    assert _version(release) == version
