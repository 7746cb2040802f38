"""`make bench-http` runs: a few requests with what is installed, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[3]
DOCUMENT = CHECKOUT / "docs" / "benchmarks-http.md"


def bench(*arguments: str, folder: Path) -> subprocess.Popen[str]:
    """The benchmark, with its temporary files in `folder`."""
    return subprocess.Popen(
        [sys.executable, "-m", "bench.http", *arguments],
        cwd=CHECKOUT,
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str], seconds: float) -> tuple[str, str]:
    """What it wrote. It is asked to end before it is made to: what it started ends with it."""
    try:
        return process.communicate(timeout=seconds)
    except BaseException:
        process.terminate()
        try:
            process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        raise


def running_in(folder: Path, *, besides: int) -> list[str]:
    """Processes that have this folder for their temporary files, or were started with something of it."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != besides:
            try:
                line = (entry / "cmdline").read_bytes()
                about = line + (entry / "environ").read_bytes()
            except OSError:
                continue
            if os.fsencode(folder) in about:
                found.append(line.replace(b"\0", b" ").decode(errors="replace"))
    return found


def left_in(folder: Path, *, besides: int) -> list[str]:
    """Those of them that stay: who was killed has a moment to go."""
    deadline = time.monotonic() + 10
    while (found := running_in(folder, besides=besides)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def test_a_dry_run_measures_everything_and_writes_nothing(tmp_path: Path) -> None:
    before = DOCUMENT.read_bytes() if DOCUMENT.exists() else b""
    process = bench("--dry", "--contenders", "sallyport,sallyport-header,nginx,direct", folder=tmp_path)
    output, errors = finished(process, 90)
    assert (process.returncode, errors) == (0, "")
    for title in ("## Small answers", "## Large bodies", "## WebSocket echo", "## Memory"):
        assert title in output
    assert "without sallyport" not in output, output
    assert (DOCUMENT.read_bytes() if DOCUMENT.exists() else b"") == before
    assert left_in(tmp_path, besides=process.pid) == []
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_told_to_end_leaves_nothing(tmp_path: Path) -> None:
    process = bench("--dry", "--contenders", "sallyport,direct", folder=tmp_path)
    deadline = time.monotonic() + 60
    while not running_in(tmp_path, besides=process.pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert running_in(tmp_path, besides=process.pid), "the control: something was running"
    process.send_signal(signal.SIGTERM)
    finished(process, 60)
    assert process.returncode == 128 + signal.SIGTERM
    assert left_in(tmp_path, besides=process.pid) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [("--contenders", "apache"), ("--rounds", "0"), ("--only", "nothing")])
def test_a_slip_is_told(arguments: tuple[str, str], tmp_path: Path) -> None:
    process = bench(*arguments, folder=tmp_path)
    output, errors = finished(process, 60)
    assert process.returncode == 2
    assert output == ""
    assert errors.splitlines()[-1].startswith("bench.http: error: ")
