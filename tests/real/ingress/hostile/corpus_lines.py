"""More of the corpus: request lines, Host, absolute forms, other protocols, sizes."""

from __future__ import annotations

from tests.real.ingress.hostile.corpus import (
    BAD,
    CL,
    EITHER,
    HELLO,
    HOST,
    OK,
    ROUTE,
    TE,
    Case,
    chunked,
    get,
    head,
    post,
)

REFUSED = (400, 405, 501, 505)
FOREIGN = (400, 408, 501, 505, 0)
"""What is no HTTP at all may also be hung up on."""
METHODS = (
    b"get",
    b"GEt",
    b"head",
    b"FROB",
    b"GETT",
    b"VERSION-CONTROL",
    b"PLAY",
    b"x_y.z",
    b"!#$%&'*+-.^_`|~",
    b"M" * 64,
)
"""Any token is a method (RFC 9110 section 9.1); what it means is the sandbox's to say."""
HIGH = {
    "utf8": "/caf\u00e9/\u4e16?q=\u00fc".encode(),
    "latin1": b"/caf\xe9",
    "overlong": b"/\xc0\xaf\xc0\xae\xc0\xae/",  # a slash and dots to a reader of old; here three octets each way
    "next-line": b"/a\x85HTTP/1.1",
    "no-break-space": b"/a\xa0HTTP/1.1",
    "all": b"/" + bytes(range(0x80, 0x100)),
}
"""Octets above ASCII in a target are in no URI, and are sent by clients that don't encode what was typed."""


