"""The image: built as a user builds it, run as a container runtime runs it, with a sandbox beside it.

It needs a Docker daemon and a base image. Where there is none (tools/with-docker starts the one, tools/base-image makes
the other) the tests are left out: neither can be had on every machine that has to run the rest.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

CHECKOUT = Path(__file__).resolve().parents[2]
IMAGE = "sallyport-egress:test"
BASES = ("sallyport-base:latest", "debian:bookworm-slim")
TOKEN = "of-this-test-only"
POLICY = {"defaultAction": "deny", "egress": [{"action": "allow", "target": "api.example.com"}]}
CONNECT = """
import errno, socket, sys
try:
    socket.create_connection((sys.argv[1], 80), 10).close()
    print("connected")
except OSError as error:
    print(errno.errorcode.get(error.errno, "timeout"))
"""


def docker(*arguments: str, check: bool = True, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=timeout)
    assert not check or done.returncode == 0, done.stderr
    return done


def missing() -> str:
    """What this machine lacks for these tests, or an empty string."""
    if not shutil.which("docker"):
        return "no docker client (Debian: docker.io)"
    if docker("info", check=False).returncode:
        return "no Docker daemon answers (tools/with-docker starts one)"
    if not base():
        return f"none of the base images is here: {', '.join(BASES)} (tools/base-image makes the first)"
    return ""


def base() -> str:
    present = docker("images", "--format", "{{.Repository}}:{{.Tag}}").stdout.split()
    return next((name for name in BASES if name in present), "")


def build(program: str, tag: str, *options: str) -> str:
    """Build the image of `egress` or `ingress`, as a user does; the tag. Left out where this machine can't."""
    lacks = missing()
    if lacks:
        pytest.skip(lacks)
    done = subprocess.run(
        # The registries are reached as this machine reaches them, whatever network the daemon's containers have.
        ["docker", "build", "--network", "host", "-f", f"Dockerfile.{program}", "--build-arg", f"BASE={base()}",
         *options, "-t", tag, "."],
        cwd=CHECKOUT,
        env={**os.environ, "DOCKER_BUILDKIT": "0"},  # the builder that every Docker has
        capture_output=True,
        text=True,
        timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return tag


@pytest.fixture(scope="module")
def image() -> str:
    return build("egress", IMAGE)


@pytest.fixture
def guard(image: str) -> Iterator[str]:
    """A running sidecar container; its name."""
    name = f"sp-test-{uuid.uuid4().hex[:8]}"
    docker(
        "run", "--detach", "--name", name,
        "--cap-drop", "ALL", "--cap-add", "NET_ADMIN", "--security-opt", "no-new-privileges", "--read-only",
        "--env", f"OPENSANDBOX_EGRESS_TOKEN={TOKEN}",
        "--env", f"OPENSANDBOX_EGRESS_RULES={json.dumps(POLICY)}",
        "--env", "OPENSANDBOX_EGRESS_DNS_UPSTREAM=203.0.113.53",
        "--env", "OPENSANDBOX_EGRESS_POLICY_FILE=/var/egress/policy.json",
        "--mount", "type=volume,destination=/var/egress",
        image,
    )  # fmt: skip
    try:
        yield name
    finally:
        docker("rm", "--force", "--volumes", name)


def wait_ready(name: str) -> None:
    deadline = time.monotonic() + 60
    while docker("exec", name, "/opt/venv/bin/egress", "healthcheck", check=False).returncode:
        assert time.monotonic() < deadline, docker("logs", name).stdout + docker("logs", name).stderr
        time.sleep(0.05)


def wait_listening(name: str, python: str, port: int) -> None:
    """Until something in the container listens: its program has started by then, which takes a busy machine a while."""
    call = f"import socket; socket.create_connection(('127.0.0.1', {port}), 5)"
    deadline = time.monotonic() + 60
    while docker("exec", name, python, "-c", call, check=False).returncode:
        assert time.monotonic() < deadline, docker("logs", name).stderr
        time.sleep(0.05)


def stop(name: str) -> int:
    """End a container by SIGTERM; its exit code, 137 where that was not heard."""
    docker("stop", "--time", "60", name)
    return int(docker("inspect", "--format", "{{.State.ExitCode}}", name).stdout)


def beside(name: str, image: str, *argv: str) -> str:
    """Run Python in a sandbox that has joined the sidecar's network, as Docker's runtime makes them."""
    done = docker(
        "run", "--rm", "--network", f"container:{name}", "--cap-drop", "NET_ADMIN",
        "--entrypoint", "/usr/bin/python3", image, *argv,
    )  # fmt: skip
    return done.stdout.strip()


@pytest.fixture
def peer(image: str) -> Iterator[str]:
    """A web server in a container of its own; its address."""
    name = f"sp-test-{uuid.uuid4().hex[:8]}"
    docker(
        "run", "--detach", "--name", name, "--entrypoint", "/usr/bin/python3", image, "-m", "http.server", "80"
    )  # fmt: skip
    try:
        wait_listening(name, "/usr/bin/python3", 80)
        yield docker("inspect", "--format", "{{.NetworkSettings.Networks.bridge.IPAddress}}", name).stdout.strip()
    finally:
        docker("rm", "--force", "--volumes", name)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_image_guards_with_net_admin_alone_and_a_read_only_root(image: str, guard: str, peer: str) -> None:
    call = (
        "import http.client, sys; c = http.client.HTTPConnection('127.0.0.1', 18080);"
        "c.request(sys.argv[1], '/policy', sys.argv[2] or None, {'OPENSANDBOX-EGRESS-AUTH': sys.argv[3]});"
        "r = c.getresponse(); print(r.status, r.read().decode())"
    )
    patch = json.dumps([{"action": "allow", "target": peer, "ports": [80]}])
    wait_ready(guard)
    supervisor = docker("inspect", "--format", "{{.State.Pid}}", guard).stdout.strip()
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{supervisor}/status").read_text().splitlines())
    assert int(status["CapPrm"], 16) == 1 << 12  # NET_ADMIN, for its workers
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert beside(guard, image, "-c", CONNECT, peer) == "ECONNREFUSED"
    assert beside(guard, image, "-c", call, "PATCH", patch, "wrong").startswith("401")
    assert beside(guard, image, "-c", CONNECT, peer) == "ECONNREFUSED"
    assert beside(guard, image, "-c", call, "PATCH", patch, TOKEN).startswith("200")
    assert beside(guard, image, "-c", CONNECT, peer) == "connected"
    assert stop(guard) == 0
    docker("start", guard)
    wait_ready(guard)
    code, _, body = beside(guard, image, "-c", call, "GET", "", TOKEN).partition(" ")
    assert code == "200"
    targets = [rule["target"] for rule in json.loads(body)["policy"]["egress"]]
    assert targets == [peer, "api.example.com"]  # kept in the volume


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_without_the_guard_the_same_attempt_arrives(image: str, peer: str) -> None:
    done = docker("run", "--rm", "--entrypoint", "/usr/bin/python3", image, "-c", CONNECT, peer)
    assert done.stdout.strip() == "connected"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_image_has_no_shell_at_its_door_and_nothing_it_does_not_use(image: str) -> None:
    (about,) = json.loads(docker("inspect", image).stdout)
    config: dict[str, Any] = about["Config"]
    assert config["Entrypoint"] == ["/opt/venv/bin/egress", "serve"]
    assert config["Healthcheck"]["Test"] == ["CMD", "/opt/venv/bin/egress", "healthcheck"]
    assert not config.get("Volumes"), "what removes a container leaves such a volume behind: OpenSandbox's server"
    assert list(config["ExposedPorts"]) == ["18080/tcp"]
    listing = (
        "import pkgutil, sysconfig; print(*(m.name for m in pkgutil.iter_modules([sysconfig.get_path('purelib')])))"
    )
    packages = docker("run", "--rm", "--entrypoint", "/opt/venv/bin/python", image, "-c", listing).stdout.split()
    assert {"egress", "policies", "h11", "idna", "yaml", "nftables"} <= set(packages)
    assert not {"ingress", "lab", "pip", "setuptools", "aiohttp", "tests"} & set(packages)
