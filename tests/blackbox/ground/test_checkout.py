"""What a newcomer types first, in this checkout: make, the setup, the two commands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[3]
BIN = Path(sys.prefix, "bin")


def run(*argv: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, cwd=CHECKOUT, capture_output=True, text=True)


def test_make_alone_teaches() -> None:
    done = run("make")
    assert done.returncode == 0
    for target in ("make demo", "make test", "make setup", "make fuzz", "make bench-dns"):
        assert target in done.stdout


def parts(target: str) -> set[str]:
    """What `tools/parts` is to run for a target."""
    done = run("make", "--dry-run", target)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("tools/parts ")]
    return set(line.replace("+", " ").replace("'", " ").split())


def test_ci_runs_the_tests_a_person_runs() -> None:
    assert "make ci" in (CHECKOUT / ".ci" / "run").read_text()
    assert parts("ci") >= parts("test") > {"lint", "side-by-side", "alone"}


@pytest.mark.skipif(Path(sys.prefix) != CHECKOUT / ".venv", reason="runs outside the checkout's .venv")
def test_a_setup_that_is_done_is_silent() -> None:
    assert run("tools/setup").returncode == 0  # whatever was edited since the last one
    done = run("tools/setup")
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("argv", [[BIN / "ingress"], [sys.executable, "-m", "ingress"]], ids=["script", "module"])
def test_ingress_runs_from_the_checkout(argv: list[str | Path]) -> None:
    done = run(*argv, "--help")
    assert done.returncode == 0
    for command in ("serve", "routes", "sign", "verify", "healthcheck"):
        assert command in done.stdout


@pytest.mark.parametrize("argv", [[BIN / "egress"], [sys.executable, "-m", "egress"]], ids=["script", "module"])
def test_egress_runs_from_the_checkout(argv: list[str | Path]) -> None:
    done = run(*argv, "--help")
    assert done.returncode == 0
    for command in ("serve", "run", "check", "explain", "doctor", "policy"):
        assert command in done.stdout
