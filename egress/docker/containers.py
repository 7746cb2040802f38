"""What counts of a container, what speaks against guarding it, and what its label says. Pure but for the policy file
that a label may name."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from policies.model import NetworkPolicy

LABEL = "sallyport.policy"
"""A container with it is guarded: inline JSON, the absolute path of a file, or a preset's name."""

CAPABILITIES = {
    "ALL": "it has every capability",
    "NET_ADMIN": "it can take the rules away",
    "SYS_ADMIN": "it can leave its namespaces",
    "SYS_MODULE": "it can load kernel modules",
    "SYS_RAWIO": "it can write to the machine's memory",
    "DAC_READ_SEARCH": "it can open the host's files",
    "BPF": "it can put programs into the kernel",
    "SYS_BOOT": "it can start another kernel",
}
"""Capabilities with which no guard of a network holds, and why."""

RUNTIMES = frozenset({"", "runc", "crun", "youki", "nvidia", "io.containerd.runc.v2"})
"""OCI runtimes whose containers use the host's kernel for their network. Others bring a network stack of their own,
which never meets the rules in their namespace."""

_SOCKETS = ("docker.sock", "containerd.sock", "podman.sock", "crio.sock")
_FOLDERS = frozenset({"/", "/dev", "/etc", "/proc", "/run", "/sys", "/var", "/var/lib", "/var/lib/docker", "/var/run"})
_SOCKET_FOLDERS = frozenset(
    f"{run}/{name}" for run in ("/run", "/var/run") for name in ("containerd", "podman", "crio")
)


class Container(NamedTuple):
    """What counts of `GET /containers/{id}/json`."""

    id: str
    name: str
    label: str | None  # of LABEL
    running: bool
    pid: int  # its first process here, 0 where it doesn't run
    started: str  # when, RFC 3339: another start is another network namespace
    mode: str  # HostConfig.NetworkMode
    networks: tuple[str, ...]
    sandbox: str  # the daemon's own name for its network namespace: a file, "" where it says none
    privileged: bool
    added: tuple[str, ...]  # capabilities, as NET_ADMIN
    dropped: tuple[str, ...]
    pid_mode: str
    runtime: str
    mounts: tuple[str, ...]  # the host's files and folders in it
    resolvers: tuple[str, ...]  # of --dns

    @property
    def raw(self) -> bool:
        """Whether it may open packet sockets: Docker lets it, unless told otherwise."""
        return "NET_RAW" in self.added or not {"NET_RAW", "ALL"} & set(self.dropped)


class LabelError(ValueError):
    """A label that is no policy; one line that says where the fault is."""


def read(document: Mapping[str, Any]) -> Container:
    """A container, of what the daemon says about it."""
    state = _mapping(document.get("State"))
    config = _mapping(document.get("Config"))
    host = _mapping(document.get("HostConfig"))
    settings = _mapping(document.get("NetworkSettings"))
    labels = _mapping(config.get("Labels"))
    label = labels.get(LABEL)
    identity = str(document.get("Id", ""))
    mounts = document.get("Mounts")
    running = state.get("Running") is True
    return Container(
        id=identity,
        name=str(document.get("Name", "")).removeprefix("/") or identity[:12],
        label=label if isinstance(label, str) else None,
        running=running,
        pid=int(state.get("Pid") or 0) if running else 0,
        started=str(state.get("StartedAt", "")),
        mode=str(host.get("NetworkMode", "")),
        networks=tuple(_mapping(settings.get("Networks"))),
        sandbox=str(settings.get("SandboxKey") or ""),
        privileged=host.get("Privileged") is True,
        added=capabilities(host.get("CapAdd") or ()),
        dropped=capabilities(host.get("CapDrop") or ()),
        pid_mode=str(host.get("PidMode", "")),
        runtime=str(host.get("Runtime") or ""),
        mounts=tuple(
            str(mount.get("Source", ""))
            for mount in (mounts if isinstance(mounts, list) else ())
            if isinstance(mount, dict) and mount.get("Type") == "bind"
        ),
        resolvers=tuple(str(server) for server in host.get("Dns") or ()),
    )


