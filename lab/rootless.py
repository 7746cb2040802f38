"""The lab without root: a user namespace in which this user is root over networks of its own.

The kernel gives the maker of a user namespace every capability inside it, and network namespaces made there belong to
it. One uid is mapped, so nobody else can be played: `NOBODY` needs the real root. See user_namespaces(7).
"""

from __future__ import annotations

import os
import subprocess
import sys

from lab.errors import Lacking
from lab.lacking import search_path

_INSIDE = "SALLYPORT_LAB_ROOTLESS"
_NAMESPACES = ["unshare", "--user", "--map-root-user", "--net", "--mount"]
# `ip netns` writes /run/netns. Where resolv.conf is a link into /run, its target has to go on existing.
_ROOM = """
resolv="$(readlink -m /etc/resolv.conf)"
mount -t tmpfs tmpfs /run || exit 125
case "$resolv" in /run/*) mkdir -p "${resolv%/*}"; : >"$resolv" ;; esac
exec "$@"
"""


def become_root() -> None:
    """Return at once as root; else start this program again inside a user namespace, and never return.

    Raises Lacking where the kernel does not let ordinary users make one.
    """
    if os.geteuid() == 0 or os.environ.get(_INSIDE):
        return
    environment = {**os.environ, "PATH": search_path(), _INSIDE: "1"}
    attempt = subprocess.run(
        [*_NAMESPACES, "/bin/sh", "-c", _ROOM, "sh", "true"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if attempt.returncode:
        said = (attempt.stderr.strip() or "unshare failed").splitlines()[0]
        raise Lacking(f"neither root nor a user namespace to be root in: {said}")
    argv = [*_NAMESPACES, "/bin/sh", "-c", _ROOM, "sh", sys.executable, *sys.orig_argv[1:]]
    os.execvpe(argv[0], argv, environment)
