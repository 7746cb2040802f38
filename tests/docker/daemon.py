"""A Docker daemon of the test's own, in a namespace of the lab: the machine's own daemon and firewall never notice.

    internet namespace ── veth ── lab.sandbox: dockerd, its bridges, iptables, the gate ── veth ── containers

Images are made here, of nothing but links: programs come from this machine's /usr, mounted read-only.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from lab import Lab

CHECKOUT = Path(__file__).resolve().parents[2]
IMAGE = "sallyport-links:test"
SIDECAR = "sallyport-egress:test"
USR = "--volume=/usr:/usr:ro"
RESOLVER = "203.0.113.53"


def lacking() -> str:
    """Why no daemon can be started here, or ""."""
    missing = [name for name in ("dockerd", "docker", "iptables", "nsenter") if not shutil.which(name, path=_path())]
    return f"not installed: {', '.join(missing)} (tools/test-docker installs them)" if missing else ""


def _path() -> str:
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def until(true: Callable[[], Any], within: float = 20.0, what: Callable[[], object] = str) -> Any:
    """Wait for something to become true and return it."""
    end = time.monotonic() + within
    while not (found := true()):
        assert time.monotonic() < end, what()
        time.sleep(0.02)
    return found


class Daemon:
    """dockerd with everything of its own: network and mount namespace, folders, socket. A context manager."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
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
            self.load_links()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start it; `stop` and `start` again is what a restart of the service is."""
        # A mount namespace for its own resolv.conf; `nsenter` and not `ip netns exec`, which would hide the cgroups.
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
                env={**os.environ, "PATH": _path()},
            )
        until(self._up, 30.0, lambda: (self.folder / "log").read_text()[-2000:])
        if self._mounts >= 0:
            os.close(self._mounts)
        self._mounts = os.open(f"/proc/{self._process.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)

    def _up(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "log").read_text()[-2000:]
        return bool(self.docker("info", "--format", "{{.ID}}", check=False))

    def stop(self) -> None:
        """SIGTERM, as a service manager does."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None and self.socket.exists():
            with contextlib.suppress(AssertionError):
                self.clear()
        self.stop()
        if self._mounts >= 0:
            os.close(self._mounts)
            self._mounts = -1
        for line in Path("/proc/mounts").read_text().splitlines():
            place = line.split()[1]
            if place.startswith(str(self.folder)):
                subprocess.run(["umount", "-l", place], capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- programs ------------------------------------------------------------------------------------------------
    def inside(self, argv: Sequence[str]) -> list[str]:
        """What to execute for `argv` to run on the daemon's host, as an administrator there would."""
        mounts = f"/proc/{os.getpid()}/fd/{self._mounts}"
        return ["nsenter", f"--net={self.lab.sandbox.path}", f"--mount={mounts}", *argv]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PATH": _path(), "DOCKER_HOST": self.host, "PYTHONPATH": str(CHECKOUT)}

    def docker(self, *arguments: str, data: bytes = b"", check: bool = True, timeout: float = 60.0) -> str:
        """The docker command against this daemon; its standard output."""
        done = subprocess.run(
            ["docker", *arguments], input=data, capture_output=True, timeout=timeout, env=self.environment()
        )
        assert not check or done.returncode == 0, done.stderr.decode()
        return done.stdout.decode().strip()

    def egress(self, *arguments: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run `egress` on the daemon's host to its end."""
        return subprocess.run(
            self.inside([sys.executable, "-m", "egress", *arguments]),
            capture_output=True,
            text=True,
            timeout=timeout,
            env=self.environment(),
            cwd=self.folder,
        )

    def clear(self) -> None:
        """No container is left, running or not."""
        found = self.docker("ps", "-aq").split()
        if found:
            self.docker("rm", "-f", "-v", *found)

    def inspect(self, name: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.docker("inspect", name))[0]
        return document

    # -- images --------------------------------------------------------------------------------------------------
    def load_links(self) -> None:
        """An image that is all links into /usr, and a little /etc."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for name in ("bin", "sbin", "lib", "lib64"):
                link = tarfile.TarInfo(name)
                link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
                tar.addfile(link)
            for name in ("usr", "etc", "tmp", "proc", "sys", "dev"):
                folder = tarfile.TarInfo(name)
                folder.type, folder.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(folder)
            text = b"root:x:0:0:root:/tmp:/bin/sh\nnobody:x:65534:65534::/tmp:/bin/sh\n"
            passwd = tarfile.TarInfo("etc/passwd")
            passwd.size = len(text)
            tar.addfile(passwd, io.BytesIO(text))
        self.docker("import", "-", IMAGE, data=buffer.getvalue())

    def load_sidecar(self) -> None:
        """A stand-in for the image of Dockerfile.egress, of this machine's Python and this checkout: building the real
        one takes a base image and package registries, which tools/test-image has."""
        if self.docker("image", "ls", "-q", SIDECAR):
            return
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", dereference=True) as tar:
            for inside, outside in sorted(_sidecar_files()):
                tar.add(outside, arcname=inside, recursive=False)
            for name in ("tmp", "run", "proc", "sys", "dev", "etc"):
                folder = tarfile.TarInfo(name)
                folder.type, folder.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(folder)
        self.docker(
            "import", '--change=ENTRYPOINT ["/usr/bin/python3", "-m", "egress", "serve"]',
            "--change=ENV PYTHONPATH=/app PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1",
            '--change=HEALTHCHECK --interval=1s --timeout=5s CMD ["/usr/bin/python3", "-m", "egress", '
            '"healthcheck"]',
            "-", SIDECAR, data=buffer.getvalue(),
        )  # fmt: skip


def _sidecar_files() -> set[tuple[str, str]]:
    """(path inside, path here) of an interpreter, its library, libnftables, and the packages of the sidecar."""
    import sysconfig

    interpreter = os.path.realpath(sys.executable)
    found = {("/usr/bin/python3", interpreter)}
    library = Path(sysconfig.get_path("stdlib"))
    skipped = {
        "test",
        "tests",
        "idlelib",
        "tkinter",
        "ensurepip",
        "lib2to3",
        "site-packages",
        "dist-packages",
        "__pycache__",
    }
    programs = [interpreter, *map(str, Path("/usr/lib").glob("*/libnftables.so.1"))]
    for folder, names, files in os.walk(library):
        names[:] = [name for name in names if name not in skipped]
        for name in files:
            path = os.path.join(folder, name)
            found.add((path, path))
            if path.endswith(".so"):
                programs.append(path)
    done = subprocess.run(["ldd", *programs], capture_output=True, text=True)
    for line in done.stdout.splitlines():
        found |= {(word, word) for word in line.split() if word.startswith("/") and not word.endswith(":")}
    found |= {(program, program) for program in programs[1:]}
    packages = Path(sysconfig.get_path("purelib"))
    roots = [(CHECKOUT, name) for name in ("egress", "policies")]
    roots += [(packages, name) for name in ("h11", "idna", "yaml", "nftables") if (packages / name).exists()]
    for root, name in roots:
        for file in (root / name).rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                found.add((f"/app/{file.relative_to(root)}", str(file)))
    return found
