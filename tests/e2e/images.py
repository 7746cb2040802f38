"""The images that the tests need beside our own; nothing is downloaded for them."""

from __future__ import annotations

import subprocess
from pathlib import Path

SANDBOX = "sallyport-e2e:test"
IDLE = "sallyport-e2e-idle:test"
_FOLDER = Path(__file__).parent / "image"


def build_beside(base: str) -> None:
    """SANDBOX and IDLE, of what lies in image/, on top of an image with Python."""
    for target, tag in (("sandbox", SANDBOX), ("idle", IDLE)):
        done = subprocess.run(
            ["docker", "build", "--build-arg", f"BASE={base}", "--target", target, "-t", tag, "."],
            cwd=_FOLDER,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
