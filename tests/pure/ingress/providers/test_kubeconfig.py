"""What a kubeconfig means, and what in it is refused with words."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingress.providers import kubeconfig
from ingress.providers.kubeconfig import Access, ConfigFault, load, resolve, tls

if TYPE_CHECKING:
    from pathlib import Path


def document(cluster: object = None, user: object = None, **more: Any) -> dict[str, Any]:
    return {
        "current-context": "one",
        "contexts": [{"name": "one", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster or {"server": "https://10.0.0.1:6443/"}}],
        "users": [{"name": "u", "user": user or {}}],
        **more,
    }


PLUGIN = (
    "plugins are not run here; write a token, tokenFile or client certificate, or run in the cluster with a service "
    "account"
)


def fault(what: object, context: str = "") -> str:
    try:
        resolve([("/k/config", what)], context)
    except ConfigFault as error:
        return str(error)
    return ""


def test_every_field_has_its_place() -> None:
    cluster = {
        "server": "https://10.0.0.1:6443/",
        "certificate-authority": "ca.crt",
        "certificate-authority-data": base64.b64encode(b"CA").decode(),
        "insecure-skip-tls-verify": True,
        "tls-server-name": "kubernetes",
    }
    user = {
        "token": "t",
        "tokenFile": "/var/token",
        "client-certificate-data": base64.b64encode(b"CERT").decode(),
        "client-key": "me.key",
    }
    assert resolve([("/k/config", document(cluster, user))], "") == Access(
        "https://10.0.0.1:6443",
        "/k/ca.crt",
        b"CA",
        insecure=True,
        server_name="kubernetes",
        token="t",
        token_file="/var/token",
        certificate=b"CERT",
        key="/k/me.key",
        source="context one of /k/config",
    )


def test_of_several_files_the_first_wins() -> None:
    first = document({"server": "https://first"})
    second = document({"server": "https://second"}, contexts=[{"name": "two", "context": {"cluster": "c"}}])
    both = [("/a", first), ("/b", second)]
    assert resolve(both, "").server == "https://first"
    assert resolve(both, "two").server == "https://first"


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ([], "/k/config: not a kubeconfig: it isn't an object"),
        ({}, "/k/config: no current-context; choose one with --kube-context (there are: none)"),
        (document(contexts={}), '/k/config: contexts: there is no "one" (there are: none)'),
        (document(contexts=7), "/k/config: contexts: not a list"),
        (document(users=[{"user": {}}]), "/k/config: users[0]: it has no name"),
        (document(clusters=[]), '/k/config: clusters: there is no "c" (there are: none)'),
        (document(users=[]), '/k/config: users: there is no "u" (there are: none)'),
        (document({"server": "10.0.0.1"}),
         '/k/config: cluster.server: "10.0.0.1" is no URL such as https://10.0.0.1:6443'),
        (document({"server": 7}), "/k/config: server: not text"),
        (document({"server": "https://a", "proxy-url": "http://p"}),
         "/k/config: cluster.proxy-url: proxies are not supported"),
        (document(user={"exec": {"command": "aws"}}),
         f"/k/config: user.exec: {PLUGIN}"),
        (document(user={"username": "u"}),
         "/k/config: user.username: Kubernetes has no passwords any more; write a token"),
        (document(user={"client-key": "k"}),
         "/k/config: user: a client certificate needs its key, and a key its certificate"),
        (document(user={"client-key-data": "%"}), "/k/config: client-key-data: not base64"),
    ],
)  # fmt: skip
def test_a_fault_is_named_with_its_place(what: object, words: str) -> None:
    assert fault(what) == words


def test_without_anything_it_is_no_pod() -> None:
    with pytest.raises(ConfigFault, match="this isn't a Kubernetes pod; name a kubeconfig"):
        load("", "", {})


def test_in_a_pod_its_service_account_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubeconfig, "ACCOUNT", str(tmp_path))
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    with pytest.raises(ConfigFault, match="give the pod a service account"):
        load("", "", environ)
    (tmp_path / "token").write_text("one\n")
    access = load("", "", environ)
    assert access.server == "https://[fd00::1]:6443"
    assert access.bearer() == "one"
    (tmp_path / "token").write_text("two\n")
    assert access.bearer() == "two"
    (tmp_path / "token").write_text("t\u00f6\n")
    with pytest.raises(ConfigFault):
        access.bearer()


def test_files_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigFault, match="there is no such kubeconfig"):
        load(str(tmp_path / "none"), "", {})
    with pytest.raises(ConfigFault, match="is a directory"):
        load(str(tmp_path), "", {})
    broken = tmp_path / "broken"
    broken.write_text("a: [\n")
    with pytest.raises(ConfigFault, match=r"broken: not YAML \(line 2\)"):
        load("", "", {"KUBECONFIG": str(broken)})


def test_certificates_that_are_none_are_told() -> None:
    access = Access("https://a", certificate=b"nothing", key=b"nothing", insecure=True, source="here")
    with pytest.raises(ConfigFault, match="here: its certificates can't be used"):
        tls(access)
    assert tls(Access("http://a")) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
LISTED = st.lists(
    st.fixed_dictionaries({"name": st.just("one") | JSON}, optional=dict.fromkeys(("context", "cluster", "user"), JSON))
)


@given(
    st.fixed_dictionaries(
        {"current-context": st.just("one") | JSON},
        optional=dict.fromkeys(("contexts", "clusters", "users"), LISTED | JSON),
    )
    | JSON
)
def test_any_document_gives_an_access_or_one_kind_of_error(what: object) -> None:
    fault(what)
