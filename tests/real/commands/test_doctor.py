"""`egress doctor`: it tells the truth about this kernel, and leaves everything as it was."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from egress.callfilter import MACHINES
from egress.commands.scratch import ScratchError, apart, as_nobody, within
from egress.commands.trial import _check
from tests.pure.commands.calling import CHECKOUT, egress

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = f"sp-cli-doctor-{os.getpid()}"
ISTIO = """table ip nat {
	chain ISTIO_OUTPUT {
		meta l4proto tcp redirect to :15001
	}
	chain OUTPUT {
		type nat hook output priority -100; policy accept;
		jump ISTIO_OUTPUT
	}
}
"""
DOCKER = """table ip nat {
	chain DOCKER_OUTPUT {
		ip daddr 127.0.0.11 udp dport 53 dnat to 127.0.0.11:40000
	}
	chain OUTPUT {
		type nat hook output priority -100; policy accept;
		ip daddr 127.0.0.11 jump DOCKER_OUTPUT
	}
	chain POSTROUTING {
		type nat hook postrouting priority 100; policy accept;
		masquerade
	}
}
"""


@pytest.fixture
def namespace() -> Iterator[str]:
    subprocess.run(["ip", "netns", "add", NAME], check=True)
    subprocess.run(["ip", "-n", NAME, "link", "set", "lo", "up"], check=True)
    yield NAME
    subprocess.run(["ip", "netns", "del", NAME], check=True)


def inside(*command: str, stdin: str | None = None, env: dict[str, str] | None = None) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OPENSANDBOX_EGRESS_")}
    done = subprocess.run(
        ["ip", "netns", "exec", NAME, *command], input=stdin, capture_output=True, text=True, timeout=60,
        env={**environ, "PYTHONPATH": str(CHECKOUT), "OPENSANDBOX_EGRESS_DNS_UPSTREAM": "192.0.2.53", **(env or {})},
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def doctor(*arguments: str, **env: str) -> tuple[bool, dict[str, Any]]:
    text = inside(sys.executable, "-m", "egress", "doctor", "--json", "--offline", *arguments, env=env)
    report = json.loads(text)
    return report["holds"], {finding["name"]: finding for finding in report["findings"]}


def test_it_changes_nothing(namespace: str) -> None:
    inside("nft", "-f", "-", stdin=DOCKER)

    def state() -> list[str]:
        looks = (["nft", "list", "ruleset"], ["ip", "-j", "addr"], ["ip", "-j", "link"], ["ss", "-lntuxH"])
        return [inside(*look) for look in looks]

    before, namespaces = state(), set(os.listdir("/run/netns"))
    holds, found = doctor()
    assert holds
    assert found["ruleset"]["found"] == "loaded and taught in a namespace of its own"
    assert state() == before
    labs = re.compile(r"sp-(cli-doctor-)?\d+")  # other tests' on this machine come and go meanwhile
    assert {name for name in os.listdir("/run/netns") if not labs.match(name)} <= namespaces


def test_the_kernel_holds_what_it_is_said_to_hold(namespace: str) -> None:
    """Positive and negative: what doctor says of the packet sockets is what nft says when asked."""
    _, found = doctor()
    chain = 'table netdev probe { chain c { type filter hook egress devices = { "lo" } priority 0; } ; }'
    takes = subprocess.run(["ip", "netns", "exec", NAME, "nft", "-c", chain], capture_output=True).returncode == 0
    assert (found["packet_sockets"]["state"] == "ok") is takes
    assert {"libnftables", "net_admin", "conntrack", "sock_destroy", "nflog", "ct_timeout", "memory"} <= found.keys()


def test_what_the_guard_can_give_up_is_tried(namespace: str) -> None:
    _, found = doctor()
    finding = found["privileges"]
    kernel = Path("/proc/sys/kernel/seccomp/actions_avail").exists()
    assert ("system calls filtered" in finding["found"]) is (kernel and os.uname().machine in MACHINES)
    assert "capabilities but NET_ADMIN given up" in finding["found"]
    assert (finding["state"] == "ok") is ("filtered" in finding["found"] and "Landlock" in finding["found"])


def test_a_second_interceptor_is_a_conflict_docker_is_none(namespace: str) -> None:
    assert doctor()[1]["interceptors"]["state"] == "ok"
    inside("nft", "-f", "-", stdin=DOCKER)
    assert doctor()[1]["interceptors"]["state"] == "ok"
    inside("nft", "flush", "ruleset")
    inside("nft", "-f", "-", stdin=ISTIO)
    holds, found = doctor()
    assert not holds
    assert found["interceptors"]["state"] == "missing"
    assert "Istio: redirect in table ip nat, chain ISTIO_OUTPUT" in found["interceptors"]["found"]
    holds, found = doctor("--for", "run")
    assert holds is (found["connectivity"]["state"] == "ok")


def test_iptables_redirects_are_seen(namespace: str) -> None:
    added = subprocess.run(
        ["ip", "netns", "exec", NAME, "iptables-nft", "-t", "nat", "-A", "OUTPUT", "-p", "tcp", "-j", "REDIRECT",
         "--to-ports", "15001"], capture_output=True,
    )  # fmt: skip
    if added.returncode:
        pytest.skip("no iptables-nft that adds a redirect here")
    assert "redirect in table ip nat, chain OUTPUT" in doctor()[1]["interceptors"]["found"]


def test_a_taken_port_and_a_bad_setting(namespace: str) -> None:
    assert doctor()[1]["api_port"]["state"] == "ok"
    holder = subprocess.Popen(
        ["ip", "netns", "exec", NAME, sys.executable, "-c",
         "import socket; s = socket.create_server(('', 18080)); print(flush=True); input()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdout is not None
    holder.stdout.readline()
    holds, found = doctor()
    holder.communicate(b"\n", timeout=60)
    assert (holds, found["api_port"]["state"]) == (False, "missing")
    assert doctor(OPENSANDBOX_EGRESS_HTTP_ADDR=":18081")[0]
    holds, found = doctor(OPENSANDBOX_EGRESS_RULES='{"egress": [{"action": "allow", "target": "a..b"}]}')
    assert (holds, found["settings"]["state"]) == (False, "missing")
    assert "OPENSANDBOX_EGRESS_RULES" in found["settings"]["found"]
    assert "$.egress[0].target" in found["settings"]["found"]
    holds, found = doctor(OPENSANDBOX_EGRESS_DNS_UPSTREAM="127.0.0.11")
    assert (holds, found["resolvers"]["state"]) == (False, "missing")


def test_a_resolver_that_is_silent_is_said_to_be(namespace: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mute:
        mute.bind(("127.0.0.1", 0))
        from egress.commands.surroundings import silent
        from egress.config import Endpoint

        endpoint = Endpoint(bytes((127, 0, 0, 1)), mute.getsockname()[1])
        closed = Endpoint(bytes((127, 0, 0, 1)), 9)
        assert set(silent([endpoint, closed])) == {endpoint, closed}


def test_without_the_capability(namespace: str) -> None:
    text = inside("setpriv", "--bounding-set", "-net_admin,-sys_admin", "--inh-caps", "-all",
                  sys.executable, "-m", "egress", "doctor", "--json", "--offline", "--for", "serve")  # fmt: skip
    report = json.loads(text)
    found = {finding["name"]: finding for finding in report["findings"]}
    assert not report["holds"]
    assert found["net_admin"]["state"] == "missing"
    assert "NET_ADMIN" in found["net_admin"]["advice"]


def test_where_no_namespace_may_be_made_the_kernel_is_only_asked(namespace: str) -> None:
    before = inside("nft", "list", "ruleset")
    with open(f"/run/netns/{NAME}", "rb") as file:

        def work() -> object:
            from egress.isolation import syscalls

            syscalls.setns(file.fileno(), syscalls.CLONE_NEWNET)
            return _check()

        where, problem, raw = apart(work)[:3]
    assert (where, problem) == ("check", "")
    assert raw in ("devices", "none")
    assert inside("nft", "list", "ruleset") == before


def test_a_scratch_namespace_is_another_one_and_its_errors_are_told() -> None:
    def me() -> str:
        return os.readlink("/proc/self/ns/net")

    here = me()
    assert within(me) != here
    assert me() == here
    assert as_nobody(os.getuid) == 65534
    with pytest.raises(ScratchError, match="No such file"):
        within(lambda: os.readlink("/no/such"))
    with pytest.raises(ScratchError, match="died"):
        apart(lambda: os._exit(1))


def test_for_people() -> None:
    done = egress("doctor", "--offline", "--for", "serve", env={"OPENSANDBOX_EGRESS_DNS_UPSTREAM": "192.0.2.53"})
    lines = done.stdout.splitlines()
    assert lines[-1].startswith("egress serve: everything it needs holds here") is (done.returncode == 0)
    assert all(line.split()[0] in ("ok", "note", "limited", "missing", "->") for line in lines[:-2])
    done = egress("doctor", "--help")
    assert done.returncode == 0
    assert "limited" in done.stdout
    assert egress("doctor", "now").returncode == 2
