"""Redis URLs: what is understood, what is refused with which words, and that no word repeats a password."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingress.renewal.renew import Dsn, check_dsn

NONE: dict[str, str] = {}


@pytest.mark.parametrize(
    ("text", "dsn"),
    [
        ("redis://127.0.0.1:6379/0", Dsn("127.0.0.1", 6379, "", 0, "", "", NONE)),
        ("redis://", Dsn("localhost", 6379, "", 0, "", "", NONE)),
        ("redis://cache", Dsn("cache", 6379, "", 0, "", "", NONE)),
        ("REDIS://Cache:7000/3", Dsn("cache", 7000, "", 3, "", "", NONE)),
        ("redis://[::1]:7000/", Dsn("::1", 7000, "", 0, "", "", NONE)),
        ("redis://user:p%40ss%2F%3A@cache/1", Dsn("cache", 6379, "", 1, "user", "p@ss/:", NONE)),
        ("redis://:secret@cache", Dsn("cache", 6379, "", 0, "", "secret", NONE)),
        ("redis://cache?db=4", Dsn("cache", 6379, "", 4, "", "", NONE)),
        ("redis://cache/4?db=4&pool_size=3&dial_timeout=5s", Dsn("cache", 6379, "", 4, "", "", NONE)),
        ("rediss://cache", Dsn("cache", 6379, "", 0, "", "", {"verify": "yes"})),
        ("rediss://cache?skip_verify=true", Dsn("cache", 6379, "", 0, "", "", {"verify": "no"})),
        (
            "rediss://cache?ssl_ca_certs=/etc/ca.pem",
            Dsn("cache", 6379, "", 0, "", "", {"verify": "yes", "ssl_ca_certs": "/etc/ca.pem"}),
        ),
        ("unix:///run/redis.sock", Dsn("localhost", 6379, "/run/redis.sock", 0, "", "", NONE)),
        ("unix://u:p@/run/redis.sock?db=2", Dsn("localhost", 6379, "/run/redis.sock", 2, "u", "p", NONE)),
    ],
)
def test_understood(text: str, dsn: Dsn) -> None:
    assert check_dsn(text) == dsn


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "begin with"),
        ("127.0.0.1:6379", "begin with"),
        ("http://cache", "begin with"),
        ("redis:cache", "begin with"),
        ("redis://a b", "write"),
        ("redis://cache:port", "port"),
        ("redis://cache:0", "write"),
        ("redis://cache:65536", "port"),
        ("redis://:hunter/2@cache", "port"),
        ("redis://:hunter#2@cache", "port"),
        ("redis://cache/x", "database"),
        ("redis://cache/-1", "database"),
        ("redis://cache/\u0662", "database"),
        ("redis://cache/0/1", "database"),
        ("redis://cache/1?db=2", "two databases"),
        ("redis://cache?db=1&db=2", "twice"),
        ("redis://cache?db=", "empty"),
        ("redis://cache?hunter2=1", "unknown parameter"),
        ("redis://cache?ssl_ca_certs=/x", "rediss"),
        ("unix://run/redis.sock", "three slashes"),
        ("unix:///", "three slashes"),
        ("unix://", "three slashes"),
        ("redis://[::1", "port|write"),
    ],
)
def test_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        check_dsn(text)
    assert "\n" not in str(caught.value)
    if "unknown" not in words:
        assert "hunter" not in str(caught.value)


def test_what_is_shown_holds_no_password() -> None:
    assert str(check_dsn("redis://user:secret@cache:7000/3")) == "redis://cache:7000/3"
    assert str(check_dsn("rediss://:secret@[::1]")) == "rediss://[::1]:6379/0"
    assert str(check_dsn("unix://u:secret@/run/r.sock")) == "unix:///run/r.sock?db=0"


@given(st.text(max_size=40) | st.text(max_size=30).map("redis://".__add__))
def test_any_text_is_understood_or_refused(text: str) -> None:
    try:
        dsn = check_dsn(text)
    except ValueError:
        return
    assert 1 <= dsn.port <= 65535
    assert dsn.db >= 0
