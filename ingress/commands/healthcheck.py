"""`ingress healthcheck`: for an image's HEALTHCHECK, which has no shell and no curl."""

from __future__ import annotations

import os
import socket
import sys

from ingress.settings.config import Config, ConfigError, from_args

HELP = """\
usage: ingress healthcheck [FLAG ...]

Asks the gateway on this machine GET /livez on its admin port, or GET /status.ok on its main port where there is no
admin port. Takes the flags and variables of `ingress serve`; without any flag, those of process 1 where that is the
gateway, as in a container. Exit code 0 when it is alive, 1 when not, with the reason.
"""
TIMEOUT = 2.0  # seconds


def main(argv: list[str]) -> int:
    """Ask, and say by the exit code what the answer was."""
    if any(word in ("-h", "--help", "-help") for word in argv):
        sys.stdout.write(HELP)
        return 0
    try:
        config = from_args(argv or _flags_of_container(), os.environ)
    except ConfigError as error:
        print(f"ingress healthcheck: {error}", file=sys.stderr)
        return 2
    try:
        answer = _ask(config)
    except OSError as error:
        print(f"ingress healthcheck: {error.strerror or error}", file=sys.stderr)
        return 1
    if answer.startswith(b"HTTP/1.1 200"):
        return 0
    reason = answer.partition(b"\r\n\r\n")[2][:200].decode(errors="replace").strip() or "no answer"
    print(f"ingress healthcheck: {reason}", file=sys.stderr)
    return 1


def _flags_of_container() -> list[str]:
    """The flags that process 1 was started with if it is `ingress serve`, else none."""
    try:
        with open("/proc/1/cmdline", "rb") as file:
            words = file.read(65536).decode(errors="surrogateescape").split("\0")[:-1]
    except OSError:
        return []
    for at in range(len(words) - 1):
        if words[at].rpartition("/")[2] == "ingress" and words[at + 1] == "serve":
            return words[at + 2 :]
    return []


def _ask(config: Config) -> bytes:
    """The whole answer."""
    if config.admin_port:
        host, port, path, secure = config.admin_host, config.admin_port, "/livez", False
    else:
        path = "/healthz" if config.agent is not None else "/status.ok"
        host, port, secure = config.host, config.port, bool(config.tls_cert)
    with socket.create_connection((host if host not in ("", "::", "0.0.0.0") else "127.0.0.1", port), TIMEOUT) as plain:
        sock: socket.socket = plain
        if secure:
            import ssl

            context = ssl.create_default_context()
            context.check_hostname = False  # it is this machine; whether clients trust the certificate is theirs to say
            context.verify_mode = ssl.CERT_NONE
            sock = context.wrap_socket(plain)
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while len(answer) < 65536 and (chunk := sock.recv(4096)):
            answer += chunk
    return answer
