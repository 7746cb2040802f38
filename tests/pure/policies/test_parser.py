"""Documents: strict reading with the place of every fault, and the shape in which a policy is given back."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from policies.model import Action, NetworkPolicy
from policies.parser import (
    PolicyError,
    Selector,
    parse_delete,
    parse_patch,
    parse_policy,
    parse_rule_file,
    parse_target_list,
)

DENY_ALL: dict[str, Any] = {"defaultAction": "deny", "egress": []}


def _rule(**members: Any) -> str:
    return json.dumps({"egress": [{"action": "allow", "target": "api.example.com", **members}]})


@pytest.mark.parametrize("text", ["", " \r\n\t", "null", "{}", '{"egress": null}', '{"defaultAction": null}'])
def test_nothing_said_denies_everything(text: str) -> None:
    assert parse_policy(text).to_document() == DENY_ALL
    assert parse_policy(text.encode()) == NetworkPolicy()
    assert parse_policy(text).mode == "deny_all"


def test_modes() -> None:
    assert parse_policy('{"defaultAction": "allow"}').mode == "allow_all"
    assert parse_policy('{"egress": [{"action": "deny", "target": "a.example"}]}').mode == "enforcing"


def test_a_document_without_extensions_keeps_its_shape() -> None:
    document = {
        "defaultAction": "allow",
        "egress": [
            {"action": "deny", "target": "*.example.com"},
            {"action": "allow", "target": "192.0.2.0/24"},
            {"action": "deny", "target": "2001:db8::1"},
        ],
    }
    returned = parse_policy(json.dumps(document)).to_document()
    assert json.dumps(returned) == json.dumps(document)


def test_extensions_come_back_where_used() -> None:
    members = {"ports": [443, "8000-8100", 80, 81, "80-80", "8101"], "protocol": "TCP", "comment": "the \u00fcber API"}
    returned = parse_policy(_rule(**members)).to_document()
    assert returned["egress"] == [
        {
            "action": "allow",
            "target": "api.example.com",
            "ports": [80, 81, 443, "8000-8101"],
            "protocol": "tcp",
            "comment": "the \u00fcber API",
        }
    ]
    assert parse_policy(json.dumps(returned)).to_document() == returned


def test_nulls_and_empty_comments_are_absent() -> None:
    plain = parse_policy(_rule())
    assert parse_policy(_rule(ports=None, protocol=None, comment=None)) == plain
    assert parse_policy(_rule(comment="")) == plain
    assert parse_policy(_rule(action="ALLOW", target=" API.example.com. ")) == plain
    assert parse_policy(_rule(comment="x" * 200)).egress[0].comment == "x" * 200


DEEP = "[" * 100_000

FAULTS = [
    ("[]", "$", "an array; write a policy"),
    ("7", "$", "the number 7"),
    ('"x"', "$", "the text 'x'"),
    ("{", "$", "ends too early"),
    ('{"egress": []} x', "$", "text after the document's end"),
    ("{}{}", "$", "text after the document's end"),
    ("\ufeff{}", "$", "byte order mark"),
    ("{'egress': []}", "$", "not JSON"),
    ('{"egress": [],}', "$", "not JSON"),
    ("{/**/}", "$", "not JSON"),
    ("\xa0", "$", "not JSON"),
    (DEEP, "$", "nested too deeply"),
    ('{"egress":' + DEEP, "$", "nested too deeply"),
    ('{"a":' * 50_000, "$", "nested too deeply"),
    ('{"x": null}', "$.x", "unknown key 'x'"),
    ('{"default_action": "deny"}', "$.default_action", 'write "defaultAction"'),
    ('{"DefaultAction": "deny"}', "$.DefaultAction", 'write "defaultAction"'),
    ('{"a\\u0000b": 1}', "$['a\\x00b']", "unknown key"),
    ('{"defaultAction": "allow", "defaultAction": "deny"}', "$.defaultAction", "twice"),
    ('{"egress": null, "egress": []}', "$.egress", "twice"),
    ('{"defaultAction": ""}', "$.defaultAction", 'write "allow" or "deny"'),
    ('{"defaultAction": "accept"}', "$.defaultAction", "unknown action 'accept'"),
    ('{"defaultAction": true}', "$.defaultAction", "true"),
    ('{"defaultAction": NaN}', "$.defaultAction", "NaN"),
    ('{"egress": {}}', "$.egress", "an object; write an array of rules"),
    ('{"egress": "x"}', "$.egress", "array of rules"),
    ('{"egress": [null]}', "$.egress[0]", "null"),
    ('{"egress": [[]]}', "$.egress[0]", "an array; write a rule"),
    ('{"egress": ["api.example.com"]}', "$.egress[0]", "write a rule such as"),
    ('{"egress": [{"target": "a.example"}]}', "$.egress[0]", '"action" is missing'),
    ('{"egress": [{"action": null, "target": "a.example"}]}', "$.egress[0]", '"action" is missing'),
    ('{"egress": [{"action": "allow"}]}', "$.egress[0]", '"target" is missing'),
    ('{"egress": [{"action": "allow", "target": null}]}', "$.egress[0]", '"target" is missing'),
    ('{"egress": [{"action": "allow", "action": "deny", "target": "a"}]}', "$.egress[0].action", "twice"),
    (_rule(action="permit"), "$.egress[0].action", "unknown action 'permit'"),
    (_rule(action=""), "$.egress[0].action", "unknown action ''"),
    (_rule(action=1), "$.egress[0].action", "the number 1"),
    (_rule(target=""), "$.egress[0].target", "empty"),
    (_rule(target="*."), "$.egress[0].target", "'*.': empty label; write a name such as \"*.example.com\""),
    (_rule(target=["a.example"]), "$.egress[0].target", "an array"),
    (_rule(target=7), "$.egress[0].target", "in quotes"),
    (_rule(port=443), "$.egress[0].port", 'write "ports"'),
    (_rule(port=None), "$.egress[0].port", 'write "ports"'),
    (_rule(Action="allow"), "$.egress[0].Action", 'write "action"'),
    (_rule(ports=443), "$.egress[0].ports", "array of ports"),
    (_rule(ports=[]), "$.egress[0].ports", "no port in it"),
    (_rule(ports=[0]), "$.egress[0].ports[0]", "1 to 65535"),
    (_rule(ports=[443, 65536]), "$.egress[0].ports[1]", "1 to 65535"),
    (_rule(ports=[-1]), "$.egress[0].ports[0]", "1 to 65535"),
    (_rule(ports=[443.0]), "$.egress[0].ports[0]", "the fraction 443.0"),
    (_rule(ports=[True]), "$.egress[0].ports[0]", "true"),
    (_rule(ports=[None]), "$.egress[0].ports[0]", "null"),
    (_rule(ports=[[443]]), "$.egress[0].ports[0]", "an array"),
    (_rule(ports=[""]), "$.egress[0].ports[0]", "no port"),
    (_rule(ports=["https"]), "$.egress[0].ports[0]", "no port"),
    (_rule(ports=["80-"]), "$.egress[0].ports[0]", "no port"),
    (_rule(ports=["80 - 90"]), "$.egress[0].ports[0]", "no port"),
    (_rule(ports=["90-80"]), "$.egress[0].ports[0]", 'write "80-90"'),
    (_rule(ports=["0-80"]), "$.egress[0].ports[0]", "1 to 65535"),
    (_rule(ports=["0443"]), "$.egress[0].ports[0]", "leading zeros"),
    (_rule(ports=["9" * 5000]), "$.egress[0].ports[0]", "1 to 65535"),
    (_rule(ports=["\u0664"]), "$.egress[0].ports[0]", "no port"),
    (_rule().replace("}]", ', "ports": [' + "9" * 5000 + "]}]"), "$.egress[0].ports[0]", "absurd length"),
    (_rule().replace("}]", ', "ports": [1e999]}]'), "$.egress[0].ports[0]", "fraction"),
    (_rule().replace("}]", ', "ports": [-Infinity]}]'), "$.egress[0].ports[0]", "-Infinity"),
    (_rule(protocol=""), "$.egress[0].protocol", "unknown protocol"),
    (_rule(protocol="icmp"), "$.egress[0].protocol", 'write "tcp" or "udp"'),
    (_rule(protocol=6), "$.egress[0].protocol", "the number 6"),
    (_rule(comment="x" * 201), "$.egress[0].comment", "at most 200"),
    (_rule(comment="a\nb"), "$.egress[0].comment", "U+000A"),
    (_rule(comment="\u202e"), "$.egress[0].comment", "U+202E"),
    (_rule(comment="\ud800"), "$.egress[0].comment", "U+D800"),
    (_rule(comment=5), "$.egress[0].comment", "the number 5"),
    (_rule(comment={"a": 1}), "$.egress[0].comment", "an object"),
]


@pytest.mark.parametrize(("text", "path", "words"), FAULTS, ids=range(len(FAULTS)))
def test_faults_have_a_place_and_advice(text: str, path: str, words: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_policy(text)
    assert caught.value.path == path
    assert words in caught.value.message
    assert str(caught.value) == f"{path}: {caught.value.message}"
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\xff\xfe{\0}\0", "not UTF-8"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b'{"x": "\xc3"}', "offset 7"),
        (b"\xed\xa0\x80", "UTF-8"),
    ],
)
def test_bytes_that_are_not_plain_utf8(data: bytes, words: str) -> None:
    for reader in (parse_policy, parse_patch, parse_delete):
        with pytest.raises(PolicyError) as caught:
            reader(data)
        assert words in str(caught.value)


@given(st.one_of(st.binary(max_size=60), st.text(max_size=60).map(lambda text: text.encode("utf-8", "replace"))))
def test_any_bytes_are_a_policy_or_an_error(data: bytes) -> None:
    for yaml in (False, True):
        try:
            parse_policy(data, yaml=yaml).to_document()
        except PolicyError as error:
            words = str(error)
        else:
            words = ""
        assert words.isprintable()


JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.sampled_from(["allow", "*.a", "10.0.0.1", "tcp", "443"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["defaultAction", "egress", "action", "target", "ports", "protocol", "comment", "x"]), inner
        ),
    ),
    max_leaves=12,
)


@given(JSON)
def test_any_json_is_a_policy_or_an_error_with_a_place(tree: object) -> None:
    data = json.dumps(tree).encode()
    for reader in (parse_policy, parse_patch, parse_delete):
        try:
            reader(data)
        except PolicyError as error:
            path = error.path
        else:
            path = "$"
        assert path.startswith("$")


YAML = """\
# what the build may reach
defaultAction: deny
egress:
  - action: allow
    target: "*.example.com"
    ports: [443, 8000-8100]
  - {action: deny, target: 192.0.2.1, comment: no}
