"""The Kubernetes providers against a real API server for custom resources, over etcd and TLS.

Left out unless SALLYPORT_APISERVER names an apiextensions-apiserver: `make test-kubernetes` builds one.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from ingress.providers import ProviderSettings, build
from ingress.providers.kubeclient import Broken, Client, Gone
from ingress.providers.kubeconfig import load
from ingress.providers.kubeobjects import mapping
from ingress.routes import Ambiguous, Routes, Sandbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from ingress.providers.base import Provider

SERVER = os.environ.get("SALLYPORT_APISERVER", "")
BATCH = ("sandbox.opensandbox.io", "batchsandboxes", "BatchSandbox", ("v1alpha1",))
AGENT = ("agents.x-k8s.io", "sandboxes", "Sandbox", ("v1alpha1", "v1beta1"))
ENDPOINTS = "sandbox.opensandbox.io/endpoints"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def certificates(folder: Path) -> None:
    """An authority, a certificate for 127.0.0.1 and one for a member of system:masters."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=test", "-days", "2")
    for name, subject, extension in (
        ("server", "/CN=server", "subjectAltName=IP:127.0.0.1"),
        ("client", "/O=system:masters/CN=test", "extendedKeyUsage=clientAuth"),
    ):
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", subject)
        (folder / f"{name}.ext").write_text(extension)
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
                "-out", f"{name}.crt", "-days", "2", "-extfile", f"{name}.ext")  # fmt: skip


