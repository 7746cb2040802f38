"""Reviews as the API server sends them, and the patches that it applies."""

from __future__ import annotations

import base64
import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress.kubernetes.inject import inject
from egress.kubernetes.patch import difference
from egress.kubernetes.review import NotAReview, judge
from egress.kubernetes.settings import Settings
from policies import presets
from policies.parser import parse_policy
from tests.pure.kubernetes.pods import POLICY, container, pod, sidecar, variables

PODS = {"group": "", "version": "v1", "resource": "pods"}


def review(document: Any, operation: str = "CREATE", **members: Any) -> bytes:
    request = {
        "uid": "705ab4f5",
        "resource": PODS,
        "operation": operation,
        "namespace": "n",
        "object": document,
        **members,
    }
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()


def applied(old: Any, operations: list[dict[str, Any]]) -> Any:
    """RFC 6902, as far as it is used here."""
    made = deepcopy(old)
    for operation in operations:
        steps = [step.replace("~1", "/").replace("~0", "~") for step in operation["path"].split("/")[1:]]
        if not steps:
            made = operation["value"]
            continue
        at = made
        for step in steps[:-1]:
            at = at[int(step)] if isinstance(at, list) else at[step]
        last: Any = int(steps[-1]) if isinstance(at, list) else steps[-1]
        assert operation["op"] in ("add", "remove", "replace")
        if operation["op"] == "remove":
            del at[last]
        else:
            assert operation["op"] == "add" or last in (range(len(at)) if isinstance(at, list) else at)
            at[last] = operation["value"]
    return made


def answer(body: bytes) -> dict[str, Any]:
    made = judge(body, Settings()).document()
    assert (made["apiVersion"], made["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response: dict[str, Any] = made["response"]
    assert response["uid"] == "705ab4f5"
    return response


def patched(document: Any, response: dict[str, Any]) -> Any:
    assert response["patchType"] == "JSONPatch"
    return applied(document, json.loads(base64.b64decode(response["patch"])))


def test_a_created_pod_gets_what_inject_gives_it() -> None:
    document = pod(initContainers=[container("first")], volumes=[{"name": "v", "emptyDir": {}}])
    response = answer(review(document))
    assert response["allowed"] is True
    assert patched(document, response) == inject(document).document
    bare = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "x-"},
        "spec": {"containers": [container()]},
    }
    response = answer(review(bare, dryRun=True))
    assert patched(bare, response) == inject(bare).document
    assert response["warnings"] == ["sallyport: no sallyport.dev/policy annotation: the policy is deny all"]


def test_a_namespace_may_have_a_policy_for_pods_that_name_none() -> None:
    policies = {"n": parse_policy(POLICY)}
    for document, namespace, wanted in (
        (pod(None), "n", POLICY),
        (pod(None), "other", ""),
        (pod("web-only"), "n", presets.text("web-only")),
    ):
        body = review(document, namespace=namespace)
        made = patched(document, judge(body, Settings(), policies).document()["response"])
        found = variables(sidecar(made))["OPENSANDBOX_EGRESS_RULES"]
        assert parse_policy(found) == parse_policy(wanted, yaml=True)


def test_a_pod_that_has_it_all_is_not_patched() -> None:
    response = answer(review(inject(pod()).document))
    assert response == {"uid": "705ab4f5", "allowed": True}


def test_a_pod_that_cannot_be_guarded_is_refused_with_every_reason() -> None:
    response = answer(review(pod(hostNetwork=True, hostPID=True)))
    assert response["allowed"] is False
    assert "patch" not in response
    message = response["status"]["message"]
    assert message.startswith("sallyport cannot guard this pod: spec.hostNetwork: ")
    assert "; spec.hostPID: " in message
    assert "?" not in message
    assert judge(review(pod("x" * 4000)), Settings()).document()["response"]["allowed"] is False


def test_only_pods_are_expected_and_the_rest_is_not_waved_through() -> None:
    response = answer(review({"kind": "Rollout"}, resource={"group": "x", "version": "v1", "resource": "rollouts"}))
    assert response["allowed"] is False
    assert "rollouts.x" in response["status"]["message"]


def test_what_changes_nothing_of_ours_passes() -> None:
    for operation, part in (("DELETE", ""), ("UPDATE", ""), ("UPDATE", "status"), ("CONNECT", "exec")):
        assert answer(review(None, operation, subResource=part)) == {"uid": "705ab4f5", "allowed": True}


def ephemeral(*added: dict[str, Any], guarded: bool = True, old: tuple[dict[str, Any], ...] = ()) -> tuple[Any, bytes]:
    before = inject(pod()).document if guarded else pod(None)
    before["spec"]["ephemeralContainers"] = list(old)
    before["metadata"]["annotations"] = {}  # which are everybody's to change, as the specification is not
    after = deepcopy(before)
    after["spec"]["ephemeralContainers"] = [*deepcopy(old), *added]
    return after, review(after, "UPDATE", subResource="ephemeralcontainers", oldObject=before)


def test_an_ephemeral_container_loses_the_same_capabilities() -> None:
    after, body = ephemeral(container("debug"), old=(container("earlier"),))
    made = patched(after, answer(body))
    assert made["spec"]["ephemeralContainers"][1]["securityContext"]["capabilities"]["drop"] == ["NET_ADMIN", "NET_RAW"]
    assert made["spec"]["ephemeralContainers"][0] == container("earlier")  # Kubernetes lets nobody change these
    assert made["spec"]["containers"] == after["spec"]["containers"]


@pytest.mark.parametrize(
    "added",
    [
        container("debug", securityContext={"capabilities": {"add": ["NET_ADMIN"]}}),
        container("debug", securityContext={"privileged": True}),
        container("debug", targetContainerName="egress"),
        container("egress"),
        container("debug", volumeMounts=[{"name": "sallyport-state", "mountPath": "/x"}]),
    ],
)
def test_an_ephemeral_container_that_could_undo_the_guard_is_refused(added: dict[str, Any]) -> None:
    assert answer(ephemeral(added)[1])["allowed"] is False
    unguarded = answer(ephemeral(added, guarded=False)[1])
    assert unguarded["allowed"] is True
    assert "patch" not in unguarded


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "no AdmissionReview"),
        (b'{"kind": "Pod"}', "no AdmissionReview"),
        (b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1beta1"}', "only admission.k8s.io/v1"),
        (b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}', "uid is missing"),
        (review(pod(), uid=""), "uid is missing"),
        (review(pod(), uid=5), "request.uid: must be a string"),
        (review(pod(), namespace=[]), "request.namespace"),
        (review([]), "request.object"),
        (review(pod(), resource="pods"), "request.resource"),
        (b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": 5}', "request: must be"),
        (review({"metadata": {"name": 5}}), "request.object.metadata.name"),
    ],
)
def test_what_is_no_review_is_told_so(body: bytes, words: str) -> None:
    with pytest.raises(NotAReview) as caught:
        judge(body, Settings())
    assert words in str(caught.value)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["a", "~", "/"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["a", "b/c", "~", "~1", ""]), inner, max_size=3),
    max_leaves=10,
)  # fmt: skip


@given(VALUES, VALUES)
def test_a_patch_makes_the_new_of_the_old(old: Any, new: Any) -> None:
    operations = difference(old, new)
    assert json.dumps(applied(old, operations), sort_keys=True) == json.dumps(new, sort_keys=True)
    assert bool(operations) == (json.dumps(old, sort_keys=True) != json.dumps(new, sort_keys=True))
