"""What would defeat the guard is refused, with the place and the reason; what only looks like it is not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress.kubernetes.faults import Refused
from egress.kubernetes.inject import inject
from egress.kubernetes.refusals import CAPABILITIES, reaches_node
from egress.kubernetes.settings import Settings
from tests.pure.kubernetes.pods import container, pod


def faults(document: dict[str, Any], settings: Settings | None = None) -> list[str]:
    try:
        inject(document, settings or Settings())
    except Refused as refused:
        return [fault.path for fault in refused.faults]
    return []


def security(**members: Any) -> dict[str, Any]:
    return pod(containers=[container(securityContext=members)])


def host(path: str, **members: Any) -> dict[str, Any]:
    return pod(volumes=[{"name": "v", "hostPath": {"path": path, **members}}])


POD = "spec."
BOX = "spec.containers[0]."


@pytest.mark.parametrize(
    ("document", "path"),
    [
        (pod(hostNetwork=True), POD + "hostNetwork"),
        (pod(hostPID=True), POD + "hostPID"),
        (pod(shareProcessNamespace=True), POD + "shareProcessNamespace"),
        (pod(os={"name": "windows"}), POD + "os.name"),
        (pod(nodeSelector={"kubernetes.io/os": "windows"}), "spec.nodeSelector[kubernetes.io/os]"),
        (pod(securityContext={"windowsOptions": {"hostProcess": True}}), POD + "securityContext.windowsOptions"),
        (security(windowsOptions={}), BOX + "securityContext.windowsOptions"),
        (security(privileged=True), BOX + "securityContext.privileged"),
        (security(procMount="Unmasked"), BOX + "securityContext.procMount"),
        (security(capabilities={"add": ["CHOWN", "cap_net_admin"]}), BOX + "securityContext.capabilities.add[1]"),
        (security(capabilities={"add": ["all"]}), BOX + "securityContext.capabilities.add[0]"),
        (pod(containers=[container("egress")]), BOX + "name"),
        (pod(initContainers=[container("egress")]), "spec.initContainers[0].name"),
        (pod(initContainers=[container("a", securityContext={"privileged": True})]),
         "spec.initContainers[0].securityContext.privileged"),
        (pod(ephemeralContainers=[container("a", securityContext={"privileged": True})]),
         "spec.ephemeralContainers[0].securityContext.privileged"),
        (pod(containers=[container(ports=[{"containerPort": 80}, {"containerPort": 18080}])]),
         BOX + "ports[1].containerPort"),
        (pod(volumes=[{"name": "sallyport-state", "emptyDir": {}}]), "spec.volumes[0].name"),
        (pod(containers=[container(volumeMounts=[{"name": "sallyport-state", "mountPath": "/x"}])]),
         BOX + "volumeMounts[0].name"),
        (pod(annotations={"kubernetes.io/config.mirror": "1"}), "metadata.annotations[kubernetes.io/config.mirror]"),
        (host("/var/run/docker.sock"), "spec.volumes[0].hostPath.path"),
        (host("/proc"), "spec.volumes[0].hostPath.path"),
        (host("//proc/1/"), "spec.volumes[0].hostPath.path"),
        (host("/data/../proc"), "spec.volumes[0].hostPath.path"),
        (host("/"), "spec.volumes[0].hostPath.path"),
        (host("/var"), "spec.volumes[0].hostPath.path"),
        (host("/srv/x.sock", type="Socket"), "spec.volumes[0].hostPath.type"),
        (pod(dnsPolicy="None"), "spec.dnsPolicy"),
        (pod(dnsPolicy="None", dnsConfig={"nameservers": ["10.0.0.1", "127.0.0.1"]}), "spec.dnsConfig.nameservers[1]"),
        (pod(dnsConfig={"nameservers": ["dns.example.com"]}), "spec.dnsConfig.nameservers[0]"),
        (pod(securityContext={"sysctls": [{"name": "net.ipv4.ip_forward", "value": "1"}]}),
         "spec.securityContext.sysctls[0].name"),
        (pod(securityContext={"sysctls": [{"name": "net/ipv4/conf/eth0/route_localnet", "value": "1"}]}),
         "spec.securityContext.sysctls[0].name"),
        (pod(securityContext={"sysctls": [{"name": "net.netfilter.nf_conntrack_tcp_be_liberal", "value": "1"}]}),
         "spec.securityContext.sysctls[0].name"),
        (pod(containers=[]), "spec.containers"),
    ],
)  # fmt: skip
def test_it_is_refused_at_its_place(document: dict[str, Any], path: str) -> None:
    assert faults(document) == [path]


@pytest.mark.parametrize("name", sorted(CAPABILITIES))
def test_no_capability_that_reaches_the_guard(name: str) -> None:
    assert faults(security(capabilities={"add": [name]})) == [BOX + "securityContext.capabilities.add[0]"]


@pytest.mark.parametrize(
    "document",
    [
        security(allowPrivilegeEscalation=True),  # what setuid could give is out of the bounding set
        security(privileged=False, procMount="Default", runAsUser=0),
        security(capabilities={"add": ["NET_BIND_SERVICE", "CHOWN", "SETUID"]}),
        pod(hostNetwork=False, hostPID=False, shareProcessNamespace=False, os={"name": "linux"}, hostIPC=True),
        pod(containers=[container(ports=[{"containerPort": 8080}, {"containerPort": 18080, "protocol": "UDP"}])]),
        pod(dnsPolicy="ClusterFirst", dnsConfig={"options": [{"name": "ndots", "value": "1"}]}),
        pod(dnsPolicy="None", dnsConfig={"nameservers": ["10.0.0.1", "169.254.20.10"]}),
        pod(securityContext={"sysctls": [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}]}),
        pod(automountServiceAccountToken=False, hostUsers=False),
        host("/data/models"),
        host("/etc/localtime", type="File"),
        host("/etc/ssl/certs"),
        host("/variable"),
        host("/home/runner"),
    ],
)
def test_what_does_not_reach_the_guard_passes(document: dict[str, Any]) -> None:
    assert faults(document) == []


def test_every_reason_is_told_at_once() -> None:
    bad = container("egress", securityContext={"privileged": True})
    assert faults(pod("nonsense", hostPID=True, containers=[bad])) == [
        "metadata.annotations[sallyport.dev/policy]", "spec.hostPID", BOX + "name", BOX + "securityContext.privileged",
    ]  # fmt: skip


def test_the_operators_settings_open_what_they_answer() -> None:
    assert not faults(pod(dnsPolicy="None"), Settings(upstreams="10.0.0.10"))
    busy = pod(containers=[container(ports=[{"containerPort": 18080}])])
    assert not faults(busy, Settings(port=18999))
    assert faults(pod(containers=[container(ports=[{"containerPort": 18999}])]), Settings(port=18999))


@pytest.mark.parametrize(
    ("members", "path"),
    [
        ({"containers": [container(env=[{"name": "T", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "t"}}}])]},
         BOX + "env[0].valueFrom.secretKeyRef"),
        ({"containers": [container(envFrom=[{"secretRef": {"name": "keys"}}])]}, BOX + "envFrom[0].secretRef"),
        ({"volumes": [{"name": "v", "secret": {"secretName": "keys"}}]}, "spec.volumes[0].secret"),
        ({"volumes": [{"name": "v", "projected": {"sources": [{"secret": {"name": "keys"}}]}}]},
         "spec.volumes[0].projected.sources[0].secret"),
    ],
)  # fmt: skip
def test_the_sandbox_is_not_given_the_token(members: dict[str, Any], path: str) -> None:
    with_token = pod(annotations={"sallyport.dev/token-from": "secret/keys"}, **members)
    assert faults(with_token) == [path]
    assert faults(pod(**members)) == []
    assert faults(pod(annotations={"sallyport.dev/token-from": "secret/other"}, **members)) == []


@given(st.lists(st.sampled_from(["var", "run", "proc", "data", "lib", "kubelet", "etc", "ssl", "x"]), max_size=5))
def test_what_is_refused_is_refused_with_everything_above_it(parts: list[str]) -> None:
    path = "/" + "/".join(parts)
    if reaches_node(path) and parts and not reaches_node("/" + "/".join(parts[:-1])):
        raise AssertionError(f"{path} is refused, and the folder that holds it is not")


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(["egress", "/proc", "ALL"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["name", "hostPath", "path", "securityContext", "capabilities", "add", "drop", "ports",
                         "secret", "emptyDir", "env", "sysctls", "dnsConfig", "nameservers", "containers"]),
        inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
MEMBERS = ["containers", "initContainers", "volumes", "securityContext", "dnsConfig", "dnsPolicy", "hostNetwork", "os",
           "nodeSelector", "runtimeClassName", "ephemeralContainers"]  # fmt: skip


@given(st.dictionaries(st.sampled_from(MEMBERS), ANYTHING), ANYTHING)
def test_whatever_is_sent_is_guarded_or_refused_and_then_stays_so(spec: dict[str, Any], metadata: Any) -> None:
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    try:
        made = inject(document).document
    except Refused:
        return
    assert made["spec"]["initContainers"][0]["name"] == "egress"
    assert inject(made).document == made
