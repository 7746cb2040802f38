"""The raw requests that the gateway is tried with, by name: what tricks are made of, and their honest neighbours.

`PORT` in a request stands for the port of the test's origin; `box` is the sandbox. 200 among a case's answers means
that it may be served: then the sandbox has to see exactly one request, with `body`.
"""

from __future__ import annotations

from typing import NamedTuple

ROUTE = b"OpenSandbox-Ingress-To: box-PORT"
HOST = b"Host: app.test"


class Case(NamedTuple):
    name: str
    raw: bytes
    answers: tuple[int, ...]
    body: bytes = b""
    """What the sandbox has to read as the body, where it is served."""
    alone: bool = False
    """Nothing may follow, because it would be part of it: the client ends its half instead."""
    goes_on: bool = False
    """Where it is refused it may be so without closing: where the request ends is clear."""
    smuggles: bool = False
    """Sent to a server as it is, it is read as something else than one clear request."""


OK, BAD = (200,), (400,)
EITHER = (200, 400)
CUT = (400, 408, 0)
"""0: a request that its client cut short may also be answered by the end of the connection."""


def head(line: bytes, *fields: bytes, host: bytes = HOST) -> bytes:
    return b"\r\n".join([line, *([host] if host else []), ROUTE, *fields, b"", b""])


def post(*fields: bytes, body: bytes = b"hello") -> bytes:
    return head(b"POST /in HTTP/1.1", *fields) + body


def get(*fields: bytes, host: bytes = HOST) -> bytes:
    return head(b"GET /in HTTP/1.1", *fields, host=host)


def chunked(body: bytes) -> bytes:
    return post(b"Transfer-Encoding: chunked", body=body)


HELLO = b"5\r\nhello\r\n0\r\n\r\n"
CL, TE = b"Content-Length: 5", b"Transfer-Encoding: chunked"
HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: app.test\r\n" + ROUTE + b"\r\n\r\n"


def lengths() -> list[Case]:
    """Content-Length, alone and in company (RFC 9112 section 6.3)."""
    cases = [
        Case("length", post(CL), OK, b"hello"),
        Case("length-zero", post(b"Content-Length: 0", body=b""), OK),
        Case("length-with-get", get(CL) + b"hello", OK, b"hello"),
        Case("length-space-around", post(b"Content-Length: \t 5 \t"), OK, b"hello"),
        Case("length-no-space", post(b"Content-Length:5"), OK, b"hello"),
        Case("length-odd-case", post(b"cOnTeNt-LeNgTh: 5"), OK, b"hello"),
        Case("length-leading-zero", post(b"Content-Length: 005"), EITHER, b"hello"),
        Case("length-too-short", post(b"Content-Length: 4"), OK, b"hell", alone=True),
        Case("length-too-long", post(b"Content-Length: 6"), CUT, alone=True),
        Case("length-twice-same", post(CL, CL), BAD, smuggles=True),
        Case("length-twice-different", post(CL, b"Content-Length: 0"), BAD, smuggles=True),
        Case("length-twice-different-2", post(b"Content-Length: 0", CL), BAD, smuggles=True),
        Case("length-list-same", post(b"Content-Length: 5, 5"), BAD),
        Case("length-list-different", post(b"Content-Length: 5, 0"), BAD, smuggles=True),
        Case("length-then-chunked", post(CL, TE, body=HELLO), BAD, smuggles=True),
        Case("chunked-then-length", post(TE, CL, body=HELLO), BAD, smuggles=True),
        Case("chunked-then-length-zero", post(TE, b"Content-Length: 0", body=HELLO), BAD, smuggles=True),
        Case("length-hides-a-request", post(b"Content-Length: 6", TE, body=b"0\r\n\r\n" + HIDDEN), BAD, smuggles=True),
        Case("chunked-hides-a-request", post(b"Content-Length: 100", TE, body=HELLO + HIDDEN), BAD, smuggles=True),
    ]
    for name, value in (
        ("plus", b"+5"),
        ("minus", b"-5"),
        ("hex", b"0x5"),
        ("letters", b"five"),
        ("inner-space", b"5 5"),
        ("semicolon", b"5;"),
        ("fraction", b"5.0"),
        ("exponent", b"5e0"),
        ("underscore", b"0_5"),
        ("quoted", b'"5"'),
        ("empty", b""),
        ("comma", b"5,"),
        ("arabic", "\u0665".encode()),
        ("vtab", b"5\x0b"),
        ("formfeed", b"\x0c5"),
        ("nbsp", b"5\xa0"),
        ("nul", b"5\x00"),
        ("overflow-64", b"18446744073709551621"),
        ("overflow-32", b"4294967301000000000000"),
        ("endless", b"1" * 4000),
    ):
        cases.append(Case(f"length-{name}", post(b"Content-Length: " + value), BAD, smuggles=True))
    return cases


