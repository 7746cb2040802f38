"""The images that the tests need beside our own; nothing is downloaded for them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.blackbox.test_image import base

SANDBOX = "sallyport-e2e:test"
IDLE = "sallyport-e2e-idle:test"
UNHURRIED = "sallyport-e2e-unhurried:test"
_FOLDER = Path(__file__).parent / "image"


def build_beside(egress: str) -> None:
    """SANDBOX, IDLE and UNHURRIED, of what lies in image/, beside our own image."""
    arguments = ["--build-arg", f"BASE={base()}", "--build-arg", f"EGRESS={egress}"]
    for target, tag in (("sandbox", SANDBOX), ("idle", IDLE), ("unhurried", UNHURRIED)):
        done = subprocess.run(
            ["docker", "build", *arguments, "--network", "none", "--target", target, "-t", tag, "."],
            cwd=_FOLDER,
            env={**os.environ, "DOCKER_BUILDKIT": "0"},
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert done.returncode == 0, done.stdout + done.stderr
