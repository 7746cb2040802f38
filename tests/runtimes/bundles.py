"""OCI bundles by hand: the host's /usr read-only, this checkout, a network namespace of the lab's, and one program."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).resolve().parents[2]
RUNSC = os.environ.get("SALLYPORT_RUNSC", "")
GVISOR = ("--platform=systrap", "--ignore-cgroups", "--net-raw", "--allow-packet-socket-write")


class Runtime(NamedTuple):
    """A runtime as it is called; `own_stack`: it takes the interface and has a network stack of its own."""

    name: str
    program: str
    options: tuple[str, ...] = ()
    own_stack: bool = False

    def missing(self) -> str:
        """Why it cannot be tried here; "" if it can."""
        if not self.program:
            return "no runsc: make test-runtimes builds one"
        return "" if shutil.which(self.program) else f"no {self.program}: apt-get install {self.program}"

    def argv(self, state: Path, bundle: Path, name: str) -> list[str]:
        """What runs the bundle to its end."""
        argv = [self.program, f"--root={state}", *self.options, "run", "--bundle", str(bundle), name]
        if self.name != "crun":
            return argv
        # Some versions refuse a machine with both kinds of cgroups: in a mount namespace of its own it sees one.
        hide = 'umount /sys/fs/cgroup/unified 2>/dev/null; exec "$@"'
        return ["unshare", "--mount", "sh", "-c", hide, "sh", *argv]


RUNTIMES = (
    Runtime("runc", "runc"),
    Runtime("crun", "crun", ("--cgroup-manager=disabled",)),
    Runtime("gVisor, the host's stack", RUNSC, ("--network=host", *GVISOR)),
    Runtime("gVisor, its own stack", RUNSC, ("--network=sandbox", *GVISOR), own_stack=True),
)


def run(
    runtime: Runtime,
    folder: Path,
    namespace: Path,
    argv: list[str],
    capabilities: tuple[str, ...] = ("CAP_NET_RAW",),
    env: tuple[str, ...] = (),
) -> subprocess.CompletedProcess[str]:
    """Run a program in a container of this runtime, in this network namespace, to its end."""
    bundle = folder / "bundle"
    rootfs = bundle / "rootfs"
    # Whatever interpreter runs this, and the packages beside it, at the same paths.
    shown = {"/usr", str(CHECKOUT), sys.prefix, sys.base_prefix, os.path.dirname(os.path.realpath(sys.executable))}
    shown = {one for one in shown if not any(one != other and one.startswith(f"{other}/") for other in shown)}
    for path in ("proc", "dev", "tmp", "run", "etc", "var/egress", *(one.lstrip("/") for one in shown)):
        (rootfs / path).mkdir(parents=True, exist_ok=True)
    for link in ("bin", "lib", "lib64", "sbin"):
        if Path("/", link).is_symlink() and not (rootfs / link).is_symlink():
            (rootfs / link).symlink_to(f"usr/{link}")
    (rootfs / "etc" / "resolv.conf").write_text("nameserver 203.0.113.53\n")
    kept = list(capabilities)
    config = {
        "ociVersion": "1.0.2",
        "hostname": "sandbox",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": argv,
            "env": ["PATH=/usr/bin:/usr/sbin", "HOME=/tmp", *env],
            "cwd": "/",
            "noNewPrivileges": True,
            "capabilities": {"bounding": kept, "effective": kept, "permitted": kept},
        },
        "root": {"path": "rootfs", "readonly": False},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"},
            *({"destination": one, "type": "bind", "source": one, "options": ["rbind", "ro"]} for one in sorted(shown)),
        ],
        "linux": {
            "namespaces": [
                *({"type": kind} for kind in ("pid", "ipc", "uts", "mount")),
                {"type": "network", "path": str(namespace)},
            ]
        },
    }
    (bundle / "config.json").write_text(json.dumps(config))
    name = f"sallyport-{os.getpid()}"
    state = folder / "state"
    try:
        return subprocess.run(
            runtime.argv(state, bundle, name),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=100,
        )
    finally:  # runsc keeps an empty network namespace mounted there
        if os.path.ismount(state / "null-netns"):
            subprocess.run(["umount", str(state / "null-netns")], check=True)
