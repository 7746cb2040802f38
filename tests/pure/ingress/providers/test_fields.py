"""What a source may say: hosts, ids, ports, tokens, Host headers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingress.providers import fields
from ingress.providers.fields import FieldError

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("10.0.0.7", "10.0.0.7"),
        (" 10.0.0.7\n", "10.0.0.7"),
        ("FD00::0:1", "fd00::1"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("Box.Default.svc.cluster.local.", "box.default.svc.cluster.local"),
        ("my_box-1", "my_box-1"),
    ],
)
def test_a_host_is_an_address_or_a_name(text: str, meant: str) -> None:
    assert fields.host(text) == meant


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty host"),
        ("[fd00::1]", "without brackets"),
        ("10.0.0.7:8080", "the port belongs to the route"),
        ("box:8080", "the port belongs to the route"),
        ("fe80::1%eth0", "zone"),
        ("10.0.0.256", "neither an address"),
        ("010.0.0.1", "neither an address"),
        ("0x7f.1", "neither an address"),
        ("0x7f000001", "neither an address"),
        ("127.0x1", "neither an address"),
        ("2130706433", "neither an address"),
        ("a..b", "neither an address"),
        ("-a", "neither an address"),
        ("http://box:80/", "a URL"),
        ("a b", "neither an address"),
        ("bücher.example", "neither an address"),
        ("a" * 64, "neither an address"),
        ("a\0b", "neither an address"),
    ],
)
def test_what_is_no_host_is_refused(text: str, words: str) -> None:
    with pytest.raises(FieldError, match=words):
        fields.host(text)


@pytest.mark.parametrize("text", ["box", "Box-1.a_b~c", "x" * 128, "a-"])
def test_an_id_is_kept_as_it_is(text: str) -> None:
    assert fields.sandbox_id(text) == text


@pytest.mark.parametrize("text", ["", "x" * 129, "a/b", "a b", "a:b", "ä", "a\n", "a%2F,"])
def test_an_id_that_no_route_can_name_is_refused(text: str) -> None:
    with pytest.raises(FieldError):
        fields.sandbox_id(text)


@pytest.mark.parametrize(("text", "meant"), [("", None), (" , ", None), ("80", {80}), ("1, 65535,1", {1, 65535})])
def test_ports_with_commas(text: str, meant: set[int] | None) -> None:
    assert fields.ports(text) == meant


@pytest.mark.parametrize("text", ["0", "65536", "08", "-1", "1-2", "http", "٣", "80 81"])
def test_what_is_no_port_is_refused(text: str) -> None:
    with pytest.raises(FieldError, match="is no port"):
        fields.ports(text)


@pytest.mark.parametrize(
    "text", ["localhost", "localhost:8080", "[::1]", "[::1]:80", "10.0.0.1:1", "Dev.Example.com", "a_b"]
)
def test_a_host_header(text: str) -> None:
    assert fields.upstream_host(f" {text} ") == text


@pytest.mark.parametrize(
    "text", ["a b", "a:", "a:0", "::1", "[::1", "[::1]:", "[a]", "http://a", "a/b", "a\r\nX: y", "a@b", ":80"]
)
def test_what_is_no_host_header_is_refused(text: str) -> None:
    with pytest.raises(FieldError, match="is no Host header"):
        fields.upstream_host(text)


def test_a_token_that_no_header_carries_is_refused_without_being_shown() -> None:
    assert fields.token(" s3cret ") == "s3cret"
    assert fields.token(" \n") == ""
    with pytest.raises(FieldError) as raised:
        fields.token("s3cret\r\nX: y")
    assert "s3cret" not in str(raised.value)


@given(st.text())
def test_any_text_is_taken_or_refused(text: str) -> None:
    for check in (fields.host, fields.sandbox_id, fields.port, fields.ports, fields.token, fields.upstream_host):
        assert complaint(check, text).isprintable()


def complaint(check: Callable[[str], object], text: str) -> str:
    """What a check says about the text, "" where it takes it."""
    try:
        check(text)
    except FieldError as error:
        return str(error)
    return ""
