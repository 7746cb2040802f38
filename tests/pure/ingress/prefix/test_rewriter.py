"""Path mode: an application that doesn't know its prefix gets it back in redirects and cookies."""

from __future__ import annotations

from http.cookies import SimpleCookie
from urllib.parse import urljoin, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingress.http1.prefix import Rewriter, jar, put_back

PREFIX = b"/box/8080"
rewriter = Rewriter(PREFIX, frozenset((b"gate.example", b"localhost:8080", b"[::1]:8080")))


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        # its own paths
        (b"/", b"/box/8080/"),
        (b"/login", b"/box/8080/login"),
        (b"/login?next=/a#b", b"/box/8080/login?next=/a#b"),
        (b"/a/../b", b"/box/8080/a/../b"),
        (b"/%2e%2e/b", b"/box/8080/%2e%2e/b"),
        (b"/other/8080/", b"/box/8080/other/8080/"),
        (b"/box/80801/", b"/box/8080/box/80801/"),
        (b"/\\evil.example/", b"/box/8080/\\evil.example/"),
        # already with the prefix: it read X-Forwarded-Prefix
        (b"/box/8080", b"/box/8080"),
        (b"/box/8080/", b"/box/8080/"),
        (b"/box/8080/login?a", b"/box/8080/login?a"),
        (b"/box/8080?a", b"/box/8080?a"),
        (b"/box/8080#a", b"/box/8080#a"),
        (b"/%62ox/8080/login", b"/%62ox/8080/login"),
        (b"/box/8080/..hidden", b"/box/8080/..hidden"),
        (b"/box/8080/login?next=/../a", b"/box/8080/login?next=/../a"),
        # with the prefix, and out of it again: it doesn't know it
        (b"/box/8080/../x", b"/box/8080/box/8080/../x"),
        (b"/box/8080/..", b"/box/8080/box/8080/.."),
        (b"/box/8080/%2e%2e/x", b"/box/8080/box/8080/%2e%2e/x"),
        # relative: the browser's to resolve, and it is under the prefix
        (b"", b""),
        (b"login", b"login"),
        (b"../b", b"../b"),
        (b"?page=2", b"?page=2"),
        (b"#top", b"#top"),
        # absolute, and itself
        (b"http://gate.example/login", b"/box/8080/login"),
        (b"https://GATE.example/login", b"/box/8080/login"),
        (b"HTTP://gate.example/", b"/box/8080/"),
        (b"http://gate.example", b"/box/8080/"),
        (b"http://gate.example?a", b"/box/8080/?a"),
        (b"http://gate.example#a", b"/box/8080/#a"),
        (b"http://localhost:8080/login?a", b"/box/8080/login?a"),
        (b"http://[::1]:8080/x", b"/box/8080/x"),
        (b"http://gate.example/box/8080/login", b"/box/8080/login"),
        (b"//gate.example/login", b"/box/8080/login"),
        (b"//localhost:8080", b"/box/8080/"),
        # absolute, and others
        (b"http://other.example/login", b"http://other.example/login"),
        (b"https://accounts.example/o?redirect_uri=http://gate.example/", None),
        (b"//other.example/", b"//other.example/"),
        (b"http://localhost:3000/", b"http://localhost:3000/"),
        (b"http://gate.example:81/", b"http://gate.example:81/"),
        (b"http://gate.example.evil.example/", b"http://gate.example.evil.example/"),
        (b"http://me@gate.example/", b"http://me@gate.example/"),
        (b"http://gate.example\\@other.example/", b"http://gate.example\\@other.example/"),
        (b"ws://gate.example/", b"ws://gate.example/"),
        (b"mailto:a@b.example", b"mailto:a@b.example"),
        (b"vscode://gate.example/", b"vscode://gate.example/"),
        (b"a//gate.example/", b"a//gate.example/"),
    ],
)
def test_references(said: bytes, meant: bytes | None) -> None:
    meant = said if meant is None else meant
    assert rewriter(b"location", said) == [meant]
    assert rewriter(b"content-location", said) == [meant]


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (b"a=b", b"a=b"),
        (b"a=b; Path=/", b"a=b; Path=/box/8080/"),
        (b"a=b;path=/", b"a=b; Path=/box/8080/"),
        (b"a=b; Path=/app", b"a=b; Path=/box/8080/app"),
        (b"a=b; Path=/box/8080", b"a=b; Path=/box/8080"),
        (b"a=b; Path=/box/8080/app", b"a=b; Path=/box/8080/app"),
        (b"a=b; Path=/box/8081/", b"a=b; Path=/box/8080/box/8081/"),
        (b"a=b; Path=/box/8080/../8081/", b"a=b; Path=/box/8080/box/8080/../8081/"),
        (b"a=b; Path=", b"a=b"),
        (b"a=b; Path", b"a=b"),
        (b"a=b; Path=app", b"a=b; Path=/box/8080/"),
        (b"a=b; Path=/x; Path=/y", b"a=b; Path=/box/8080/y"),
        (b"a=b; Path=/; Path=", b"a=b"),
        (b"a=b; Domain=gate.example", b"a=b"),
        (b"a=b; DOMAIN = .example; Path = /", b"a=b; Path=/box/8080/"),
        (
            b"a=b; HttpOnly; Path=/; Max-Age=60; SameSite=None; Secure; Partitioned",
            b"a=b; HttpOnly; Max-Age=60; SameSite=None; Secure; Partitioned; Path=/box/8080/",
        ),
        (
            b"a=b; Expires=Wed, 21 Oct 2026 07:28:00 GMT; Path=/",
            b"a=b; Expires=Wed, 21 Oct 2026 07:28:00 GMT; Path=/box/8080/",
        ),
        (b"path=/; Path=/", b"path=/; Path=/box/8080/"),
        (b"domain=x; Path=/", b"domain=x; Path=/box/8080/"),
        (b"__Secure-a=b; Secure; Path=/", b"__Secure-a=b; Secure; Path=/box/8080/"),
        # These are refused by browsers with any other path.
        (b"__Host-a=b; Path=/; Secure", b"__Host-a=b; Secure; Path=/"),
        (b"__host-a=b; Secure; Path=/", b"__host-a=b; Secure; Path=/"),
        (b"__Host-Http-a=b; Secure; HttpOnly; Path=/", b"__Host-Http-a=b; Secure; HttpOnly; Path=/"),
        (b"", b""),
        (b";", b";"),
    ],
)
def test_cookies(said: bytes, meant: bytes) -> None:
    assert rewriter(b"set-cookie", said) == [meant]