def request_lines() -> list[Case]:
    """Three parts, one space between them, a version this gateway speaks (RFC 9112 section 3)."""
    cases = [
        Case("line-plain", get(), OK),
        Case("line-http10", head(b"GET /in HTTP/1.0", b"Connection: keep-alive"), OK),
        Case("line-http10-no-host", head(b"GET /in HTTP/1.0", b"Connection: keep-alive", host=b""), OK),
        Case("line-query", head(b"GET /in?a=b&c=%0d%0a HTTP/1.1"), OK),
        Case("line-options-asterisk", head(b"OPTIONS * HTTP/1.1"), EITHER, goes_on=True),
        Case("line-long-target", head(b"GET /" + b"a" * 8000 + b" HTTP/1.1"), OK),
        Case("line-delete", head(b"DELETE /in HTTP/1.1"), OK),
        Case("line-patch", head(b"PATCH /in HTTP/1.1", CL) + b"hello", OK, b"hello"),
        Case("line-propfind", head(b"PROPFIND /in HTTP/1.1"), OK),
        Case("line-trace", head(b"TRACE /in HTTP/1.1"), (200, 400, 405, 501)),
        Case("connect-authority", head(b"CONNECT example.com:443 HTTP/1.1", host=b"Host: example.com:443"), (400, 405)),
        Case("connect-lower", head(b"connect /in HTTP/1.1"), (400, 405)),
        Case("connect-mixed", head(b"ConnecT example.com:443 HTTP/1.1"), (400, 405)),
        Case("connect-path", head(b"CONNECT /in HTTP/1.1"), (400, 405)),
        Case("connect-with-body", head(b"CONNECT box:1 HTTP/1.1", CL) + b"hello", (400, 405)),
        Case("http09", b"GET /in\r\n", FOREIGN, alone=True),
        Case("http09-head", b"GET /in\r\n" + HOST + b"\r\n" + ROUTE + b"\r\n\r\n", (400, 505), smuggles=True),
    ]
    for method in METHODS:
        cases.append(Case(f"method-{method.decode()}", head(method + b" /in HTTP/1.1"), OK))
        cases.append(
            Case(f"method-{method.decode()}-body", head(method + b" /in HTTP/1.1", CL) + b"hello", OK, b"hello")
        )
    for name, target in HIGH.items():
        cases.append(Case(f"target-{name}", head(b"GET " + target + b" HTTP/1.1"), OK))
        cases.append(Case(f"target-{name}-chunked", head(b"FROB " + target + b" HTTP/1.1", TE) + HELLO, OK, b"hello"))
    for name, line in (
        ("double-space", b"GET  /in HTTP/1.1"),
        ("double-space-2", b"GET /in  HTTP/1.1"),
        ("tab", b"GET\t/in\tHTTP/1.1"),
        ("tab-2", b"GET /in\tHTTP/1.1"),
        ("vtab", b"GET\x0b/in HTTP/1.1"),
        ("formfeed", b"GET /in\x0cHTTP/1.1"),
        ("trailing-space", b"GET /in HTTP/1.1 "),
        ("four-parts", b"GET /in x HTTP/1.1"),
        ("space-in-target", b"GET /in HTTP/1.1 HTTP/1.1"),
        ("no-target", b"GET HTTP/1.1"),
        ("empty-target", b"GET  HTTP/1.1"),
        ("no-slash", b"GET in HTTP/1.1"),
        ("query-only", b"GET ?in HTTP/1.1"),
        ("backslash-first", b"GET \\in HTTP/1.1"),
        ("asterisk-get", b"GET * HTTP/1.1"),
        ("asterisk-more", b"OPTIONS *x HTTP/1.1"),
        ("lower-version", b"GET /in http/1.1"),
        ("mixed-version", b"GET /in Http/1.1"),
        ("version-letters", b"GET /in HTTP/x.y"),
        ("version-short", b"GET /in HTTP/1"),
        ("version-long", b"GET /in HTTP/1.10"),
        ("version-zero", b"GET /in HTTP/01.1"),
        ("version-plus", b"GET /in HTTP/+1.1"),
        ("version-comma", b"GET /in HTTP/1,1"),
        ("version-tail", b"GET /in HTTP/1.1x"),
        ("version-space", b"GET /in HTTP/ 1.1"),
        ("version-https", b"GET /in HTTPS/1.1"),
        ("version-09", b"GET /in HTTP/0.9"),
        ("version-12", b"GET /in HTTP/1.2"),
        ("version-20", b"GET /in HTTP/2.0"),
        ("version-2", b"GET /in HTTP/2"),
        ("version-11-0", b"GET /in HTTP/11.0"),
        ("version-rtsp", b"GET /in RTSP/1.0"),
        ("version-ice", b"SOURCE /in ICE/1.0"),
        ("method-space", b"GE T /in HTTP/1.1"),
        ("method-colon", b"GET: /in HTTP/1.1"),
        ("method-quoted", b'"GET" /in HTTP/1.1'),
        ("method-high", b"G\xc9T /in HTTP/1.1"),
        ("method-pri", b"PRI * HTTP/1.1"),
        ("method-pri-lower", b"pri /in HTTP/1.1"),
        ("method-nul", b"GE\x00T /in HTTP/1.1"),
        ("method-control", b"GE\x01T /in HTTP/1.1"),
        ("method-del", b"GE\x7fT /in HTTP/1.1"),
        ("method-slash", b"HTTP/1.1 /in HTTP/1.1"),
        ("method-too-long", b"G" * 65 + b" /in HTTP/1.1"),
        ("high-first", b"GET \xc3\xa9 HTTP/1.1"),
        ("high-and-space", b"GET /\xc3\xa9 HTTP/1.1 HTTP/1.1"),
        ("high-and-nul", b"GET /\xc3\xa9\x00 HTTP/1.1"),
        ("high-and-del", b"GET /\xc3\xa9\x7f HTTP/1.1"),
        ("high-and-tab", b"GET /\xc3\xa9\t HTTP/1.1"),
        ("high-and-cr", b"GET /\xc3\xa9\r HTTP/1.1"),
        ("high-version", b"GET /in HTTP/1.1\xa0"),
        ("high-space", b"GET\xa0/in HTTP/1.1"),
        ("del-target", b"GET /\x7f HTTP/1.1"),
        ("control-target", b"GET /\x01 HTTP/1.1"),
    ):
        cases.append(Case(f"line-{name}", head(line), REFUSED, goes_on="asterisk" in name))
    for name, target in (
        ("quote", b'/"in"'),
        ("angle", b"/<in>"),
        ("pipe", b"/a|b"),
        ("backslash", b"/a\\b"),
        ("caret", b"/a^b"),
        ("brace", b"/{a}"),
        ("backquote", b"/`a`"),
        ("bad-percent", b"/%zz"),
        ("cut-percent", b"/%"),
        ("fragment", b"/in#part"),
    ):
        cases.append(Case(f"target-{name}", head(b"GET " + target + b" HTTP/1.1"), EITHER))
    return cases


