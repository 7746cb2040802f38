"""The gateway in the place of agent-sandbox's router, in a cluster on loopback."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.real.ingress.agent_sandbox.ground import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """An API server without a Sandbox, and whatever the test puts into it."""
    made = Cluster(tmp_path)
    yield made
    made.close()


@pytest.fixture
def start_router(start_gateway: Any, cluster: Cluster) -> Callable[..., Any]:
    """Starts a gateway that follows the cluster; flags, and the router's variables by name."""

    def start(*flags: str, token: str = "", workers: int = 1, **environ: str) -> Any:
        environ |= {"ROUTER_AUTH_TOKEN": token} if token else {"ALLOW_UNAUTHENTICATED_ROUTER": "true"}
        args = ["--host", "127.0.0.1", "--port", "0", "--admin-port", "any", "--workers", str(workers)]
        args += ["--mode", "agent-sandbox", "--kubeconfig", str(cluster.kubeconfig), "--allow-target", "127.0.0.0/8"]
        gateway = start_gateway(args=[*args, *flags], environ=environ, defaults=False)
        cluster.watched()
        return gateway

    return start
