"""The log: one JSON object a line, and no reader that can hold the guard up."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress.log import Log, timestamp

if TYPE_CHECKING:
    from pathlib import Path

MANY = 5000


def test_levels_and_fields() -> None:
    read, write = os.pipe()
    log = Log(write, "warn", {"sandbox_id": "s"})
    log.info("not this")
    log.write("warn", "this", {"port": 443})
    log.close()
    os.close(write)
    (line,) = os.read(read, 65536).splitlines()
    os.close(read)
    entry = json.loads(line)
    assert (entry["level"], entry["msg"], entry["port"], entry["sandbox_id"]) == ("warn", "this", 443, "s")


def test_timestamp() -> None:
    assert timestamp(0.0) == "1970-01-01T00:00:00.000Z"
    assert timestamp(1767225599.9996) == "2025-12-31T23:59:59.999Z"


def test_a_full_pipe_drops_and_tells_afterwards() -> None:
    read, write = os.pipe()
    log = Log(write)
    started = time.monotonic()
    for number in range(MANY):
        log.info("x" * 100, n=number)
    assert time.monotonic() - started < 5
    assert 0 < log.dropped < MANY
    written = os.read(read, 1 << 20).splitlines()
    assert len(written) + log.dropped == MANY
    assert all(json.loads(line)["msg"] == "x" * 100 for line in written)  # none was cut
    log.info("again")
    assert json.loads(os.read(read, 65536))["log.dropped"] == log.dropped
    log.close()
    os.close(read)
    os.close(write)


def test_the_shared_open_file_stays_as_it_is() -> None:
    read, write = os.pipe()
    log = Log(write)
    log.info("x")
    assert not fcntl.fcntl(write, fcntl.F_GETFL) & os.O_NONBLOCK
    log.close()
    os.close(read)
    os.close(write)


def test_a_reader_that_has_gone() -> None:
    read, write = os.pipe()
    log = Log(write)
    os.close(read)
    log.info("x")
    log.info("y")
    assert log.dropped == 2
    log.close()
    os.close(write)


def test_a_closed_descriptor() -> None:
    read, write = os.pipe()
    os.close(write)
    log = Log(write)
    log.info("x")
    assert log.dropped == 1
    os.close(read)


def test_a_socket_where_no_descriptor_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    ours, theirs = socket.socketpair()
    monkeypatch.setattr(os, "dup", refuse)
    log = Log(ours.fileno())
    log.info("x")
    assert log.dropped == 1
    ours.close()
    theirs.close()


def test_a_socket_that_nobody_reads() -> None:
    ours, theirs = socket.socketpair()
    log = Log(ours.fileno())
    started = time.monotonic()
    for _ in range(MANY):
        log.info("x" * 100)
    assert time.monotonic() - started < 5
    assert log.dropped
    theirs.setblocking(False)
    data = b""
    while True:
        try:
            data += theirs.recv(1 << 20)
        except BlockingIOError:
            break
    log.info("again")
    data += theirs.recv(1 << 20)
    lines = [json.loads(line) for line in data.splitlines()]  # what was taken in half has been completed
    assert lines[-1]["log.dropped"] == log.dropped
    log.close()
    ours.close()
    theirs.close()


def test_a_file_is_appended_to(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        file.write(b'{"before": 1}\n')
        file.flush()
        log = Log(file.fileno())
        log.info("after")
        log.close()
    assert [json.loads(line).get("msg") for line in (tmp_path / "log").read_text().splitlines()] == [None, "after"]


def test_long_lines_stay_whole() -> None:
    read, write = os.pipe()
    log = Log(write)
    for fields in ({"a": "x" * 100_000}, {"a": ["y" * 300] * 300}, {"k" * 9000: 1}, {"a": {"b": ["z" * 500] * 50}}):
        log.write("info", "long", fields)
        line = os.read(read, 65536)
        assert len(line) <= 4096
        assert json.loads(line)["log.shortened"] is True
    log.close()
    os.close(read)
    os.close(write)


@given(st.dictionaries(st.text(max_size=10), st.text(max_size=50) | st.integers() | st.binary(max_size=5), max_size=5))
def test_any_fields_make_one_line(fields: dict[str, object]) -> None:
    read, write = os.pipe()
    try:
        log = Log(write)
        log.write("info", "m\n\x1b", fields)
        log.close()
        data = os.read(read, 65536)
        assert data.count(b"\n") == 1
        assert data[:-1].decode("ascii").isprintable()
        json.loads(data)
    finally:
        os.close(read)
        os.close(write)


@pytest.mark.parametrize("closed", ["1", "0 1 2"])
def test_standard_descriptors_are_kept(closed: str) -> None:
    code = (
        "import os, sys\n"
        f"for fd in map(int, {closed!r}.split()): os.close(fd)\n"
        "from egress.__main__ import keep_standard_descriptors\n"
        "from egress.log import Log\n"
        "keep_standard_descriptors()\n"
        "log = Log(); log.info('x')\n"
        "fd = os.open('/dev/null', os.O_RDONLY)\n"
        "os._exit(0 if fd > 2 and not log.dropped else 1)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=30).returncode == 0
