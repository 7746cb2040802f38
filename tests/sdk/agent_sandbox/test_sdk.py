"""agent-sandbox's SDK, with both of its HTTP clients, against the gateway in the place of the router that it knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.real.ingress.agent_sandbox.ground import Cluster

TOKEN = "0123456789abcdef0123456789abcdef"


def test_commands_and_files(cluster: Cluster, start_router: Any, start_sdk: Any) -> None:
    pod = cluster.sandbox()
    sdk = start_sdk(start_router(token=TOKEN), token=TOKEN)
    assert sdk.value("run", command="echo hello")["stdout"] == "hello\n"
    assert sdk.value("run", command="false")["exit_code"] == 1
    assert sdk.value("run", command="echo limited", command_timeout=5)["stdout"] == "limited\n"
    sdk.value("write", path="folder/name with ü and %2F.txt", text="wörds")
    assert sdk.value("exists", path="folder/name with ü and %2F.txt") is True
    assert sdk.value("exists", path="nothing") is False
    assert sdk.value("read", path="folder/name with ü and %2F.txt")["text"] == "wörds".encode().decode("latin-1")
    assert [entry["name"] for entry in sdk.value("list", path="folder")] == ["name with ü and %2F.txt"]
    assert sdk.value("pod_ip") == pod.address, "it asked the API server, and sent it to us"
    for seen in pod.seen:
        assert not seen.all("authorization")
        assert seen.all("host") == [f"{pod.address}:8888"]
    missing = sdk.call("read", path="nothing")
    assert (missing["fault"], missing["status"]) == ("SandboxRequestError", 404)


def test_large_files_both_ways(cluster: Cluster, start_router: Any, start_sdk: Any) -> None:
    pod = cluster.sandbox()
    sdk = start_sdk(start_router())
    size = 20_000_000
    sdk.value("write_stream", path="large", size=size)
    assert pod.last.all("transfer-encoding") == ["chunked"]
    assert (pod.folder / "large").stat().st_size == size
    assert sdk.value("read", path="large")["size"] == size
    assert sdk.call("read_to", path="large")["into"] == size


def test_namespace_and_port(cluster: Cluster, start_router: Any, start_sdk: Any) -> None:
    here, there = cluster.sandbox(), cluster.pod("there")
    cluster.put("box", there.address, namespace="team")
    sdk = start_sdk(start_router(), namespace="team")
    assert sdk.value("run", command="echo hello")["exit_code"] == 0
    assert (len(here.seen), len(there.seen)) == (0, 1)
    broken = start_sdk(start_router(), port=1).call("run", command="echo hello")
    assert broken["status"] == 502
    assert "could not be reached" in broken["text"]


def test_a_wrong_token(cluster: Cluster, start_router: Any, start_sdk: Any) -> None:
    pod = cluster.sandbox()
    refused = start_sdk(start_router(token=TOKEN), token="wrong").call("exists", path="x")
    assert (refused["fault"], refused["status"]) == ("SandboxRequestError", 401)
    assert not pod.seen


def test_what_it_retries(cluster: Cluster, start_router: Any, start_sdk: Any) -> None:
    """An unknown sandbox is a 502: GETs are tried again, for seconds; a POST, which might run twice, isn't."""
    sdk = start_sdk(start_router())
    once = sdk.call("run", command="echo hello")
    assert once["status"] == 502
    assert "no sandbox box in namespace default" in once["text"]
    sdk.tell({"do": "exists", "path": "x"})
    pod = cluster.sandbox()
    told = sdk.hear()
    assert told.get("value") is False, told
    assert len(pod.seen) == 1


def test_a_sandbox_that_is_not_ready_yet(cluster: Cluster, start_router: Any, start_sdk: Any) -> None:
    pod = cluster.pod("box")
    cluster.put("box", ready=False)
    router = start_router("--wait-ready", "20s")
    sdk = start_sdk(router)
    sdk.tell({"do": "run", "command": "echo hello"})
    while not [line for line in router.admin("/metrics").body.decode().splitlines() if _waits(line)]:
        pass
    cluster.put("box", pod.address)
    assert sdk.hear()["value"]["stdout"] == "hello\n"
    impatient = start_router("--wait-ready", "0")
    cluster.put("box", ready=False)
    late = start_sdk(impatient)
    while impatient.get("/", headers={"X-Sandbox-ID": "box"}).status != 503:
        pass
    refused = late.call("run", command="echo hello")
    assert (refused["status"], "not ready" in refused["text"]) == (503, True)
    late.tell({"do": "exists", "path": "x"})
    cluster.put("box", pod.address)
    assert late.hear()["value"] is False


def _waits(line: str) -> bool:
    return "connections" in line and not line.startswith("#") and line.rpartition(" ")[2] not in ("0", "0.0")


def test_an_address_that_is_nobodys_now(cluster: Cluster, start_router: Any, start_sdk: Any) -> None:
    """Suspended and resumed: the SDK goes on sending the address that it has learned, until it is answered 5xx."""
    pod = cluster.sandbox()
    cluster.api.stale["box"] = {"status": {"podIPs": ["10.77.0.1"]}}
    sdk = start_sdk(start_router())
    assert sdk.value("run", command="echo hello")["stdout"] == "hello\n"
    assert sdk.value("pod_ip") == "10.77.0.1"
    assert len(pod.seen) == 1


def test_a_pod_made_anew(cluster: Cluster, start_router: Any, start_sdk: Any) -> None:
    old = cluster.sandbox()
    cluster.api.stale["box"] = {"status": {}}
    sdk = start_sdk(start_router())
    assert sdk.value("exists", path="x") is False
    assert sdk.value("pod_ip") is None, "it couldn't learn an address, and sends none"
    new = cluster.pod("new")
    cluster.put("box", new.address)
    cluster.ends(old)
    assert sdk.value("exists", path="x") is False
    assert new.seen


def test_time_outs(cluster: Cluster, start_router: Any, start_sdk: Any) -> None:
    pod = cluster.sandbox()
    router = start_router(PROXY_TIMEOUT_SECONDS="1")
    told = start_sdk(router).call("send", method="POST", endpoint="slow", timeout=30)
    assert (told["fault"], told["status"]) == ("SandboxRequestError", 504)
    assert "did not answer within 1 s" in told["text"]
    assert pod.last.target == "/slow"


def test_answers_as_they_were_sent(cluster: Cluster, start_router: Any, start_sdk: Any) -> None:
    cluster.sandbox()
    sdk = start_sdk(start_router())
    assert sdk.value("send", method="GET", endpoint="gzip")["text"] == "zipped once"
    assert sdk.call("send", method="GET", endpoint="status/418")["status"] == 418
    dotted = sdk.value("send", method="GET", endpoint="any/%2E%2E/%2e?q=%2F")
    assert dotted["text"].endswith('?q=%2F"}'), "its own client may read the dots in the path"
    cut = sdk.call("send", method="POST", endpoint="broken")
    assert cut["fault"] in ("SandboxRequestError", "ChunkedEncodingError", "RemoteProtocolError", "ConnectionError")


@pytest.mark.parametrize("workers", [2])
def test_two_workers(cluster: Cluster, start_router: Any, start_sdk: Any, workers: int) -> None:
    cluster.sandbox()
    sdk = start_sdk(start_router(workers=workers))
    for number in range(10):
        assert sdk.value("run", command=f"echo {number}")["stdout"] == f"{number}\n"
