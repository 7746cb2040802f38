"""HTTP spoken from inside a namespace."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping


class Response(NamedTuple):
    """A whole response. Header names are lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)


class _Connection(http.client.HTTPConnection):
    """http.client over a socket that somebody else has connected."""

    def __init__(self, host: str, sock: socket.socket) -> None:
        super().__init__(host)
        self.sock = sock

    def connect(self) -> None:
        raise ConnectionError("one request a connection")


def exchange(
    sock: socket.socket,
    method: str,
    path: str,
    *,
    host: str = "localhost",
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """One request over a connected socket, which is closed after it. Raises OSError or http.client.HTTPException."""
    connection = _Connection(host, sock)
    try:
        connection.request(method, path, body, dict(headers or {}))
        answer = connection.getresponse()
        fields = {name.lower(): value for name, value in answer.getheaders()}
        return Response(answer.status, fields, answer.read())
    finally:
        connection.close()
