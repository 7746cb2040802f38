"""`egress docker run`: a container behind a sidecar of its own, and nothing left of either."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.docker.daemon import IMAGE, SIDECAR, USR, until

if TYPE_CHECKING:
    from tests.docker.daemon import Daemon

OPTIONS = ("docker", "run", "--sidecar-image", SIDECAR)
ALLOW = ("--allow", "api.example.com")


@pytest.fixture(autouse=True)
def sidecar(host: Daemon) -> None:
    host.load_sidecar()


def nothing_left(host: Daemon) -> bool:
    return not host.docker("ps", "-aq") and not host.docker("volume", "ls", "-q")


def test_the_policy_holds_and_the_exit_code_is_the_containers(host: Daemon) -> None:
    script = """
    echo "as $VARIABLE on $(hostname)"
    cd /tmp
    curl -sS -m 30 http://api.example.com/ 2>&1
    curl -sS -m 30 http://other.example.com/ 2>&1
    curl -sS -m 30 http://198.51.100.20/ 2>&1
    grep CapBnd /proc/self/status
    exit 7
    """
    done = host.egress(*OPTIONS, *ALLOW, USR, "-e", "VARIABLE=this", "-h", "box", "--", IMAGE, "/bin/sh", "-c", script)
    assert done.returncode == 7, done.stderr
    assert "as this on box" in done.stdout
    assert "Hello from web" in done.stdout
    assert "Could not resolve host: other.example.com" in done.stdout
    assert "Failed to connect to 198.51.100.20" in done.stdout
    bounding = int(done.stdout.split("CapBnd:")[1].split()[0], 16)
    assert not bounding & (1 << 12 | 1 << 13)  # NET_ADMIN, NET_RAW
    assert nothing_left(host)


def test_a_published_port_leads_to_the_container_and_a_signal_ends_it(host: Daemon) -> None:
    code = "import signal,sys,http.server as h\nsignal.signal(15,lambda *_:sys.exit(9))\n"
    code += "h.HTTPServer(('',80),h.SimpleHTTPRequestHandler).serve_forever()"
    command = (*OPTIONS, *ALLOW, USR, "--name=box", "-p8080:80", "--", IMAGE, "/usr/bin/python3", "-c", code)
    process = subprocess.Popen(
        host.inside([sys.executable, "-m", "egress", *command]), env=host.environment(),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until(lambda: answers(host))
        assert host.inspect("box-egress")["Config"]["Labels"]["sallyport.sidecar"] == "run"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 9
    finally:
        process.kill()
        process.wait()
    assert nothing_left(host)


def test_a_docker_command_that_is_killed_leaves_nothing_behind(host: Daemon) -> None:
    command = (*OPTIONS, *ALLOW, USR, "--name=box", "--", IMAGE, "/bin/sleep", "600")
    process = subprocess.Popen(
        host.inside([sys.executable, "-m", "egress", *command]), env=host.environment(),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until(lambda: host.docker("ps", "-q", "--filter", "name=^box$", "--filter", "status=running"))
        (client,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(client), signal.SIGKILL)
        assert process.wait(60) == 128 + signal.SIGKILL
    finally:
        process.kill()
        process.wait()
    assert nothing_left(host)


def answers(host: Daemon) -> bool:
    try:
        with host.lab.dial_in(8080) as sock:
            sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return b"200 OK" in sock.recv(4096)
    except (TimeoutError, OSError):
        return False


def test_a_sidecar_that_cannot_start_says_why(host: Daemon) -> None:
    done = host.egress(*OPTIONS, *ALLOW, "--upstream", "127.0.0.1", USR, "--", IMAGE, "true")
    assert done.returncode == 125
    assert "OPENSANDBOX_EGRESS_DNS_UPSTREAM" in done.stderr
    assert nothing_left(host)
    missing = host.egress("docker", "run", *ALLOW, "--sidecar-image", "no-such-image", "--", IMAGE, "true")
    assert missing.returncode == 125
    assert "the image no-such-image is not here; build it: docker build -f Dockerfile.egress" in missing.stderr


def test_a_network_of_ones_own(host: Daemon) -> None:
    host.docker("network", "create", "mine")
    try:
        refused = host.egress(*OPTIONS, *ALLOW, "--network=mine", USR, "--", IMAGE, "true")
        assert refused.returncode == 2
        assert "--upstream 192.0.2.53" in refused.stderr
        done = host.egress(
            *OPTIONS, *ALLOW, "--network=mine", "--upstream=203.0.113.53", USR, "--", IMAGE,
            "/usr/bin/curl", "-sS", "-m", "30", "http://api.example.com/",
        )  # fmt: skip
        assert "Hello from web" in done.stdout, done.stderr
    finally:
        host.docker("network", "rm", "mine")
