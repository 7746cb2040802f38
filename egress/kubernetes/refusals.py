"""What in a pod would defeat the guard beside it. Each finding says where, why, and what to write instead.

The guard is a network namespace's ruleset and the process that keeps it. So nothing else in the pod may change that
namespace, reach that process, get out to the node, or stand where the sidecar has to. What only weakens other borders
(root in the container, a writable file system, `allowPrivilegeEscalation` with the capabilities gone) is not our say.
"""

from __future__ import annotations

from posixpath import normpath
from typing import TYPE_CHECKING

from egress.kubernetes.faults import Fault, Place, Refused
from egress.kubernetes.settings import CONTAINER, INJECTED, VOLUME
from egress.literals import pack, safe, unusable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from egress.kubernetes.settings import Reference, Settings

DROPPED = ("NET_ADMIN", "NET_RAW")
"""Taken from every other container. Docker's and containerd's defaults give NET_RAW."""

CAPABILITIES = {
    "ALL": "has NET_ADMIN and SYS_ADMIN in it",
    "NET_ADMIN": "can remove the guard's rules",
    "NET_RAW": "writes packets by hand (ping does without it)",
    "SYS_ADMIN": "mounts, enters namespaces, and so reaches the sidecar",
    "SYS_PTRACE": "reads and changes other processes",
    "SYS_MODULE": "loads code into the kernel",
    "SYS_RAWIO": "reads and writes the node's memory",
    "BPF": "loads programs into the kernel that see packets before the guard",
    "PERFMON": "reads the kernel's memory",
    "DAC_READ_SEARCH": "opens the node's files, the sidecar's among them",
    "CHECKPOINT_RESTORE": "reads and changes other processes",
}

_NODE = (
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/opt/cni", "/proc", "/root", "/run", "/sbin", "/sys", "/usr",
    "/var/lib/cni", "/var/lib/containerd", "/var/lib/containers", "/var/lib/docker", "/var/lib/etcd",
    "/var/lib/kubelet", "/var/lib/rancher", "/var/run", "/var/spool/cron",
)  # fmt: skip
"""Where a node keeps its sockets, its processes, its other pods and what it executes."""
_HARMLESS = (
    "/dev/shm",  # noqa: S108 - the node's, and nothing is written there
    "/etc/ca-certificates",
    "/etc/localtime",
    "/etc/pki",
    "/etc/ssl",
    "/etc/timezone",
    "/usr/share",
)

_SYSCTLS = {
    "forwarding": "lets packets of others pass through the pod",
    "ip_forward": "lets packets of others pass through the pod",
    "route_localnet": "opens the loopback, where the guard's own ports are, to the outside",
    "accept_local": "takes packets that pretend to come from here",
    "ip_nonlocal_bind": "sends from addresses that are not the pod's",
}

_INITS, _MAINS, _EPHEMERALS = "initContainers", "containers", "ephemeralContainers"


def refusals(pod: Place, settings: Settings, token: Reference | None) -> Iterator[Fault]:
    """Every reason why this pod (with or without a sidecar of ours) cannot be guarded. Raises Refused for bad types."""
    spec = pod.object("spec")
    if not spec.list("containers"):
        yield Fault(spec.at("containers"), "is empty; there is nothing to guard")
    yield from _node(pod, spec)
    yield from _sysctls(spec)
    if not settings.upstreams:
        yield from _resolvers(spec)
    yield from _volumes(spec, injected=INJECTED in pod.object("metadata").object("annotations").value)
    for container in others(pod):
        yield from container_refusals(container, settings, token)
    if token is not None:
        for volume in spec.objects("volumes"):
            yield from _known(volume, token)


def others(pod: Place, *, ephemeral: bool = True) -> list[Place]:
    """The pod's containers without our sidecar, which is told by its name and the annotation. Raises Refused."""
    spec = pod.object("spec")
    injected = INJECTED in pod.object("metadata").object("annotations").value
    found = [
        container for container in spec.objects(_INITS) if not (injected and container.value.get("name") == CONTAINER)
    ]
    found += spec.objects(_MAINS)
    return found + spec.objects(_EPHEMERALS) if ephemeral else found


def container_refusals(container: Place, settings: Settings, token: Reference | None) -> Iterator[Fault]:
    """What one container, of whichever sort, may not have."""
    if container.text("name") == CONTAINER:
        yield Fault(container.at("name"), f"{CONTAINER} is the sidecar's name; call this container something else")
    security = container.object("securityContext")
    if security.flag("privileged"):
        yield Fault(security.at("privileged"), "a privileged container can remove the guard; leave it out")
    if security.text("procMount") not in ("", "Default"):
        yield Fault(security.at("procMount"), "opens /proc to writing; leave it out")
    if "windowsOptions" in security.value:
        yield Fault(security.at("windowsOptions"), "the guard is Linux's: Windows pods cannot have it")
    added = security.object("capabilities")
    for index, name in enumerate(added.list("add")):
        path = f"{added.at('add')}[{index}]"
        if not isinstance(name, str):
            raise Refused(Fault(path, "must be a capability's name"))
        why = CAPABILITIES.get(capability(name))
        if why:
            yield Fault(path, f"{safe(name)} {why}; leave it out")
    for port in container.objects("ports"):
        if port.value.get("containerPort") == settings.port and port.text("protocol") in ("", "TCP"):
            yield Fault(
                port.at("containerPort"),
                f"{settings.port} is the port of the sidecar's control API; take another, or move ours with --port",
            )
    for key in ("volumeMounts", "volumeDevices"):
        for mount in container.objects(key):
            if mount.text("name") == VOLUME:
                yield Fault(mount.at("name"), "is the sidecar's own volume: its policy and its control socket; remove")
    if token is not None:
        given = {key: container.list(key) for key in ("env", "envFrom")}
        yield from _known(Place(container.path, given), token)