class Listed(NamedTuple):
    """What counts of one in `GET /containers/json`: those that run, in few words."""

    id: str
    labelled: bool
    mode: str
    networks: tuple[str, ...]


def listed(document: object) -> Listed:
    """One of the daemon's list."""
    summary = _mapping(document)
    networks = _mapping(_mapping(summary.get("NetworkSettings")).get("Networks"))
    return Listed(
        id=str(summary.get("Id", "")),
        labelled=LABEL in _mapping(summary.get("Labels")),
        mode=str(_mapping(summary.get("HostConfig")).get("NetworkMode", "")),
        networks=tuple(networks),
    )


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def capabilities(names: Iterable[str]) -> tuple[str, ...]:
    """As Docker takes them: in any case, with and without CAP_."""
    return tuple(str(name).upper().removeprefix("CAP_") for name in names)


def opens_the_host(source: str) -> str:
    """Why a container with this file or folder of the host's is not held by rules in its network; "" where it is."""
    path = os.path.normpath(source) if source.startswith("/") else source
    if path.rpartition("/")[2] in _SOCKETS or path in _SOCKET_FOLDERS:
        return f"it is given {source}, with which it can start containers that nobody guards"
    if path in _FOLDERS:
        return f"it is given the host's {source}"
    return ""


def objection(container: Container) -> str:
    """Why no guard of this container's network would hold, "" where one does."""
    if container.mode == "host":
        return "it shares the host's network, which cannot be guarded for one container (egress run guards a command)"
    if container.mode.startswith("container:"):
        return "it has joined another container's network: guard that container"
    if container.privileged:
        return "it is privileged and can take the rules away: run it without --privileged"
    for name in container.added:
        if name in CAPABILITIES:
            return f"it has {name}, with which {CAPABILITIES[name]}: run it without --cap-add {name}"
    if container.pid_mode:
        return f"it shares processes (--pid {container.pid_mode}), and with them their network: run it without --pid"
    if container.runtime not in RUNTIMES:
        return f"its runtime {container.runtime} may have a network stack of its own, which the rules never see"
    for source in container.mounts:
        reason = opens_the_host(source)
        if reason:
            return reason
    return ""


def stranger(container: Container, network: str) -> str:
    """The network besides the guarded one that a container is on, "" where there is none."""
    if container.mode == "none":
        return ""
    return next((name for name in container.networks if name not in (network, "none")), "")


class Said(NamedTuple):
    """What a label says."""

    policy: NetworkPolicy
    source: str  # for people: "label", "preset web-only", a path
    path: str  # of the file it names, "" for none


def policy_of(label: str) -> Said:
    """The policy that a label gives. Raises LabelError."""
    from policies import presets
    from policies.parser import parse_policy

    text = label.strip()
    if text.startswith(("{", "[")):
        try:
            return Said(parse_policy(text), "label", "")
        except ValueError as error:
            raise LabelError(f"label {LABEL}: {error}") from None
    if text.startswith("/"):
        return Said(_file(text), text, text)
    if text in presets.names():
        return Said(presets.load(text), f"preset {text}", "")
    known = ", ".join(presets.names())
    shown = "".join(char if char.isprintable() else " " for char in text)[:80]
    raise LabelError(
        f"label {LABEL}: {shown!r} is neither JSON nor the absolute path of a file nor a preset; presets: {known}"
    )


def _file(path: str) -> NetworkPolicy:
    from egress.control.files import LIMIT, FileError, read_regular
    from policies.parser import parse_policy

    try:
        found = read_regular(path, LIMIT)
    except FileError as error:
        raise LabelError(f"label {LABEL}: {error}") from None
    if found is None:
        raise LabelError(f"label {LABEL}: {path}: there is no such file on the host")
    try:
        return parse_policy(found[0], yaml=path.lower().endswith((".yaml", ".yml")))
    except ValueError as error:
        raise LabelError(f"label {LABEL}: {path}: {error}") from None
