"""What the operator decides about the sidecar: the same for `egress inject` and for the webhook."""

from __future__ import annotations

import re
from typing import NamedTuple

from policies.model import NetworkPolicy

PREFIX = "sallyport.dev/"
POLICY, POLICY_FROM, TOKEN_FROM = PREFIX + "policy", PREFIX + "policy-from", PREFIX + "token-from"
INJECTED = PREFIX + "injected"
ANNOTATIONS = (POLICY, POLICY_FROM, TOKEN_FROM, INJECTED)

CONTAINER = "egress"
"""The sidecar's name; what OpenSandbox's own runtime calls it."""
VOLUME = "sallyport-state"

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_KEY = re.compile(r"[A-Za-z0-9._-]{1,253}")


class Reference(NamedTuple):
    """A key of a ConfigMap or a Secret in the pod's namespace."""

    kind: str  # "configmap" or "secret"
    name: str
    key: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}/{self.key}"

    def source(self) -> dict[str, object]:
        """As `valueFrom` of an environment variable. Not optional: without it the container is not started."""
        member = "configMapKeyRef" if self.kind == "configmap" else "secretKeyRef"
        return {member: {"name": self.name, "key": self.key}}


class Settings(NamedTuple):
    """How the sidecar is to be written into a pod."""

    image: str = "sallyport-egress"
    pull_policy: str = ""  # "" leaves it to Kubernetes
    port: int = 18080  # of the control API
    upstreams: str = ""  # for OPENSANDBOX_EGRESS_DNS_UPSTREAM; "" leaves it to the pod's resolv.conf
    token: Reference | None = None  # where a pod names none of its own
    policy: NetworkPolicy = NetworkPolicy()
    requests: tuple[tuple[str, str], ...] = (("cpu", "10m"), ("memory", "64Mi"))
    limits: tuple[tuple[str, str], ...] = (("memory", "256Mi"),)  # 42 MB under load, and what is on the volume
    variables: tuple[tuple[str, str], ...] = ()  # others of the sidecar's, checked


def parse_reference(text: str, kinds: tuple[str, ...], key: str) -> Reference | None:
    """`KIND/NAME[/KEY]`, with `key` where none is written; None for anything else."""
    kind, _, rest = text.strip().partition("/")
    name, slash, named = rest.partition("/")
    if not slash:
        named = key
    if kind not in kinds or not _NAME.fullmatch(name) or not _KEY.fullmatch(named):
        return None
    return Reference(kind, name, named)
