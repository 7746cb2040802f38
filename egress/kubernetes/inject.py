"""The sidecar into a pod: a document in, a new one out. Pure, and the same however often it is done.

What of ours is in the document already is thrown away and made again from the annotations and the settings: a changed
policy takes effect, and a container that only calls itself `egress` gains nothing by it.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any, NamedTuple

from egress.kubernetes.faults import Place, Refused
from egress.kubernetes.places import pods
from egress.kubernetes.policy import expanded_never, wanted
from egress.kubernetes.refusals import DROPPED, capability, others, refusals
from egress.kubernetes.settings import CONTAINER, INJECTED, VOLUME, Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from egress.kubernetes.faults import Fault
    from egress.kubernetes.policy import Wanted
    from egress.kubernetes.settings import Reference

STATE = "/run/sallyport"
POLICY_FILE = f"{STATE}/policy.json"
STATE_SIZE = "16Mi"
_IDENTITY = "opensandbox.io/id"
_PREFIX = "OPENSANDBOX_EGRESS_"


class Guarded(NamedTuple):
    """A document whose pods have the sidecar, how many they are, and what the operator should hear."""

    document: dict[str, Any]
    pods: int
    warnings: tuple[str, ...]


def inject(
    document: dict[str, Any],
    settings: Settings = Settings(),  # noqa: B008 - a frozen value
    lookup: Callable[[Reference], str | None] = lambda _: None,
) -> Guarded:
    """Put the sidecar into every pod of the document. Raises Refused with all reasons against it.

    lookup: the text of a ConfigMap's or Secret's key, where it is at hand.
    """
    made = deepcopy(document)
    faults: list[Fault] = []
    warnings: list[str] = []
    count = 0
    for pod in pods(made):
        count += 1
        before = len(faults)
        found = None
        try:
            found = wanted(pod, settings, lookup)
        except Refused as refused:
            faults += refused.faults
        try:
            for fault in refusals(pod, settings, found.token if found else None):
                faults.append(fault)  # one by one: what was found before a value of the wrong type is told too
        except Refused as refused:
            faults += refused.faults
        if found and len(faults) == before:
            _guard(pod, found, settings)
            warnings += found.warnings + _warnings(pod)
    if faults:
        raise Refused(*faults)
    return Guarded(made, count, tuple(warnings))


def drop(container: Place) -> None:
    """Take from a container what the guard must not meet: raw sockets and the say over the network."""
    security = container.object("securityContext")
    capabilities = security.object("capabilities")
    dropped = [capability(str(name)) for name in capabilities.list("drop")]
    if "ALL" in dropped:
        return
    missing = [name for name in DROPPED if name not in dropped]
    if missing:
        container.value["securityContext"] = security.value
        security.value["capabilities"] = capabilities.value
        capabilities.value["drop"] = [*capabilities.list("drop"), *missing]


def _guard(pod: Place, found: Wanted, settings: Settings) -> None:
    metadata, spec = pod.object("metadata"), pod.object("spec").value
    annotations = metadata.object("annotations").value
    for container in others(pod, ephemeral=False):
        drop(container)
    rest = [item for item in spec.get("initContainers") or [] if not _ours(item, CONTAINER, annotations)]
    volumes = [item for item in spec.get("volumes") or [] if not _ours(item, VOLUME, annotations)]
    spec["initContainers"] = [_sidecar(metadata, found, settings), *rest]
    spec["volumes"] = [*volumes, {"name": VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": STATE_SIZE}}]
    annotations[INJECTED] = "true"
    metadata.value["annotations"] = annotations
    pod.value["metadata"] = metadata.value


def _ours(item: dict[str, Any], name: str, annotations: dict[str, Any]) -> bool:
    return INJECTED in annotations and item.get("name") == name


def _warnings(pod: Place) -> tuple[str, ...]:
    spec = pod.object("spec")
    found = []
    if spec.text("dnsPolicy") == "Default":
        found.append("dnsPolicy Default: a node whose resolver is on loopback keeps the sidecar from starting")
    runtime = spec.text("runtimeClassName")
    if any(name in runtime.lower() for name in ("gvisor", "runsc", "kata")):
        found.append(f"runtimeClassName {runtime}: the sidecar does not start where it cannot enforce")
    return tuple(found)


def _sidecar(metadata: Place, found: Wanted, settings: Settings) -> dict[str, Any]:
    """The container. Its start-up probe is what makes every other container wait until the policy holds.

    There is no liveness probe on purpose: a restart opens nothing, but starts the name budgets anew, and the sandbox
    could bring one about by keeping the sidecar busy.
    """
    health = {"path": "/healthz", "port": settings.port}
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": settings.image,
        "restartPolicy": "Always",  # what makes an init container a sidecar
        "env": _environment(metadata, found, settings),
        "ports": [{"name": "egress-api", "containerPort": settings.port, "protocol": "TCP"}],
        "startupProbe": {"httpGet": health, "periodSeconds": 1, "timeoutSeconds": 1, "failureThreshold": 30},
        "readinessProbe": {"httpGet": health, "periodSeconds": 10, "timeoutSeconds": 2, "failureThreshold": 3},
        "resources": {key: dict(pairs) for key, pairs in
                      (("requests", settings.requests), ("limits", settings.limits)) if pairs},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN"]},
            "privileged": False,
            "readOnlyRootFilesystem": True,
            "runAsGroup": 0,
            "runAsNonRoot": False,  # another user's process is given no capability by Kubernetes
            "runAsUser": 0,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",  # the one line that says why it did not start
        "volumeMounts": [{"name": VOLUME, "mountPath": STATE}],
    }  # fmt: skip
    if settings.pull_policy:
        container["imagePullPolicy"] = settings.pull_policy
    return container


def _environment(metadata: Place, found: Wanted, settings: Settings) -> list[dict[str, Any]]:
    labelled = _IDENTITY in metadata.object("labels").value
    field = f"metadata.labels['{_IDENTITY}']" if labelled else "metadata.name"
    entries: list[dict[str, Any]] = [
        found.variable(),
        {"name": _PREFIX + "MODE", "value": "dns+nft"},
        {"name": _PREFIX + "REQUIRE", "value": "nft,token" if found.token else "nft"},
        {"name": _PREFIX + "HTTP_ADDR", "value": f":{settings.port}"},
        {"name": _PREFIX + "POLICY_FILE", "value": POLICY_FILE},
        {"name": _PREFIX + "SANDBOX_ID", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": field}}},
    ]
    if settings.upstreams:
        entries.append({"name": _PREFIX + "DNS_UPSTREAM", "value": settings.upstreams})
    if found.token:
        entries.append({"name": _PREFIX + "TOKEN", "valueFrom": found.token.source()})
    entries += [{"name": name, "value": expanded_never(value)} for name, value in settings.variables]
    return entries