def hosts() -> list[Case]:
    """Host: once, and nothing but a host and a port (RFC 9112 section 3.2)."""
    cases = [
        Case("host-port", get(host=b"Host: app.test:8080"), OK),
        Case("host-v4", get(host=b"Host: 127.0.0.1:8080"), OK),
        Case("host-v6", get(host=b"Host: [::1]:8080"), OK),
        Case("host-upper", get(host=b"HOST: APP.Test"), OK),
        Case("host-underscore", get(host=b"Host: my_app.test"), OK),
        Case("host-empty", get(host=b"Host:"), EITHER, goes_on=True),
        Case("host-last", head(b"GET /in HTTP/1.1", HOST, host=b"X-A: b"), OK),
        Case("host-dot", get(host=b"Host: app.test."), EITHER, goes_on=True),
        Case("host-empty-port", get(host=b"Host: app.test:"), EITHER, goes_on=True),
        Case("host-percent", get(host=b"Host: app%2etest"), EITHER, goes_on=True),
        Case("host-none", get(host=b""), BAD, smuggles=True),
        Case("host-twice-same", get(HOST), BAD, smuggles=True),
        Case("host-twice", get(b"Host: evil.test"), BAD, smuggles=True),
        Case("host-twice-case", get(b"hOsT: evil.test"), BAD, smuggles=True),
        Case("host-twice-empty", get(b"Host:"), BAD, smuggles=True),
        Case("host-twice-http10", head(b"GET /in HTTP/1.0", b"Host: evil.test"), BAD),
        Case("host-folded", get(host=b"Host: app.test\r\n evil.test"), BAD, smuggles=True),
        Case("host-space-name", get(host=b"Host : app.test"), BAD, smuggles=True),
        Case("host-first-folded", get(host=b" Host: app.test"), BAD, smuggles=True),
    ]
    for name, value in (
        ("space", b"app test"),
        ("tab", b"app\ttest"),
        ("comma", b"app.test, evil.test"),
        ("comma-tight", b"app.test,evil.test"),
        ("userinfo", b"user@app.test"),
        ("userinfo-password", b"a:b@app.test"),
        ("scheme", b"http://app.test"),
        ("path", b"app.test/x"),
        ("query", b"app.test?x"),
        ("fragment", b"app.test#x"),
        ("backslash", b"app.test\\x"),
        ("quoted", b'"app.test"'),
        ("angle", b"<app.test>"),
        ("port-letters", b"app.test:http"),
        ("port-sign", b"app.test:+80"),
        ("port-space", b"app.test: 80"),
        ("port-twice", b"app.test:80:80"),
        ("port-huge", b"app.test:65536"),
        ("v6-open", b"[::1"),
        ("v6-close", b"::1]"),
        ("v6-bare", b"::1"),
        ("v6-tail", b"[::1]x"),
        ("high", b"\xe9.test"),
        ("nul", b"app.test\x00"),
        ("vtab", b"\x0bapp.test"),
        ("semicolon", b"app.test;x"),
    ):
        cases.append(Case(f"host-{name}", get(host=b"Host: " + value), BAD, goes_on=True))
    return cases


def absolute_forms() -> list[Case]:
    """A target with an authority has to agree with Host (case and default port apart)."""
    cases: list[Case] = []
    for name, target, host in (
        ("same", b"http://app.test/in", b"app.test"),
        ("https", b"https://app.test/in", b"app.test"),
        ("upper-scheme", b"HTTP://app.test/in", b"app.test"),
        ("case", b"http://APP.test/in", b"app.TEST"),
        ("default-port", b"http://app.test:80/in", b"app.test"),
        ("default-port-2", b"http://app.test/in", b"app.test:80"),
        ("https-port", b"https://app.test:443/in", b"app.test"),
        ("port", b"http://app.test:8080/in", b"app.test:8080"),
    ):
        cases.append(Case(f"absolute-{name}", head(b"GET " + target + b" HTTP/1.1", host=b"Host: " + host), OK))
    for name, target, host in (
        ("no-path", b"http://app.test", b"app.test"),
        ("query", b"http://app.test?in", b"app.test"),
    ):
        cases.append(Case(f"absolute-{name}", head(b"GET " + target + b" HTTP/1.1", host=b"Host: " + host), EITHER))
    for name, target, host in (
        ("other", b"http://evil.test/in", b"app.test"),
        ("other-port", b"http://app.test:81/in", b"app.test"),
        ("wrong-default", b"https://app.test:80/in", b"app.test"),
        ("sub", b"http://x.app.test/in", b"app.test"),
        ("prefix", b"http://app.test.evil/in", b"app.test"),
        ("userinfo", b"http://app.test@evil.test/in", b"app.test"),
        ("userinfo-2", b"http://user@app.test/in", b"app.test"),
        ("empty", b"http:///in", b"app.test"),
        ("one-slash", b"http:/in", b"app.test"),
        ("no-slash", b"http:in", b"app.test"),
        ("ftp", b"ftp://app.test/in", b"app.test"),
        ("file", b"file:///etc/passwd", b"app.test"),
        ("ws", b"javascript:alert(1)", b"app.test"),
        ("authority", b"app.test:80", b"app.test"),
        ("bad-port", b"http://app.test:x/in", b"app.test"),
        ("backslash", b"http://evil.test\\@app.test/in", b"app.test"),
    ):
        cases.append(
            Case(f"absolute-{name}", head(b"GET " + target + b" HTTP/1.1", host=b"Host: " + host), BAD, goes_on=True)
        )
    cases.append(Case("absolute-no-host", head(b"GET http://app.test/in HTTP/1.1", host=b""), BAD, goes_on=True))
    cases.append(Case("absolute-http10", head(b"GET http://app.test/in HTTP/1.0", b"Connection: keep-alive"), OK))
    return cases


