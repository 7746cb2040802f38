"""What hides the name that a connection is for, or says two."""

from __future__ import annotations

from typing import NamedTuple

from tests.pure.sni.hellos import body, handshake, hello, record, server_name, vector

GROUPS = ((10, vector(2, b"\0\x17")), (13, vector(2, b"\4\3")))
EVIL = b"evil.example.net"


class Hidden(NamedTuple):
    port: int
    said: bytes
    reason: str  # or its beginning, as it is told


def plain(name: bytes | None, extensions: tuple[tuple[int, bytes], ...] = ()) -> bytes:
    """A ClientHello that an OpenSSL server answers."""
    return hello(name, extensions=GROUPS + extensions, suites=b"\xc0\x2b")


def ech(name: bytes) -> bytes:
    """One with an encrypted ClientHello in it, or what a browser sends in the place of one."""
    return plain(name, ((0xFE0D, b"\0" * 40),))


def hidden(name: bytes) -> dict[str, Hidden]:
    """All of them; `name` is the allowed one."""
    host = b"Host: " + name + b"\r\n"
    get = b"GET / HTTP/1.1\r\n" + host
    follows = "something follows the ClientHello"
    late = "the client did not say in time"
    return {
        "no SNI": Hidden(443, plain(None), "no server name (SNI)"),
        "an address for SNI": Hidden(443, plain(b"192.0.2.1"), "the server name (SNI) is an address"),
        "two names": Hidden(443, plain(None, ((0, server_name(name, EVIL)),)), "several server names"),
        "SNI twice": Hidden(443, plain(name, ((0, server_name(EVIL)),)), "an extension twice"),
        "ECH": Hidden(443, ech(name), "an encrypted ClientHello (ECH)"),
        "something behind it": Hidden(443, plain(name) + b"garbage", follows),
        "another hello behind it": Hidden(443, plain(name) + plain(EVIL), follows),
        "two hellos in a record": Hidden(443, record(handshake(body(name)) + handshake(body(EVIL))), follows),
        "HTTP on 443": Hidden(443, get + b"\r\n", "not TLS"),
        "SSH on 443": Hidden(443, b"SSH-2.0-OpenSSH_9.2\r\n", "not TLS"),
        "silence on 443": Hidden(443, b"", "the client said nothing"),
        "silence on 80": Hidden(80, b"", "the client said nothing"),
        "half a hello": Hidden(443, plain(name)[:60], late),
        "half a head": Hidden(80, get, late),
        "TLS on 80": Hidden(80, plain(name), "not an HTTP/1 request"),
        "two Hosts": Hidden(80, get + b"Host: " + EVIL + b"\r\n\r\n", "Host twice"),
        "no Host": Hidden(80, b"GET / HTTP/1.0\r\n\r\n", "no Host"),
        "absolute form": Hidden(80, b"GET http://%s/ HTTP/1.1\r\n%s\r\n" % (EVIL, host), "a request target that is no"),
        "CONNECT": Hidden(80, b"CONNECT %s:443 HTTP/1.1\r\n%s\r\n" % (EVIL, host), "CONNECT"),
        "Upgrade": Hidden(80, get + b"Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n", "Upgrade in a request"),
        "two lengths": Hidden(
            80, b"POST / HTTP/1.1\r\n%sContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" % host,
            "Content-Length and Transfer-Encoding",
        ),
    }  # fmt: skip


KINDS = tuple(hidden(b""))
