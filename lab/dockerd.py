"""A Docker daemon of the test's own, in the lab's sandbox: the machine's own daemon and firewall never notice.

    internet namespace ── veth ── lab.sandbox: dockerd, its bridges, iptables ── veth ── containers

So the lab's internet is all the world that its containers can reach.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.errors import LabError
from lab.lacking import search_path
from lab.network import RESOLVER, Lab

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

_START_SECONDS = 90.0


class Dockerd:
    """dockerd with a network and a mount namespace, folders and a socket of its own. A context manager; `close` removes
    every container, and what it kept on disk."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        # Short: a path of a unix socket has 108 octets, and containerd appends to this one.
        self.folder = Path(tempfile.mkdtemp(prefix="sallyport-docker-"))
        self.socket = self.folder / "docker.sock"
        self.host = f"unix://{self.socket}"
        self._process: subprocess.Popen[bytes] | None = None
        self._mounts = -1  # its mount namespace, which outlives it
        (self.folder / "daemon.json").write_text("{}")
        (self.folder / "resolv.conf").write_text(f"nameserver {RESOLVER}\n")

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start it; `stop` and `start` again is what a restart of the service is. Raises LabError with its log."""
        # A mount namespace for its own resolv.conf; `nsenter` and not `ip netns exec`, which lays a new /sys over the
        # old one, and the control groups are gone.
        line = f"mount --bind {self.folder}/resolv.conf /etc/resolv.conf && exec dockerd"
        for option in (
            f"--config-file={self.folder}/daemon.json",
            f"--data-root={self.folder}/data",
            f"--exec-root={self.folder}/exec",
            f"--pidfile={self.folder}/pid",
            f"--host={self.host}",
        ):
            line += f" {option}"
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["nsenter", f"--net={self.lab.sandbox.path}", "unshare", "--mount", "sh", "-c", line],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PATH": search_path()},
            )
        deadline = time.monotonic() + _START_SECONDS
        while not self.docker("info", "--format", "{{.ID}}", check=False):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise LabError(f"dockerd did not come up:\n{(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.05)
        if self._mounts >= 0:
            os.close(self._mounts)
        self._mounts = os.open(f"/proc/{self._process.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)

    def stop(self) -> None:
        """SIGTERM, as a service manager does."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None and self.socket.exists():
            with contextlib.suppress(LabError, subprocess.TimeoutExpired):
                self.clear()
        self.stop()
        if self._mounts >= 0:
            os.close(self._mounts)
            self._mounts = -1
        for line in Path("/proc/mounts").read_text().splitlines():
            place = line.split()[1]
            if place.startswith(str(self.folder)):
                subprocess.run(["umount", "-l", place], capture_output=True, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def inside(self, argv: Sequence[str]) -> list[str]:
        """What to execute for `argv` to run on the daemon's host, as an administrator there would."""
        mounts = f"/proc/{os.getpid()}/fd/{self._mounts}"
        return ["nsenter", f"--net={self.lab.sandbox.path}", f"--mount={mounts}", *argv]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PATH": search_path(), "DOCKER_HOST": self.host}

    def docker(self, *arguments: str, data: bytes = b"", check: bool = True, timeout: float = 180.0) -> str:
        """The docker command, at this daemon; what it prints. Raises LabError with its words."""
        done = subprocess.run(
            ["docker", *arguments],
            input=data,
            capture_output=True,
            timeout=timeout,
            env=self.environment(),
            check=False,
        )
        if check and done.returncode:
            raise LabError(f"docker {' '.join(arguments)}: {done.stderr.decode().strip()}")
        return done.stdout.decode().strip()

    def clear(self) -> None:
        """No container is left, running or not."""
        if found := self.docker("ps", "--all", "--quiet").split():
            self.docker("rm", "--force", "--volumes", *found)

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

    def fetch(self, images: Sequence[str]) -> None:
        """Bring images over from the daemon that the environment names. Raises LabError."""
        with subprocess.Popen(["docker", "save", *images], stdout=subprocess.PIPE) as saving:
            loading = subprocess.run(
                ["docker", "--host", self.host, "load", "--quiet"],
                stdin=saving.stdout,
                capture_output=True,
                check=False,
            )
        if saving.returncode or loading.returncode:
            raise LabError(f"docker save {' '.join(images)} | docker load: {loading.stderr.decode().strip()}")
