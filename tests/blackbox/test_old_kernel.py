"""E6 where the kernel has no netdev egress hook: it is said, and where it is required there is no start."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lab import Lab, Sidecar
from lab.identity import SIDECAR_WITH_RAW
from tests.blackbox.place import REJECTED, allow, soon

if TYPE_CHECKING:
    from collections.abc import Mapping

PROJECT = str(Path(__file__).resolve().parents[2])

# `egress serve` on a kernel that answers as those before Linux 5.16 do.
OLD = r"""
import os, sys
from egress.firewall import FirewallError, nft

run = nft.Nft.run

def old(self, text, *, check=False):
    if "hook egress" in text:
        raise FirewallError("Operation not supported")
    return run(self, text, check=check)

nft.Nft.run = old
"""
SERVE = (
    OLD
    + """
from egress.supervisor import serve
sys.exit(serve(os.environ))
"""
)
DOCTOR = """
from egress.__main__ import main
sys.exit(main(["doctor", "--json", "--offline"]))
"""


def on_an_old_kernel(lab: Lab, env: Mapping[str, str | None], *, wait: bool = True) -> Sidecar:
    sidecar = Sidecar(
        lab,
        policy=allow("198.51.100.10"),
        env=env,
        argv=(sys.executable, "-c", SERVE),
        identity=SIDECAR_WITH_RAW,
        wait=wait,
    )
    sidecar.env["PYTHONPATH"] = PROJECT
    return sidecar


def frame(lab: Lab) -> bool:
    """Does a datagram get out through a packet socket?"""
    from tests.real.firewall import packets

    data = packets.ethernet(lab, packets.udp(lab.link.sandbox, 4444, "198.51.100.66", 9, b"smuggled"))
    with lab.capture() as wire:
        packets.send_frame(lab, "eth0", data)
        return bool(wire.packets(0.3, payload=b"smuggled"))


def test_e6_without_the_hook_start_up_says_so_and_everything_else_holds(lab: Lab) -> None:
    with on_an_old_kernel(lab, {}) as sidecar:
        assert "packet sockets are not guarded (no netdev egress hook, Linux 5.16): drop CAP_NET_RAW" in sidecar.log
        assert lab.connect("198.51.100.10", 80) == "connected"
        assert lab.connect("198.51.100.20", 80) in REJECTED
        assert soon(lambda: frame(lab)), "the control: what is said is so"
    with Sidecar(lab, policy=allow("198.51.100.10")) as sidecar:
        assert "packet sockets are not guarded" not in sidecar.log
        assert not frame(lab)


def test_e6_required_it_is_an_error_that_leaves_the_sandbox_closed(lab: Lab) -> None:
    with on_an_old_kernel(lab, {"REQUIRE": "raw"}, wait=False) as sidecar:
        assert sidecar.process is not None
        assert sidecar.process.wait(60) == 2
        (line,) = [line for line in sidecar.log.splitlines() if "OPENSANDBOX_EGRESS_REQUIRE" in line]
        assert "asks for raw" in line
        assert "Traceback" not in sidecar.log
        for host in ("198.51.100.10", "198.51.100.20", "2001:db8:100::10"):
            assert lab.connect(host, 80) in REJECTED
        with lab.sandbox.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
            assert sock.connect_ex(("127.0.0.1", 18080)), "and nothing answers"


@pytest.mark.parametrize("old", [True, False], ids=["without", "with"])
def test_e6_doctor_says_whether_there_is_the_hook(lab: Lab, old: bool) -> None:
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": PROJECT, "OPENSANDBOX_EGRESS_DNS_UPSTREAM": "203.0.113.53"}
    code = (OLD if old else "import sys") + DOCTOR
    done = lab.run([sys.executable, "-c", code], env=env, timeout=60)
    findings = {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert (findings["packet_sockets"]["state"] == "ok") is not old, findings["packet_sockets"]
