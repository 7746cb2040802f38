"""The routes file: what it may say, and where its faults are found."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingress.providers.routesfile import NOT_READY, RoutesError, parse_routes
from ingress.routes import Sandbox

WHOLE = {
    "host": "10.0.0.7",
    "ready": False,
    "secure_access_token": "s3cret",
    "ports": [8080, 3000],
    "upstream_host": "localhost",
}


def test_every_member_has_its_place() -> None:
    assert parse_routes(json.dumps({"sandboxes": {"box": WHOLE}}), "routes.json") == [
        Sandbox(
            "box",
            "10.0.0.7",
            ready=False,
            reason=NOT_READY,
            token="s3cret",
            ports=frozenset({3000, 8080}),
            upstream_host="localhost",
        )
    ]


YAML = """
sandboxes:
  box:
    host: 10.0.0.7   # no quotes needed
    ports: [8080, 3000]
    ready: false
    secure_access_token: s3cret
    upstream_host: localhost
"""


@pytest.mark.parametrize("name", ["routes.yaml", "routes.YML", "routes"])
def test_yaml_means_the_same(name: str) -> None:
    assert parse_routes(YAML, name) == parse_routes(json.dumps({"sandboxes": {"box": WHOLE}}), name)


def test_what_is_left_out_has_its_default() -> None:
    assert parse_routes('{"sandboxes": {"a": {"host": "b", "ports": null}}}', "f") == [Sandbox("a", "b")]


def test_flow_style_in_a_yaml_file_is_no_broken_json() -> None:
    assert parse_routes("\n {sandboxes: {a: {host: b}}}", "routes.yaml") == [Sandbox("a", "b")]


@pytest.mark.parametrize("name", ["f.json", "f.yaml", "f"])
@pytest.mark.parametrize("text", ["", " \n", "null", "{}", '{"sandboxes": null}', '{"sandboxes": {}}'])
def test_an_empty_file_is_no_sandboxes(text: str, name: str) -> None:
    assert parse_routes(text, name) == []


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[]", 'f: a list; write an object such as {"sandboxes": {…}}'),
        ('{"routes": {}}', "f: routes: unknown key; known is sandboxes"),
        ('{"sandboxes": []}', 'f: sandboxes: a list; write an object such as {"<id>": {"host": …}}'),
        ('{"sandboxes": {}, "sandboxes": {}}', "f: sandboxes: given twice"),
        ('{"sandboxes": {"a": {"host": "b"}, "a": {"host": "b"}}}', "f: sandboxes.a: given twice"),
        ('{"sandboxes": {"a": {"host": "b", "host": "c"}}}', "f: sandboxes.a.host: given twice"),
        ('{"sandboxes": {"a": null}}', 'f: sandboxes.a: null; write an object such as {"host": "10.0.0.7"}'),
        ('{"sandboxes": {"a": "b"}}', 'f: sandboxes.a: text; write an object such as {"host": "10.0.0.7"}'),
        ('{"sandboxes": {"a": {}}}', 'f: sandboxes.a: no host; write where it listens, such as "host": "10.0.0.7"'),
        ('{"sandboxes": {"a": {"host": 7}}}', "f: sandboxes.a.host: a number; write text in quotes"),
        ('{"sandboxes": {"a": {"host": "b", "port": 1}}}',
         "f: sandboxes.a.port: unknown key; known are host, ready, secure_access_token, ports, upstream_host"),
        ('{"sandboxes": {"a": {"host": "b", "ready": "yes"}}}', "f: sandboxes.a.ready: text; write true or false"),
        ('{"sandboxes": {"a": {"host": "b", "ready": NaN}}}',
         "f: sandboxes.a.ready: NaN, which isn't JSON; write true or false"),
        ('{"sandboxes": {"a": {"host": "b", "ports": 80}}}',
         "f: sandboxes.a.ports: a number; write a list such as [8080, 3000]"),
        ('{"sandboxes": {"a": {"host": "b", "ports": []}}}',
         "f: sandboxes.a.ports: an empty list; leave it out to open every port"),
        ('{"sandboxes": {"box": {"host": "b", "ports": [1, 70000]}}}',
         "f: sandboxes.box.ports[1]: 70000 is no port; write a number from 1 to 65535"),
        ('{"sandboxes": {"a": {"host": "b", "ports": ["80"]}}}',
         "f: sandboxes.a.ports[0]: text; write a number from 1 to 65535"),
        ('{"sandboxes": {"a": {"host": "b", "ports": [true]}}}',
         "f: sandboxes.a.ports[0]: true; write a number from 1 to 65535"),
        ('{"sandboxes": {"a": {"host": "b", "ports": [80.0]}}}',
         "f: sandboxes.a.ports[0]: the fraction 80.0; write a number from 1 to 65535"),
        ('{"sandboxes": {"a/b": {"host": "b"}}}',
         """f: sandboxes."a/b": no route can name the id "a/b"; use letters, digits, '.', '_' and '-'"""),
        ('{"sandboxes": {"": {"host": "b"}}}', 'f: sandboxes."": an empty id'),
        ('{"sandboxes": {"a": {"host": "b", "secure_access_token": "s\\u00e9cret"}}}',
         "f: sandboxes.a.secure_access_token: the token holds what no header can carry; use printable ASCII"),
        ('{"sandboxes": {"a": {"host": "b"}}} x', "f: not JSON: text after the document's end (line 1, column 37)"),
        ("\ufeff{}", "f: starts with a byte order mark"),
    ],
)  # fmt: skip
def test_a_fault_is_named_with_its_place(text: str, error: str) -> None:
    with pytest.raises(RoutesError) as raised:
        parse_routes(text, "f")
    assert str(raised.value) == error


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sandboxes: &a {}", "a YAML anchor"),
        ("a: 1\n---\nb: 2", "a second YAML document"),
        ("sandboxes: !!python/object:x {}", "a YAML tag"),
        ("sandboxes: {a: {host: b}, a: {host: b}}", "sandboxes.a: given twice"),
        ("sandboxes: {", "not YAML"),
        ("[" * 40, "nested too deeply"),
    ],
)
def test_yaml_is_read_strictly(text: str, words: str) -> None:
    with pytest.raises(RoutesError, match=words):
        parse_routes(text, "f.yaml")


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(RoutesError, match="not UTF-8: bad byte at offset 1"):
        parse_routes(b"a\xff", "f.json")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)
NEARLY = st.fixed_dictionaries(
    {},
    optional={
        "host": st.sampled_from(["10.0.0.7", "box", "::1"]) | JSON,
        "ready": st.booleans() | JSON,
        "secure_access_token": st.text() | JSON,
        "ports": st.lists(st.integers(0, 70000) | JSON, max_size=3) | JSON,
        "upstream_host": st.sampled_from(["", "localhost:80"]) | JSON,
    },
)


@given(JSON | st.fixed_dictionaries({"sandboxes": JSON | st.dictionaries(st.text(max_size=5), NEARLY | JSON)}))
def test_any_json_value_gives_sandboxes_or_one_kind_of_error(value: object) -> None:
    for name in ("f.json", "f.yaml"):
        outcome = read(json.dumps(value), name)
        if isinstance(outcome, str):
            assert outcome.isprintable()
            assert outcome.startswith(name)
        else:
            assert all(sandbox.host for sandbox in outcome)


@given(st.text() | st.binary())
def test_any_text_gives_sandboxes_or_one_kind_of_error(text: str | bytes) -> None:
    for name in ("f.json", "f.yaml", "f"):
        outcome = read(text, name)
        assert not isinstance(outcome, str) or outcome.isprintable()


def read(text: str | bytes, name: str) -> list[Sandbox] | str:
    """The sandboxes, or the error's words."""
    try:
        return parse_routes(text, name)
    except RoutesError as error:
        return str(error)
