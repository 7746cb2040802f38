"""Streams of documents: read as kubectl reads them or not at all, and written so that every reader sees the same."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from egress.kubernetes.documents import DocumentError, configured, read, write
from egress.kubernetes.settings import Reference


def test_documents_come_in_a_stream_as_yaml_or_json() -> None:
    data = b'# a comment\nkind: A\n---\n---\n{"kind": "B", "x": [1, 2.5, true, null]}\n'
    assert read(data) == [{"kind": "A"}, {"kind": "B", "x": [1, 2.5, True, None]}]
    assert read(b"") == read(b"---\n---\n") == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True), ("False", False), ("~", None), ("", None), ("7", 7), ("-7", -7), ("0644", 0o644), ("1.5", 1.5),
        ("1e3", 1000.0), ("'yes'", "yes"), ('"on"', "on"), ("2024-01-01", "2024-01-01"), ("1.2.3", "1.2.3"),
        ("100m", "100m"), ("a:b", "a:b"), ("80:80", "80:80"), ("|-\n  y", "y"),
    ],
)  # fmt: skip
def test_plain_words_mean_what_they_mean_to_kubectl(text: str, value: Any) -> None:
    (found,) = read(f"a: {text}\n".encode())
    assert found == {"a": value}
    assert type(found["a"]) is type(value)


@pytest.mark.parametrize(
    "text",
    ["y", "N", "yes", "No", "on", "OFF", "12:30", "1_000", "0x1F", "0o17", "0b1", "089", ".inf", "-.NaN", "1:30.5"],
)
def test_what_two_readers_read_differently_has_to_be_put_in_quotes(text: str) -> None:
    with pytest.raises(DocumentError, match=r"line 2: .*quotes"):
        read(f"a: 1\nhostNetwork: {text}\n".encode())


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"a: 1\na: 2\n", "line 2: a stands here twice"),
        (b"a: {b: 1, 'b': 2}", "b stands here twice"),
        (b"- a", "no object"),
        (b"a: [", "line 1"),
        (b"a: &x [*x]", "line 1"),
        (b"a: &x {b: *x}", "line 1"),
        (b"? [a]\n: b", "a key must be a string"),
        (b"1: b", "the key 1 must be a string"),
        (b"a: !!python/object:os.system x", "has no place here"),
        (b"a: !!timestamp 2024-01-01", "has no place here"),
        (b"\xff", "not UTF-8"),
        (b"a: \x00", "special characters"),
        (b"[" * 3000, "too deeply"),
        (b"a: " + b"[" * 250 + b"]" * 250, "too deeply"),
        (b"x: &a [1,1,1,1,1,1,1,1,1,1]\n" + b"".join(
            b"x%d: &%c [%s]\n" % (n, 98 + n, b",".join([b"*%c" % (97 + n)] * 10)) for n in range(8)), "aliases"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_told_in_one_line(data: bytes, words: str) -> None:
    with pytest.raises(DocumentError) as caught:
        read(data)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_merges_and_anchors_are_followed() -> None:
    assert read(b"a: &x {b: 1}\nc: {<<: *x, d: 2}\n") == [{"a": {"b": 1}, "c": {"b": 1, "d": 2}}]


TEXTS = st.text(max_size=30) | st.sampled_from(
    ["y", "no", "0644", "1e3", "null", "~", "- a", "a: b", "#x", "x\ny\n", "  x\n", "x \ny", "\u2028", "{}", "=",
     "<<", "\N{SNOWMAN}", "\N{GRINNING FACE}"]
)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


@given(st.lists(st.dictionaries(TEXTS, VALUES, max_size=4), min_size=1, max_size=3))
def test_what_is_written_reads_back_here_and_elsewhere(documents: list[dict[str, Any]]) -> None:
    written = write(documents)
    assert read(written.encode()) == documents
    strings = json.loads(json.dumps(documents))
    assert json.loads(write(documents, as_json=True)) in (
        strings[0],
        {"apiVersion": "v1", "kind": "List", "items": strings},
    )
    for document, other in zip(documents, yaml.safe_load_all(written), strict=True):
        _same(document, other)  # YAML 1.1: no string of ours is a number or a truth value there


def _same(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert list(one) == list(other)
        for key, value in one.items():
            _same(value, other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            _same(mine, theirs)
    elif isinstance(one, str):
        assert one == other


def test_policies_are_looked_up_beside_the_pod() -> None:
    config = {"apiVersion": "v1", "kind": "ConfigMap"}
    documents = [
        {**config, "metadata": {"name": "r"}, "data": {"policy.json": "{}"}},
        {**config, "metadata": {"name": "r", "namespace": "b"}, "data": {"policy.json": "[]"}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "r"}, "data": {"a": base64.b64encode(b"x").decode(),
         "b": "%"}, "stringData": {"c": "y"}},
    ]  # fmt: skip
    found = [
        configured(documents, Reference(kind, "r", key), namespace)
        for kind, key, namespace in (
            ("configmap", "policy.json", "default"), ("configmap", "policy.json", "b"), ("configmap", "x", "b"),
            ("secret", "a", "default"), ("secret", "b", "default"), ("secret", "c", "default"), ("secret", "a", "b"),
        )
    ]  # fmt: skip
    assert found == ["{}", "[]", None, "x", "", "y", None]
