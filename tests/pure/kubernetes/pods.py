"""Pods to try things on, as short as they can be said."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

POLICY = '{"egress": [{"action": "allow", "target": "api.example.com", "ports": [443]}]}'


def container(name: str = "app", **members: Any) -> dict[str, Any]:
    return {"name": name, "image": f"{name}:1", **members}


def pod(policy: str | None = POLICY, annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """A pod with one container, where `spec` names no others."""
    notes = {} if policy is None else {"sallyport.dev/policy": policy}
    spec.setdefault("containers", [container()])
    metadata = {"name": "box", "annotations": {**notes, **(annotations or {})}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": deepcopy(spec)}


def sidecar(document: dict[str, Any]) -> dict[str, Any]:
    """The first init container."""
    found: dict[str, Any] = document["spec"]["initContainers"][0]
    return found


def variables(made: dict[str, Any]) -> dict[str, Any]:
    """A container's environment by name: the value, or where it comes from."""
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in made["env"]}