"""


def test_yaml_means_the_same_as_json() -> None:
    document = {
        "defaultAction": "deny",
        "egress": [
            {"action": "allow", "target": "*.example.com", "ports": [443, "8000-8100"]},
            {"action": "deny", "target": "192.0.2.1", "comment": "no"},
        ],
    }
    assert (
        parse_policy(YAML, yaml=True)
        == parse_policy(json.dumps(document))
        == parse_policy(json.dumps(document), yaml=True)
    )
    assert parse_policy("# nothing\n", yaml=True) == NetworkPolicy()
    with pytest.raises(PolicyError):
        parse_policy(YAML)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("egress:\n- action: allow\n  target: *.example.com\n", "quote targets that start with '*'"),
        ("egress: &a []\n", "anchor"),
        ("defaultAction: deny\negress: *a\n", "alias"),
        ("a: &a [x]\nb: [*a, *a]\n", "anchor"),
        ("egress: !!python/object/apply:os.system [id]\n", "tag"),
        ("egress: !!int '7'\n", "tag"),
        ("defaultAction: deny\ndefaultAction: deny\n", "twice"),
        ("x: 1\n", "unknown key"),
        ("? [a]\n: b\n", "key that isn't text"),
        ("1: b\n", "key that isn't text"),
        ("--- null\n--- null\n", "second YAML document"),
        ("defaultAction: deny\n...\nx\n", "YAML"),
        ("egress: [{action: no, target: a.example}]\n", "unknown action 'no'"),
        ("egress: [{action: allow, target: 1.5}]\n", "'1.5'"),
        ("egress: [{action: allow, target: 5}]\n", "the number 5"),
        ("egress: [{action: allow, target: a.example, ports: [443.0]}]\n", "'443.0'"),
        ("egress: [{action: allow, target: a.example, ports: [0443]}]\n", "leading zeros"),
        ("egress: [{action: allow, target: a.example, ports: [0x1bb]}]\n", "no port"),
        ("egress: [{action: allow, target: a.example, ports: [22:30]}]\n", "no port"),
        ("egress: [{action: allow, target: a.example, ports: [4_43]}]\n", "no port"),
        ("egress: [{action: allow, target: a.example, ports: [.nan]}]\n", "no port"),
        ("- " * 50_000, "nested too deeply"),
        ("x: " + "[" * 50_000, "nested too deeply"),
        ("{defaultAction: deny}", "read as JSON"),
        ('"a\0b": 1', "not YAML"),
        ("\t- x", "not YAML"),
        ("<<: {defaultAction: allow}\n", "unknown key '<<'"),
        ("just text\n", "the text 'just text'"),
    ],
)
def test_yaml_without_its_surprises(text: str, words: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_policy(text, yaml=True)
    assert words in str(caught.value)
    assert str(caught.value).isprintable()


def test_yaml_is_imported_for_yaml_only() -> None:
    code = (
        "import sys; from policies.parser import parse_policy\n"
        "parse_policy('{}', yaml=True); assert 'yaml' not in sys.modules\n"
        "parse_policy('defaultAction: deny', yaml=True); assert 'yaml' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("text", ["", "[]", "null"])
def test_empty_edits_are_errors(text: str) -> None:
    for reader in (parse_patch, parse_delete):
        with pytest.raises(PolicyError, match="at least one"):
            reader(text)


def test_patch_and_delete_bodies() -> None:
    (rule,) = parse_patch('[{"action": "deny", "target": "*"}]')
    assert (rule.action, rule.kind) == (Action.DENY, "any")
    assert parse_delete('["A.example.", {"target": "10.0.0.1/32", "ports": ["443-443"], "protocol": "TCP"}]') == (
        Selector("a.example", True),
        Selector("10.0.0.1", False, ((443, 443),), "tcp"),
    )
    assert parse_delete('[{"target": "a.example", "ports": null}]') == (Selector("a.example", False),)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("{}", "$"),
        ('["a.example", "a..b"]', "$[1]"),
        ("[null]", "$[0]"),
        ("[7]", "$[0]"),
        ('[{"ports": [1]}]', "$[0]"),
        ('[{"target": "a:1"}]', "$[0].target"),
        ('[{"target": "a.example", "action": "deny"}]', "$[0].action"),
        ('[{"target": "a.example", "action": null}]', "$[0].action"),
        ('[{"target": "a.example", "comment": "x"}]', "$[0].comment"),
        ('[{"target": "a.example", "ports": []}]', "$[0].ports"),
    ],
)
def test_faults_in_delete(text: str, path: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_delete(text)
    assert caught.value.path == path


def test_rule_file() -> None:
    text = "# infrastructure\n\n cache.example.com   # ours\r\n*.logs.example.com\n10.0.0.5/8\n#\n"
    rules = parse_rule_file(text, Action.ALLOW, "allow.always")
    assert [(rule.target, rule.origin) for rule in rules] == [
        ("cache.example.com", "allow.always:3"),
        ("*.logs.example.com", "allow.always:4"),
        ("10.0.0.0/8", "allow.always:5"),
    ]
    assert {rule.action for rule in rules} == {Action.ALLOW}
    assert parse_rule_file(b"", Action.DENY, "deny.always") == ()


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a.example\nb..example\n", "deny.always:2"),
        ("a.example b.example", "deny.always:1"),
        ("a.example:443", "deny.always:1"),
        (b"\xff", "deny.always"),
        ("\ufeffa.example", "deny.always"),
        ("a.example\x0bb.example", "deny.always:1"),
    ],
)
def test_faults_in_rule_files(text: str | bytes, place: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_rule_file(text, Action.DENY, "deny.always")
    assert caught.value.path == place


def test_target_list() -> None:
    text = " a.example, *.b.example:443,*:25,10.0.0.0/8:53 ,[2001:db8::1]:8000-8100,2001:db8::2,"
    text += "[2001:db8::]/32:5,[2001:db8::/48]:6"
    rules = parse_target_list(text, Action.DENY, "ALWAYS")
    assert [(rule.target, rule.ports) for rule in rules] == [
        ("a.example", ()),
        ("*.b.example", ((443, 443),)),
        ("*", ((25, 25),)),
        ("10.0.0.0/8", ((53, 53),)),
        ("2001:db8::1", ((8000, 8100),)),
        ("2001:db8::2", ()),
        ("2001:db8::/32", ((5, 5),)),
        ("2001:db8::/48", ((6, 6),)),
    ]
    assert rules[1].origin == "ALWAYS[1]"
    assert parse_target_list("  ", Action.DENY, "ALWAYS") == ()


@pytest.mark.parametrize(
    "text",
    ["a.example,,b.example", "a.example:", "a.example:0", "a.example:x", ":443", "http://a", "[::1", "[a.example]:1"],
)
def test_faults_in_target_lists(text: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_target_list(text, Action.DENY, "ALWAYS")
    assert caught.value.path.startswith("ALWAYS[")
