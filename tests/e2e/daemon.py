"""A Docker daemon of the test's own, in a network namespace of the lab, with processes and mounts of its own.

So its bridge, its firewall rules and its forwarding are nobody else's, the lab's internet is all the world that its
containers can reach, and the end of one process is the end of all of it. Images come from the daemon that built them.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab import LabError
from lab.lacking import search_path
from lab.network import RESOLVER, Lab

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from lab import Internet

_START_SECONDS = 30.0


class Daemon:
    """A running dockerd. A context manager; `close` removes every container, and what it kept on disk."""

    def __init__(self, internet: Internet, images: Sequence[str]) -> None:
        with contextlib.ExitStack() as undo:
            # Short: a path of a unix socket has 108 octets, and containerd appends to this one.
            self.folder = Path(tempfile.mkdtemp(prefix="sp-e2e-"))
            undo.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self.lab = undo.enter_context(Lab(internet))
            self.host = f"unix://{self.folder}/docker.sock"
            self._log = (self.folder / "log").open("wb")
            undo.callback(self._log.close)
            # Not `ip netns exec`: it lays a new /sys over the old one, and the control groups are gone.
            self._process = subprocess.Popen(
                [
                    "nsenter", f"--net={self.lab.sandbox.path}",
                    "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
                    "dockerd", "--host", self.host, "--data-root", str(self.folder / "data"),
                    "--exec-root", str(self.folder / "exec"), "--pidfile", str(self.folder / "pid"),
                    "--dns", RESOLVER, "--log-level", "warn",
                ],
                env={"PATH": search_path()},
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
            undo.callback(self._stop)
            self._wait_ready()
            undo.callback(self._remove_containers)
            self._load(images)
            self._undo = undo.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._undo.close()

    def docker(self, *arguments: str, check: bool = True, timeout: float = 60) -> str:
        """The docker command, at this daemon; what it prints. Raises LabError with its words."""
        done = subprocess.run(
            ["docker", "--host", self.host, *arguments], capture_output=True, text=True, timeout=timeout, check=False
        )
        if check and done.returncode:
            raise LabError(f"docker {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout.strip()

    def inspect(self, name: str) -> dict[str, Any]:
        """What the daemon says of a container. Raises LabError where there is none."""
        (told,) = json.loads(self.docker("container", "inspect", name))
        return dict(told)

    def things(self) -> dict[str, set[str]]:
        """Every container, volume and network there is, by name."""
        return {
            "containers": set(self.docker("ps", "--all", "--format", "{{.Names}}").split()),
            "volumes": set(self.docker("volume", "ls", "--quiet").split()),
            "networks": set(self.docker("network", "ls", "--format", "{{.Name}}").split()),
        }

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not self.docker("info", "--format", "{{.ID}}", check=False):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise LabError(f"dockerd did not come up:\n{(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.05)

    def _load(self, images: Sequence[str]) -> None:
        """Bring images over from the daemon that the environment names."""
        with subprocess.Popen(["docker", "save", *images], stdout=subprocess.PIPE) as saving:
            loading = subprocess.run(
                ["docker", "--host", self.host, "load", "--quiet"],
                stdin=saving.stdout,
                capture_output=True,
                check=False,
            )
        if saving.returncode or loading.returncode:
            raise LabError(f"docker save {' '.join(images)} | docker load: {loading.stderr.decode().strip()}")

    def _remove_containers(self) -> None:
        if found := self.docker("ps", "--all", "--quiet", check=False).split():
            self.docker("rm", "--force", "--volumes", *found, check=False)

    def _stop(self) -> None:
        # dockerd is the first of its processes' namespace: the kernel ends the others with it.
        self._process.kill()
        self._process.wait()
