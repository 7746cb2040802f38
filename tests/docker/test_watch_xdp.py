"""E6 from outside: what would lead past a watched container's rules, XDP sockets and tc, leads to a closed gate."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.blackbox.test_threats_xdp import PAYLOAD, SEND, frame
from tests.docker.daemon import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.docker.watching import Watching


def send(watching: Watching, name: str) -> str:
    """Try it from inside the container; what hindered, or ""."""
    done = subprocess.run(
        ["docker", "exec", name, "/usr/bin/python3", "-I", "-S", "-c", SEND, "eth0", frame().hex()],
        capture_output=True, text=True, env=watching.host.environment(), timeout=60,
    )  # fmt: skip
    if "Address family not supported" in done.stderr:
        pytest.skip("this kernel, or Docker's filter of system calls, has no XDP sockets")
    return done.stderr.strip()


def test_e6_a_watched_container_gets_no_xdp_socket(watching: Watching) -> None:
    watching.run("raw")
    watching.guarded("raw")
    with watching.host.lab.capture() as wire:
        assert "Device or resource busy" in send(watching, "raw")
        assert not wire.packets(0.3, payload=PAYLOAD)


def test_e6_one_that_holds_an_xdp_socket_already_is_not_let_through(watching: Watching, tmp_path: Path) -> None:
    script = tmp_path / "hold.py"
    first, then = "import sys; sys.stderr = sys.stdout\n", "print('held', flush=True)\nimport time\ntime.sleep(600)\n"
    script.write_text(f"{first}{SEND}\n{then}")
    volume = f"--volume={script}:/hold.py:ro"
    with watching.held():
        watching.run("early", "/usr/bin/python3", "-I", "-S", "/hold.py", "eth0", frame().hex(), options=(volume,))
        said: str = until(lambda: watching.host.docker("logs", "early"))
        if "Address family not supported" in said:
            pytest.skip("this kernel, or Docker's filter of system calls, has no XDP sockets")
        assert said == "held"
    watching.said("somebody has one on eth0 already")
    assert not watching.reaches("early", "http://198.51.100.10/")


def test_a_machine_that_tc_joins_to_the_network_stays_behind_the_gate(watching: Watching) -> None:
    """As Kata joins the tap device of its machine to the container's eth0: past every rule in there."""
    inside = ["ip link add tap0_kata type veth peer name vm0", "ip link set tap0_kata up", *redirect()]
    with watching.held():
        watching.run("machine")
        pid = watching.host.docker("inspect", "--format={{.State.Pid}}", "machine").strip()
        for command in inside:
            done = subprocess.run(["nsenter", "-t", pid, "-n", *command.split()], capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"{command}: {done.stderr.strip()}")
    watching.said("tc redirects what comes in on tap0_kata")
    assert not watching.reaches("machine", "http://198.51.100.10/")


def redirect() -> tuple[str, str]:
    rule = "filter add dev tap0_kata parent ffff: protocol all u32 match u8 0 0 action mirred egress redirect dev eth0"
    return "tc qdisc add dev tap0_kata ingress", f"tc {rule}"
