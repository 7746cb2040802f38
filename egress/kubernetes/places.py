"""Where the pods are in a document: a pod itself, or the template of what makes pods, or the items of a list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from egress.kubernetes.faults import Fault, Place, Refused
from egress.literals import safe

if TYPE_CHECKING:
    from collections.abc import Iterator

_DEEPEST = 200
_TEMPLATES: dict[tuple[str, str], tuple[str, ...]] = {
    ("", "Pod"): (),
    ("", "PodTemplate"): ("template",),
    ("", "ReplicationController"): ("spec", "template"),
    ("apps", "Deployment"): ("spec", "template"),
    ("apps", "StatefulSet"): ("spec", "template"),
    ("apps", "DaemonSet"): ("spec", "template"),
    ("apps", "ReplicaSet"): ("spec", "template"),
    ("batch", "Job"): ("spec", "template"),
    ("batch", "CronJob"): ("spec", "jobTemplate", "spec", "template"),
    ("sandbox.opensandbox.io", "BatchSandbox"): ("spec", "template"),
    ("sandbox.opensandbox.io", "Pool"): ("spec", "template"),
    ("agents.x-k8s.io", "Sandbox"): ("spec", "podTemplate"),
    ("extensions.agents.x-k8s.io", "SandboxTemplate"): ("spec", "podTemplate"),
}


def kind_of(document: dict[str, Any]) -> tuple[str, str]:
    """API group ("" for the core) and kind. Raises Refused."""
    place = Place("", document)
    version, kind = place.text("apiVersion"), place.text("kind")
    for key, found in (("apiVersion", version), ("kind", kind)):
        if not found:
            raise Refused(Fault(key, "is missing; this is no Kubernetes object"))
    group, slash, _ = version.partition("/")
    return (group if slash else ""), kind


def label_of(document: dict[str, Any]) -> str:
    """How to call a document to a person: `Deployment/web`."""
    metadata = document.get("metadata")
    names = metadata if isinstance(metadata, dict) else {}
    name = names.get("name") or names.get("generateName") or ""
    return safe(str(document.get("kind", "document")), 80) + (f"/{safe(str(name), 80)}" if name else "")


def pods(document: dict[str, Any], path: str = "") -> Iterator[Place]:
    """Every pod, or pod template, of one document: what has `metadata` and `spec`. Raises Refused.

    A kind that nobody told us about is passed over where it holds no pod, and refused where it does.
    """
    group, kind = kind_of(document)
    root = Place(path, document)
    if group == "" and kind.endswith("List") and "items" in document:
        for index, item in enumerate(root.objects("items")):
            if kind == "List" or "kind" in item.value:
                yield from pods(item.value, f"{root.at('items')}[{index}]")
            elif kind == "PodList":
                yield item
        return
    steps = _TEMPLATES.get((group, kind))
    if steps is None:
        hidden = _containers(root, 0)
        if hidden:
            known = ", ".join(sorted({name for _, name in _TEMPLATES}))
            raise Refused(
                Fault(hidden, f"looks like a pod inside a {safe(kind)}, which is not known here ({known}); the webhook "
                      "guards the pods that come of it")
            )  # fmt: skip
        return
    pod = root
    for step in steps:
        if not isinstance(pod.value.get(step), dict):
            if kind in ("BatchSandbox", "Sandbox", "Pool"):  # pods of a pool, or of a template elsewhere
                return
            raise Refused(Fault(pod.at(step), f"is missing; a {kind} has its pod there"))
        pod = pod.object(step)
    if not isinstance(pod.value.get("spec"), dict):
        raise Refused(Fault(pod.at("spec"), "is missing; a pod has its containers there"))
    if steps:
        _misplaced(root, pod)
    yield pod


def _misplaced(root: Place, pod: Place) -> None:
    """Annotations of ours belong on the pod: on what makes it they would be passed over in silence."""
    from egress.kubernetes.settings import PREFIX

    annotations = root.object("metadata").object("annotations")
    for key in annotations.value:
        if key.startswith(PREFIX):
            wanted = pod.object("metadata").at("annotations")
            raise Refused(Fault(annotations.at(key), f"is read on the pod only; write it in {wanted}"))


def _containers(place: Place, depth: int) -> str:
    """The path of what looks like a list of containers, "" where there is none."""
    if depth > _DEEPEST:
        return ""
    for key, value in place.value.items():
        path = place.at(str(key))
        if key == "containers" and isinstance(value, list) and any(isinstance(c, dict) and "image" in c for c in value):
            return path
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, dict):
                found = _containers(Place(path, inner), depth + 1)
                if found:
                    return found
    return ""
