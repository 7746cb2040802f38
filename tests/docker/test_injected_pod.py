"""An injected pod's containers as real ones: its security context, its volume and its environment, on Docker.

What a pod is to a kubelet, a network namespace that a `pause` container holds, Docker can have as well.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from egress.kubernetes.inject import inject
from tests.blackbox.kubelet import ENFORCED, OPEN, environment, knocking, outcomes
from tests.docker.daemon import IMAGE, RESOLVER, SIDECAR, USR, until

if TYPE_CHECKING:
    from tests.docker.daemon import Daemon

DEPLOY = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
QUANTITY = {"Mi": "m", "Gi": "g"}


@pytest.fixture(autouse=True)
def image(host: Daemon) -> None:
    host.load_sidecar()


def pause(host: Daemon) -> str:
    """What holds a pod's namespaces; its address."""
    host.docker("run", "-d", "--name", "pause", "--dns", RESOLVER, USR, IMAGE, "sleep", "infinity")
    found = host.inspect("pause")["NetworkSettings"]["Networks"]["bridge"]["IPAddress"]
    assert isinstance(found, str)
    return found


def constrained(one: dict[str, Any]) -> list[str]:
    """A container's securityContext and limits as `docker run` says them; RuntimeDefault is Docker's own profile."""
    security = one.get("securityContext", {})
    capabilities = security.get("capabilities", {})
    flags = [f"--cap-drop={name}" for name in capabilities.get("drop", [])]
    flags += [f"--cap-add={name}" for name in capabilities.get("add", [])]
    if security.get("readOnlyRootFilesystem"):
        flags.append("--read-only")
    if security.get("allowPrivilegeEscalation") is False:
        flags.append("--security-opt=no-new-privileges")
    if "runAsUser" in security:
        flags.append(f"--user={security['runAsUser']}:{security['runAsGroup']}")
    memory = one.get("resources", {}).get("limits", {}).get("memory")
    if memory:
        flags.append(f"--memory={memory[:-2]}{QUANTITY[memory[-2:]]}")
    return flags


def run(host: Daemon, one: dict[str, Any]) -> dict[str, str]:
    return outcomes(
        host.docker("run", "--rm", "--network=container:pause", *constrained(one), USR, IMAGE, *one["command"])
    )


def test_as_it_was_given_everything_arrives(host: Daemon) -> None:
    """The control."""
    pause(host)
    given = knocking()["spec"]
    assert run(host, given["initContainers"][0]) == OPEN
    assert run(host, given["containers"][0]) == OPEN


def test_with_what_was_put_in_it_is_guarded_from_its_first_init_container_on(host: Daemon) -> None:
    document = inject(knocking()).document
    address = pause(host)
    guard, first = document["spec"]["initContainers"]
    (volume,) = document["spec"]["volumes"]
    (mount,) = guard["volumeMounts"]
    size = f"{volume['emptyDir']['sizeLimit'][:-2]}m"
    variables = [f"--env={name}={value}" for name, value in environment(guard, document).items()]
    host.docker("run", "-d", "--name", "guard", "--network=container:pause", *constrained(guard), *variables,
                f"--tmpfs={mount['mountPath']}:mode=0777,size={size}", SIDECAR)  # fmt: skip
    get = guard["startupProbe"]["httpGet"]
    url = f"http://{address}:{get['port']}{get['path']}"
    until(  # from the node, as a kubelet does
        lambda: not subprocess.run(host.inside(["curl", "-sSf", "-m", "2", url]), capture_output=True).returncode,
        what=lambda: host.docker("logs", "guard"),
    )
    assert run(host, first) == ENFORCED
    assert run(host, document["spec"]["containers"][0]) == ENFORCED
    # `kubectl exec`, which is how a policy without a token is changed
    host.docker("exec", "guard", "/usr/bin/python3", "-m", "egress", "policy", "add", "--allow", "other.example.com:80")
    assert run(host, first)["other.example.com:80"] == "connected"
    assert "policy.json" in host.docker("exec", "guard", "/usr/bin/python3", "-c",
                                        f"import os; print(os.listdir('{mount['mountPath']}'))")  # fmt: skip


def test_the_webhook_runs_as_its_manifest_has_it(host: Daemon, tmp_path: Path) -> None:
    shutil.copy(DEPLOY / "own-certificate" / "make-certificate", tmp_path)
    subprocess.run([tmp_path / "make-certificate"], check=True, capture_output=True)
    (tmp_path / "tls.key").chmod(0o644)
    (tmp_path / "tls.crt").chmod(0o644)
    tmp_path.chmod(0o755)
    _, deployment = yaml.safe_load_all((DEPLOY / "webhook" / "deployment.yaml").read_text())
    spec = deployment["spec"]["template"]["spec"]
    (one,) = spec["containers"]
    user = spec["securityContext"]
    flags = [*constrained(one), f"--user={user['runAsUser']}:{user['runAsGroup']}"]
    program, *arguments = one["command"]
    assert program.endswith("/egress")
    host.docker("run", "-d", "--name", "hook", *flags, f"--volume={tmp_path}:/tls:ro", "--entrypoint=/usr/bin/python3",
                SIDECAR, "-m", "egress", *arguments, "--drain-delay=0")  # fmt: skip
    address = host.inspect("hook")["NetworkSettings"]["Networks"]["bridge"]["IPAddress"]
    probe, (port,) = one["readinessProbe"]["httpGet"], one["ports"]
    url = f"https://{address}:{port['containerPort']}{probe['path']}"
    until(
        lambda: not subprocess.run(host.inside(["curl", "-ksSf", "-m", "2", url]), capture_output=True).returncode,
        what=lambda: host.docker("logs", "hook"),
    )
    host.docker("stop", "-t", "30", "hook", timeout=120)
    assert host.inspect("hook")["State"]["ExitCode"] == 0