def test_two_sandboxes_on_one_host_do_not_share_cookies() -> None:
    other = Rewriter(b"/other/8080", frozenset())
    assert rewriter.cookie(b"session=1; Path=/") != other.cookie(b"session=1; Path=/")
    for said in (b"session=1; Path=/", b"session=1; Path=/other/8080/", b"session=1; Path=/; Domain=gate.example"):
        morsel = SimpleCookie(rewriter.cookie(said)[0].decode())["session"]
        assert morsel["path"].startswith("/box/8080/")
        assert morsel["domain"] == ""


# ---- cookies for the whole host, where there is a route cookie ---------------------------------------------------

JAR = jar(PREFIX)
with_jar = Rewriter(PREFIX, frozenset(), JAR)


def test_a_jar_is_one_port_of_one_sandbox() -> None:
    assert JAR == b"sallyport-jar-86da75ba3d3e571f-"
    assert jar(b"/box/8080/1abc/deadbeefk") == JAR
    assert len({JAR, jar(b"/box/8081"), jar(b"/other/8080"), jar(b"/box/80"), jar(b"/Box/8080")}) == 5


@pytest.mark.parametrize(
    ("said", "below", "wide"),
    [
        (b"a=b; Path=/", b"a=b; Path=/box/8080/", b"a=b; HttpOnly; Path=/"),
        (b"a=b", b"a=b; Path=/box/8080/", b"a=b; HttpOnly; Path=/"),
        (b"a=b; Path=/app", b"a=b; Path=/box/8080/app", b"a=b; HttpOnly; Path=/app"),
        (b"a=b; Path=/box/8080/app", b"a=b; Path=/box/8080/app", b"a=b; HttpOnly; Path=/app"),
        (b"a=b; Path=/box/8080", b"a=b; Path=/box/8080", b"a=b; HttpOnly; Path=/"),
        (
            b"a=b; Max-Age=0; Domain=x.example; httponly; Secure",
            b"a=b; Max-Age=0; httponly; Secure; Path=/box/8080/",
            b"a=b; Max-Age=0; httponly; Secure; Path=/",
        ),
        (b" a=b;Path=/", b" a=b; Path=/box/8080/", b"a=b; HttpOnly; Path=/"),
        # A host-bound one can't be put below a prefix: now it needn't be seen by others either.
        (b"__Host-a=b; Secure; Path=/", None, b"__Host-a=b; Secure; HttpOnly; Path=/"),
        # A name is what it would come back by.
        (b"=b; Path=/", b"=b; Path=/box/8080/", None),
        (b"b; Path=/", b"b; Path=/box/8080/", None),
    ],
)
def test_cookies_with_a_jar(said: bytes, below: bytes | None, wide: bytes | None) -> None:
    expected = ([] if below is None else [below]) + ([] if wide is None else [JAR + wide])
    assert with_jar(b"set-cookie", said) == expected


