"""One run: the acts on a stage, and what is left when it is taken down."""

from __future__ import annotations

import shutil
import subprocess
import time
from http.client import HTTPException
from typing import TYPE_CHECKING, Any

from demo.acts import ACTS, Act
from demo.residue import sweep
from demo.result import Result, Row
from demo.stage import Stage
from lab import LabError, Lacking
from lab.lacking import search_path

if TYPE_CHECKING:
    from demo.screen import Screen

PROGRAMS = {"curl": "curl", "dig": "bind9-dnsutils", "getent": "libc-bin"}
_TITLE = "Sallyport: a sandbox, a tiny internet, and the guard between them. All of it is on this machine."
_BELOW = "sandbox$ is a shell in the sandbox, root as in a container; operator$ is outside. What is typed is run."


def run(screen: Screen, *, root: bool, policy: dict[str, Any] | None = None, unhurried: bool = False) -> Result:
    """Play everything. Raises Lacking where this machine can't, LabError where the stage cannot be built.

    `policy` is the sidecar's first one; with a wrong one the result says which steps did not hold. `unhurried`: none
    does for the time it took.
    """
    absent = sorted({package for program, package in PROGRAMS.items() if not shutil.which(program, path=search_path())})
    if absent:
        raise Lacking(f"packages are missing: {' '.join(absent)} (make setup installs them where it may)")
    started = time.monotonic()
    screen.title(_TITLE, _BELOW)
    try:
        with Stage(screen, policy, unhurried=unhurried) as stage:
            for number, act in enumerate(ACTS, 1):
                screen.act(number, act.title)
                if not _play(stage, act) and act.needed:
                    break
            if any(not row.ok for row in stage.rows) and stage.sidecar.log:
                screen.note("\nThe sidecar's log:\n" + stage.sidecar.log.rstrip())
        screen.act(len(ACTS) + 1, "Everything is taken down")
        left = stage.left_behind()
        seen = ", ".join(left) or "nothing"
        stage.row(Row("residue", "namespaces, processes, files left", "nothing", seen, None, not left))
    finally:
        sweep()
    return Result(tuple(stage.rows), tuple(stage.history), time.monotonic() - started, root)


def _play(stage: Stage, act: Act) -> bool:
    """False where the act could not be played to its end; that is a row of its own."""
    try:
        act.play(stage)
    except (LabError, OSError, HTTPException, ValueError, subprocess.SubprocessError) as error:
        said = f"{error}" or type(error).__name__
        ident = act.play.__name__.replace("_", "-")
        stage.row(Row(ident, act.title, "played to its end", said.splitlines()[0].rstrip(":"), None, False))
        return False
    return True
