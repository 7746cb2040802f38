"""The Docker daemon of these tests, with images that are made here, of nothing but links: programs come from this
machine's /usr, mounted read-only."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.dockerd import Dockerd
from lab.lacking import search_path
from lab.network import RESOLVER

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

__all__ = ["CHECKOUT", "IMAGE", "RESOLVER", "SIDECAR", "USR", "Daemon", "lacking", "until"]

CHECKOUT = Path(__file__).resolve().parents[2]
IMAGE = "sallyport-links:test"
SIDECAR = "sallyport-egress:test"
USR = "--volume=/usr:/usr:ro"


def lacking() -> str:
    """Why no daemon can be started here, or ""."""
    programs = ("dockerd", "docker", "iptables", "nsenter")
    missing = [name for name in programs if not shutil.which(name, path=search_path())]
    return f"not installed: {', '.join(missing)} (tools/test-docker installs them)" if missing else ""


def until(true: Callable[[], Any], within: float = 60.0, what: Callable[[], object] = str) -> Any:
    """Wait for something to become true and return it."""
    end = time.monotonic() + within
    while not (found := true()):
        assert time.monotonic() < end, what()
        time.sleep(0.02)
    return found


class Daemon(Dockerd):
    """A daemon that has `IMAGE`. A context manager."""

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self.load_links()
        except BaseException:
            self.close()
            raise
        return self

    def environment(self) -> dict[str, str]:
        return super().environment() | {"PYTHONPATH": str(CHECKOUT)}

    def egress(self, *arguments: str, timeout: float = 150.0) -> subprocess.CompletedProcess[str]:
        """Run `egress` on the daemon's host to its end."""
        return subprocess.run(
            self.inside([sys.executable, "-m", "egress", *arguments]),
            capture_output=True,
            text=True,
            timeout=timeout,
            env=self.environment(),
            cwd=self.folder,
        )

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
