"""Sandboxes that lie: raw answers by name, and what an honest gateway makes of each.

`refused`: the client is told 502 by the gateway itself. `cut`: the client sees that the answer is not whole.
`whole`: the answer is good as far as it goes, what came beside it goes nowhere.
In every case but the controls the connection to the sandbox is never used again.
"""

from __future__ import annotations

from typing import NamedTuple


class Lie(NamedTuple):
    name: str
    raw: bytes
    wanted: str
    after: str = "stay"
    """What the sandbox does then: "stay" silent, "close", or "reset"."""
    method: bytes = b"GET"
    body: bytes = b""
    """What a whole answer's body has to be."""
    reused: bool = False


def answer(*fields: bytes, body: bytes = b"", line: bytes = b"HTTP/1.1 200 OK") -> bytes:
    return b"\r\n".join([line, *fields, b"", b""]) + body


CL, TE = b"Content-Length: 5", b"Transfer-Encoding: chunked"
HELLO = b"5\r\nhello\r\n0\r\n\r\n"
PLAIN = answer(CL, body=b"hello")
EVIL = answer(b"Content-Length: 4", body=b"evil")


def heads() -> list[Lie]:
    """Heads that can't be read, or not in one way only."""
    return [
        Lie("length-and-chunked", answer(CL, TE, body=HELLO), "refused"),
        Lie("chunked-and-length", answer(TE, CL, body=HELLO), "refused"),
        Lie("lengths-differ", answer(CL, b"Content-Length: 3", body=b"hello"), "refused"),
        Lie("lengths-agree", answer(CL, CL, body=b"hello"), "refused"),
        Lie("length-list", answer(b"Content-Length: 5, 3", body=b"hello"), "refused"),
        Lie("length-plus", answer(b"Content-Length: +5", body=b"hello"), "refused"),
        Lie("length-minus", answer(b"Content-Length: -5", body=b"hello"), "refused"),
        Lie("length-hex", answer(b"Content-Length: 0x5", body=b"hello"), "refused"),
        Lie("length-empty", answer(b"Content-Length:", body=b"hello"), "refused"),
        Lie("length-overflow", answer(b"Content-Length: 18446744073709551621", body=b"hello"), "refused"),
        Lie("coding-x", answer(b"Transfer-Encoding: xchunked", body=HELLO), "refused"),
        Lie("coding-gzip", answer(b"Transfer-Encoding: gzip, chunked", body=HELLO), "refused"),
        Lie("coding-twice", answer(TE, TE, body=HELLO), "refused"),
        Lie("coding-identity", answer(b"Transfer-Encoding: identity", CL, body=b"hello"), "refused"),
        Lie("coding-http10", answer(TE, line=b"HTTP/1.0 200 OK", body=HELLO), "refused"),
        Lie("coding-vtab", answer(b"Transfer-Encoding: \x0bchunked", body=HELLO), "refused"),
        Lie("space-name", answer(b"Transfer-Encoding : chunked", body=HELLO), "refused"),
        Lie("space-first", answer(b" Transfer-Encoding: chunked", body=HELLO), "refused"),
        Lie("folded", answer(CL, b"X-A: b\r\n c", body=b"hello"), "refused"),
        Lie("folded-coding", answer(b"Transfer-Encoding:\r\n chunked", body=HELLO), "refused"),
        Lie("nul-value", answer(CL, b"X-A: b\x00c", body=b"hello"), "refused"),
        Lie("nul-name", answer(CL, b"X-\x00A: b", body=b"hello"), "refused"),
        Lie("nul-reason", answer(CL, line=b"HTTP/1.1 200 O\x00K", body=b"hello"), "refused"),
        Lie("bare-cr", answer(CL, b"X-A: b\rX-B: c", body=b"hello"), "refused"),
        Lie("bare-cr-reason", answer(CL, line=b"HTTP/1.1 200 O\rK", body=b"hello"), "refused"),
        Lie("bare-lf", answer(CL, b"X-A: b\nX-B: c", body=b"hello"), "refused"),
        Lie("all-lf", PLAIN.replace(b"\r\n", b"\n"), "refused"),
        Lie("no-colon", answer(CL, b"X-A", body=b"hello"), "refused"),
        Lie("nameless", answer(CL, b": x", body=b"hello"), "refused"),
        Lie("high-name", answer(CL, b"X-\xe9: x", body=b"hello"), "refused"),
        Lie("giant-field", answer(CL, b"X-A: " + b"a" * 300_000, body=b"hello"), "refused"),
        Lie("giant-head", answer(CL, *[b"X-%d: %s" % (n, b"a" * 1000) for n in range(100)], body=b"hello"), "refused"),
        Lie("many-fields", answer(CL, *[b"X-A: b"] * 5000, body=b"hello"), "refused"),
        Lie("endless-head", b"HTTP/1.1 200 OK\r\nX-A: " + b"a" * 2_000_000, "refused"),
        Lie("cut-head", b"HTTP/1.1 200 OK\r\nContent-Le", "refused", after="close"),
        Lie("cut-head-reset", b"HTTP/1.1 200 OK\r\nContent-Le", "refused", after="reset"),
        Lie("cut-head-at-line", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n", "refused", after="close"),
        Lie("nothing", b"", "refused", after="close"),
        Lie("nothing-reset", b"", "refused", after="reset"),
        Lie("garbage", b"what?\r\n\r\n", "refused"),
        Lie("http09", b"hello", "refused"),
        Lie("ssh", b"SSH-2.0-OpenSSH_9.2\r\n", "refused"),
        Lie("tls-alert", b"\x15\x03\x01\x00\x02\x02\x46", "refused"),
        Lie("status-two", answer(CL, line=b"HTTP/1.1 20 OK", body=b"hello"), "refused"),
        Lie("status-four", answer(CL, line=b"HTTP/1.1 2000 OK", body=b"hello"), "refused"),
        Lie("status-letters", answer(CL, line=b"HTTP/1.1 abc OK", body=b"hello"), "refused"),
        Lie("status-zero", answer(CL, line=b"HTTP/1.1 000 OK", body=b"hello"), "refused"),
        Lie("status-099", answer(CL, line=b"HTTP/1.1 099 OK", body=b"hello"), "refused"),
        Lie("status-none", answer(CL, line=b"HTTP/1.1", body=b"hello"), "refused"),
        Lie("version-2", answer(CL, line=b"HTTP/2.0 200 OK", body=b"hello"), "refused"),
        Lie("version-12", answer(CL, line=b"HTTP/1.2 200 OK", body=b"hello"), "refused"),
        Lie("version-ice", answer(CL, line=b"ICY 200 OK", body=b"hello"), "refused"),
        Lie("double-space", answer(CL, line=b"HTTP/1.1  200 OK", body=b"hello"), "refused"),
        Lie("leading-space", b" " + PLAIN, "refused"),
        Lie("request", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "refused"),
        Lie("switch-unasked", answer(b"Upgrade: websocket", b"Connection: Upgrade", line=b"HTTP/1.1 101 S"), "refused"),
        Lie("switch-bare", answer(line=b"HTTP/1.1 101 Switching Protocols"), "refused"),
        Lie("interim-flood", answer(line=b"HTTP/1.1 100 Continue") * 5_000, "refused"),
        Lie("interim-flood-large", answer(b"X-A: " + b"a" * 9000, line=b"HTTP/1.1 103 Early") * 500, "refused"),
        Lie("interim-then-nothing", answer(line=b"HTTP/1.1 103 Early Hints"), "refused", after="close"),
        Lie("interim-with-nul", answer(b"X-A: \x00", line=b"HTTP/1.1 103 Early Hints") + PLAIN, "refused"),
    ]


def bodies() -> list[Lie]:
    """Bodies that are not what their head promised: the head has left already."""
    lies = [
        Lie("length-short", answer(b"Content-Length: 10", body=b"hello"), "cut", after="close"),
        Lie("length-short-reset", answer(b"Content-Length: 10", body=b"hello"), "cut", after="reset"),
        Lie("length-without-body", answer(b"Content-Length: 10"), "cut", after="close"),
        Lie("until-reset", answer(body=b"hello"), "cut", after="reset"),
        Lie("until-reset-http10", answer(line=b"HTTP/1.0 200 OK", body=b"hello"), "cut", after="reset"),
    ]
    for name, body, after in (
        ("no-end", b"5\r\nhello\r\n", "close"),
        ("no-end-reset", b"5\r\nhello\r\n", "reset"),
        ("in-data", b"5\r\nhel", "close"),
        ("in-size", b"5\r\nhello\r\n5", "close"),
        ("before-empty-line", b"5\r\nhello\r\n0\r\n", "close"),
        ("nothing", b"", "close"),
        ("bad-size", b"5\r\nhello\r\nxyz\r\n", "stay"),
        ("hex-prefix", b"5\r\nhello\r\n0x5\r\nhello\r\n0\r\n\r\n", "stay"),
        ("minus", b"-5\r\nhello\r\n0\r\n\r\n", "stay"),
        ("overflow", b"10000000000000005\r\nhello\r\n0\r\n\r\n", "stay"),
        ("lf-size", b"5\nhello\r\n0\r\n\r\n", "stay"),
        ("lf-data", b"5\r\nhello\n0\r\n\r\n", "stay"),
        ("lf-end", b"5\r\nhello\r\n0\r\n\n", "stay"),
        ("no-crlf", b"5\r\nhelloXX0\r\n\r\n", "stay"),
        ("too-much", b"4\r\nhello\r\n0\r\n\r\n", "stay"),
        ("extension-lf", b"5;a\nhello\r\n0\r\n\r\n", "stay"),
        ("extension-cr", b"5;a\rb\r\nhello\r\n0\r\n\r\n", "stay"),
        ("extension-endless", b"5;" + b"a" * 500_000 + b"\r\nhello\r\n0\r\n\r\n", "stay"),
        ("trailer-nul", b"5\r\nhello\r\n0\r\nX-A: \x00\r\n\r\n", "stay"),
        ("trailer-lf", b"5\r\nhello\r\n0\r\nX-A: b\nX-B: c\r\n\r\n", "stay"),
        ("trailer-folded", b"5\r\nhello\r\n0\r\nX-A: b\r\n c\r\n\r\n", "stay"),
        ("trailers-endless", b"5\r\nhello\r\n0\r\n" + b"X-A: b\r\n" * 100_000 + b"\r\n", "stay"),
        ("plain-text", b"hello, I am not chunked\r\n\r\n", "stay"),
    ):
        lies.append(Lie(f"chunked-{name}", answer(TE, body=body), "cut", after=after))
    return lies


def leftovers() -> list[Lie]:
    """Whole answers with something beside them that nobody asked for."""
    empty = b"HTTP/1.1 204 No Content"
    return [
        Lie("junk-after-length", PLAIN + b"junk", "whole", body=b"hello"),
        Lie("junk-after-chunked", answer(TE, body=HELLO + b"junk"), "whole", body=b"hello"),
        Lie("crlf-after-length", PLAIN + b"\r\n", "whole", body=b"hello"),
        Lie("answer-after-length", PLAIN + EVIL, "whole", body=b"hello"),
        Lie("answer-after-chunked", answer(TE, body=HELLO) + EVIL, "whole", body=b"hello"),
        Lie("answer-after-empty", answer(b"Content-Length: 0") + EVIL, "whole"),
        Lie("answers-after", PLAIN + EVIL * 50, "whole", body=b"hello"),
        Lie("interim-after", PLAIN + answer(line=b"HTTP/1.1 100 Continue"), "whole", body=b"hello"),
        Lie("204-with-length", answer(CL, line=empty, body=b"hello"), "whole"),
        Lie("204-with-chunks", answer(TE, line=empty, body=HELLO), "whole"),
        Lie("204-with-answer", answer(line=empty) + EVIL, "whole"),
        Lie("304-with-body", answer(CL, line=b"HTTP/1.1 304 Not Modified", body=b"hello"), "whole"),
        Lie("304-with-chunks", answer(TE, line=b"HTTP/1.1 304 Not Modified", body=HELLO), "whole"),
        Lie("head-with-body", PLAIN, "whole", method=b"HEAD"),
        Lie("head-with-chunks", answer(TE, body=HELLO), "whole", method=b"HEAD"),
        Lie("head-with-answer", answer(CL) + EVIL, "whole", method=b"HEAD"),
        Lie("closes", answer(CL, b"Connection: close", body=b"hello"), "whole", body=b"hello"),
        Lie("closes-silently", PLAIN, "whole", body=b"hello", after="close"),
        Lie("http10", answer(CL, line=b"HTTP/1.0 200 OK", body=b"hello"), "whole", body=b"hello"),
        Lie("until-close", answer(body=b"hello"), "whole", body=b"hello", after="close"),
        Lie(
            "until-close-http10", answer(line=b"HTTP/1.0 200 OK", body=b"hello"), "whole", body=b"hello", after="close"
        ),
    ]


def honest() -> list[Lie]:
    """The controls: nothing is wrong with these, and their connection is used again."""
    return [
        Lie("length", PLAIN, "whole", body=b"hello", reused=True),
        Lie("chunked", answer(TE, body=HELLO), "whole", body=b"hello", reused=True),
        Lie("extension", answer(TE, body=b"5;a=b\r\nhello\r\n0\r\n\r\n"), "whole", body=b"hello", reused=True),
        Lie("trailer", answer(TE, body=b"5\r\nhello\r\n0\r\nX-A: b\r\n\r\n"), "whole", body=b"hello", reused=True),
        Lie("empty", answer(b"Content-Length: 0"), "whole", reused=True),
        Lie("204", answer(line=b"HTTP/1.1 204 No Content"), "whole", reused=True),
        Lie("304", answer(CL, line=b"HTTP/1.1 304 Not Modified"), "whole", reused=True),
        Lie("head", answer(CL), "whole", method=b"HEAD", reused=True),
        Lie("interim", answer(line=b"HTTP/1.1 103 Early Hints") + PLAIN, "whole", body=b"hello", reused=True),
        Lie("reasonless", answer(CL, line=b"HTTP/1.1 200 ", body=b"hello"), "whole", body=b"hello", reused=True),
        Lie(
            "http10-keeps",
            answer(CL, b"Connection: keep-alive", line=b"HTTP/1.0 200 OK", body=b"hello"),
            "whole",
            body=b"hello",
            reused=True,
        ),
    ]
