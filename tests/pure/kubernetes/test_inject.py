"""The sidecar in a pod: where it stands, what it may, and that doing it twice is doing it once."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest

from egress.kubernetes.faults import Refused
from egress.kubernetes.inject import POLICY_FILE, inject
from egress.kubernetes.settings import Reference, Settings
from policies.model import NetworkPolicy
from policies.parser import parse_policy
from tests.pure.kubernetes.pods import POLICY, container, pod, sidecar, variables

RULES = "OPENSANDBOX_EGRESS_RULES"


def refused(document: dict[str, Any], settings: Settings | None = None) -> str:
    with pytest.raises(Refused) as caught:
        inject(document, settings or Settings())
    return str(caught.value)


def test_the_sidecar_stands_before_all_other_init_containers_and_restarts() -> None:
    made = inject(pod(initContainers=[container("first"), container("mesh", restartPolicy="Always")])).document
    names = [one["name"] for one in made["spec"]["initContainers"]]
    assert names == ["egress", "first", "mesh"]
    assert sidecar(made)["restartPolicy"] == "Always"
    assert sidecar(made)["startupProbe"]["httpGet"] == {"path": "/healthz", "port": 18080}
    assert "livenessProbe" not in sidecar(made)  # a restart that the sandbox could bring about refills name budgets


def test_the_sidecar_may_do_one_thing() -> None:
    security = sidecar(inject(pod()).document)["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"], "add": ["NET_ADMIN"]}
    assert security["readOnlyRootFilesystem"]
    assert security["allowPrivilegeEscalation"] is False
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}


def test_a_pod_that_runs_as_nobody_keeps_a_sidecar_that_can_work() -> None:
    made = inject(pod(securityContext={"runAsUser": 1000, "runAsNonRoot": True})).document
    assert sidecar(made)["securityContext"]["runAsUser"] == 0
    assert sidecar(made)["securityContext"]["runAsNonRoot"] is False


def test_the_policy_is_in_the_environment_and_its_changes_on_a_volume_of_the_sidecars_own() -> None:
    made = inject(pod(containers=[container(volumeMounts=[{"name": "data", "mountPath": "/data"}])],
                      volumes=[{"name": "data", "emptyDir": {}}])).document  # fmt: skip
    found = variables(sidecar(made))
    assert parse_policy(found[RULES]) == parse_policy(POLICY)
    assert found["OPENSANDBOX_EGRESS_POLICY_FILE"] == POLICY_FILE
    assert found["OPENSANDBOX_EGRESS_REQUIRE"] == "nft"
    assert [volume["name"] for volume in made["spec"]["volumes"]] == ["data", "sallyport-state"]
    assert made["spec"]["volumes"][1]["emptyDir"]["medium"] == "Memory"
    assert [mount["name"] for mount in made["spec"]["containers"][0]["volumeMounts"]] == ["data"]


def test_dollars_are_left_alone_by_kubernetes() -> None:
    text = json.dumps({"egress": [{"action": "allow", "target": "a.example.com", "comment": "costs $(HOME) $$"}]})
    value = variables(sidecar(inject(pod(text)).document))[RULES]
    assert value.count("$") == 6
    assert parse_policy(value.replace("$$", "$")) == parse_policy(text)


@pytest.mark.parametrize(
    ("given", "left"),
    [
        (None, ["NET_ADMIN", "NET_RAW"]),
        ({"drop": ["ALL"]}, ["ALL"]),
        ({"drop": ["all"], "add": ["NET_BIND_SERVICE"]}, ["all"]),
        ({"drop": ["NET_RAW"]}, ["NET_RAW", "NET_ADMIN"]),
        ({"drop": ["CAP_NET_RAW", "net_admin", "CHOWN"]}, ["CAP_NET_RAW", "net_admin", "CHOWN"]),
    ],
)
def test_the_others_lose_raw_sockets_and_the_say_over_the_network(given: Any, left: list[str]) -> None:
    one = container(securityContext={"capabilities": given, "runAsUser": 5} if given else None)
    made = inject(pod(containers=[one], initContainers=[{**one, "name": "first"}])).document
    for found in (made["spec"]["containers"][0], made["spec"]["initContainers"][1]):
        assert found["securityContext"]["capabilities"]["drop"] == left
        assert found["securityContext"].get("runAsUser") == (5 if given else None)


@pytest.mark.parametrize(
    "document",
    [
        pod(),
        pod(None),
        pod("web-only", initContainers=[container("first")], volumes=[{"name": "v", "emptyDir": {}}]),
        pod(None, {"sallyport.dev/policy-from": "configmap/rules", "sallyport.dev/token-from": "secret/keys/mine"}),
    ],
)
def test_twice_is_once_and_what_is_given_stays_as_it_is(document: dict[str, Any]) -> None:
    before = deepcopy(document)
    once = inject(document).document
    assert document == before
    assert once != before
    assert inject(once).document == once


def test_a_changed_policy_and_changed_settings_take_effect() -> None:
    made = inject(pod()).document
    made["metadata"]["annotations"]["sallyport.dev/policy"] = "deny-all"
    again = inject(made, Settings(image="other:2", port=19000)).document
    assert json.loads(variables(sidecar(again))[RULES]) == {"defaultAction": "deny", "egress": []}
    assert sidecar(again)["image"] == "other:2"
    assert len(again["spec"]["initContainers"]) == len(again["spec"]["volumes"]) == 1


def test_a_container_that_pretends_to_be_the_sidecar_is_thrown_away() -> None:
    forged = container("egress", restartPolicy="Always", securityContext={"privileged": True})
    volume = {"name": "sallyport-state", "hostPath": {"path": "/"}}
    marked = pod(annotations={"sallyport.dev/injected": "true"}, initContainers=[forged])
    assert inject(marked).document == inject(pod()).document
    assert "spec.initContainers[0].name: egress is the sidecar's" in refused(pod(initContainers=[forged]))
    assert "spec.volumes[0].name" in refused(pod(volumes=[volume]))
    # Also where it is marked: what a host folder gives is looked at before it is replaced.
    assert "hostPath" in refused(pod(annotations={"sallyport.dev/injected": "true"}, volumes=[volume]))


def test_without_an_annotation_nothing_is_allowed_unless_the_operator_says_so() -> None:
    guarded = inject(pod(None))
    assert json.loads(variables(sidecar(guarded.document))[RULES]) == {"defaultAction": "deny", "egress": []}
    assert guarded.warnings == ("no sallyport.dev/policy annotation: the policy is deny all",)
    policy = parse_policy(POLICY)
    assert parse_policy(variables(sidecar(inject(pod(None), Settings(policy=policy)).document))[RULES]) == policy
    assert parse_policy(variables(sidecar(inject(pod(""), Settings(policy=policy)).document))[RULES]) == NetworkPolicy()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("web-onyl", "web-onyl is neither a policy nor a preset (allow-all, "),
        ('{"egres": []}', "metadata.annotations[sallyport.dev/policy]: $.egres: "),
        ("egress: [{action: allow, target: 'a b'}]", "$.egress[0].target: "),
        ('{"egress": [{"target": "a.example.com"}]}', "$.egress[0]"),
    ],
)
def test_a_policy_with_a_fault_is_refused_with_its_place(text: str, words: str) -> None:
    assert words in refused(pod(text))


def test_a_policy_longer_than_a_variable_is_refused() -> None:
    rules = [{"action": "allow", "target": f"name-{number}.example.com"} for number in range(3000)]
    assert "a variable takes 131046" in refused(pod(json.dumps({"egress": rules})))
    assert "is not" not in str(inject(pod(json.dumps({"egress": rules[:1000]}))).warnings)


def test_a_policy_from_a_config_map_or_a_secret() -> None:
    for text, source in (
        ("configmap/rules", {"configMapKeyRef": {"name": "rules", "key": "policy.json"}}),
        ("secret/rules/other", {"secretKeyRef": {"name": "rules", "key": "other"}}),
    ):
        guarded = inject(pod(None, {"sallyport.dev/policy-from": text}))
        assert variables(sidecar(guarded.document))[RULES] == source
        assert "is not checked here" in guarded.warnings[0]
    document = pod(None, {"sallyport.dev/policy-from": "configmap/rules"})
    assert inject(document, Settings(), lambda _: POLICY).warnings == ()
    with pytest.raises(Refused, match=r"configmap/rules/policy.json: \$"):
        inject(document, Settings(), lambda _: "egress: []")  # YAML, which the variable does not take
    for text in ("rules", "configmap/", "configmap/a/b/c", "secrets/a", "configmap/A", "configmap/../x"):
        assert "write configmap/NAME" in refused(pod(None, {"sallyport.dev/policy-from": text}))
    assert "write one of the two" in refused(pod(annotations={"sallyport.dev/policy-from": "configmap/rules"}))


def test_a_token_from_a_secret_is_demanded() -> None:
    found = variables(sidecar(inject(pod(annotations={"sallyport.dev/token-from": "secret/keys"})).document))
    assert found["OPENSANDBOX_EGRESS_TOKEN"] == {"secretKeyRef": {"name": "keys", "key": "token"}}
    assert found["OPENSANDBOX_EGRESS_REQUIRE"] == "nft,token"
    settings = Settings(token=Reference("secret", "all", "token"))
    assert (
        variables(sidecar(inject(pod(), settings).document))["OPENSANDBOX_EGRESS_TOKEN"]["secretKeyRef"]["name"]
        == "all"
    )
    assert "write secret/NAME" in refused(pod(annotations={"sallyport.dev/token-from": "configmap/keys"}))


def test_an_annotation_with_a_slip_in_it_is_no_silence() -> None:
    assert "sallyport.dev/polcy]: is not known" in refused(pod(None, {"sallyport.dev/polcy": "web-only"}))


def test_the_identity_is_opensandboxs_where_there_is_one() -> None:
    document = pod()
    path = variables(sidecar(inject(document).document))["OPENSANDBOX_EGRESS_SANDBOX_ID"]["fieldRef"]["fieldPath"]
    assert path == "metadata.name"
    document["metadata"]["labels"] = {"opensandbox.io/id": "x"}
    path = variables(sidecar(inject(document).document))["OPENSANDBOX_EGRESS_SANDBOX_ID"]["fieldRef"]["fieldPath"]
    assert path == "metadata.labels['opensandbox.io/id']"


TEMPLATE = {"metadata": {"annotations": {"sallyport.dev/policy": POLICY}}, "spec": {"containers": [container()]}}


@pytest.mark.parametrize(
    ("version", "kind", "body", "path"),
    [
        ("apps/v1", "Deployment", {"spec": {"template": TEMPLATE}}, "spec.template.spec"),
        ("apps/v1", "StatefulSet", {"spec": {"template": TEMPLATE}}, "spec.template.spec"),
        ("apps/v1", "DaemonSet", {"spec": {"template": TEMPLATE}}, "spec.template.spec"),
        ("apps/v1", "ReplicaSet", {"spec": {"template": TEMPLATE}}, "spec.template.spec"),
        ("v1", "ReplicationController", {"spec": {"template": TEMPLATE}}, "spec.template.spec"),
        ("batch/v1", "Job", {"spec": {"template": TEMPLATE}}, "spec.template.spec"),
        ("batch/v1", "CronJob", {"spec": {"jobTemplate": {"spec": {"template": TEMPLATE}}}},
         "spec.jobTemplate.spec.template.spec"),
        ("v1", "PodTemplate", {"template": TEMPLATE}, "template.spec"),
        ("v1", "List", {"items": [pod()]}, "items[0].spec"),
        ("v1", "PodList", {"items": [{"metadata": pod()["metadata"], "spec": pod()["spec"]}]}, "items[0].spec"),
        ("sandbox.opensandbox.io/v1alpha1", "BatchSandbox", {"spec": {"template": TEMPLATE}}, "spec.template.spec"),
        ("agents.x-k8s.io/v1alpha1", "Sandbox", {"spec": {"podTemplate": TEMPLATE}}, "spec.podTemplate.spec"),
    ],
)  # fmt: skip
def test_pods_are_found_wherever_they_stand(version: str, kind: str, body: dict[str, Any], path: str) -> None:
    document = deepcopy({"apiVersion": version, "kind": kind, "metadata": {"name": "x"}, **body})
    guarded = inject(document)
    assert guarded.pods == 1
    assert '"restartPolicy": "Always"' in json.dumps(guarded.document)
    spec: Any = document
    for step in path.replace("[0]", ".0").split("."):
        spec = spec[int(step) if step.isdecimal() else step]
    spec["hostNetwork"] = True
    assert f"{path}.hostNetwork: " in refused(document)


def test_what_holds_no_pod_passes_and_a_pod_in_an_unknown_kind_does_not() -> None:
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"a": "b"}}
    assert inject(config).document == config
    assert inject(config).pods == 0
    rollout = {"apiVersion": "argoproj.io/v1", "kind": "Rollout", "spec": {"template": {"spec": pod()["spec"]}}}
    assert "spec.template.spec.containers: looks like a pod inside a Rollout" in refused(rollout)


def test_annotations_on_the_maker_instead_of_the_pod_are_refused() -> None:
    document = {"apiVersion": "apps/v1", "kind": "Deployment",
                "metadata": {"annotations": {"sallyport.dev/policy": "web-only"}},
                "spec": {"template": {"spec": {"containers": [container()]}}}}  # fmt: skip
    assert "write it in spec.template.metadata.annotations" in refused(document)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"kind": "Pod"},
        {"apiVersion": "v1", "kind": "Pod"},
        {"apiVersion": "v1", "kind": "Pod", "spec": []},
        {"apiVersion": "v1", "kind": "Pod", "spec": {}},
        {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": "x"}},
        {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": ["x"]}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": "x", "spec": {"containers": [container()]}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"annotations": 5}, "spec": {"containers": [container()]}},
        {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {}},
        {"apiVersion": "v1", "kind": "List", "items": [5]},
        pod(hostNetwork="true"),
        pod(containers=[container(securityContext={"privileged": "yes"})]),
        pod(containers=[container(securityContext={"capabilities": {"add": "NET_ADMIN"}})]),
        pod(containers=[container(securityContext={"capabilities": {"add": [5]}})]),
        pod(volumes={"name": "x"}),
    ],
)
def test_a_shape_that_is_not_a_pods_is_refused_and_no_crash(document: dict[str, Any]) -> None:
    assert refused(document)
