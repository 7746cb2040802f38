"""Who a process in the lab is: uid and capabilities, as a container runtime would hand them out.

Docker's default set is in moby's `oci/caps/defaults.go`: 14 capabilities, NET_RAW among them and NET_ADMIN not. The
attacker of the threat model is `CONTAINER_ROOT`.
"""

from __future__ import annotations

from typing import NamedTuple

_DOCKER = (
    "chown",
    "dac_override",
    "fsetid",
    "fowner",
    "mknod",
    "net_raw",
    "setgid",
    "setuid",
    "setfcap",
    "setpcap",
    "net_bind_service",
    "sys_chroot",
    "kill",
    "audit_write",
)


class Identity(NamedTuple):
    """A uid (gid is the same number) and the capabilities that its bounding set keeps; None keeps all."""

    name: str
    uid: int = 0
    capabilities: tuple[str, ...] | None = None
    no_new_privileges: bool = False

    def prefix(self) -> list[str]:
        """The argv that turns what follows into this identity, and lets it die with whoever started it."""
        argv = ["setpriv", "--pdeathsig", "KILL"]
        if self.uid:
            argv += ["--reuid", str(self.uid), "--regid", str(self.uid), "--clear-groups"]
        if self.capabilities is not None:
            kept = ",".join(["-all", *(f"+{name}" for name in self.capabilities)])
            argv += ["--inh-caps", "-all", "--bounding-set", kept]
        if self.no_new_privileges:
            argv.append("--no-new-privs")
        return argv


ROOT = Identity("root with every capability")
CONTAINER_ROOT = Identity("root in a container, as Docker makes it", capabilities=_DOCKER)
CONTAINER_ROOT_WITHOUT_RAW = Identity(
    "root in a container without NET_RAW", capabilities=tuple(name for name in _DOCKER if name != "net_raw")
)
NOBODY = Identity("nobody", uid=65534, capabilities=(), no_new_privileges=True)
# `--cap-drop ALL --cap-add NET_ADMIN --security-opt no-new-privileges`
SIDECAR = Identity("the sidecar's container", capabilities=("net_admin",), no_new_privileges=True)
# What it takes to hold XDP sockets too, which `REQUIRE=raw` asks for. Docker's own set has it.
SIDECAR_WITH_RAW = SIDECAR._replace(name="the sidecar's container with NET_RAW", capabilities=("net_admin", "net_raw"))
