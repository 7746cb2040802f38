"""The gateway's log: one JSON object a line, and no reader that can hold a request up."""

from __future__ import annotations

import fcntl
import json
import os
import select
import socket
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingress.telemetry.log import Log, timestamp

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MANY = 5000


class Pipe:
    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()

    def lines(self) -> list[dict[str, Any]]:
        """What has come since the last call."""
        data = b""
        while select.select([self.read_end], [], [], 0)[0] and (part := os.read(self.read_end, 1 << 20)):
            data += part
        return [json.loads(line) for line in data.splitlines()]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    os.close(made.read_end)
    os.close(made.write_end)


def test_levels_and_fields(pipe: Pipe) -> None:
    log = Log(pipe.write_end, "warn", {"worker": 1})
    log.info("not this")
    log.debug("nor this")
    log.warn("this", port=443)
    log.error("and this", worker=2)
    log.close()
    one, other = pipe.lines()
    assert (one["level"], one["msg"], one["port"], one["worker"]) == ("warn", "this", 443, 1)
    assert (other["level"], other["worker"]) == ("error", 2)
    assert not log.enabled("info")


def test_timestamp() -> None:
    assert timestamp(0.0) == "1970-01-01T00:00:00.000Z"
    assert timestamp(1767225599.9996) == "2025-12-31T23:59:59.999Z"


def test_a_full_pipe_drops_and_tells_afterwards(pipe: Pipe) -> None:
    log = Log(pipe.write_end)
    for number in range(MANY):
        log.info("x" * 100, n=number)
    assert 0 < log.dropped < MANY
    written = pipe.lines()
    assert len(written) + log.dropped == MANY
    assert all(line["msg"] == "x" * 100 for line in written)  # none was cut
    log.info("again")
    log.info("and again")
    again, later = pipe.lines()
    assert again["log.dropped"] == log.dropped
    assert "log.dropped" not in later
    log.close()


def test_the_shared_open_file_stays_as_it_is(pipe: Pipe) -> None:
    log = Log(pipe.write_end)
    log.info("x")
    assert not fcntl.fcntl(pipe.write_end, fcntl.F_GETFL) & os.O_NONBLOCK
    log.close()


def test_a_reader_that_has_gone_and_a_closed_descriptor() -> None:
    read, write = os.pipe()
    log = Log(write)
    os.close(read)
    log.info("x")
    log.info("y")
    assert log.dropped == 2
    log.close()
    os.close(write)
    log = Log(write)
    log.info("x")
    assert log.dropped == 1


def test_a_socket_that_nobody_reads() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        log = Log(ours.fileno())
        for _ in range(MANY):
            log.info("x" * 100)
        assert log.dropped
        theirs.setblocking(False)
        data = b""
        while select.select([theirs], [], [], 0)[0]:
            data += theirs.recv(1 << 20)
        log.info("again")
        data += theirs.recv(1 << 20)
        log.close()
        assert [json.loads(line) for line in data.splitlines()][-1]["log.dropped"] == log.dropped


def test_a_file_is_written_at_its_end(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        file.write(b'{"before": 1}\n')
        file.flush()
        log = Log(file.fileno())
        log.info("after")
        log.close()
    assert [json.loads(line).get("msg") for line in (tmp_path / "log").read_text().splitlines()] == [None, "after"]


def test_long_lines_stay_whole(pipe: Pipe) -> None:
    log = Log(pipe.write_end)
    many: dict[str, object] = {f"k{number}": "v" * 30 for number in range(1000)}
    for fields in ({"a": "x" * 100_000}, {"a": ["y" * 300] * 300}, {"k" * 9000: 1}, {"a": many}, many):
        line = log.line("info", "long", fields)
        assert len(line) <= 4096
        assert json.loads(line)["log.shortened"] is True
    log.close()


@given(st.dictionaries(st.text(max_size=10), st.text(max_size=50) | st.integers() | st.binary(max_size=5), max_size=5))
def test_any_fields_make_one_line(fields: dict[str, object]) -> None:
    log = Log(-1)
    line = log.line("info", "m\n\x1b", fields)
    assert line.count(b"\n") == 1
    assert line[:-1].decode("ascii").isprintable()
    json.loads(line)
