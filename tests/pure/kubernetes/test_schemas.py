"""What is printed, and what is shipped, against the schemas that Kubernetes publishes; unknown fields are errors."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from egress.kubernetes.inject import inject
from egress.kubernetes.settings import Reference, Settings
from tests.pure.kubernetes.pods import POLICY, container, pod

VERSIONS = ("1.29", "1.37")  # the first with sidecars switched on, and the newest there is
DEPLOY = Path(__file__).resolve().parents[3] / "deploy" / "kubernetes"
TEMPLATE = {
    "metadata": {"annotations": {"sallyport.dev/policy": POLICY, "sallyport.dev/token-from": "secret/keys"}},
    "spec": {"containers": [container(ports=[{"containerPort": 80}])], "initContainers": [container("first")]},
}
SELECTED = {"spec": {"selector": {"matchLabels": {"a": "b"}}, "template": TEMPLATE}}
EVERYTHING = Settings(pull_policy="Always", upstreams="10.0.0.10", token=Reference("secret", "keys", "token"))


def check(document: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(document, version, strict=True)


def shipped() -> list[tuple[str, dict[str, Any]]]:
    """Every object in deploy/ that is Kubernetes' own, with its file."""
    return [
        (str(path.relative_to(DEPLOY)), document)
        for path in sorted(DEPLOY.rglob("*.yaml"))
        if path.name != "kustomization.yaml"
        for document in yaml.safe_load_all(path.read_text())
        if not document["apiVersion"].startswith("cert-manager.io/")
    ]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "document",
    [
        pod(initContainers=[container("first")]),
        {"apiVersion": "apps/v1", "kind": "Deployment", **SELECTED},
        {"apiVersion": "apps/v1", "kind": "DaemonSet", **SELECTED},
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", **SELECTED},
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "spec": {**SELECTED["spec"], "serviceName": "x"}},
        {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": TEMPLATE}},
        {"apiVersion": "batch/v1", "kind": "CronJob",
         "spec": {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": TEMPLATE}}}},
        {"apiVersion": "v1", "kind": "PodTemplate", "template": TEMPLATE},
        {"apiVersion": "v1", "kind": "ReplicationController", "spec": {"template": TEMPLATE}},
    ],
    ids=lambda document: document["kind"] if isinstance(document, dict) else document,
)  # fmt: skip
def test_what_inject_prints_is_valid(document: dict[str, Any], version: str) -> None:
    for settings in (Settings(), EVERYTHING):
        made = inject(deepcopy(document), settings).document
        assert made != document
        check(made, version)


def test_the_schemas_find_a_slip() -> None:
    made = inject(pod()).document
    made["spec"]["initContainers"][0]["restartPolcy"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError, match="restartPolcy"):
        check(made, VERSIONS[-1])


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_shipped_is_valid(version: str) -> None:
    found = shipped()
    assert len(found) == 15
    for name, document in found:
        try:
            check(document, version)
        except kubernetes_validate.ValidationError as error:
            pytest.fail(f"{name}: {error}")


def one(kind: str, folder: str) -> dict[str, Any]:
    (found,) = (document for name, document in shipped() if document["kind"] == kind and name.startswith(f"{folder}/"))
    return found


def test_what_is_shipped_fits_together() -> None:
    for folder in ("webhook", "gateway"):
        deployment = one("Deployment", folder)
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert deployment["spec"]["selector"]["matchLabels"] == labels
        assert one("Service", folder)["spec"]["selector"] == labels
        assert one("PodDisruptionBudget", folder)["spec"]["selector"]["matchLabels"] == labels
        assert one("NetworkPolicy", folder)["spec"]["podSelector"]["matchLabels"] == labels
        (main,) = deployment["spec"]["template"]["spec"]["containers"]
        ports = {port["name"] for port in main["ports"]}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert main[probe]["httpGet"]["port"] in ports
        assert {port["targetPort"] for port in one("Service", folder)["spec"]["ports"]} <= ports
        assert "/" not in main["image"]  # the registry is the overlay's
    (webhook,) = one("Deployment", "webhook")["spec"]["template"]["spec"]["containers"]
    assert webhook["env"] == [{"name": "SALLYPORT_EGRESS_IMAGE", "value": webhook["image"]}]
    scaled = one("HorizontalPodAutoscaler", "gateway")["spec"]["scaleTargetRef"]["name"]
    assert scaled == one("Deployment", "gateway")["metadata"]["name"]
    assert "replicas" not in one("Deployment", "gateway")["spec"]


def test_there_is_time_to_drain() -> None:
    spec = one("Deployment", "gateway")["spec"]["template"]["spec"]
    given = dict(text.removeprefix("--").split("=") for text in spec["containers"][0]["args"])
    seconds = [int(given[key].removesuffix("s")) for key in ("drain-delay", "drain")]
    assert sum(seconds) < spec["terminationGracePeriodSeconds"]
    spec = one("Deployment", "webhook")["spec"]["template"]["spec"]
    delay = int(spec["containers"][0]["command"][-1].removeprefix("--drain-delay="))
    assert delay + 10 < spec["terminationGracePeriodSeconds"]


def test_the_commands_of_the_manifests_are_ours() -> None:
    from egress.commands.webhook import _parser
    from ingress.settings.config import from_args

    (webhook,) = one("Deployment", "webhook")["spec"]["template"]["spec"]["containers"]
    assert webhook["command"][:2] == ["/opt/venv/bin/egress", "webhook"]
    assert _parser().parse_args(webhook["command"][2:]).drain_delay == "5"
    (gateway,) = one("Deployment", "gateway")["spec"]["template"]["spec"]["containers"]
    assert from_args(gateway["args"], {}).drain_delay == 5
    component = yaml.safe_load((DEPLOY / "agent-sandbox" / "kustomization.yaml").read_text())
    arguments = yaml.safe_load(component["patches"][1]["patch"])[0]["value"]
    assert from_args(arguments, {"ROUTER_AUTH_TOKEN": "x"}).port == gateway["ports"][0]["containerPort"]


def test_the_autoscalers_metric_is_one_that_the_gateway_has() -> None:
    from ingress.telemetry import metrics

    metric = one("HorizontalPodAutoscaler", "gateway")["spec"]["metrics"][0]["pods"]["metric"]["name"]
    assert metric in Path(metrics.__file__).read_text()


def test_both_hooks_are_alike_and_no_pod_is_left_between_them() -> None:
    named, labelled = one("MutatingWebhookConfiguration", "webhook")["webhooks"]
    for key in (set(named) | set(labelled)) - {"name", "namespaceSelector", "objectSelector"}:
        assert json.dumps(named[key]) == json.dumps(labelled[key])
    assert named["failurePolicy"] == "Fail"
    assert "objectSelector" not in named  # a pod cannot take itself out of a guarded namespace
    guard, ours = named["namespaceSelector"]["matchExpressions"]
    other, same = labelled["namespaceSelector"]["matchExpressions"]
    assert ours == same
    assert (guard["operator"], other["operator"], guard["values"]) == ("In", "NotIn", other["values"])
    service = named["clientConfig"]["service"]
    assert service["name"] == one("Service", "webhook")["metadata"]["name"]
    assert service["namespace"] == one("Namespace", "namespace")["metadata"]["name"]
