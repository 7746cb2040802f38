"""SVCB and HTTPS: nothing in them may lead past the guard."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress.dns.answer import scrub_svcb

HEAD = b"\0\1\3svc\7example\0"
ALPN, PORT = (1, b"\2h2\2h3"), (3, b"\x20\xfb")
HIDDEN = [(4, bytes(4)), (5, b"ech keys"), (6, bytes(16)), (7, b"/dns-query{?dns}")]


def param(key: int, value: bytes) -> bytes:
    return struct.pack("!HH", key, len(value)) + value


def params(*pairs: tuple[int, bytes]) -> bytes:
    return b"".join(param(*pair) for pair in pairs)


def mandatory(*keys: int) -> tuple[int, bytes]:
    return 0, struct.pack(f"!{len(keys)}H", *keys)


def test_hints_ech_and_dohpath_are_taken_out() -> None:
    later = (8, b""), (65280, b"private")
    assert scrub_svcb(HEAD + params(ALPN, PORT, *HIDDEN, *later)) == HEAD + params(ALPN, PORT, *later)


@pytest.mark.parametrize("pair", HIDDEN)
def test_each_of_them_alone(pair: tuple[int, bytes]) -> None:
    assert scrub_svcb(HEAD + params(pair)) == HEAD


@pytest.mark.parametrize(
    ("listed", "left"), [((1, 4), (1,)), ((4,), ()), ((4, 5, 6, 7), ()), ((1, 3), (1, 3)), ((1, 5, 65280), (1, 65280))]
)
def test_the_list_of_mandatory_keys_names_what_is_left(listed: tuple[int, ...], left: tuple[int, ...]) -> None:
    private = (65280, b"x")
    expected = params(*([mandatory(*left)] if left else []), ALPN, PORT, private)
    assert scrub_svcb(HEAD + params(mandatory(*listed), ALPN, PORT, *HIDDEN, private)) == HEAD + expected


@pytest.mark.parametrize("rest", [b"", params(ALPN, *HIDDEN), b"\0\1", b"junk"])
def test_an_alias_keeps_its_name_only(rest: bytes) -> None:
    alias = b"\0\0" + HEAD[2:]
    assert scrub_svcb(alias + rest) == alias


@pytest.mark.parametrize(
    "rdata",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\0", id="half a priority"),
        pytest.param(b"\0\1", id="no name"),
        pytest.param(b"\0\1\3sv", id="a name cut short"),
        pytest.param(b"\0\1\xc0\0", id="a pointer"),
        pytest.param(b"\0\1" + b"\1a" * 128 + b"\0", id="a name too long"),
        pytest.param(HEAD + params(PORT, ALPN), id="keys out of order"),
        pytest.param(HEAD + params(ALPN, ALPN), id="a key twice"),
        pytest.param(HEAD + params((4, bytes(4)), (4, bytes(4))), id="hints twice"),
        pytest.param(HEAD + params(ALPN) + b"\0\3\0", id="a parameter cut in its head"),
        pytest.param(HEAD + params(ALPN) + b"\0\3\0\2x", id="a parameter cut in its value"),
        pytest.param(HEAD + b"\0\4\0\5" + bytes(4), id="hints cut short"),
        pytest.param(HEAD + params((0, b""), ALPN), id="an empty list of mandatory keys"),
        pytest.param(HEAD + params((0, b"\0\1\0"), ALPN), id="an odd list"),
        pytest.param(HEAD + params(mandatory(3), ALPN), id="a mandatory key that is missing"),
        pytest.param(HEAD + params(mandatory(0, 1), ALPN), id="the list in itself"),
        pytest.param(HEAD + params(mandatory(3, 1), ALPN, PORT), id="the list out of order"),
        pytest.param(HEAD + params(mandatory(1, 1), ALPN, PORT), id="a mandatory key twice"),
    ],
)
def test_what_is_malformed_is_left_out(rdata: bytes) -> None:
    assert scrub_svcb(rdata) is None


def keys_of(rdata: bytes) -> list[int]:
    at = 2
    while rdata[at]:
        at += rdata[at] + 1
    at += 1
    keys = []
    while at < len(rdata):
        key, length = struct.unpack_from("!HH", rdata, at)
        keys.append(key)
        at += 4 + length
    assert at == len(rdata)
    return keys


def check(rdata: bytes) -> None:
    found = scrub_svcb(rdata)
    if found is None:
        return
    assert len(found) <= len(rdata)
    assert not {4, 5, 6, 7} & set(keys_of(found))
    assert scrub_svcb(found) == found


@given(st.binary(max_size=120))
def test_any_bytes_are_clean_or_left_out(rdata: bytes) -> None:
    check(rdata)


@given(st.dictionaries(st.integers(1, 12), st.binary(max_size=6), max_size=8), st.data())
def test_whatever_is_offered_only_the_rest_remains(offered: dict[int, bytes], data: st.DataObject) -> None:
    pairs = sorted(offered.items())
    needed = sorted(data.draw(st.sets(st.sampled_from(sorted(offered)))) if offered else ())
    rdata = HEAD + params(*([mandatory(*needed)] if needed else []), *pairs)
    check(rdata)
    found = scrub_svcb(rdata)
    assert found is not None
    assert [key for key in keys_of(found) if key] == [key for key, _ in pairs if key not in (4, 5, 6, 7)]


@given(st.binary(max_size=60))
def test_any_parameters_are_clean_or_left_out(rest: bytes) -> None:
    check(HEAD + rest)