class Cluster:
    """etcd and an API server, on loopback, until `close`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        certificates(folder)
        self.etcd_port, self.peer_port, self.port = free_port(), free_port(), free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self.kubeconfig = folder / "kubeconfig"
        user = {"client-certificate": "client.crt", "client-key": "client.key"}
        self.kubeconfig.write_text(
            json.dumps(
                {
                    "current-context": "test",
                    "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
                    "clusters": [{"name": "test", "cluster": {"server": self.url, "certificate-authority": "ca.crt"}}],
                    "users": [{"name": "test", "user": user}],
                }
            )
        )
        self._tls = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        self._tls.load_cert_chain(folder / "client.crt", folder / "client.key")
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.start()

    def start(self) -> None:
        etcd = f"http://127.0.0.1:{self.etcd_port}"
        peer = f"http://127.0.0.1:{self.peer_port}"
        self._run(
            "etcd", "etcd", "--data-dir", str(self.folder / "etcd"), "--listen-client-urls", etcd,
            "--advertise-client-urls", etcd, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", f"default={peer}", "--unsafe-no-fsync",
        )  # fmt: skip
        config = str(self.kubeconfig)
        self._run(
            "apiserver", SERVER, "--etcd-servers", etcd, "--bind-address", "127.0.0.1", "--secure-port", str(self.port),
            "--tls-cert-file", "server.crt", "--tls-private-key-file", "server.key", "--client-ca-file", "ca.crt",
            "--kubeconfig", config, "--authentication-kubeconfig", config, "--authorization-kubeconfig", config,
            "--authentication-skip-lookup", "--enable-priority-and-fairness=false", "--disable-admission-plugins",
            "NamespaceLifecycle,MutatingAdmissionWebhook,ValidatingAdmissionWebhook,ValidatingAdmissionPolicy",
        )  # fmt: skip
        self._until(lambda: self.call("GET", "/livez"))

    def stop(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait(10)

    def compact(self) -> None:
        """Let etcd forget every version before now, and begin again: what watches from before is told 410."""
        key = "L3JlZ2lzdHJ5"  # "/registry"
        answer = self._post(f"http://127.0.0.1:{self.etcd_port}/v3/kv/range", {"key": key})
        revision = answer["header"]["revision"]
        self._post(f"http://127.0.0.1:{self.etcd_port}/v3/kv/compaction", {"revision": revision, "physical": True})

    def define(self, group: str, plural: str, kind: str, versions: tuple[str, ...]) -> None:
        anything = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
        spec = {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind, "listKind": f"{kind}List", "singular": kind.lower()},
            "versions": [
                {"name": version, "served": True, "storage": version == versions[-1], "schema": anything}
                for version in versions
            ],
        }
        body = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{group}"},
            "spec": spec,
        }
        self.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body)
        for version in versions:
            self._until(partial(self.call, "GET", f"/apis/{group}/{version}/{plural}"))

    def put(self, kind: tuple[Any, ...], name: str, status: dict[str, Any], namespace: str = "default",
            **annotations: str) -> None:  # fmt: skip
        """Create an object, or replace it."""
        group, plural, named, versions = kind
        path = f"/apis/{group}/{versions[0]}/namespaces/{namespace}/{plural}"
        meta: dict[str, Any] = {"name": name, "annotations": annotations}
        body = {"apiVersion": f"{group}/{versions[0]}", "kind": named, "metadata": meta, "status": status}
        try:
            self.call("POST", path, body)
        except urllib.error.HTTPError as error:
            if error.code != 409:
                raise
            meta["resourceVersion"] = self.call("GET", f"{path}/{name}")["metadata"]["resourceVersion"]
            self.call("PUT", f"{path}/{name}", body)

    def ready(self, name: str, address: str = "10.0.0.7", namespace: str = "default") -> None:
        self.put(BATCH, name, {"ready": 1, "replicas": 1}, namespace, **{ENDPOINTS: json.dumps([address])})

    def delete(self, kind: tuple[Any, ...], name: str, namespace: str = "default") -> None:
        group, plural, _, versions = kind
        self.call("DELETE", f"/apis/{group}/{versions[0]}/namespaces/{namespace}/{plural}/{name}")

    def call(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=10, context=self._tls) as response:
            answer = response.read()
        return json.loads(answer) if answer.startswith(b"{") else answer

    def _post(self, url: str, body: object) -> Any:
        with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=10) as response:
            return json.load(response)

    def _run(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)

    def _until(self, work: Callable[[], object]) -> None:
        end = time.monotonic() + 60
        while True:
            try:
                work()
                return
            except OSError:  # urllib's are
                for name, process in self._processes.items():
                    assert process.poll() is None, (self.folder / f"{name}.log").read_text()[-2000:]
                assert time.monotonic() < end, "the API server did not come up"
                time.sleep(0.1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if not SERVER:
        pytest.skip("SALLYPORT_APISERVER names no apiextensions-apiserver (make test-kubernetes)")
    for program in ("etcd", "openssl"):
        if not shutil.which(program):
            pytest.skip(f"no {program} here")
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        made.define(*BATCH)
        made.define(*AGENT)
        yield made
    finally:
        made.stop()


class Followed(NamedTuple):
    routes: Routes
    provider: Provider
    said: list[str]

    async def until(self, true: Callable[[], object], within: float = 20.0) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + within
        while not true():
            assert loop.time() < end, (self.routes.entries()[:5], self.said)
            await asyncio.sleep(0.005)


@asynccontextmanager
async def following(cluster: Cluster, kind: str = "batchsandbox", **settings: Any) -> AsyncIterator[Followed]:
    routes, said = Routes(), []
    made = ProviderSettings(kubeconfig=str(cluster.kubeconfig), **settings)
    provider = build(kind, made, routes, lambda _, words: said.append(words))
    task = asyncio.create_task(provider.run())
    followed = Followed(routes, provider, said)
    try:
        await followed.until(lambda: provider.health().loaded)
        yield followed
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.sleep(0.1)


def test_objects_are_listed_in_pages_and_each_change_is_followed(cluster: Cluster) -> None:
    async def scenario() -> None:
        for number in range(620):
            await asyncio.to_thread(cluster.ready, f"many-{number}")
        async with following(cluster) as followed:
            await followed.until(lambda: len(followed.routes) == 620)
            for step in range(5):
                await asyncio.to_thread(cluster.ready, "a", f"10.0.0.{step}")
                await followed.until(partial(_is_at, followed, "a", f"10.0.0.{step}"), within=1)
            await asyncio.to_thread(cluster.delete, BATCH, "a")
            await followed.until(lambda: followed.routes.find("a") is None, within=1)

    asyncio.run(scenario())


def _is_at(followed: Followed, sandbox_id: str, host: str) -> bool:
    return _host(followed, sandbox_id) == host


def _host(followed: Followed, sandbox_id: str) -> str:
    entry = followed.routes.find(sandbox_id)
    return entry.host if isinstance(entry, Sandbox) else ""


def test_a_name_in_two_namespaces_is_ambiguous(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with following(cluster) as followed, following(cluster, namespaces=("two",)) as only:
            await asyncio.to_thread(cluster.ready, "b", "10.0.0.1", "one")
            await asyncio.to_thread(cluster.ready, "b", "10.0.0.2", "two")
            await followed.until(lambda: isinstance(followed.routes.find("b"), Ambiguous), within=1)
            await only.until(lambda: _host(only, "b") == "10.0.0.2", within=1)
            await asyncio.to_thread(cluster.delete, BATCH, "b", "one")
            await followed.until(lambda: _host(followed, "b") == "10.0.0.2", within=1)

    asyncio.run(scenario())


def test_agent_sandboxes_in_the_version_that_is_served(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with following(cluster, "agent-sandbox") as followed:
            status = {"serviceFQDN": "sandbox-42.default.svc", "conditions": [{"type": "Ready", "status": "True"}]}
            await asyncio.to_thread(cluster.put, AGENT, "sandbox-42", status)
            await followed.until(lambda: _host(followed, "42") == "sandbox-42.default.svc", within=1)

    asyncio.run(scenario())


def test_a_version_that_was_compacted_away_is_gone(cluster: Cluster) -> None:
    path = "/apis/sandbox.opensandbox.io/v1alpha1/batchsandboxes"

    async def scenario() -> None:
        client = Client(load(str(cluster.kubeconfig), "", {}))
        try:
            old = (await client.list(path)).version
            await asyncio.to_thread(cluster.ready, "z", "10.0.0.1")
            await asyncio.to_thread(cluster.ready, "z", "10.0.0.2")
            await asyncio.to_thread(cluster.compact)
            await asyncio.to_thread(cluster.stop)
            await asyncio.to_thread(cluster.start)
            assert await _first(client, path, old) == ("ERROR", 410)
            now = (await client.list(path)).version
            await asyncio.to_thread(cluster.ready, "z", "10.0.0.3")
            assert await _first(client, path, now) == ("MODIFIED", None)  # the control
        finally:
            await client.close()

    asyncio.run(scenario())


async def _first(client: Client, path: str, version: str) -> tuple[object, object]:
    """Type and code of a watch's first event, once the server is done with setting itself up (429 until then)."""
    while True:
        try:
            async with aclosing(client.watch(path, version)) as events:
                async for event in events:
                    if event is not None:
                        return event["type"], mapping(event["object"]).get("code")
        except Gone:
            return "ERROR", 410
        except Broken:
            await asyncio.sleep(0.1)


def test_i11_the_server_goes_and_comes_back_with_changes(cluster: Cluster) -> None:
    async def scenario() -> None:
        await asyncio.to_thread(cluster.ready, "c")
        async with following(cluster) as followed:
            assert _host(followed, "c")
            await asyncio.to_thread(cluster.stop)
            await followed.until(lambda: followed.provider.health().degraded)
            assert _host(followed, "c") == "10.0.0.7"
            await asyncio.to_thread(cluster.start)
            await asyncio.to_thread(cluster.delete, BATCH, "c")
            await asyncio.to_thread(cluster.ready, "e")
            await followed.until(lambda: followed.routes.find("c") is None and _host(followed, "e"))
            assert not followed.provider.health().degraded

    asyncio.run(scenario())
