"""TLS behind a PROXY header: the header comes in the clear, the handshake after it."""

from __future__ import annotations

import socket
import ssl
from typing import Any

BOX: dict[str, Any] = {"box": {"host": "127.0.0.1"}}


def test_the_handshake_follows_the_header(start_gateway: Any, origin: Any, authority: Any) -> None:
    certificate, key = authority.issue("one")
    flags = ["--tls-cert", str(certificate), "--tls-key", str(key), "--proxy-protocol-from", "127.0.0.0/8"]
    gateway = start_gateway(BOX, flags)
    context = ssl.create_default_context(cafile=str(authority.certificate))
    with socket.create_connection(("127.0.0.1", gateway.port), 10) as plain:
        plain.sendall(b"PROXY TCP6 2001:db8::9 2001:db8::1 4711 443\r\n")
        with context.wrap_socket(plain, server_hostname="localhost") as sock:
            sock.sendall(f"GET {origin.path()} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            answer = b""
            while chunk := sock.recv(65536):
                answer += chunk
    assert answer.endswith(b"hello from /hello")
    assert origin.seen[-1][1]["x-forwarded-for"] == "2001:db8::9"
    assert origin.seen[-1][1]["x-forwarded-proto"] == "https"
    hasty = start_gateway(BOX, [*flags, "--head-timeout", "500ms"])
    with socket.create_connection(("127.0.0.1", hasty.port), 20) as plain:
        plain.sendall(b"PROXY UNKNOWN\r\n")
        assert plain.recv(1) == b""  # I7: nor is this handshake waited for
