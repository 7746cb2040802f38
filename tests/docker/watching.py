"""`egress docker watch` as a test holds it, and containers that are watched."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.docker.daemon import IMAGE, USR, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from tests.docker.daemon import Daemon

NETWORK, BRIDGE = "sallyport", "sallyport0"
SUBNETS = ("172.30.0.0/16", "fd5a:11::/64")
TABLE = f"sallyport_{BRIDGE}"
ONE = '{"egress":[{"action":"allow","target":"api.example.com"}]}'
NOTHING = '{"egress":[]}'


class Watching:
    """The process and its log. A context manager, which takes gate and network away afterwards."""

    def __init__(self, host: Daemon, upstream: str = "") -> None:
        """`upstream` is a resolver other than the host's."""
        self.host = host
        self._upstream = {"OPENSANDBOX_EGRESS_DNS_UPSTREAM": upstream} if upstream else {}
        self.path = host.folder / "watch.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._since = 0  # lines of the log that belong to earlier tests

    def begin(self) -> None:
        """Another test: it runs, and what it has said so far doesn't count."""
        if not self.running:
            self.start()
            self.eventually(lambda: not self.ports())
        self._since = len(self.path.read_text().split("\n")) - 1

    def __enter__(self) -> Self:
        self.path.write_bytes(b"")
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self.host.clear()
        self.host.docker("network", "rm", NETWORK, check=False)
        self.remove_gate()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, and wait until it follows the daemon."""
        before = len(self.entries())
        self.spawn()
        self.said("following the Docker daemon", after=before)

    def spawn(self) -> None:
        """Start it, and wait for nothing."""
        with self.path.open("ab") as log:
            self._process = subprocess.Popen(
                self.host.inside(
                    [sys.executable, "-m", "egress", "docker", "watch", *(f"--subnet={subnet}" for subnet in SUBNETS)]
                ),
                env=self.host.environment() | self._upstream,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """SIGTERM; its exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(60)

    @contextlib.contextmanager
    def held(self) -> Any:
        """It stands still inside the `with`: the time between a start and its guard, for as long as a test likes."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    # -- its log -------------------------------------------------------------------------------------------------
    def entries(self) -> list[dict[str, Any]]:
        """Every line of this test so far that is whole."""
        return [json.loads(line) for line in self.path.read_text().split("\n")[self._since : -1]]

    def said(self, words: str, after: int = 0, **fields: str) -> dict[str, Any]:
        """The first line, from the `after`th on, with these words in its message and these fields; waited for."""

        def found() -> dict[str, Any] | None:
            for entry in self.entries()[after:]:
                if words in entry["msg"] and all(entry.get(key) == value for key, value in fields.items()):
                    return entry
            return None

        entry: dict[str, Any] = until(found, what=lambda: (words, fields, self.path.read_text()[-3000:]))
        return entry

    def guarded(self, name: str, after: int = 0) -> dict[str, Any]:
        """The line that says that a container is guarded; waited for."""
        return self.said("policy loaded", after, sandbox_id=name)

    # -- containers ----------------------------------------------------------------------------------------------
    def run(self, name: str, *command: str, policy: str | None = ONE, options: tuple[str, ...] = ()) -> str:
        """Start a container in the background, on the watched network unless `options` say otherwise."""
        labels = () if policy is None else (f"--label=sallyport.policy={policy}",)
        network = () if any(option.startswith("--network") for option in options) else (f"--network={NETWORK}",)
        command = command or ("/bin/sleep", "600")
        self.host.docker(
            "run", "-d", "--stop-timeout=0", f"--name={name}", USR, *network, *labels, *options, IMAGE, *command
        )
        return name

    def fetch(self, name: str, url: str, *options: str) -> str:
        """What curl says in a container: the site's words, else the fault."""
        command = ("curl", "-sS", "-m", "30", *options, url)
        done = subprocess.run(
            ["docker", "exec", name, *command], capture_output=True, text=True, env=self.host.environment(), timeout=150
        )
        return done.stdout or done.stderr

    def reaches(self, name: str, url: str, *options: str) -> bool:
        return "Hello from" in self.fetch(name, url, *options)

    # -- the gate ------------------------------------------------------------------------------------------------
    def ports(self) -> set[str]:
        """What the gate lets pass, as nft names it."""
        listed = self.host.lab.sandbox.run(["nft", "-j", "list", "set", "bridge", TABLE, "open"], check=True).stdout
        parts = json.loads(listed)["nftables"]
        return {str(item) for part in parts if "set" in part for item in part["set"].get("elem", ())}

    def remove_gate(self) -> None:
        for family in ("bridge", "inet"):
            self.host.lab.sandbox.run(["nft", "delete", "table", family, TABLE])

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def eventually(self, true: Callable[[], Any]) -> Any:
        return until(true, what=lambda: self.path.read_text()[-3000:])
