"""The Kubernetes providers against a real API server for custom resources, over etcd and TLS.

Left out unless SALLYPORT_APISERVER names an apiextensions-apiserver: `make test-kubernetes` builds one.
"""

from __future__ import annotations

import asyncio
import json
import os
import urllib.error
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from ingress.providers import ProviderSettings, build
from ingress.providers.kubeclient import Broken, Client, Gone
from ingress.providers.kubeconfig import load
from ingress.providers.kubeobjects import mapping
from ingress.routes import Ambiguous, Routes, Sandbox
from tests.blackbox.cluster import Cluster, need

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from ingress.providers.base import Provider

SERVER = os.environ.get("SALLYPORT_APISERVER", "")
BATCH = ("sandbox.opensandbox.io", "batchsandboxes", "BatchSandbox", ("v1alpha1",))
AGENT = ("agents.x-k8s.io", "sandboxes", "Sandbox", ("v1alpha1", "v1beta1"))
ENDPOINTS = "sandbox.opensandbox.io/endpoints"


class Sandboxes(Cluster):
    """An API server for custom resources, and what the providers look for in it."""

    def __init__(self, folder: Path) -> None:
        config = str(folder / "kubeconfig")
        super().__init__(folder, SERVER, (
            "--kubeconfig", config, "--authentication-kubeconfig", config, "--authorization-kubeconfig", config,
            "--authentication-skip-lookup", "--disable-admission-plugins",
            "NamespaceLifecycle,MutatingAdmissionWebhook,ValidatingAdmissionWebhook,ValidatingAdmissionPolicy",
        ))  # fmt: skip

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


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandboxes]:
    need(SERVER, "SALLYPORT_APISERVER")
    made = Sandboxes(tmp_path_factory.mktemp("cluster"))
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

    async def until(self, true: Callable[[], object], within: float = 60.0) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + within
        while not true():
            assert loop.time() < end, (self.routes.entries()[:5], self.said)
            await asyncio.sleep(0.005)


@asynccontextmanager
async def following(cluster: Sandboxes, kind: str = "batchsandbox", **settings: Any) -> AsyncIterator[Followed]:
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


def test_objects_are_listed_in_pages_and_each_change_is_followed(cluster: Sandboxes) -> None:
    async def scenario() -> None:
        for number in range(620):
            await asyncio.to_thread(cluster.ready, f"many-{number}")
        async with following(cluster) as followed:
            await followed.until(lambda: len(followed.routes) == 620)
            for step in range(5):
                await asyncio.to_thread(cluster.ready, "a", f"10.0.0.{step}")
                await followed.until(partial(_is_at, followed, "a", f"10.0.0.{step}"))
            await asyncio.to_thread(cluster.delete, BATCH, "a")
            await followed.until(lambda: followed.routes.find("a") is None)

    asyncio.run(scenario())


def _is_at(followed: Followed, sandbox_id: str, host: str) -> bool:
    return _host(followed, sandbox_id) == host


def _host(followed: Followed, sandbox_id: str) -> str:
    entry = followed.routes.find(sandbox_id)
    return entry.host if isinstance(entry, Sandbox) else ""


def test_a_name_in_two_namespaces_is_ambiguous(cluster: Sandboxes) -> None:
    async def scenario() -> None:
        async with following(cluster) as followed, following(cluster, namespaces=("two",)) as only:
            await asyncio.to_thread(cluster.ready, "b", "10.0.0.1", "one")
            await asyncio.to_thread(cluster.ready, "b", "10.0.0.2", "two")
            await followed.until(lambda: isinstance(followed.routes.find("b"), Ambiguous))
            await only.until(lambda: _host(only, "b") == "10.0.0.2")
            await asyncio.to_thread(cluster.delete, BATCH, "b", "one")
            await followed.until(lambda: _host(followed, "b") == "10.0.0.2")

    asyncio.run(scenario())


def test_agent_sandboxes_in_the_version_that_is_served(cluster: Sandboxes) -> None:
    async def scenario() -> None:
        async with following(cluster, "agent-sandbox") as followed:
            status = {"serviceFQDN": "sandbox-42.default.svc", "conditions": [{"type": "Ready", "status": "True"}]}
            await asyncio.to_thread(cluster.put, AGENT, "sandbox-42", status)
            await followed.until(lambda: _host(followed, "42") == "sandbox-42.default.svc")

    asyncio.run(scenario())


def test_a_version_that_was_compacted_away_is_gone(cluster: Sandboxes) -> None:
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


def test_i11_the_server_goes_and_comes_back_with_changes(cluster: Sandboxes) -> None:
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