def codings() -> list[Case]:
    """Transfer-Encoding: `chunked` once, on HTTP/1.1, and nothing else."""
    cases = [
        Case("chunked", chunked(HELLO), OK, b"hello"),
        Case("chunked-upper", post(b"Transfer-Encoding: CHUNKED", body=HELLO), OK, b"hello"),
        Case("chunked-odd-name", post(b"tRANSFER-eNCODING:chunked", body=HELLO), OK, b"hello"),
        Case("chunked-then-a-request", chunked(b"0\r\n\r\n"), OK),
        Case(
            "chunked-http10",
            head(b"POST /in HTTP/1.0", TE) + HELLO,
            BAD,
            smuggles=True,
        ),
        Case("chunked-twice", post(TE, TE, body=HELLO), BAD, smuggles=True),
        Case("chunked-and-identity", post(TE, b"Transfer-Encoding: identity", body=HELLO), BAD, smuggles=True),
        Case("identity-and-chunked", post(b"Transfer-Encoding: identity", TE, body=HELLO), BAD, smuggles=True),
        Case("identity-and-length", post(b"Transfer-Encoding: identity", CL), BAD, smuggles=True),
        Case("coding-quoted-get", get(b'Transfer-Encoding: "chunked"') + HELLO, BAD, smuggles=True),
    ]
    for name, value in (
        ("xchunked", b"xchunked"),
        ("chunkedx", b"chunkedx"),
        ("chunked-chunked", b"chunked, chunked"),
        ("gzip-chunked", b"gzip, chunked"),
        ("chunked-gzip", b"chunked, gzip"),
        ("identity", b"identity"),
        ("chunked-identity", b"chunked, identity"),
        ("parameter", b"chunked;q=1"),
        ("semicolon", b"chunked;"),
        ("comma-first", b", chunked"),
        ("comma-last", b"chunked,"),
        ("empty", b""),
        ("quoted", b'"chunked"'),
        ("dotless", "chun\u212aed".encode()),
        ("cut", b"chunke"),
    ):
        cases.append(Case(f"coding-{name}", post(b"Transfer-Encoding: " + value, body=HELLO), BAD, smuggles=True))
    for name, line in (
        ("vtab-value", b"Transfer-Encoding:\x0bchunked"),
        ("vtab-after", b"Transfer-Encoding: chunked\x0b"),
        ("formfeed-value", b"Transfer-Encoding: \x0cchunked"),
        ("nul-value", b"Transfer-Encoding: chunked\x00"),
        ("bell-value", b"Transfer-Encoding: \x07chunked"),
        ("space-name", b"Transfer-Encoding : chunked"),
        ("tab-name", b"Transfer-Encoding\t: chunked"),
        ("vtab-name", b"Transfer-Encoding\x0b: chunked"),
        ("nul-name", b"Transfer-Encoding\x00: chunked"),
        ("space-first", b" Transfer-Encoding: chunked"),
        ("tab-first", b"\tTransfer-Encoding: chunked"),
        ("space-within", b"Transfer Encoding: chunked"),
        ("folded-value", b"Transfer-Encoding:\r\n chunked"),
        ("folded-behind", b"X-A: b\r\n Transfer-Encoding: chunked"),
        ("folded-tail", b"Transfer-Encoding: chunked\r\n "),
        ("bare-cr", b"X-A: b\rTransfer-Encoding: chunked"),
        ("bare-lf", b"X-A: b\nTransfer-Encoding: chunked"),
        ("lf-cr", b"X-A: b\n\rTransfer-Encoding: chunked"),
        ("cr-cr-lf", b"X-A: b\r\r\nTransfer-Encoding: chunked"),
        ("high-name", b"Transfer-Encoding\xa0: chunked"),
        ("colon-first", b":Transfer-Encoding: chunked"),
        ("no-colon", b"Transfer-Encoding chunked"),
    ):
        cases.append(Case(f"coding-{name}", post(CL, line, body=HELLO), BAD, smuggles=True))
    return cases


