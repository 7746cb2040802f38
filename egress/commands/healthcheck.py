"""`egress healthcheck`: for an image's HEALTHCHECK, which has no shell and no curl."""

from __future__ import annotations

import os
import socket
import sys


def main(argv: list[str]) -> int:
    """Ask /healthz of the sidecar in this namespace; 0 when it answers 200, else 1 with the reason on stderr."""
    if argv:
        print("usage: egress healthcheck\n\nAsks GET /healthz at OPENSANDBOX_EGRESS_HTTP_ADDR (default :18080).")
        return 0 if argv[0] in ("-h", "--help") else 2
    host, _, port = (os.environ.get("OPENSANDBOX_EGRESS_HTTP_ADDR") or ":18080").rpartition(":")
    host = host.strip("[]")
    try:
        with socket.create_connection(
            (host if host not in ("", "::", "0.0.0.0") else "127.0.0.1", int(port)), 2
        ) as sock:
            sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answer = b""
            while chunk := sock.recv(4096):
                answer += chunk
    except (OSError, ValueError) as error:
        print(f"egress healthcheck: {error}", file=sys.stderr)
        return 1
    if answer.startswith(b"HTTP/1.1 200"):
        return 0
    reason = answer.partition(b"\r\n\r\n")[2][:200].decode(errors="replace")
    print(f"egress healthcheck: {reason}", file=sys.stderr)
    return 1
