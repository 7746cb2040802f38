"""Pods, the webhook and the manifests against a real kube-apiserver, with its own admission, schemas and RBAC.

Left out unless SALLYPORT_KUBE_APISERVER and SALLYPORT_KUSTOMIZE name the programs: `make test-kubernetes` builds them.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pytest
import yaml

from egress.kubernetes.inject import inject
from ingress.providers.kubeclient import Client, Fault
from ingress.providers.kubeconfig import load
from tests.blackbox.cluster import Cluster, need
from tests.pure.kubernetes.pods import POLICY, container, pod

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

T = TypeVar("T")
SERVER = os.environ.get("SALLYPORT_KUBE_APISERVER", "")
KUSTOMIZE = os.environ.get("SALLYPORT_KUSTOMIZE", "")
DEPLOY = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
FLAGS = (
    "--authorization-mode", "RBAC", "--allow-privileged", "--service-cluster-ip-range", "10.0.0.0/24",
    "--service-account-issuer", "https://kubernetes.example.com", "--service-account-key-file", "server.crt",
    "--service-account-signing-key-file", "server.key",
)  # fmt: skip
PODS = "/api/v1/namespaces/{}/pods"


class Guarded(NamedTuple):
    """A cluster with our manifests in it, and a webhook that it calls."""

    cluster: Cluster
    manifests: list[dict[str, Any]]
    webhook: subprocess.Popen[str]


def manifests(folder: Path) -> list[dict[str, Any]]:
    done = subprocess.run([KUSTOMIZE, "build", folder], check=True, capture_output=True, text=True)
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def path_of(cluster: Cluster, document: dict[str, Any], namespace: str = "") -> str:
    """Where objects of this kind are created, as the server's own discovery tells."""
    version = document["apiVersion"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    (found,) = (
        one for one in cluster.call("GET", root)["resources"]
        if one["kind"] == document["kind"] and "/" not in one["name"]
    )  # fmt: skip
    where = namespace or document["metadata"].get("namespace", "default")
    return f"{root}/namespaces/{where}/{found['name']}" if found["namespaced"] else f"{root}/{found['name']}"


def create(cluster: Cluster, document: dict[str, Any], namespace: str = "", query: str = "") -> dict[str, Any]:
    """Create it; unknown and doubled fields are errors. Raises urllib.error.HTTPError with the server's words."""
    path = path_of(cluster, document, namespace) + f"?fieldValidation=Strict{query}"
    try:
        made: dict[str, Any] = cluster.call("POST", path, document)
    except urllib.error.HTTPError as error:
        words = json.loads(error.read())["message"]
        raise urllib.error.HTTPError(error.url, error.code, words, error.headers, None) from None
    return made


def refused(cluster: Cluster, document: dict[str, Any], namespace: str) -> str:
    with pytest.raises(urllib.error.HTTPError) as caught:
        create(cluster, document, namespace)
    return f"{caught.value.code} {caught.value.reason}"


def namespace(cluster: Cluster, name: str, **labels: str) -> None:
    cluster.call("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    cluster.call("POST", f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}})


def start_webhook(folder: Path, port: int = 0) -> tuple[subprocess.Popen[str], int]:
    process = subprocess.Popen(
        [str(Path(sys.prefix, "bin", "egress")), "webhook", "--listen", f"127.0.0.1:{port}", "--tls-cert",
         str(folder / "server.crt"), "--tls-key", str(folder / "server.key"), "--drain-delay", "0"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    told = json.loads(process.stdout.readline())
    assert told["msg"] == "listening"
    return process, told["port"]


def hooked(configuration: dict[str, Any], folder: Path, port: int) -> dict[str, Any]:
    """The shipped configuration, but for where the webhook is: there is no service network here."""
    bundle = base64.b64encode((folder / "ca.crt").read_bytes()).decode()
    for one in configuration["webhooks"]:
        path = one["clientConfig"].pop("service")["path"]
        one["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": bundle}
    return configuration


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    need(SERVER, "SALLYPORT_KUBE_APISERVER")
    need(KUSTOMIZE, "SALLYPORT_KUSTOMIZE")
    folder = tmp_path_factory.mktemp("kube")
    cluster = Cluster(folder, SERVER, FLAGS)
    webhook = None
    try:
        webhook, port = start_webhook(folder)
        every = manifests(DEPLOY / "example")
        documents = [one for one in every if not one["apiVersion"].startswith("cert-manager.io/")]
        for one in documents:
            if one["kind"] == "MutatingWebhookConfiguration":
                create(cluster, json.loads(json.dumps(one)), query="&dryRun=All")
                one = hooked(one, folder, port)
            _eventually(cluster, one)
        namespace(cluster, "guarded", **{"sallyport.dev/guard": "enabled"})
        namespace(cluster, "free")
        _until_called(cluster)
        yield Guarded(cluster, documents, webhook)
    finally:
        if webhook is not None:
            webhook.kill()
            webhook.communicate()
        cluster.stop()


def _eventually(cluster: Cluster, document: dict[str, Any], namespace: str = "") -> None:
    """RBAC and the system's priority classes come up after /livez does."""
    end = time.monotonic() + 60
    while True:
        try:
            create(cluster, document, namespace)
            return
        except urllib.error.HTTPError as error:
            if error.code not in (403, 429, 503) or time.monotonic() > end:
                raise
            time.sleep(0.2)


def _until_called(cluster: Cluster) -> None:
    """The server takes a new webhook into account within a second or so."""
    end = time.monotonic() + 60
    while not _init_containers(create(cluster, pod(), "guarded", "&dryRun=All")):
        assert time.monotonic() < end
        time.sleep(0.2)


def _init_containers(document: dict[str, Any]) -> list[str]:
    return [one["name"] for one in document["spec"].get("initContainers", [])]


def test_every_manifest_is_what_the_server_knows(guarded: Guarded) -> None:
    kinds = sorted(document["kind"] for document in guarded.manifests)
    assert kinds == [
        "ClusterRole", "ClusterRoleBinding", "Deployment", "Deployment", "HorizontalPodAutoscaler",
        "MutatingWebhookConfiguration", "Namespace", "NetworkPolicy", "NetworkPolicy", "PodDisruptionBudget",
        "PodDisruptionBudget", "Service", "Service", "ServiceAccount", "ServiceAccount",
    ]  # fmt: skip
    wrong = json.loads(json.dumps(next(one for one in guarded.manifests if one["kind"] == "Deployment")))
    wrong["metadata"]["name"] = "wrong"
    wrong["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    assert "readinesProbe" in refused(guarded.cluster, wrong, "sallyport")  # the control


def test_the_components_fit(guarded: Guarded, tmp_path: Path) -> None:
    """A certificate of one's own in the place of cert-manager's, and agent-sandbox's objects."""
    here = tmp_path / "kubernetes"
    shutil.copytree(DEPLOY, here)
    made = subprocess.run([here / "own-certificate" / "make-certificate"], check=True, capture_output=True, text=True)
    assert "for sallyport-webhook.sallyport.svc, until" in made.stdout
    own = (here / "example" / "kustomization.yaml").read_text()
    own = own.replace("../cert-manager #", "../own-certificate #").replace("# - ../agent", "  - ../agent")
    (here / "example" / "kustomization.yaml").write_text(own)
    documents = manifests(here / "example")
    found = {document["kind"]: document for document in documents}
    assert "Certificate" not in found
    for document in documents:
        if document["kind"] not in ("Namespace", "ClusterRoleBinding"):
            document["metadata"]["name"] += "-components"
            assert create(guarded.cluster, document, query="&dryRun=All")
    assert found["ClusterRole"]["rules"] == [
        {"apiGroups": ["agents.x-k8s.io"], "resources": ["sandboxes"], "verbs": ["list", "watch"]}
    ]
    hooks = found["MutatingWebhookConfiguration"]["webhooks"]
    (bundle,) = {hook["clientConfig"]["caBundle"] for hook in hooks}
    (tmp_path / "ca.crt").write_bytes(base64.b64decode(bundle))
    (tmp_path / "tls.crt").write_bytes(base64.b64decode(found["Secret"]["data"]["tls.crt"]))
    subprocess.run(["openssl", "verify", "-purpose", "sslserver", "-verify_hostname", "sallyport-webhook.sallyport.svc",
                    "-CAfile", "ca.crt", "tls.crt"], cwd=tmp_path, check=True)  # fmt: skip


def test_our_own_pods_are_restricted_ones(guarded: Guarded) -> None:
    """The namespace enforces Kubernetes' strictest standard, and both deployments' pods pass it."""
    templates = [one["spec"]["template"] for one in guarded.manifests if one["kind"] == "Deployment"]
    for template in templates:
        made = {"apiVersion": "v1", "kind": "Pod", **json.loads(json.dumps(template))}
        made["metadata"]["generateName"] = "x-"
        assert create(guarded.cluster, made, "sallyport", "&dryRun=All")["spec"]
        made["spec"]["containers"][0]["securityContext"]["capabilities"] = {"add": ["NET_ADMIN"]}
        assert "violates PodSecurity" in refused(guarded.cluster, made, "sallyport")


def test_what_inject_prints_is_what_the_server_knows(guarded: Guarded) -> None:
    template = {"metadata": {"labels": {"a": "b"}, "annotations": {"sallyport.dev/policy": POLICY}},
                "spec": {"containers": [container()]}}  # fmt: skip
    once = {"metadata": template["metadata"], "spec": {"containers": [container()], "restartPolicy": "Never"}}
    selected = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    for version, kind, body in (
        ("apps/v1", "Deployment", {"spec": selected}),
        ("apps/v1", "DaemonSet", {"spec": selected}),
        ("apps/v1", "ReplicaSet", {"spec": selected}),
        ("apps/v1", "StatefulSet", {"spec": {**selected, "serviceName": "x"}}),
        ("batch/v1", "Job", {"spec": {"template": once}}),
        ("batch/v1", "CronJob", {"spec": {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": once}}}}),
        ("v1", "PodTemplate", {"template": template}),
        ("v1", "ReplicationController", {"spec": {"selector": {"a": "b"}, "template": template}}),
    ):
        document = {"apiVersion": version, "kind": kind, "metadata": {"name": "x"}, **json.loads(json.dumps(body))}
        made = create(guarded.cluster, inject(document).document, "free", "&dryRun=All")
        assert '"restartPolicy": "Always"' in json.dumps(made), kind


def test_a_pod_that_is_created_has_the_sidecar_first(guarded: Guarded) -> None:
    given = pod(initContainers=[container("first")])
    given["metadata"] = {**given["metadata"], "name": "one"}
    made = create(guarded.cluster, given, "guarded")
    assert _init_containers(made) == ["egress", "first"]
    sidecar = made["spec"]["initContainers"][0]
    assert sidecar["restartPolicy"] == "Always"
    assert sidecar["image"] == "sallyport-egress"
    assert sidecar["securityContext"]["capabilities"] == {"add": ["NET_ADMIN"], "drop": ["ALL"]}
    assert made["spec"]["containers"][0]["securityContext"]["capabilities"] == {"drop": ["NET_ADMIN", "NET_RAW"]}
    mounts = [mount["name"] for mount in sidecar["volumeMounts"]]
    assert mounts == ["sallyport-state"]  # the account's token is mounted before webhooks are asked: not here
    stored = guarded.cluster.call("GET", PODS.format("guarded") + "/one")
    assert _init_containers(stored) == ["egress", "first"]
    given["metadata"]["name"] = "two"
    assert _init_containers(create(guarded.cluster, given, "free")) == ["first"]  # the control


def test_what_inject_has_done_the_webhook_leaves(guarded: Guarded) -> None:
    given = inject(pod(initContainers=[container("first")])).document
    given["metadata"]["name"] = "again"
    made = create(guarded.cluster, given, "guarded")
    assert _init_containers(made) == ["egress", "first"]
    assert [one["name"] for one in made["spec"]["volumes"]].count("sallyport-state") == 1


def test_a_pod_that_would_defeat_it_is_not_created(guarded: Guarded) -> None:
    bad = pod(hostNetwork=True, containers=[container(securityContext={"privileged": True})])
    bad["metadata"]["name"] = "bad"
    words = refused(guarded.cluster, bad, "guarded")
    assert words.startswith("403 ")
    assert 'admission webhook "namespace.sallyport.dev" denied the request: sallyport cannot guard this pod' in words
    assert "spec.hostNetwork: " in words
    assert "spec.containers[0].securityContext.privileged: " in words
    assert "nonsense is neither a policy nor a preset" in refused(guarded.cluster, pod("nonsense"), "guarded")
    assert create(guarded.cluster, bad, "free", "&dryRun=All")["spec"]["hostNetwork"]  # the control


def test_a_labelled_pod_is_guarded_anywhere(guarded: Guarded) -> None:
    labelled = pod()
    labelled["metadata"]["labels"] = {"sallyport.dev/guard": "enabled"}
    assert _init_containers(create(guarded.cluster, labelled, "free", "&dryRun=All")) == ["egress"]
    labelled["metadata"]["labels"] = {"sallyport.dev/guard": "disabled"}
    assert _init_containers(create(guarded.cluster, labelled, "free", "&dryRun=All")) == []
    assert _init_containers(create(guarded.cluster, labelled, "guarded", "&dryRun=All")) == ["egress"]


def test_an_ephemeral_container_is_judged_too(guarded: Guarded) -> None:
    given = pod()
    given["metadata"]["name"] = "debugged"
    create(guarded.cluster, given, "guarded")
    path = PODS.format("guarded") + "/debugged/ephemeralcontainers"
    kind = "application/strategic-merge-patch+json"
    added = {"name": "debug", "image": "busybox"}
    strong = {**added, "securityContext": {"capabilities": {"add": ["NET_ADMIN"]}}}
    with pytest.raises(urllib.error.HTTPError) as caught:
        guarded.cluster.call("PATCH", path, {"spec": {"ephemeralContainers": [strong]}}, kind)
    assert "NET_ADMIN can remove the guard's rules" in caught.value.read().decode()
    made = guarded.cluster.call("PATCH", path, {"spec": {"ephemeralContainers": [added]}}, kind)
    (found,) = made["spec"]["ephemeralContainers"]
    assert found["securityContext"]["capabilities"] == {"drop": ["NET_ADMIN", "NET_RAW"]}
    more = {"spec": {"ephemeralContainers": [{**added, "name": "second"}]}}
    assert len(guarded.cluster.call("PATCH", path, more, kind)["spec"]["ephemeralContainers"]) == 2


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """What comes of it, once the server is done with setting a new resource up (429 until then)."""
    end = time.monotonic() + 60
    while True:
        try:
            return await ask()
        except Fault as fault:
            if "403" in str(fault) or time.monotonic() > end:
                raise
            await asyncio.sleep(0.2)


def test_the_gateways_role_is_enough_and_no_more(guarded: Guarded, tmp_path: Path) -> None:
    path = "/apis/sandbox.opensandbox.io/v1alpha1/batchsandboxes"
    guarded.cluster.define("sandbox.opensandbox.io", "batchsandboxes", "BatchSandbox", ("v1alpha1",))
    account = "/api/v1/namespaces/sallyport/serviceaccounts/sallyport-gateway/token"
    token = guarded.cluster.call("POST", account, {"spec": {"audiences": []}})["status"]["token"]
    config = yaml.safe_load(guarded.cluster.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    config["clusters"][0]["cluster"]["certificate-authority"] = str(guarded.cluster.folder / "ca.crt")
    (tmp_path / "kubeconfig").write_text(json.dumps(config))

    async def first(client: Client, version: str) -> object:
        async with aclosing(client.watch(path, version)) as events:
            async for event in events:
                if event is not None:
                    return event["type"]
        return None

    async def scenario() -> None:
        client = Client(load(str(tmp_path / "kubeconfig"), "", {}))
        try:
            version = (await patiently(lambda: client.list(path))).version
            box = {"apiVersion": "sandbox.opensandbox.io/v1alpha1", "kind": "BatchSandbox", "metadata": {"name": "box"}}
            await asyncio.to_thread(_eventually, guarded.cluster, box, "free")
            assert await patiently(lambda: first(client, version)) == "ADDED"
            for forbidden in ("/api/v1/pods", "/api/v1/secrets", "/api/v1/namespaces/free/secrets"):
                with pytest.raises(Fault, match="403"):
                    await client.list(forbidden)
        finally:
            await client.close()

    asyncio.run(scenario())


def test_while_no_webhook_answers_what_is_to_be_guarded_is_not_created(guarded: Guarded) -> None:
    """Last of all: it takes the webhook away, and back."""
    port = _port(guarded)
    guarded.webhook.send_signal(signal.SIGTERM)
    assert guarded.webhook.wait(60) == 0
    given = pod()
    given["metadata"]["name"] = "late"
    assert 'failed calling webhook "namespace.sallyport.dev"' in refused(guarded.cluster, given, "guarded")
    labelled = json.loads(json.dumps(given))
    labelled["metadata"]["labels"] = {"sallyport.dev/guard": "enabled"}
    assert 'failed calling webhook "pod.sallyport.dev"' in refused(guarded.cluster, labelled, "free")
    assert create(guarded.cluster, given, "free", "&dryRun=All")["spec"]  # whatever is not ours goes on
    again, _ = start_webhook(guarded.cluster.folder, port)
    try:
        assert _init_containers(create(guarded.cluster, given, "guarded")) == ["egress"]
    finally:
        again.kill()
        again.communicate()


def _port(guarded: Guarded) -> int:
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/sallyport"
    url = guarded.cluster.call("GET", path)["webhooks"][0]["clientConfig"]["url"]
    return int(url.rpartition(":")[2].partition("/")[0])
