"""An injected pod, run by hand in the order that a kubelet has: what the specification says is what is done here.

No kubelet, no container runtime: images are this checkout, a volume is a folder, a start-up probe is a request from
outside to the pod's address. Everything else (order, environment, capabilities, probe, mounts) is read from the pod.
"""

from __future__ import annotations

import json
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest

from egress.kubernetes.inject import inject
from lab import Lab, Sidecar, http
from lab.identity import CONTAINER_ROOT, Identity
from tests.blackbox.kubelet import ENFORCED, OPEN, environment, knocking, outcomes
from tests.pure.kubernetes.pods import sidecar

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Kubelet:
    """Starts an injected pod's containers in their order, each only when the one before lets it."""

    def __init__(self, lab: Lab, document: dict[str, Any], folder: Path) -> None:
        self.lab = lab
        self.document = document
        self.resolv_conf = folder / "resolv.conf"
        self.resolv_conf.write_text("nameserver 203.0.113.53\nsearch default.svc.cluster.local\noptions ndots:5\n")
        self.sidecar: Sidecar | None = None
        self.ran: list[str] = []

    def run(self) -> dict[str, dict[str, str]]:
        """Each container's lines, by its name."""
        said = {}
        for one in self.document["spec"].get("initContainers", []):
            if one.get("restartPolicy") == "Always":
                self._start_sidecar(one)
            else:
                said[one["name"]] = self.container(one)
        for one in self.document["spec"]["containers"]:
            said[one["name"]] = self.container(one)
        return said

    def close(self) -> None:
        if self.sidecar is not None:
            self.sidecar.close()

    def _start_sidecar(self, one: dict[str, Any]) -> None:
        security = one["securityContext"]
        assert security["capabilities"]["drop"] == ["ALL"]
        assert security["runAsUser"] == 0
        kept = tuple(name.lower() for name in security["capabilities"]["add"])
        identity = Identity("the injected sidecar", capabilities=kept, no_new_privileges=True)
        self.sidecar = Sidecar(
            self.lab,
            env={"TOKEN": None, "DNS_UPSTREAM": None, **environment(one, self.document)},
            identity=identity,
            wait=False,
            resolv_conf=self.resolv_conf.read_text(),
        )
        (mount,) = one["volumeMounts"]
        assert mount["mountPath"].startswith("/run/")
        volume = self.sidecar.run / mount["mountPath"].removeprefix("/run/")
        volume.mkdir()
        volume.chmod(0o777)  # as a kubelet makes an emptyDir
        self.sidecar.start()
        self.probe(one["startupProbe"])
        self.ran.append(one["name"])

    def probe(self, probe: dict[str, Any]) -> None:
        """From the node, to the pod's address; a slow machine is given what a slow node gets from its kubelet."""
        end = time.monotonic() + max(30, probe["periodSeconds"] * probe["failureThreshold"])
        get = probe["httpGet"]
        while True:
            try:
                with self.lab.dial_in(get["port"], timeout=5) as sock:
                    if http.exchange(sock, "GET", get["path"]).status == 200:
                        return
            except OSError:
                pass
            assert self.sidecar is None or self.sidecar.returncode is None, self.sidecar.log
            assert time.monotonic() < end, self.sidecar.log if self.sidecar else ""
            time.sleep(0.02)

    def container(self, one: dict[str, Any]) -> dict[str, str]:
        drop = one.get("securityContext", {}).get("capabilities", {}).get("drop", [])
        kept = tuple(
            name for name in CONTAINER_ROOT.capabilities or () if name.upper() not in drop and "ALL" not in drop
        )
        own_resolver = 'mount -B "$0" "$(readlink -f /etc/resolv.conf)" && exec "$@"'
        argv = ["unshare", "--mount", "/bin/sh", "-c", own_resolver, str(self.resolv_conf),
                *Identity("the container", capabilities=kept).prefix(), *one["command"]]  # fmt: skip
        done = self.lab.run(argv, timeout=60, check=True)
        self.ran.append(one["name"])
        return outcomes(done.stdout)


@pytest.fixture
def world(lab: Lab) -> Lab:
    lab.dns.a("api.example.com", "198.51.100.10")
    lab.dns.a("other.example.com", "198.51.100.20")
    return lab


@pytest.fixture
def kubelets(world: Lab, tmp_path: Path) -> Iterator[list[Kubelet]]:
    started: list[Kubelet] = []
    yield started
    for one in started:
        one.close()


def started(kubelets: list[Kubelet], lab: Lab, document: dict[str, Any], folder: Path) -> Kubelet:
    made = Kubelet(lab, document, folder)
    kubelets.append(made)
    return made


def test_as_it_was_given_everything_arrives(world: Lab, kubelets: list[Kubelet], tmp_path: Path) -> None:
    """The control: the same pod, without the sidecar."""
    assert started(kubelets, world, knocking(), tmp_path).run() == {"first": OPEN, "app": OPEN}


def test_the_injected_pod_is_guarded_from_its_first_init_container_on(
    world: Lab, kubelets: list[Kubelet], tmp_path: Path
) -> None:
    kubelet = started(kubelets, world, inject(knocking()).document, tmp_path)
    assert kubelet.run() == {"first": ENFORCED, "app": ENFORCED}
    assert kubelet.ran == ["egress", "first", "app"]
    guard = kubelet.sidecar
    assert guard is not None
    policy = json.loads(guard.api("GET", "/policy", token=None).text)
    assert policy["enforcementMode"] == "dns+nft"
    assert policy["policy"]["egress"][0]["comment"] == "costs $(SALLYPORT_MODE) $$"
    assert guard.api("PUT", "/policy", {"defaultAction": "allow"}, token=None).status == 401  # no token, no change
    assert all(event["sandbox_id"] == "box" for event in guard.events("egress.loaded"))


def test_a_restart_of_the_sidecar_opens_nothing_and_keeps_what_was_changed(
    world: Lab, kubelets: list[Kubelet], tmp_path: Path
) -> None:
    kubelet = started(kubelets, world, inject(knocking()).document, tmp_path)
    kubelet.run()
    guard = kubelet.sidecar
    assert guard is not None
    rules = {"egress": [{"action": "allow", "target": "other.example.com"}]}
    socket_path = guard.run / "sallyport" / "egress.sock"
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(10)
    sock.connect(str(socket_path))
    assert http.exchange(sock, "PUT", "/policy", body=json.dumps(rules).encode()).status == 200
    guard.kill()  # the container is gone; the pod's network namespace, and what stands in it, is not
    (app,) = kubelet.document["spec"]["containers"]
    dead = kubelet.container(app)
    assert dead["198.51.100.20:80"] == "ConnectionRefusedError"
    assert "connected" not in dead.values()
    guard.restart()  # with the same volume, as restartPolicy: Always has it
    kubelet.probe(sidecar(kubelet.document)["startupProbe"])
    after = kubelet.container(app)
    assert after["other.example.com:80"] == "connected"
    assert after["api.example.com:80"] == "gaierror"
