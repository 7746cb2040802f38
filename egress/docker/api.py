"""The Docker daemon of this machine, over its unix socket (HTTP, docs: Docker Engine API).

Only a socket of this machine: whoever guards a container from outside has to enter its network, and `/proc/PID` of
another machine is not here.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DEFAULT_HOST = "unix:///var/run/docker.sock"
ANSWER = 20.0
"""Seconds for one answer of the daemon."""
_LARGEST = 64 * 1024 * 1024  # bytes of one answer
_LINE = 1024 * 1024  # bytes of one event


class DockerError(Exception):
    """The daemon can't be reached, or said no; one line. `status` is HTTP's, 0 where there was no answer."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


def socket_path(host: str) -> str:
    """The path in `unix:///…`. Raises ValueError with what to write instead."""
    path = host.removeprefix("unix://")
    if host.startswith("unix://") and path.startswith("/") and "\0" not in path:
        return path
    if host.startswith(("tcp://", "http://", "https://", "ssh://", "npipe://")):
        raise ValueError(
            f"{host}: the daemon has to be on this machine, where its containers' networks are; write {DEFAULT_HOST}"
        )
    raise ValueError(f"{host!r}: not a daemon's socket; write {DEFAULT_HOST}")


class Docker:
    """One daemon. A connection for each call, so that threads may share it; nothing is kept open."""

    def __init__(self, host: str = "") -> None:
        """`host` as for the docker command, "" for $DOCKER_HOST or its default. Raises ValueError."""
        self.host = host or os.environ.get("DOCKER_HOST", "") or DEFAULT_HOST
        self.path = socket_path(self.host)

    def call(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: object = None, *, wait: bool = False
    ) -> Any:
        """One call; its answer as JSON, None where there is none. With `wait` it may take for ever. Raises
        DockerError."""
        connection = self._open(None if wait else ANSWER)
        try:
            response = self._ask(connection, method, path, query, body)
            data = response.read(_LARGEST)
            if response.length:  # less than it has announced, and none of it would be no answer at all
                raise DockerError(f"{self.host}: the daemon broke off its answer")
            if not data:
                return None
            return json.loads(data)
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from None
        except (ValueError, RecursionError):
            raise DockerError(f"{self.host}: its answer isn't JSON") from None
        finally:
            connection.close()

    def inspect(self, name: str) -> dict[str, Any]:
        """What the daemon knows of a container. Raises DockerError, with status 404 where there is none."""
        document = self.call("GET", f"/containers/{quote(name, safe='')}/json")
        if not isinstance(document, dict):
            raise DockerError(f"{self.host}: its answer is no container")
        return document

    def events(self, filters: Mapping[str, list[str]]) -> Iterator[dict[str, Any]]:
        """Follow events: the first `next` returns an empty one as soon as the daemon listens to us, so that a list
        read after it misses nothing. Ends by DockerError only."""
        connection = self._open(ANSWER)
        try:
            response = self._ask(connection, "GET", "/events", {"filters": json.dumps(filters)}, None)
            if connection.sock is not None:
                connection.sock.settimeout(None)
            yield {}
            while True:
                line = response.readline(_LINE)
                if not line.endswith(b"\n") and len(line) < _LINE:
                    raise DockerError(f"{self.host}: the daemon ended its stream of events")
                event = json.loads(line)
                if isinstance(event, dict):
                    yield event
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from None
        except (ValueError, RecursionError):
            raise DockerError(f"{self.host}: an event isn't JSON") from None
        finally:
            connection.close()

    def _open(self, timeout: float | None) -> _Connection:
        return _Connection(self.path, timeout)

    def _ask(
        self, connection: _Connection, method: str, path: str, query: Mapping[str, str] | None, body: object
    ) -> http.client.HTTPResponse:
        target = f"{path}?{urlencode(query)}" if query else path
        data = None if body is None else json.dumps(body)
        connection.request(method, target, data, {"Content-Type": "application/json"} if data else {})
        response = connection.getresponse()
        if response.status >= 300:
            raise DockerError(self._words(response), response.status)
        return response

    def _words(self, response: http.client.HTTPResponse) -> str:
        said = ""
        try:
            document = json.loads(response.read(65536))
            said = document.get("message", "") if isinstance(document, dict) else ""
        except ValueError:
            pass
        words = "".join(char if char.isprintable() else " " for char in str(said))[:300].strip()
        return words or f"{self.host}: the daemon answered {response.status}"

    def _unreachable(self, error: Exception) -> DockerError:
        if isinstance(error, TimeoutError):
            return DockerError(f"{self.host}: no answer within {ANSWER:g} s")
        if isinstance(error, PermissionError):
            return DockerError(f"{self.host}: permission denied; be root, or a member of the socket's group")
        if isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
            return DockerError(f"{self.host}: no Docker daemon answers there; start it, or give --docker-host")
        words = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
        return DockerError(f"{self.host}: {words.lower()}")


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float | None) -> None:
        super().__init__("docker", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
