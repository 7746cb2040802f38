"""Names: one canonical text for what is one name, and nothing that could be taken for another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress.dns.wire import WireError, cname_target, encode_name, name_text

PLAIN = b"abcdefghijklmnopqrstuvwxyz0123456789-_"


def wire(labels: list[bytes]) -> bytes:
    return b"".join(bytes((len(label),)) + label for label in labels) + b"\0"


def fits(labels: list[bytes]) -> bool:
    return len(wire(labels)) <= 255


label_lists = st.lists(st.binary(min_size=1, max_size=63), max_size=8).filter(fits)


@pytest.mark.parametrize(
    ("labels", "text", "plain"),
    [
        ([], "", True),
        ([b"API", b"Example", b"COM"], "api.example.com", True),
        ([b"_dns", b"a-b", b"9"], "_dns.a-b.9", True),
        ([b"a.b", b"com"], "a\\046b.com", False),
        ([b"a\\b"], "a\\092b", False),
        ([b"\\046"], "\\092046", False),
        ([b"."], "\\046", False),
        ([b"\0", b"x"], "\\000.x", False),
        ([b"\xc4"], "\\196", False),  # no case folding beyond ASCII
        ([b"a b"], "a\\032b", False),
        ([b"*", b"example"], "\\042.example", False),
    ],
)
def test_the_canonical_text(labels: list[bytes], text: str, plain: bool) -> None:
    assert name_text(labels) == (text, plain)
    assert encode_name(text) == wire([label.lower() for label in labels])


@given(label_lists)
def test_text_and_wire_are_each_others_inverse(labels: list[bytes]) -> None:
    text, plain = name_text(labels)
    assert encode_name(text) == wire(labels).lower() or any(65 <= len(label) <= 90 for label in labels)
    assert encode_name(text) == wire([label.lower() for label in labels])
    assert cname_target(wire(labels)) == text
    assert plain == all(octet in PLAIN for label in labels for octet in label.lower())
    assert text.isascii()
    assert text.isprintable()


@given(label_lists, label_lists)
def test_different_names_have_different_texts(one: list[bytes], other: list[bytes]) -> None:
    same = [label.lower() for label in one] == [label.lower() for label in other]
    assert (name_text(one)[0] == name_text(other)[0]) == same


@pytest.mark.parametrize(
    "text",
    [
        ".", "a.", ".a", "a..b", "a" * 64, ".".join(["a" * 63] * 4), "\\", "a\\04", "a\\256", "a\\04x", "\\x41",
        "ex\u00e4mple", "\U0001f600", "\udc80", "a\\\u0660\u0661\u0662",
    ],
)  # fmt: skip
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(WireError):
        encode_name(text)


def test_the_longest_name_fits_and_one_octet_more_does_not() -> None:
    longest = ".".join(["a" * 63] * 3 + ["a" * 61])
    assert len(encode_name(longest)) == 255
    with pytest.raises(WireError):
        encode_name(longest + "a")


@given(st.text(max_size=80))
def test_any_text_is_a_name_or_the_one_error(text: str) -> None:
    try:
        found = encode_name(text)
    except WireError:
        return
    assert len(found) <= 255
    assert found.endswith(b"\0")


@given(st.binary(max_size=80))
def test_any_cname_is_a_name_or_the_one_error(rdata: bytes) -> None:
    try:
        cname_target(rdata)
    except WireError:
        pass
