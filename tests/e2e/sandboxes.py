"""What the tests ask of a sandbox and of the sidecar beside it."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.daemon import Daemon
    from tests.e2e.server import Sdk

WEB, OTHER = "198.51.100.10", "198.51.100.20"
GREETING = f"Hello from web at {WEB}"
WITHIN = 60.0
_WORKER = """
import os
def parent(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[1]
print(*(pid for pid in os.listdir("/proc") if pid.isdigit() and parent(pid) == "1"))
"""


def until(true: Callable[[], Any], within: float = WITHIN) -> Any:
    """What the function gives once it gives something; a failure if it never does."""
    deadline = time.monotonic() + within
    while not (found := true()):
        assert time.monotonic() < deadline, f"not within {within} s"
        time.sleep(0.05)
    return found


class Box(NamedTuple):
    """A running sandbox of the SDK, by its name there."""

    sdk: Sdk
    daemon: Daemon
    name: str
    id: str

    @property
    def container(self) -> str:
        return f"sandbox-{self.id}"

    @property
    def sidecar(self) -> str:
        return f"sandbox-egress-{self.id}"

    def run(self, command: str) -> str:
        """What a command in it prints; a failure if it fails."""
        return self.sdk.run(command, self.name)

    def name_of(self, name: str) -> str:
        """What it gets for a name: addresses, or `unknown`."""
        return self.run(f"python3 /probe.py name {name}")

    def reach(self, host: str) -> str:
        """The first line of a host's page, or the error it gets."""
        return self.run(f"python3 /probe.py http {host}").partition("\n")[0]

    def targets(self) -> list[str]:
        """Its rules as the SDK reads them: `allow api.example.com`."""
        return [f"{rule['action']} {rule['target']}" for rule in self.sdk.call("policy", self.name)["egress"]]

    def worker(self) -> str:
        """The process id of the sidecar's worker, "" while there is none."""
        found = self.daemon.docker("exec", self.sidecar, "/opt/venv/bin/python", "-c", _WORKER).split()
        return found[0] if len(found) == 1 else ""

    def token(self) -> str:
        """What guards the control API: the server keeps it in the sandbox's labels."""
        for line in self.daemon.inspect(self.sidecar)["Config"]["Env"]:
            if line.startswith("OPENSANDBOX_EGRESS_TOKEN="):
                return str(line.partition("=")[2])
        return ""

    def events(self) -> list[dict[str, Any]]:
        """The sidecar's log."""
        return [json.loads(line) for line in self.daemon.docker("logs", self.sidecar).splitlines()]
