"""tools/parts: everything runs, whatever fails, and what failed stands at the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PARTS = Path(__file__).resolve().parents[3] / "tools" / "parts"
MAKEFILE = """
quick: ; @echo "===== 3 passed in 0.1s ====="; echo quick >>order
meets: ; @echo here >one; while [ ! -e two ]; do sleep 0.01; done; echo meets >>order
met: ; @echo here >two; while [ ! -e one ]; do sleep 0.01; done
bad: ; @echo bad >>order; echo "why it failed"; echo "FAILED tests/test_a.py::test_b - assert 1 == 2"; false
left: ; @echo "test-image: left out: no dockerd here"; echo "a line of no interest"
long: ; @trap "touch tidied; exit 1" INT; touch started; while :; do sleep 0.02; done
"""


def parts(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "Makefile").write_text(MAKEFILE)
    return subprocess.run(
        [sys.executable, str(PARTS), *arguments], cwd=folder, capture_output=True, text=True, timeout=60
    )


def test_a_failure_holds_up_nothing_and_is_told_at_the_end(tmp_path: Path) -> None:
    done = parts(tmp_path, "bad", "quick")
    assert (done.returncode, done.stderr) == (1, "")
    assert (tmp_path / "order").read_text().split() == ["bad", "quick"]
    told, _, end = done.stdout.partition("all parts have run\n")
    assert "why it failed\n" in told
    assert "quick: passed, 0 s\n===== 3 passed in 0.1s =====\n" in told
    table = [line.split() for line in end.splitlines()]
    assert table[:2] == [["bad", "0", "s", "FAILED"], ["quick", "0", "s", "passed"]]
    assert end.splitlines()[2:] == ["FAILED tests/test_a.py::test_b - assert 1 == 2", "Again: make bad"]


def test_lanes_run_side_by_side_and_the_targets_of_one_in_order(tmp_path: Path) -> None:
    done = parts(tmp_path, "meets quick + met")
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "order").read_text().split() == ["meets", "quick"]


def test_what_is_left_out_is_told_and_the_rest_is_kept(tmp_path: Path) -> None:
    done = parts(tmp_path, "left")
    assert done.returncode == 0
    assert "test-image: left out: no dockerd here\n" in done.stdout
    assert "of no interest" not in done.stdout
    assert "of no interest" in (tmp_path / "build" / "parts" / "left.log").read_text()


def test_a_failure_among_many_processes_is_told_at_once(tmp_path: Path) -> None:
    """In the words that tools/parts looks for."""
    (tmp_path / "conftest.py").write_bytes((PARTS.parents[1] / "tests" / "conftest.py").read_bytes())
    (tmp_path / "test_one.py").write_text("def test_one():\n    assert 1 == 2\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "1", "-q", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(PARTS.parents[1])},
    )
    assert "\nfailed just now: test_one.py::test_one\n" in done.stdout, done.stdout + done.stderr
    assert 'NEWS = "failed just now: "' in PARTS.read_text()


def test_whoever_ends_it_ends_what_runs(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text(MAKEFILE)
    with subprocess.Popen(
        [sys.executable, str(PARTS), "long", "quick"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        while not (tmp_path / "started").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 128 + signal.SIGTERM
    assert (tmp_path / "tidied").exists(), "it has ended by then"
    assert not (tmp_path / "order").exists(), "and nothing else begins"


@pytest.mark.parametrize("arguments", [(), ("",), ("quick +",)])
def test_a_slip_is_told(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = parts(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("parts: which targets? tools/parts lint")
