"""A target in a process of its own: libFuzzer takes the whole process, and ends it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

_CHECKOUT = Path(__file__).resolve().parent.parent
SECONDS = 10
"""One input may take so long, on a busy machine; more is a finding."""
MEGABYTES = 1024
"""The process may grow so large, all its inputs together; more is a finding."""
PROGRESS = "executions so far: "


class Run(NamedTuple):
    """What is to be run: seed 0 is another one each time; without `runs` the inputs that follow are run once each."""

    name: str
    corpus: Path
    findings_in: Path
    runs: int = 0
    seed: int = 0

    def start(self) -> subprocess.Popen[str]:
        """Its words come on stdout."""
        return subprocess.Popen(
            command(self), env=environment(), cwd=_CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace",
        )  # fmt: skip

    def findings(self) -> list[Path]:
        """The inputs that were found to be too much, of this run and of earlier ones."""
        return sorted(self.findings_in.glob(f"{self.name}-*"))

    def progress(self, line: str) -> int | None:
        """How many executions there were, where the line says it."""
        return int(line.removeprefix(PROGRESS)) if line.startswith(PROGRESS) else None


def command(run: Run) -> list[str]:
    """The command line."""
    run.findings_in.mkdir(parents=True, exist_ok=True)
    limits = [f"-timeout={SECONDS}", f"-rss_limit_mb={MEGABYTES}", f"-artifact_prefix={run.findings_in}/{run.name}-"]
    extent = [f"-runs={run.runs}", f"-seed={run.seed}"] if run.runs else []
    return [sys.executable, "-m", "fuzz.engine", run.name, str(run.corpus), *limits, *extent]


def environment() -> dict[str, str]:
    """Nothing of an execution is left to chance."""
    return {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(_CHECKOUT), "PYTHONDONTWRITEBYTECODE": "1"}
