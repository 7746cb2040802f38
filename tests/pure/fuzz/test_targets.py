"""Every target of the fuzzer, a little of it; `make fuzz` does the rest. docs/fuzzing.md."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from fuzz import TARGETS, shares
from fuzz.running import Run, command, environment

if TYPE_CHECKING:
    from pathlib import Path

EXECUTIONS = shares(list(TARGETS), 18_000)


@pytest.fixture(autouse=True)
def engine() -> None:
    if importlib.util.find_spec("atheris") is None:
        reason = "atheris is not built for this platform"
        if os.environ.get("CI"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)


def fuzzed(name: str, folder: Path, runs: int) -> subprocess.CompletedProcess[str]:
    run = Run(name, folder / "corpus", folder / "findings", runs, 1)
    return subprocess.run(
        command(run), env=environment(), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=100,
    )  # fmt: skip


@pytest.mark.parametrize("name", TARGETS)
def test_fuzz(name: str, tmp_path: Path) -> None:
    done = fuzzed(name, tmp_path, EXECUTIONS[name])
    assert done.returncode == 0, done.stdout[-4000:]
    runs = re.search(r"^Done (\d+) runs", done.stdout, re.MULTILINE)
    assert runs is not None, done.stdout[-4000:]
    assert int(runs[1]) >= EXECUTIONS[name]  # libFuzzer counts what it looks at twice, too
    assert not list((tmp_path / "findings").iterdir())


def test_fuzz_can_fail(tmp_path: Path) -> None:
    """The control: what is hidden behind three comparisons is found, told and kept."""
    done = fuzzed("tests.pure.fuzz.planted", tmp_path, 200_000)
    assert done.returncode != 0
    assert "the planted fault" in done.stdout
    (kept,) = (tmp_path / "findings").iterdir()
    assert kept.read_bytes().startswith(b"ope")
