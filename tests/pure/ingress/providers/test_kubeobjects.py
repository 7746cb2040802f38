"""Kubernetes objects as sandboxes, and the index over names and namespaces."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingress.providers import agentsandbox, batchsandbox
from ingress.providers.kubeobjects import Index, NotAnObject
from ingress.routes import Ambiguous, Sandbox

ENDPOINTS = "sandbox.opensandbox.io/endpoints"
TOKEN = "opensandbox.io/secure-access-token"


def batch(ready: object = 1, endpoints: object = '["10.0.0.7"]', **annotations: object) -> dict[str, Any]:
    return {
        "metadata": {"name": "a", "namespace": "ns", "uid": "u", "annotations": {ENDPOINTS: endpoints, **annotations}},
        "status": {"replicas": 3, "ready": ready},
    }


def test_a_batchsandbox_that_is_ready() -> None:
    item = batch(2, '["10.0.0.7", "FD00::1"]', **{"opensandbox.io/secure-access-token": " t "})
    assert batchsandbox.translate(item) == Sandbox(
        "a", "10.0.0.7", token="t", incarnation="u", namespace="ns", addresses=("10.0.0.7", "fd00::1")
    )


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (batch(0), "none of its pods is ready (0 of 3)"),
        (batch(None), "none of its pods is ready (0 of 3)"),
        (batch(True), "none of its pods is ready (0 of 3)"),
        (batch("1"), "none of its pods is ready (0 of 3)"),
        ({"metadata": {"name": "a"}}, "none of its pods is ready"),
        (batch(1, ""), f"its annotation {ENDPOINTS} is missing"),
        (batch(1, None), f"its annotation {ENDPOINTS} is missing"),
        (batch(1, "10.0.0.7"), f"its annotation {ENDPOINTS} isn't JSON"),
        (batch(1, '"10.0.0.7"'), f"its annotation {ENDPOINTS} isn't a list of addresses"),
        (batch(1, "[]"), f"its annotation {ENDPOINTS} lists no address"),
        (batch(1, '["box"]'), f'its annotation {ENDPOINTS} begins with "box", which is no address'),
        (batch(1, "[[]]"), f'its annotation {ENDPOINTS} begins with "[]", which is no address'),
        (batch(1, "[" * 100_000), f"its annotation {ENDPOINTS} isn't JSON"),
        (
            batch(**{TOKEN: "t\n\nX: y"}),
            f"its annotation {TOKEN} can't be used: the token holds what no header can carry; use printable ASCII",
        ),
        (
            batch(**{TOKEN: 7}),
            f"its annotation {TOKEN} can't be used: it isn't text",
        ),
    ],
)
def test_a_batchsandbox_that_is_not_ready_says_why(item: dict[str, Any], reason: str) -> None:
    sandbox = batchsandbox.translate(item)
    assert not sandbox.ready
    assert sandbox.reason == reason


def agent(status: object) -> dict[str, Any]:
    return {"metadata": {"name": "a", "namespace": "ns", "uid": "u"}, "status": status}


READY = [{"type": "Other", "status": "False"}, "junk", {"type": "Ready", "status": "True"}]


def test_an_agent_sandbox_that_is_ready() -> None:
    status = {"conditions": READY, "serviceFQDN": "A.ns.svc.cluster.local", "podIPs": ["10.0.0.7", 7, "::1"]}
    assert agentsandbox.translate(agent(status)) == Sandbox(
        "a", "a.ns.svc.cluster.local", incarnation="u", namespace="ns", addresses=("10.0.0.7", "::1")
    )


def test_without_a_service_its_pods_address_is_used() -> None:
    assert agentsandbox.translate(agent({"conditions": READY, "podIPs": ["10.0.0.7"]})).host == "10.0.0.7"


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (None, "it doesn't say yet whether it is ready"),
        ({"conditions": {}}, "it doesn't say yet whether it is ready"),
        ({"conditions": [{"type": "Ready", "status": "Unknown"}], "serviceFQDN": "a.b"}, "it isn't ready"),
        (
            {"conditions": [{"type": "Ready", "status": "False", "reason": "Pod", "message": "not\nyet"}]},
            "it isn't ready (Pod: not yet)",
        ),
        ({"conditions": READY}, "it has no address yet"),
        (
            {"conditions": READY, "serviceFQDN": "a b"},
            'its status.serviceFQDN can\'t be used: "a b" is neither an address nor a host name',
        ),
    ],
)
def test_an_agent_sandbox_that_is_not_ready_says_why(status: object, reason: str) -> None:
    sandbox = agentsandbox.translate(agent(status))
    assert not sandbox.ready
    assert sandbox.reason == reason


@pytest.mark.parametrize(
    ("sandbox_id", "names"),
    [
        ("box", ("box", "sandbox-box")),
        ("sandbox-box", ("sandbox-box",)),
        ("Box_1", ("box-1", "Box_1", "sandbox-Box_1")),
        ("42", ("sandbox-42", "42")),
        ("-a--b-", ("a-b", "-a--b-", "sandbox--a--b-")),
        ("a.b", ("a-b", "a.b", "sandbox-a.b")),
        ("...", ("sandbox-ab5df625", "...", "sandbox-...")),
        ("", ("sandbox-e3b0c442", "", "sandbox-")),
        ("a" * 63, ("a" * 63, "sandbox-" + "a" * 63)),
        ("a" * 64, ("a" * 54 + "-ffe054fe", "a" * 64, "sandbox-" + "a" * 64)),
        ("1" * 56, ("sandbox-" + "1" * 46 + "-9df2565d", "1" * 56, "sandbox-" + "1" * 56)),
        ("a" * 53 + "-" * 3 + "b" * 20, ("a" * 53 + "-3fd47361", "a" * 53 + "---" + "b" * 20,
                                         "sandbox-" + "a" * 53 + "---" + "b" * 20)),
    ],
)  # fmt: skip
def test_candidates_in_their_order(sandbox_id: str, names: tuple[str, ...]) -> None:
    assert agentsandbox.candidates(sandbox_id) == names


@given(st.text(max_size=140))
def test_a_label_is_one(sandbox_id: str) -> None:
    label = agentsandbox.label(sandbox_id)
    assert 1 <= len(label) <= 63
    assert label.isascii()
    assert label[0].isalpha()
    assert label[-1] != "-"
    assert label.replace("-", "").isalnum()
    assert label == label.lower()


def item(name: str, namespace: str = "ns", uid: str = "u", version: str = "1", **more: object) -> dict[str, Any]:
    meta = {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": version, **more}
    return {**batch(), "metadata": {**batch()["metadata"], **meta}}


def test_a_name_in_two_namespaces_is_ambiguous() -> None:
    index = Index(batchsandbox.translate)
    index.replace([item("a", "two"), item("a", "one"), item("b", "one")])
    entry = index.entry("a")
    assert isinstance(entry, Ambiguous)
    assert entry.where == ("one", "two")
    assert [sandbox.namespace for sandbox in entry.choices] == ["one", "two"]
    assert index.delete(item("a", "two")) == "a"
    assert isinstance(index.entry("a"), Sandbox)


def test_a_namespace_is_replaced_on_its_own() -> None:
    index = Index(batchsandbox.translate)
    index.replace([item("a", "one"), item("b", "two")])
    index.replace([item("c", "one")], "one")
    assert [entry.id for entry in index.entries()] == ["b", "c"]
    with pytest.raises(NotAnObject):
        index.replace([item("d"), {"metadata": {}}])
    assert [entry.id for entry in index.entries()] == ["b", "c"], "nothing has changed"


def test_an_object_under_deletion_is_gone() -> None:
    index = Index(batchsandbox.translate)
    index.put(item("a"))
    index.put(item("a", version="2", deletionTimestamp="2026-01-01T00:00:00Z"))
    assert index.entry("a") is None
    index.replace([item("a", version="2", deletionTimestamp="2026-01-01T00:00:00Z")])
    assert index.entries() == []


@pytest.mark.parametrize(
    ("held", "came", "uid", "newer"),
    [("5", "6", "u", True), ("5", "4", "u", False), ("10", "9", "u", False), ("5", "4", "other", True),
     ("5", "x", "u", False), ("x", "4", "u", True), ("x", "y", "u", True)],
)  # fmt: skip
def test_an_older_version_of_the_same_object_is_passed_over(held: str, came: str, uid: str, newer: bool) -> None:
    index = Index(batchsandbox.translate)
    index.put(item("a", version=held))
    index.put({**item("a", uid=uid, version=came), "status": {"ready": 0}})
    entry = index.entry("a")
    assert isinstance(entry, Sandbox)
    assert entry.ready != newer


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=10,
)
OBJECT = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {"name": st.sampled_from(["a", "b"])},
            optional={
                "namespace": st.sampled_from(["one", "two"]) | JSON,
                "uid": JSON,
                "resourceVersion": st.sampled_from(["1", "2"]) | JSON,
                "deletionTimestamp": st.none() | JSON,
                "annotations": st.fixed_dictionaries({ENDPOINTS: JSON | JSON.map(json.dumps)}) | JSON,
            },
        )
    },
    optional={
        "status": st.fixed_dictionaries({"ready": st.just(1) | JSON, "conditions": st.just(READY) | JSON}) | JSON
    },
)


@given(st.lists(st.tuples(st.sampled_from(["put", "delete", "replace"]), OBJECT | JSON)))
def test_whatever_a_server_sends_gives_entries_or_one_kind_of_error(steps: list[tuple[str, object]]) -> None:
    for translate in (batchsandbox.translate, agentsandbox.translate):
        index = Index(translate)
        for step, thing in steps:
            try:
                if step == "replace":
                    index.replace([thing])
                else:
                    (index.put if step == "put" else index.delete)(thing)
            except NotAnObject:
                continue
        for entry in index.entries():
            assert isinstance(entry, Ambiguous) or entry.ready == (not entry.reason) == bool(entry.host)
