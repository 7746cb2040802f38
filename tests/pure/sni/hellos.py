"""ClientHellos: built octet by octet, and by the ssl module as programs send them."""

from __future__ import annotations

import ssl
import struct


def vector(octets: int, data: bytes) -> bytes:
    return len(data).to_bytes(octets, "big") + data


def server_name(*names: bytes, kind: int = 0) -> bytes:
    """The body of the extension."""
    return vector(2, b"".join(bytes([kind]) + vector(2, name) for name in names))


def body(
    name: bytes | None = b"api.example.com",
    *,
    extensions: tuple[tuple[int, bytes], ...] = (),
    version: int = 0x0303,
    session: bytes = b"s" * 32,
    suites: bytes = b"\x13\x01\x13\x02",
    compression: bytes = b"\0",
    tail: bytes = b"",
) -> bytes:
    """A ClientHello's body; with a name, server_name comes first."""
    listed = ((0, server_name(name)),) if name is not None else ()
    block = b"".join(struct.pack(">H", kind) + vector(2, data) for kind, data in (*listed, *extensions))
    fixed = struct.pack(">H", version) + b"r" * 32 + vector(1, session) + vector(2, suites) + vector(1, compression)
    return fixed + (vector(2, block) if block else b"") + tail


def handshake(content: bytes, kind: int = 1) -> bytes:
    return bytes([kind]) + vector(3, content)


def record(content: bytes, kind: int = 22, version: int = 0x0301) -> bytes:
    return bytes([kind]) + struct.pack(">H", version) + vector(2, content)


def hello(name: bytes | None = b"api.example.com", **more: object) -> bytes:
    """A whole one in one record."""
    return record(handshake(body(name, **more)))  # type: ignore[arg-type]


def of_python(name: str | None, *, most: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3, alpn: tuple[str, ...] = ()) -> bytes:
    """What the ssl module sends first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = most
    if alpn:
        context.set_alpn_protocols(list(alpn))
    there = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), there, server_hostname=name)
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return there.read()