def chunks() -> list[Case]:
    """Chunked bodies (RFC 9112 section 7.1): sizes, extensions, ends and trailers."""
    good = [
        ("chunks-two", b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"),
        ("chunks-zeros", b"0005\r\nhello\r\n000\r\n\r\n"),
        ("chunks-extension", b"5;name=value\r\nhello\r\n0;last\r\n\r\n"),
        ("chunks-quoted", b'5;name="a b;c"\r\nhello\r\n0\r\n\r\n'),
        ("chunks-trailer", b"5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n"),
    ]
    cases = [Case(name, chunked(body), OK, b"hello") for name, body in good]
    cases.append(Case("chunks-hex", chunked(b"A\r\n0123456789\r\na\r\n0123456789\r\n0\r\n\r\n"), OK, b"0123456789" * 2))
    for name, body in (
        ("space-after", b"5 \r\nhello\r\n0\r\n\r\n"),
        ("tab-after", b"5\t\r\nhello\r\n0\r\n\r\n"),
        ("space-before", b" 5\r\nhello\r\n0\r\n\r\n"),
        ("spaced-extension", b"5 ; a = b\r\nhello\r\n0\r\n\r\n"),
        ("quoted-quote", b'5;a="\\""\r\nhello\r\n0\r\n\r\n'),
        ("many-zeros", b"0" * 40 + b"5\r\nhello\r\n0\r\n\r\n"),
        ("odd-extension", b"5;;;\r\nhello\r\n0\r\n\r\n"),
    ):
        cases.append(Case(f"chunks-{name}", chunked(body), EITHER, b"hello"))
    for name, body in (
        ("lf-size", b"5\nhello\r\n0\r\n\r\n"),
        ("lf-data", b"5\r\nhello\n0\r\n\r\n"),
        ("lf-last", b"5\r\nhello\r\n0\n\r\n"),
        ("lf-end", b"5\r\nhello\r\n0\r\n\n"),
        ("lf-everywhere", b"5\nhello\n0\n\n"),
        ("cr-size", b"5\rhello\r\n0\r\n\r\n"),
        ("cr-cr-lf", b"5\r\r\nhello\r\n0\r\n\r\n"),
        ("hex-prefix", b"0x5\r\nhello\r\n0\r\n\r\n"),
        ("minus", b"-5\r\nhello\r\n0\r\n\r\n"),
        ("plus", b"+5\r\nhello\r\n0\r\n\r\n"),
        ("underscore", b"0_5\r\nhello\r\n0\r\n\r\n"),
        ("letter", b"g\r\nhello\r\n0\r\n\r\n"),
        ("fraction", b"5.0\r\nhello\r\n0\r\n\r\n"),
        ("empty-size", b"\r\nhello\r\n0\r\n\r\n"),
        ("extension-only", b";a=b\r\nhello\r\n0\r\n\r\n"),
        ("two-sizes", b"5 5\r\nhello\r\n0\r\n\r\n"),
        ("nul-size", b"5\x00\r\nhello\r\n0\r\n\r\n"),
        ("vtab-size", b"5\x0b\r\nhello\r\n0\r\n\r\n"),
        ("overflow", b"10000000000000005\r\nhello\r\n0\r\n\r\n"),
        ("overflow-more", b"ffffffffffffffff0\r\nhello\r\n0\r\n\r\n"),
        ("extension-lf", b"5;a\nhello\r\n0\r\n\r\n"),
        ("extension-lf-value", b"5;a=b\nc\r\nhello\r\n0\r\n\r\n"),
        ("extension-cr", b"5;a\rb\r\nhello\r\n0\r\n\r\n"),
        ("extension-nul", b"5;a\x00\r\nhello\r\n0\r\n\r\n"),
        ("extension-quoted-crlf", b'5;a="\r\nhello\r\n0\r\n\r\n'),
        ("extension-quoted-lf", b'5;a="\n"\r\nhello\r\n0\r\n\r\n'),
        ("extension-equals", b"5=a\r\nhello\r\n0\r\n\r\n"),
        ("too-little", b"6\r\nhello\r\n0\r\n\r\n"),
        ("too-much", b"4\r\nhello\r\n0\r\n\r\n"),
        ("no-crlf", b"5\r\nhello0\r\n\r\n"),
        ("junk-for-crlf", b"5\r\nhelloXX0\r\n\r\n"),
        ("trailer-lf", b"5\r\nhello\r\n0\r\nX-A: b\nX-C: d\r\n\r\n"),
        ("trailer-cr", b"5\r\nhello\r\n0\r\nX-A: b\rX-C: d\r\n\r\n"),
        ("trailer-nul", b"5\r\nhello\r\n0\r\nX-A: \x00\r\n\r\n"),
        ("trailer-space-name", b"5\r\nhello\r\n0\r\nX-A : b\r\n\r\n"),
        ("trailer-folded", b"5\r\nhello\r\n0\r\nX-A: b\r\n c\r\n\r\n"),
        ("trailer-space-first", b"5\r\nhello\r\n0\r\n X-A: b\r\n\r\n"),
        ("trailer-no-colon", b"5\r\nhello\r\n0\r\nX-A\r\n\r\n"),
        ("trailer-request", b"5\r\nhello\r\n0\r\nGET /hidden HTTP/1.1\r\n\r\n"),
    ):
        cases.append(Case(f"chunks-{name}", chunked(body), BAD, smuggles=True))
    for name, body in (
        ("maximum", b"ffffffffffffffff\r\nhello\r\n0\r\n\r\n"),
        ("signed-maximum", b"7fffffffffffffff\r\nhello"),
        ("cut-data", b"5\r\nhel"),
        ("cut-end", b"5\r\nhello\r\n0\r\n"),
        ("cut-size", b"5"),
        ("nothing", b""),
    ):
        cases.append(Case(f"chunks-{name}", chunked(body), CUT, alone=True))
    for name, line in (
        ("length", b"Content-Length: 3"),
        ("host", b"Host: evil.test"),
        ("coding", b"Transfer-Encoding: chunked"),
        ("forwarded", b"X-Forwarded-For: 6.6.6.6"),
        ("route", b"OpenSandbox-Ingress-To: other-1"),
        ("access", b"OpenSandbox-Secure-Access: secret"),
        ("authorization", b"Authorization: Bearer x"),
        ("connection", b"Connection: close"),
    ):
        cases.append(Case(f"trailer-{name}", chunked(b"5\r\nhello\r\n0\r\n" + line + b"\r\n\r\n"), EITHER, b"hello"))
    return cases


def line_ends() -> list[Case]:
    """Bare LF, bare CR, NUL and folded lines, wherever a line can have them."""
    cases = [
        Case("leading-crlf", b"\r\n" + get(), EITHER),
        Case("leading-crlfs", b"\r\n" * 3 + get(), EITHER),
        Case("leading-lf", b"\n" + get(), BAD, smuggles=True),
        Case("leading-cr", b"\r" + get(), BAD, smuggles=True),
        Case("leading-space", b" " + get(), BAD, smuggles=True),
        Case("leading-nul", b"\x00" + get(), (400, 501), smuggles=True),
        Case("leading-bom", b"\xef\xbb\xbf" + get(), (400, 501), smuggles=True),
        Case("all-lf", get().replace(b"\r\n", b"\n"), BAD, smuggles=True),
        Case("all-cr", get().replace(b"\r\n", b"\r"), CUT, alone=True),
        Case("empty-line-lf", get()[:-2] + b"\n", BAD, smuggles=True),
        Case("empty-line-cr", get()[:-2] + b"\r\r\n", BAD, smuggles=True),
        Case("empty-line-space", get()[:-2] + b" \r\n\r\n", BAD, smuggles=True),
        Case("last-line-lf", get()[:-4] + b"\n\r\n", BAD, smuggles=True),
        Case("lf-cr-lf", get()[:-4] + b"\n\n", BAD, smuggles=True),
        Case("request-line-lf", get().replace(b" HTTP/1.1\r\n", b" HTTP/1.1\n"), BAD, smuggles=True),
        Case("request-line-cr", get().replace(b" HTTP/1.1\r\n", b" HTTP/1.1\r"), BAD, smuggles=True),
        Case("request-line-cr-in-target", get().replace(b"/in", b"/i\rn"), BAD, smuggles=True),
        Case("request-line-lf-in-target", get().replace(b"/in", b"/i\nn"), BAD, smuggles=True),
        Case("request-line-nul", get().replace(b"/in", b"/i\x00n"), BAD, smuggles=True),
        Case("field-del", get(b"X-A: \x7f"), BAD, smuggles=True),
        Case("field-high", get(b"X-A: \xe9\xff"), OK),
        Case("field-tab", get(b"X-A: a\tb"), OK),
        Case("field-empty", get(b"X-A:"), OK),
        Case("field-colons", get(b"X-A: :b:c:"), OK),
        Case("field-nameless", get(b": b"), BAD, smuggles=True),
        Case("field-name-odd", get(b"!#$%&'*+-.^_`|~: x"), OK),
    ]
    for name, line in (
        ("lf-in-value", b"X-A: b\nX-B: c"),
        ("cr-in-value", b"X-A: b\rX-B: c"),
        ("cr-at-end", b"X-A: b\r"),
        ("lf-at-end", b"X-A: b\n"),
        ("nul-in-value", b"X-A: b\x00c"),
        ("nul-in-name", b"X-\x00A: b"),
        ("cr-in-name", b"X-\rA: b"),
        ("space-in-name", b"X A: b"),
        ("space-name", b"X-A : b"),
        ("tab-name", b"X-A\t: b"),
        ("high-name", b"X-\xc3\xa9: b"),
        ("folded-space", b"X-A: b\r\n c"),
        ("folded-tab", b"X-A: b\r\n\tc"),
        ("folded-empty", b"X-A: b\r\n \r\nX-B: c"),
        ("slash-name", b"X/A: b"),
        ("paren-name", b"X(A): b"),
        ("quoted-name", b'"X-A": b'),
        ("escape-in-value", b"X-A: \x1b[2J"),
        ("vtab-in-value", b"X-A: a\x0bb"),
    ):
        cases.append(Case(f"field-{name}", get(line), BAD, smuggles=True))
    return cases
