"""What this machine lacks for the lab, in words."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess

# Debian puts these where an ordinary user does not look.
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"
PROGRAMS = {"ip": "iproute2", "nft": "nftables", "setpriv": "util-linux", "unshare": "util-linux", "mount": "mount"}


def search_path() -> str:
    """PATH with the sbin folders at its end."""
    return f"{os.environ.get('PATH', '/usr/bin:/bin')}:{SBIN}"


@functools.cache
def lacking() -> str:
    """Why the lab cannot run here, or an empty string."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    absent = sorted({package for program, package in PROGRAMS.items() if not shutil.which(program, path=search_path())})
    if absent:
        return f"packages are missing: {' '.join(absent)} (make setup installs them)"
    # Root in a container may be root in name only, so the two doors are tried.
    attempt = subprocess.run(
        ["unshare", "--net", "--mount", "nft", "add table inet lab_probe"],
        env={"PATH": search_path()},
        capture_output=True,
        text=True,
        check=False,
    )
    if attempt.returncode:
        said = (attempt.stderr.strip() or "unshare failed").splitlines()[0]
        return f"no nftables in a network namespace of its own: {said}"
    return ""