def capability(name: str) -> str:
    """A capability as the kernel's header names it, without its prefix; runtimes take any case."""
    return name.strip().upper().removeprefix("CAP_")


def _node(pod: Place, spec: Place) -> Iterator[Fault]:
    if spec.flag("hostNetwork"):
        yield Fault(spec.at("hostNetwork"), "this pod has the node's network, whose rules are not the pod's; remove it")
    if spec.flag("hostPID"):
        yield Fault(spec.at("hostPID"), "this pod sees the node's processes, the sidecar among them; remove it")
    if spec.flag("shareProcessNamespace"):
        yield Fault(spec.at("shareProcessNamespace"), "the others could read the sidecar's files and end it; remove it")
    system = spec.object("os")
    if system.text("name").lower() == "windows":
        yield Fault(system.at("name"), "the guard is Linux's: Windows pods cannot have it")
    selector = spec.object("nodeSelector")
    if str(selector.value.get("kubernetes.io/os", "linux")).lower() == "windows":
        yield Fault(selector.at("kubernetes.io/os"), "the guard is Linux's: Windows pods cannot have it")
    security = spec.object("securityContext")
    if "windowsOptions" in security.value:
        yield Fault(security.at("windowsOptions"), "the guard is Linux's: Windows pods cannot have it")
    annotations = pod.object("metadata").object("annotations")
    for key in ("kubernetes.io/config.mirror", "kubernetes.io/config.source"):
        if key in annotations.value and annotations.value[key] != "api":
            yield Fault(annotations.at(key), "a static pod is the kubelet's: nothing can be put into it from here")


def _sysctls(spec: Place) -> Iterator[Fault]:
    for sysctl in spec.object("securityContext").objects("sysctls"):
        name = sysctl.text("name").replace("/", ".")
        why = "moves what the guard's rules stand on" if name.startswith("net.netfilter.") else ""
        if name.startswith(("net.ipv4.", "net.ipv6.")):
            why = _SYSCTLS.get(name.rpartition(".")[2], "")
        if why:
            yield Fault(sysctl.at("name"), f"{safe(name)} {why}; leave it out")


def _resolvers(spec: Place) -> Iterator[Fault]:
    """What would leave the sidecar's resolv.conf, which is the pod's, without a resolver it can use."""
    config = spec.object("dnsConfig")
    servers = config.list("nameservers")
    hint = "; name the resolver with --dns-upstream"
    if spec.text("dnsPolicy") == "None" and not servers:
        yield Fault(spec.at("dnsPolicy"), f"None without dnsConfig.nameservers leaves no resolver to ask{hint}")
    for index, server in enumerate(servers):
        packed = pack(server) if isinstance(server, str) else None
        problem = "is not an IP address" if packed is None else unusable(packed)
        if problem:
            path = f"{config.at('nameservers')}[{index}]"
            yield Fault(path, f"{safe(str(server))} {problem}: the sidecar could not ask it{hint}")


def _volumes(spec: Place, *, injected: bool) -> Iterator[Fault]:
    for volume in spec.objects("volumes"):
        if volume.text("name") == VOLUME and not injected:
            yield Fault(volume.at("name"), f"{VOLUME} is the sidecar's volume; call this one something else")
        if volume.value.get("hostPath") is None:
            continue
        place = volume.object("hostPath")
        path = normpath("/" + place.text("path").lstrip("/"))
        kind = place.text("type")
        if kind in ("Socket", "CharDevice", "BlockDevice"):
            yield Fault(place.at("type"), f"a {kind} of the node's leads out of the pod; remove the volume")
        elif ".." in place.text("path").split("/"):
            yield Fault(place.at("path"), "has .. in it; write the path it leads to")
        elif reaches_node(path):
            yield Fault(
                place.at("path"),
                f"{safe(path)} is, or holds, what the node runs by (container sockets, /proc, other pods' volumes): "
                "from there the guard can be taken away; remove the volume",
            )


def reaches_node(path: str) -> bool:
    """Whether a folder of the node holds, or lies in, a place from where the node can be taken over."""
    if any(path == place or path.startswith(place + "/") for place in _HARMLESS):
        return False
    return any(
        path in ("/", place) or path.startswith(place + "/") or place.startswith(path + "/")
        for place in _NODE
    )  # fmt: skip


def _known(place: Place, token: Reference) -> Iterator[Fault]:
    """Where the sandbox is given the Secret that holds the token for changing its policy."""
    keys = ("secretName", "name")
    for key, value in place.value.items():
        path = place.at(key)
        if key in ("secret", "secretRef", "secretKeyRef") and isinstance(value, dict):
            if token.name in (value.get(name) for name in keys):
                yield Fault(path, f"is the Secret with the sidecar's token ({token}): who has it changes the policy")
        elif isinstance(value, dict):
            yield from _known(Place(path, value), token)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, dict):
                    yield from _known(Place(f"{path}[{index}]", item), token)
