"""`egress attach`: a container that runs already, guarded from outside."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from lab.sites import STREAM_PORT
from tests.docker.daemon import IMAGE, USR, Daemon, until

if TYPE_CHECKING:
    from pathlib import Path

API, OTHER = "http://api.example.com/", "http://other.example.com/"
STREAM = """
import socket
s = socket.create_connection(("other.example.com", %d))
print("connected", flush=True)
try:
    while s.recv(4096): print("more", flush=True)
except OSError as error: print("cut", error.errno, flush=True)
import time; time.sleep(600)
"""


class Attached:
    """The command in the background, and its log."""

    def __init__(self, host: Daemon, *arguments: str) -> None:
        self.path = host.folder / "attach.log"
        with self.path.open("wb") as log:
            self.process = subprocess.Popen(
                host.inside([sys.executable, "-m", "egress", "attach", *arguments]),
                env=host.environment(),
                stdout=log,
                stderr=log,
            )

    def said(self, words: str) -> dict[str, Any]:
        def found() -> dict[str, Any] | None:
            lines = self.path.read_text().split("\n")[:-1]
            entries = [json.loads(line) for line in lines if line.startswith("{")]
            return next((entry for entry in entries if words in entry["msg"]), None)

        entry: dict[str, Any] = until(found, what=self.path.read_text)
        return entry


@pytest.fixture
def policy(tmp_path: Path) -> str:
    path = tmp_path / "policy.yaml"
    path.write_text("egress:\n  - {action: allow, target: api.example.com}\n")
    return str(path)


@pytest.fixture
def box(host: Daemon) -> str:
    """A container on Docker's default bridge, which reaches everything."""
    host.docker("run", "-d", "--name=box", USR, IMAGE, "/usr/bin/python3", "-c", STREAM % STREAM_PORT)
    until(lambda: "more" in host.docker("logs", "box"))
    assert "Hello from" in fetch(host, OTHER)
    return "box"


def fetch(host: Daemon, url: str) -> str:
    return host.docker("exec", "box", "/bin/sh", "-c", f"curl -sS -m 30 {url} 2>&1 || true")


def test_what_was_open_before_counts_as_new(host: Daemon, box: str, policy: str) -> None:
    attached = Attached(host, box, "--policy", policy)
    try:
        entry = attached.said("policy loaded")
        assert (entry["sandbox_id"], entry["policy"]) == ("box", policy)
        assert "resolve host" in fetch(host, OTHER)
        assert "connect" in fetch(host, "http://198.51.100.20/")  # resolved before, and open then
        assert "Hello from" in fetch(host, API)
        until(lambda: "cut" in host.docker("logs", "--tail=1", box))
        assert attached.said("denied name other.example.com")
        host.docker("rm", "-f", box)
        assert attached.process.wait(60) == 0
        assert attached.said("box has ended")
    finally:
        attached.process.kill()
        attached.process.wait()


def test_killed_it_leaves_the_rules(host: Daemon, box: str, policy: str) -> None:
    attached = Attached(host, box, "--policy", policy, "--allow", "other.example.com")
    attached.said("policy loaded")
    assert "Hello from" in fetch(host, OTHER)
    attached.process.kill()
    attached.process.wait()
    assert "Hello from" in fetch(host, "http://198.51.100.20/")  # learned, and open until its time is over
    assert "connect" in fetch(host, "http://198.51.100.30/")
    assert "resolve host" in fetch(host, API)
    again = Attached(host, box, "--policy", policy)
    again.said("policy loaded")
    assert "Hello from" in fetch(host, API)
    assert "connect" in fetch(host, "http://198.51.100.20/")
    again.process.terminate()
    assert again.process.wait(60) == 0
    assert again.said("leaving; the rules stand")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--cap-add=NET_ADMIN",), "box cannot be guarded: it has NET_ADMIN, with which it can take the rules away"),
        (("--network=host",), "box cannot be guarded: it shares the host's network"),
    ],
)
def test_what_no_guard_would_hold_is_refused(host: Daemon, policy: str, options: tuple[str, ...], words: str) -> None:
    host.docker("run", "-d", "--name=box", USR, *options, IMAGE, "/bin/sleep", "600")
    done = host.egress("attach", "box", "--policy", policy)
    assert done.returncode == 1
    assert words in done.stderr


def test_a_wrong_call_is_told_in_one_line(host: Daemon, policy: str) -> None:
    for arguments, code, words in (
        (("nobody", "--policy", policy), 1, "No such container: nobody"),
        (("nobody",), 2, "no policy given"),
        (("nobody", "--policy", policy, "--docker-host", "tcp://192.0.2.1:2375"), 2, "has to be on this machine"),
        (("nobody", "--policy", policy, "--docker-host", "unix:///no/such.sock"), 1, "no Docker daemon answers there"),
    ):
        done = host.egress("attach", *arguments)
        assert done.returncode == code
        assert words in done.stderr
        assert len(done.stderr.splitlines()) == 1
