"""The gateway's image: built as a user builds it, run read-only and without privileges, with a sandbox behind it.

What it needs, and when it is left out: as in test_image.py.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from tests.blackbox.test_image import build, docker, stop, wait_listening

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

IMAGE = "sallyport-ingress:test"
SANDBOX_PORT = "8000"
PYTHON = "/opt/venv/bin/python"
ASK = """
import http.client, sys
host, port, path, *headers = sys.argv[1:]
connection = http.client.HTTPConnection(host, int(port), timeout=30)
connection.request("GET", path, headers=dict(header.split(": ", 1) for header in headers))
response = connection.getresponse()
print(response.status, response.read().decode(errors="replace"))
"""
SERVE = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = ("sandbox " + self.path).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.HTTPServer(("", 8000), Handler).serve_forever()
"""


def fresh() -> str:
    return f"sp-test-{uuid.uuid4().hex[:8]}"


def address(name: str) -> str:
    return docker("inspect", "--format", "{{.NetworkSettings.Networks.bridge.IPAddress}}", name).stdout.strip()


@pytest.fixture(scope="module")
def image() -> str:
    return build("ingress", IMAGE)


@pytest.fixture
def sandbox(image: str) -> Iterator[str]:
    """A container that serves on port 8000; its name. It says so by its labels, for the Docker provider."""
    name = fresh()
    docker(
        "run", "--detach", "--name", name, "--no-healthcheck", "--label", "sallyport.sandbox=box",
        "--entrypoint", PYTHON, image, "-c", SERVE,
    )  # fmt: skip
    try:
        wait_listening(name, PYTHON, int(SANDBOX_PORT))
        yield name
    finally:
        docker("rm", "--force", "--volumes", name)


class Gate:
    """A running gateway container, asked from inside, since not every daemon's networks are reachable from here."""

    def __init__(self, image: str, run: list[str], flags: list[str]) -> None:
        self.name = fresh()
        docker(
            "run", "--detach", "--name", self.name, "--read-only", "--cap-drop", "ALL",
            "--security-opt", "no-new-privileges", *run, image, *flags,
        )  # fmt: skip

    def ask(self, path: str, *headers: str, port: int = 28888) -> str:
        done = docker("exec", self.name, PYTHON, "-c", ASK, "127.0.0.1", str(port), path, *headers, check=False)
        return done.stdout.strip() or done.stderr.strip().splitlines()[-1]

    def wait_ready(self) -> None:
        deadline = time.monotonic() + 60
        while not self.ask("/readyz", port=28889).startswith("200"):
            assert time.monotonic() < deadline, docker("logs", self.name).stderr
            time.sleep(0.1)

    def close(self) -> None:
        docker("rm", "--force", "--volumes", self.name)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_sandbox_is_reached_all_three_ways_from_a_read_only_image(image: str, sandbox: str, tmp_path: Path) -> None:
    routes = tmp_path / "routes.json"
    routes.write_text(json.dumps({"sandboxes": {"box": {"host": address(sandbox)}}}))
    routes.chmod(0o644)
    for folder in tmp_path.parents:
        if str(folder).startswith("/tmp/pytest"):
            folder.chmod(0o755)
    tmp_path.chmod(0o755)
    gate = Gate(image, ["--volume", f"{tmp_path}:/etc/sallyport:ro"], ["--mode", "header+uri", "--routes",
                "/etc/sallyport/routes.json"])  # fmt: skip
    try:
        gate.wait_ready()
        assert gate.ask("/a", "OpenSandbox-Ingress-To: box-8000") == "200 sandbox /a"
        assert gate.ask("/b", "Host: box-8000.sandboxes.example") == "200 sandbox /b"
        assert gate.ask("/box/8000/c?d") == "200 sandbox /c?d"
        assert gate.ask("/nobody/8000/").startswith("404")
        assert docker("exec", gate.name, "/opt/venv/bin/ingress", "healthcheck").returncode == 0
        assert stop(gate.name) == 0
    finally:
        gate.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_docker_provider_finds_the_sandbox_by_its_label(image: str, sandbox: str) -> None:
    path = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")
    run = ["--volume", f"{path}:/var/run/docker.sock", "--group-add", str(os.stat(path).st_gid)]
    gate = Gate(image, run, ["--provider-type", "docker", "--mode", "uri"])
    try:
        gate.wait_ready()
        assert gate.ask("/box/8000/x") == "200 sandbox /x"
        docker("stop", "--time", "1", sandbox)
        deadline = time.monotonic() + 60
        while not gate.ask("/box/8000/x").startswith(("404", "503")):
            assert time.monotonic() < deadline
    finally:
        gate.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_healthcheck_follows_the_flags_of_the_container(image: str) -> None:
    gate = Gate(image, [], ["--admin-port=9000", "--workers=1"])
    try:
        deadline = time.monotonic() + 60
        while docker("exec", gate.name, "/opt/venv/bin/ingress", "healthcheck", check=False).returncode:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        gate.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_bad_flag_ends_the_container_with_one_line(image: str) -> None:
    done = docker("run", "--rm", "--read-only", image, "--mode", "path", check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("ingress: --mode: 'path' is not known")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_image_runs_as_nobody_and_holds_nothing_it_does_not_use(image: str) -> None:
    (about,) = json.loads(docker("inspect", image).stdout)
    config: dict[str, Any] = about["Config"]
    assert config["User"] == "65532:65532"
    assert config["Entrypoint"] == ["/opt/venv/bin/ingress", "serve"]
    assert config["Healthcheck"]["Test"] == ["CMD", "/opt/venv/bin/ingress", "healthcheck"]
    assert sorted(config["ExposedPorts"]) == ["28888/tcp", "28889/tcp"]
    listing = (
        "import pkgutil, sysconfig; print(*(m.name for m in pkgutil.iter_modules([sysconfig.get_path('purelib')])))"
    )
    packages = docker("run", "--rm", "--entrypoint", PYTHON, image, "-c", listing).stdout.split()
    assert {"ingress", "policies", "uvloop", "httptools", "aiohttp", "yaml", "redis"} <= set(packages)
    assert not {"egress", "lab", "pip", "setuptools", "h11", "nftables", "tests"} & set(packages)
