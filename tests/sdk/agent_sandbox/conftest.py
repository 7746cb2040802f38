"""The SDK of agent-sandbox in a process of its own, pointed at our gateway and at the cluster's API server."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.real.ingress.agent_sandbox.conftest import cluster, start_router
from tests.real.ingress.conftest import start_gateway

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.real.ingress.agent_sandbox.ground import Cluster

__all__ = ["cluster", "start_gateway", "start_router"]

CHECKOUT = Path(__file__).resolve().parents[3]
PYTHON = CHECKOUT / "build" / "agent-sdk" / "bin" / "python"
DRIVE = Path(__file__).with_name("drive.py")


class Sdk:
    """One Sandbox of the SDK; a call is made when it is told, and its outcome read."""

    def __init__(self, kind: str, cluster: Cluster, told: dict[str, Any]) -> None:
        self.process = subprocess.Popen(
            [str(PYTHON), str(DRIVE), kind],
            env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig)},
            cwd=cluster.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.tell(told)

    def tell(self, call: dict[str, Any]) -> None:
        """Begin a call."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(call) + "\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """What came of it."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the SDK's process ended"
        return dict(json.loads(line))

    def call(self, do: str, **more: Any) -> dict[str, Any]:
        """What came of a call, whatever it is."""
        self.tell({"do": do, **more})
        return self.hear()

    def value(self, do: str, **more: Any) -> Any:
        """What a call gave; a failure if it failed."""
        told = self.call(do, **more)
        assert "value" in told, told
        return told["value"]

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


@pytest.fixture(params=["sync", "async"])
def start_sdk(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[Callable[..., Sdk]]:
    """Starts the SDK, with either of its HTTP clients, for a sandbox behind a router."""
    if not PYTHON.exists():
        pytest.fail("the SDK is not installed: make test-agent-sdk", pytrace=False)
    started: list[Sdk] = []

    def start(router: Any, name: str = "box", *, namespace: str = "default", port: int = 8888, token: str = "") -> Sdk:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        told = {"url": router.base, "id": name, "namespace": namespace, "port": port, "headers": headers}
        started.append(Sdk(request.param, cluster, told))
        return started[-1]

    yield start
    for sdk in started:
        sdk.close()
