"""`python -m egress ...` as a person calls it, and the same without a process of its own, where many calls are made."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[3]


def egress(
    *arguments: str, stdin: bytes | None = None, env: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; never a traceback, whatever the arguments."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OPENSANDBOX_EGRESS_")}
    done = subprocess.run(
        [sys.executable, "-m", "egress", *arguments],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        timeout=60,
        env={**clean, "PYTHONPATH": str(CHECKOUT), **(env or {})},
        cwd=cwd,
    )
    out, err = done.stdout.decode(), done.stderr.decode()
    assert "Traceback" not in err, err
    assert "Exception ignored" not in err, err
    return subprocess.CompletedProcess(done.args, done.returncode, out, err)


def quick(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The same in this process: a twentieth of the time, without the interpreter's own end."""
    from egress.__main__ import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(arguments))
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())
