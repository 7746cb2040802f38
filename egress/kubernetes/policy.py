"""The pod's policy as its annotations say it: checked here where its text is, by the sidecar where it is not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from egress.kubernetes.faults import Fault, Refused
from egress.kubernetes.settings import (
    ANNOTATIONS,
    POLICY,
    POLICY_FROM,
    PREFIX,
    TOKEN_FROM,
    Reference,
    Settings,
    parse_reference,
)
from egress.literals import safe
from policies import presets
from policies.model import NetworkPolicy, PolicyError
from policies.parser import parse_policy

if TYPE_CHECKING:
    from collections.abc import Callable

    from egress.kubernetes.faults import Place

VARIABLE = "OPENSANDBOX_EGRESS_RULES"
LONGEST = 128 * 1024 - len(VARIABLE) - 2
"""MAX_ARG_STRLEN (include/uapi/linux/binfmts.h) counts name, `=` and the NUL of one variable."""

POLICY_KEY, TOKEN_KEY = "policy.json", "token"


class Wanted(NamedTuple):
    """What a pod's annotations ask for."""

    policy: NetworkPolicy | Reference
    token: Reference | None
    warnings: tuple[str, ...] = ()

    def variable(self) -> dict[str, object]:
        """The policy as an entry of the sidecar's `env`."""
        if isinstance(self.policy, Reference):
            return {"name": VARIABLE, "valueFrom": self.policy.source()}
        return {"name": VARIABLE, "value": expanded_never(compact(self.policy))}


def expanded_never(text: str) -> str:
    """A variable's value of which Kubernetes leaves every character as it is: it expands `$(NAME)`, and `$$` to `$`."""
    return text.replace("$", "$$")


def compact(policy: NetworkPolicy) -> str:
    """A policy as the one line of JSON that the sidecar's variable takes."""
    return json.dumps(policy.to_document(), separators=(",", ":"), ensure_ascii=False)


def wanted(pod: Place, settings: Settings, lookup: Callable[[Reference], str | None]) -> Wanted:
    """Read the annotations. Raises Refused."""
    annotations = pod.object("metadata").object("annotations")
    for key in annotations.value:
        if key.startswith(PREFIX) and key not in ANNOTATIONS:
            known = ", ".join(ANNOTATIONS[:-1])
            raise Refused(Fault(annotations.at(key), f"is not known; write one of {known}"))
    token = settings.token
    if TOKEN_FROM in annotations.value:
        token = parse_reference(annotations.text(TOKEN_FROM), ("secret",), TOKEN_KEY)
        if token is None:
            raise Refused(Fault(annotations.at(TOKEN_FROM), "write secret/NAME or secret/NAME/KEY"))
    inline, reference = POLICY in annotations.value, POLICY_FROM in annotations.value
    if inline and reference:
        raise Refused(Fault(annotations.at(POLICY_FROM), f"there is {POLICY} too; write one of the two"))
    if reference:
        return _referred(annotations, token, lookup)
    if inline:
        return Wanted(_inline(annotations), token)
    _short(settings.policy, pod.at("metadata"))
    return Wanted(settings.policy, token, () if settings.policy.egress else (_unsaid(settings.policy),))


def _unsaid(policy: NetworkPolicy) -> str:
    return f"no {POLICY} annotation: the policy is {policy.default.value} all"


def _referred(
    annotations: Place, token: Reference | None, lookup: Callable[[Reference], str | None]
) -> Wanted:  # fmt: skip
    source = parse_reference(annotations.text(POLICY_FROM), ("configmap", "secret"), POLICY_KEY)
    if source is None:
        raise Refused(
            Fault(annotations.at(POLICY_FROM), "write configmap/NAME, secret/NAME, or either with /KEY behind it")
        )
    text = lookup(source)
    if text is None:
        return Wanted(source, token, (f"the policy in {source} is not checked here; the sidecar does, at its start",))
    path = f"{annotations.at(POLICY_FROM)} -> {source}"
    try:
        _short(parse_policy(text), path)  # the variable takes JSON, so YAML will not do here either
    except PolicyError as error:
        raise Refused(Fault(f"{path}: {error.path}", error.message)) from None
    return Wanted(source, token)


def _inline(annotations: Place) -> NetworkPolicy:
    text = annotations.text(POLICY)
    path = annotations.at(POLICY)
    name = text.strip()
    known = presets.names()
    if name in known:
        text = presets.text(name)
    elif name and not any(mark in name for mark in "{:\n"):
        raise Refused(Fault(path, f"{safe(name)} is neither a policy nor a preset ({', '.join(known)})"))
    try:
        policy = parse_policy(text, yaml=True)
    except PolicyError as error:
        raise Refused(Fault(f"{path}: {error.path}", error.message)) from None
    _short(policy, path)
    return policy


def _short(policy: NetworkPolicy, path: str) -> None:
    size = len(compact(policy).encode())
    if size > LONGEST:
        raise Refused(
            Fault(path, f"the policy is {size} bytes long as JSON, and a variable takes {LONGEST}; use fewer rules, or "
                  "set it over the control API")
        )  # fmt: skip
