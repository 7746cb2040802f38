"""One POST at a time, over a socket that somebody else opens: what the deny webhook and the metrics are sent with.

Forty lines over a socket: `http.client` would bring 6 MB along, and its time-out is per operation. `ssl` is imported
with the first https request. Redirects are not followed: only the configured endpoint may be reached.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable

    from egress.literals import Url

TIMEOUT = 5.0
"""Seconds for one request, from the connection on."""
_HEAD = 64 * 1024


class Poster:
    """Sends bodies to one URL; for one thread at a time, and never the loop's.

    `connect(host, port)` may take its time, and returns a connected stream socket or raises OSError; `host` is a name
    or an address literal.
    """

    def __init__(self, url: Url, connect: Callable[[str, int], socket.socket]) -> None:
        self._url = url
        self._connect = connect
        self._context: ssl.SSLContext | None = None

    def post(self, body: bytes) -> int:
        """POST a JSON body: the final response's status. Raises OSError, ValueError where the answer is not HTTP."""
        deadline = time.monotonic() + TIMEOUT
        sock = self._connect(self._url.host, self._url.port)
        try:
            sock.settimeout(_left(deadline))
            if self._url.secure:
                sock = self._secured(sock)
            sock.sendall(_request(self._url, body))
            return _status(sock, deadline)
        finally:
            sock.close()

    def _secured(self, sock: socket.socket) -> socket.socket:
        import ssl

        if self._context is None:
            self._context = ssl.create_default_context()
        return self._context.wrap_socket(sock, server_hostname=self._url.host)


def told(error: Exception) -> str:
    """An error in one short line that is safe to print."""
    return str(error).encode("unicode_escape").decode("ascii")[:200] or type(error).__name__


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def _request(url: Url, body: bytes) -> bytes:
    host = f"[{url.host}]" if ":" in url.host else url.host
    if url.port != (443 if url.secure else 80):
        host += f":{url.port}"
    head = [
        f"POST {url.target} HTTP/1.1",
        f"Host: {host}",
        "User-Agent: opensandbox-egress",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    if url.userinfo:
        from base64 import b64encode
        from urllib.parse import unquote_to_bytes

        head.append(f"Authorization: Basic {b64encode(unquote_to_bytes(url.userinfo)).decode()}")
    return "\r\n".join([*head, "", ""]).encode() + body


def _status(sock: socket.socket, deadline: float) -> int:
    """Read responses until one that is not interim (1xx) and return its status; the body is not looked at."""
    data = b""
    while len(data) < _HEAD:
        while b"\r\n" in data:
            line = data.partition(b"\r\n")[0].split(b" ", 2)
            if len(line) < 2 or not line[0].startswith(b"HTTP/1.") or len(line[1]) != 3 or not line[1].isdigit():
                raise ValueError("the answer is not HTTP")
            status = int(line[1])
            if status >= 200:
                return status
            _, end, rest = data.partition(b"\r\n\r\n")
            if not end:
                break
            data = rest
        sock.settimeout(_left(deadline))
        part = sock.recv(4096)
        if not part:
            raise ConnectionError("closed without an answer")
        data += part
    raise ValueError("the answer's head is too long")
