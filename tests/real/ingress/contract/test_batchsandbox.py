"""BatchSandbox objects of an API server, seen through the running gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.real.ingress.hostile.gateway import Gateway
from tests.real.ingress.hostile.ground import soon
from tests.real.ingress.providers.fake_kubernetes import FakeKubernetes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.real.ingress.hostile.ground import Ground, Origin

ENDPOINTS = "sandbox.opensandbox.io/endpoints"
TOKEN = "opensandbox.io/secure-access-token"


class Cluster:
    """The API server, and a gateway that follows it."""

    def __init__(self, ground: Ground, kube: FakeKubernetes, gate: Gateway, port: int) -> None:
        self.ground = ground
        self.kube = kube
        self.gate = gate
        self.port = port

    def put(
        self,
        name: str,
        namespace: str = "default",
        *,
        ready: int = 1,
        endpoints: str | None = '["127.0.0.1"]',
        token: str | None = None,
    ) -> None:
        """Create or change an object; an annotation that is None is not there."""
        annotations = {key: value for key, value in ((ENDPOINTS, endpoints), (TOKEN, token)) if value is not None}
        self.ground.do(lambda: self.kube.put(name, namespace, annotations=annotations, status={"ready": ready}))

    def ask(self, name: str, *lines: str) -> int:
        route = f"OpenSandbox-Ingress-To: {name}-{self.port}"
        head = "\r\n".join(["GET / HTTP/1.1", "Host: app.test", route, *lines, "Connection: close", "", ""])
        return self.gate.ask(head.encode()).status

    def becomes(self, name: str, wanted: int) -> bool:
        return bool(soon(lambda: self.ask(name) == wanted))


@pytest.fixture
def cluster(ground: Ground, echoing: Origin, tmp_path: Path) -> Iterator[Cluster]:
    kube = FakeKubernetes()
    ground.call(kube.start())
    config = tmp_path / "kubeconfig"
    config.write_text(kube.kubeconfig())
    flags = ("--provider-type", "batchsandbox", "--kubeconfig", str(config), "--namespace", "ignored")
    try:
        with Gateway(tmp_path, *flags, sandboxes={}) as gate:
            yield Cluster(ground, kube, gate, echoing.port)
    finally:
        ground.call(kube.stop())


def test_ready_means_that_one_is(cluster: Cluster) -> None:
    cluster.put("box", ready=0)
    assert cluster.becomes("box", 503)
    cluster.put("box", ready=1)
    assert cluster.becomes("box", 200)
    cluster.put("box", ready=3)
    cluster.put("later", ready=3)
    assert cluster.becomes("later", 200)
    assert cluster.ask("box") == 200
    cluster.ground.do(lambda: cluster.kube.delete("box"))
    assert cluster.becomes("box", 404)


def test_the_first_of_its_endpoints_is_used(cluster: Cluster) -> None:
    cluster.put("box", endpoints='["127.0.0.1", "192.0.2.1"]')
    assert cluster.becomes("box", 200)
    cluster.put("none", endpoints=None)
    assert cluster.becomes("none", 503)
    cluster.put("empty", endpoints="[]")
    assert cluster.becomes("empty", 503)
    cluster.put("broken", endpoints="127.0.0.1")
    assert cluster.becomes("broken", 503)


def test_a_token_that_is_not_blank_is_needed(cluster: Cluster) -> None:
    cluster.put("box", token="secret")
    cluster.put("blank", token="  ")
    assert cluster.becomes("blank", 200)
    assert cluster.ask("box") == 401
    assert cluster.ask("box", "OpenSandbox-Secure-Access: wrong") == 401
    assert cluster.ask("box", "OpenSandbox-Secure-Access: secret") == 200


def test_the_same_name_in_two_namespaces_is_nobodys(cluster: Cluster) -> None:
    cluster.put("box", "here")
    assert cluster.becomes("box", 200)
    cluster.put("box", "there")
    assert cluster.becomes("box", 502)
    cluster.ground.do(lambda: cluster.kube.delete("box", "here"))
    assert cluster.becomes("box", 200)
