"""An AdmissionReview in, an AdmissionReview out (admission.k8s.io/v1). Pure: nothing is kept, a dry run is a run.

Creating a pod puts the sidecar into it. Adding an ephemeral container to a guarded one (`kubectl debug`) is judged like
any other container, and loses the same capabilities. Whatever else is sent here changes nothing of ours and passes.
"""

from __future__ import annotations

import base64
import json
from copy import deepcopy
from typing import TYPE_CHECKING, Any, NamedTuple

from egress.kubernetes.faults import Fault, Place, Refused
from egress.kubernetes.inject import drop, inject
from egress.kubernetes.patch import difference
from egress.kubernetes.policy import wanted
from egress.kubernetes.refusals import container_refusals
from egress.kubernetes.settings import CONTAINER
from egress.literals import safe

if TYPE_CHECKING:
    from collections.abc import Mapping

    from egress.kubernetes.settings import Settings
    from policies.model import NetworkPolicy

VERSION = "admission.k8s.io/v1"
_WARNING, _WARNINGS = 200, 16  # the API server cuts at 256 octets each, and at 4096 in all
_MESSAGE = 2000


class NotAReview(ValueError):
    """A body that asks for nothing; the text says what was expected."""


class Verdict(NamedTuple):
    """What the API server is told, and what the log is."""

    uid: str
    subject: str  # namespace/name, the latter perhaps only the start of one
    allowed: bool
    dry_run: bool = False
    patch: tuple[dict[str, Any], ...] = ()
    message: str = ""  # why not
    warnings: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """The AdmissionReview to answer with."""
        response: dict[str, Any] = {"uid": self.uid, "allowed": self.allowed}
        if not self.allowed:
            response["status"] = {"code": 403, "reason": "Forbidden", "message": _cut(self.message, _MESSAGE)}
        if self.patch:
            response["patchType"] = "JSONPatch"
            response["patch"] = base64.b64encode(json.dumps(self.patch).encode()).decode()
        if self.warnings:
            response["warnings"] = [_cut(f"sallyport: {text}", _WARNING) for text in self.warnings[:_WARNINGS]]
        return {"apiVersion": VERSION, "kind": "AdmissionReview", "response": response}


def judge(body: bytes, settings: Settings, policies: Mapping[str, NetworkPolicy] | None = None) -> Verdict:
    """Answer one review; `policies` are those of pods that name none, by namespace. Raises NotAReview."""
    request = _request(body)
    if policies:
        settings = settings._replace(policy=policies.get(request.text("namespace"), settings.policy))
    uid = request.text("uid")
    if not uid:
        raise NotAReview("request.uid is missing")
    operation, part = request.text("operation"), request.text("subResource")
    metadata = request.object("object").object("metadata")
    name = request.text("name") or metadata.text("name") or metadata.text("generateName") or "?"
    verdict = Verdict(
        uid, f"{request.text('namespace')}/{name}", allowed=True, dry_run=request.value.get("dryRun") is True
    )
    resource = request.object("resource")
    if (resource.text("group"), resource.text("resource")) != ("", "pods"):
        what = safe(f"{resource.text('resource')}.{resource.text('group')}".rstrip("."), 100)
        why = f"the sallyport webhook was asked about {what}; its configuration should send it pods only"
        return verdict._replace(allowed=False, message=why)
    try:
        if operation == "CREATE" and not part:
            guarded = inject(request.object("object").value, settings)
            return _changed(verdict, request, guarded.document)._replace(warnings=guarded.warnings)
        if operation == "UPDATE" and part == "ephemeralcontainers":
            return _changed(verdict, request, _ephemeral(request, settings))
    except Refused as refused:
        reasons = "; ".join(map(str, refused.faults))
        return verdict._replace(allowed=False, message=f"sallyport cannot guard this pod: {reasons}")
    return verdict


def _changed(verdict: Verdict, request: Place, document: dict[str, Any]) -> Verdict:
    return verdict._replace(patch=tuple(difference(request.object("object").value, document)))


def _ephemeral(request: Place, settings: Settings) -> dict[str, Any]:
    """The pod with its new ephemeral containers put right. Raises Refused."""
    made = deepcopy(request.object("object").value)
    pod = Place("", made)
    inits = pod.object("spec").objects("initContainers")
    # By the specification, which nobody changes any more; annotations can be taken away.
    if not any(one.value.get("name") == CONTAINER and one.value.get("restartPolicy") == "Always" for one in inits):
        return made
    old = request.object("oldObject").object("spec").list("ephemeralContainers")
    token = wanted(pod, settings, lambda _: None).token
    faults: list[Fault] = []
    for container in pod.object("spec").objects("ephemeralContainers"):
        if container.value in old:
            continue
        target = container.text("targetContainerName")
        if target == CONTAINER:
            faults.append(Fault(container.at("targetContainerName"), "is the sidecar, whose processes are its own"))
        against = list(container_refusals(container, settings, token))
        faults += against
        if not against:
            drop(container)
    if faults:
        raise Refused(*faults)
    return made


def _request(body: bytes) -> Place:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise NotAReview("the body is not JSON; an AdmissionReview was expected") from None
    if not isinstance(document, dict) or document.get("kind") != "AdmissionReview":
        raise NotAReview("the body is no AdmissionReview")
    if document.get("apiVersion") != VERSION:
        raise NotAReview(f"only {VERSION} is spoken here; write it into admissionReviewVersions")
    try:
        request = Place("", document).object("request")
        for key in ("uid", "operation", "subResource", "namespace", "name"):
            request.text(key)
        for key in ("object", "oldObject", "resource"):
            request.object(key)
        metadata = request.object("object").object("metadata")
        metadata.text("name"), metadata.text("generateName")
        request.object("resource").text("group"), request.object("resource").text("resource")
    except Refused as refused:
        raise NotAReview(str(refused)) from None
    return request


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."
