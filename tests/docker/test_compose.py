"""The example for Compose, with docker-compose itself; only its images and what the application does are the test's."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

from tests.docker.daemon import CHECKOUT, IMAGE, SIDECAR, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.docker.daemon import Daemon


def test_the_application_is_guarded_from_its_first_moment(host: Daemon, compose: str, tmp_path: Path) -> None:
    host.load_sidecar()
    override = tmp_path / "override.json"
    script = "cd /tmp; curl -sS -m 30 http://api.example.com/; curl -sS -m 30 http://other.example.com/; sleep 600"
    health = ["CMD", "/usr/bin/python3", "-m", "egress", "healthcheck"]
    services = {
        "sidecar": {"healthcheck": {"test": health}},
        "app": {"command": ["/bin/sh", "-c", f"({script}) 2>&1"], "volumes": ["/usr:/usr:ro"]},
    }
    override.write_text(json.dumps({"services": services}))
    example = CHECKOUT / "examples" / "compose" / "compose.yaml"
    command = [compose, "-p", "guarded", "-f", str(example), "-f", str(override)]
    environ = {**host.environment(), "SIDECAR_IMAGE": SIDECAR, "APP_IMAGE": IMAGE}
    environ.pop("PYTHONPATH")
    try:
        done = subprocess.run([*command, "up", "-d"], env=environ, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        app = host.docker("ps", "-q", "--filter", "label=com.docker.compose.service=app")
        until(lambda: "other.example.com" in host.docker("logs", app), what=lambda: host.docker("logs", app))
        assert "Hello from web" in host.docker("logs", app)
        assert "Could not resolve host: other.example.com" in host.docker("logs", app)
    finally:
        subprocess.run([*command, "down", "-v", "-t", "0"], env=environ, capture_output=True, timeout=200)