def test_no_cookie_of_a_sandbox_with_a_jar_is_seen_by_another_by_its_own_name() -> None:
    for said in (
        b"a=b",
        b"a=b; Path=/",
        b"a=b; Path=/other/8080/",
        b"__Host-a=b; Path=/; Secure",
        b"a=b; Path=x",
        b"=a=b",
    ):
        for out in with_jar.cookie(said):
            morsel = out.decode()
            assert morsel.startswith(JAR.decode()) or "; Path=/box/8080/" in morsel


# ---- properties --------------------------------------------------------------------------------------------------

PATHS = st.lists(st.sampled_from(["a", "..", ".", "", "box", "8080", "%2e%2e", "a;b"]), max_size=6).map(
    lambda parts: "/" + "/".join(parts)
)


@given(PATHS, st.sampled_from(["", "?q=/..", "#f"]))
def test_a_rewritten_path_is_under_the_prefix_and_rewriting_stops_there(path: str, rest: str) -> None:
    if path.startswith("//"):
        return
    once = rewriter.reference((path + rest).encode())
    assert once.startswith(PREFIX)
    assert once.endswith((path + rest).encode())
    if ".." not in path and "%2e" not in path:
        assert rewriter.reference(once) == once


@given(PATHS)
def test_an_absolute_url_of_its_own_is_what_its_path_is(path: str) -> None:
    if path.startswith("//"):
        return
    for base in ("http://gate.example", "https://localhost:8080", "//gate.example"):
        assert rewriter.reference((base + path).encode()) == rewriter.reference(path.encode())


@given(st.text("ab/:.?#@\\%;=_", max_size=20), st.sampled_from([b"location", b"content-location", b"set-cookie"]))
def test_any_value_gives_one_and_never_a_line_more(text: str, name: bytes) -> None:
    value = text.encode()
    (out,) = rewriter(name, value)
    assert b"\r" not in out
    assert b"\n" not in out
    if name == b"set-cookie":
        assert out.partition(b";")[0] == value.partition(b";")[0]


@given(st.text("abcxyz.-", min_size=1, max_size=12), PATHS)
def test_other_peoples_urls_stay_as_they_are(host: str, path: str) -> None:
    url = f"https://{host}{path}"
    if urlsplit(urljoin("http://x/", url)).netloc == "gate.example":
        return
    assert rewriter.reference(url.encode()) == url.encode()


# ---- without a prefix: the Host was changed ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (b"http://localhost:3000/login?a=b#c", b"/login?a=b#c"),
        (b"https://LOCALHOST:3000/login", b"/login"),
        (b"//localhost:3000/login", b"/login"),
        (b"http://localhost:3000", b"/"),
        (b"http://localhost:3000/", b"/"),
        (b"http://localhost:3000/caf\xc3\xa9", b"/caf\xc3\xa9"),
        (b"/login", b"/login"),
        (b"login", b"login"),
        (b"", b""),
        (b"http://localhost/login", b"http://localhost/login"),  # another place on the client's machine, or a callback
        (b"http://localhost:30001/", b"http://localhost:30001/"),
        (b"http://a@localhost:3000/", b"http://a@localhost:3000/"),
        (b"ftp://localhost:3000/", b"ftp://localhost:3000/"),
        (b"http://evil.example/http://localhost:3000/", b"http://evil.example/http://localhost:3000/"),
    ],
)
def test_a_host_that_was_changed_is_put_back(said: bytes, meant: bytes) -> None:
    assert put_back(b"Localhost:3000", b"location", said) == [meant]
    assert put_back(b"localhost:3000", b"set-cookie", said) == [said]


@pytest.mark.parametrize("path", [b"//evil.example/", b"/\\evil.example/", b"/\t/evil.example/", b"\\/evil.example"])
def test_i3_nothing_that_is_put_back_leads_to_another_host(path: bytes) -> None:
    said = b"http://localhost:3000" + path
    assert put_back(b"localhost:3000", b"location", said) == [said]


@given(st.binary(max_size=30))
def test_i3_what_is_put_back_stays_where_the_client_is(rest: bytes) -> None:
    said = b"http://localhost:3000" + rest
    (meant,) = put_back(b"localhost:3000", b"location", said)
    if meant != said:
        assert urlsplit(urljoin("http://gate.example/a", meant.decode("latin-1"))).netloc == "gate.example"