def foreign() -> list[Case]:
    """Other protocols on this port, and sizes out of bounds."""
    hello = bytes.fromhex("16030100c4010000c00303") + bytes(range(1, 190))
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    large = (431, 400, 414)
    return [
        Case("tls-hello", hello, FOREIGN, alone=True),
        Case("tls-hello-more", hello + b"\r\n\r\n" + get(), REFUSED),
        Case("http2-preface", preface + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00", FOREIGN, alone=True),
        Case("http2-upgrade", get(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAA"), OK),
        Case("ssh", b"SSH-2.0-OpenSSH_9.2\r\n", FOREIGN, alone=True),
        Case("redis", b"*1\r\n$4\r\nPING\r\n", FOREIGN, alone=True),
        Case("smtp", b"EHLO x\r\n", FOREIGN, alone=True),
        Case("proxy-v1", b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2\r\n" + get(), REFUSED),
        Case("proxy-v2", b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" + bytes(12) + get(), REFUSED),
        Case("binary", bytes(range(256)) * 4, FOREIGN, alone=True),
        Case("large-target", head(b"GET /" + b"a" * 70_000 + b" HTTP/1.1"), large),
        Case("large-field", get(b"X-A: " + b"a" * 70_000), large),
        Case("large-name", get(b"X" * 70_000 + b": a"), large),
        Case("large-head", get(*[b"X-%d: %s" % (n, b"a" * 1000) for n in range(100)]), large),
        Case("many-fields", get(*[b"A: b"] * 10_000), large),
        Case("some-fields", get(*[b"X-%d: b" % n for n in range(100)]), OK),
        Case("too-many-fields", get(*[b"X-%d: b" % n for n in range(200)]), large),
        Case("large-method", b"G" * 70_000 + b" / HTTP/1.1\r\n\r\n", (*large, 501)),
        Case("endless-line", b"a" * 200_000, (*large, 501), alone=True),
        Case("endless-crlf", b"\r\n" * 100_000 + get(), (*large, 200)),
        Case("endless-extension", chunked(b"5;" + b"a" * 1_000_000 + b"\r\nhello\r\n0\r\n\r\n"), (400, 413, 431)),
        Case("endless-trailer", chunked(b"0\r\nX-A: " + b"a" * 1_000_000 + b"\r\n\r\n"), (400, 413, 431)),
        Case("endless-trailers", chunked(b"0\r\n" + b"X-A: b\r\n" * 100_000 + b"\r\n"), (400, 413, 431)),
        Case("expect-continue", post(CL, b"Expect: 100-continue"), OK, b"hello"),
        Case("expect-unknown", post(CL, b"Expect: a-miracle"), (200, 417), b"hello"),
        Case(
            "expect-http10",
            head(b"POST /in HTTP/1.0", CL, b"Expect: 100-continue", b"Connection: keep-alive") + b"hello",
            OK,
            b"hello",
        ),
        Case("te-trailers", post(TE, b"TE: trailers", body=HELLO), OK, b"hello"),
    ]
