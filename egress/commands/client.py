"""A running sidecar's control API, as its clients see it: over the unix socket, or over HTTP with the token."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
from typing import TYPE_CHECKING, NamedTuple

from egress.commands.output import NOT, CommandError, printable, reason_of
from egress.config import DEFAULT_SOCKET
from egress.literals import ConfigError, parse_url

if TYPE_CHECKING:
    import argparse

    from egress.literals import Url
    from policies.model import NetworkPolicy

TOKEN_HEADER = "OPENSANDBOX-EGRESS-AUTH"  # noqa: S105 - the header's name
PATIENCE = 35.0  # seconds: a change of thousands of rules under load, and more
_LARGEST = 64 * 1024 * 1024  # bytes of an answer
_TOKEN = "OPENSANDBOX_EGRESS_TOKEN"  # noqa: S105 - the variable's name
_SOCKET = "OPENSANDBOX_EGRESS_SOCKET"


class Answer(NamedTuple):
    """What the sidecar said: HTTP status and JSON object."""

    method: str
    status: int
    document: dict[str, object]

    @property
    def reason(self) -> str:
        return str(self.document.get("reason", ""))


class Refused(CommandError):
    """The sidecar said no, in its own words; `answer` has them."""

    def __init__(self, text: str, answer: Answer) -> None:
        super().__init__(text, NOT)
        self.answer = answer


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that say which sidecar is meant."""
    parser.add_argument(
        "--socket", metavar="PATH", default="", help=f"its unix socket (default: ${_SOCKET}, else {DEFAULT_SOCKET})"
    )
    parser.add_argument("--url", metavar="URL", default="", help="its HTTP API instead, such as http://127.0.0.1:18080")
    parser.add_argument("--token", default="", help=f"the token for --url (default: ${_TOKEN})")


class Sidecar:
    """One control API. Raises CommandError with what to do: code 2 for a wrong call, 1 for a sidecar that says no."""

    def __init__(self, path: str, url: str, token: str) -> None:
        if path and url:
            raise CommandError("--socket and --url exclude each other; give one")
        self._url: Url | None = None
        self._path = ""
        self._token = token or (os.environ.get(_TOKEN, "") if url else "")
        if url:
            try:
                self._url = parse_url("--url", url)
            except ConfigError as error:
                words = str(error).replace("https://hooks.example.com/denied", "http://127.0.0.1:18080")
                raise CommandError(words) from None
            if self._url.userinfo:
                raise CommandError("--url holds a user; the token goes into --token or the environment")
            if not all(" " <= char <= "~" for char in self._token):
                raise CommandError("the token has characters that no HTTP header can carry")
        else:
            self._path = path or os.environ.get(_SOCKET, "").strip() or DEFAULT_SOCKET
            if len(os.fsencode(self._path)) > 107 or "\0" in self._path:
                raise CommandError("the socket's path is longer than the 107 bytes that the kernel takes")

    @property
    def label(self) -> str:
        """How messages speak of it."""
        return f"{self._url.host}:{self._url.port}" if self._url else printable(self._path)

    def parse(self, answer: Answer) -> NetworkPolicy:
        """The policy in an answer to GET."""
        from policies.parser import parse_policy

        try:
            return parse_policy(json.dumps(answer.document.get("policy")))
        except ValueError as error:
            raise CommandError(f"{self.label}: its policy is not one that this version knows: {error}", NOT) from None

    def call(self, method: str, body: object = None) -> Answer:
        """One request to /policy. Raises Refused for every answer but 200."""
        data = b"" if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Connection": "close"}
        if self._token:
            headers[TOKEN_HEADER] = self._token
        target = "/policy"
        if self._url:
            prefix = re.split(r"[?]", self._url.target)[0].rstrip("/")
            target = prefix if prefix.endswith("/policy") else f"{prefix}/policy"
        connection = self._connection()
        try:
            connection.request(method, target, data or None, headers)
            response = connection.getresponse()
            text = response.read(_LARGEST + 1)
            status = response.status
            if response.length:
                raise http.client.IncompleteRead(text[:0], response.length)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._unreachable(error) from None
        finally:
            connection.close()
        return self._judge(Answer(method, status, self._document(status, text)))

    def _connection(self) -> http.client.HTTPConnection:
        if self._url is None:
            return _UnixConnection(self._path)
        kind = http.client.HTTPSConnection if self._url.secure else http.client.HTTPConnection
        return kind(self._url.host, self._url.port, timeout=PATIENCE)

    def _document(self, status: int, text: bytes) -> dict[str, object]:
        try:
            document = json.loads(text) if len(text) <= _LARGEST else None
        except (ValueError, RecursionError):
            document = None
        if isinstance(document, dict) and document.get("status") in ("ok", "error"):
            return document
        shown = printable(text[:200].decode("utf-8", "replace").strip())
        raise CommandError(f"{self.label} is no sidecar: HTTP {status}{': ' + shown if shown else ''}", NOT)

    def _judge(self, answer: Answer) -> Answer:
        if answer.status == 200:
            return answer
        words = printable(answer.reason) or f"HTTP {answer.status}"
        if answer.status == 401:
            words += f"; give --token or {_TOKEN}" if self._url else ""
        raise Refused(f"{self.label} refused: {words}", answer)

    def _unreachable(self, error: Exception) -> CommandError:
        if isinstance(error, TimeoutError):
            return CommandError(f"{self.label}: no answer within {PATIENCE:g} s; is it frozen?", NOT)
        if isinstance(error, http.client.HTTPException) or not isinstance(error, OSError):
            words = printable(str(error))[:200] or type(error).__name__
            return CommandError(f"{self.label} does not speak HTTP: {words}", NOT)
        words = reason_of(error)
        if self._url:
            advice = "is the sidecar running, and is this its API's address?"
        elif isinstance(error, FileNotFoundError):
            advice = "run this where the sidecar runs (docker exec NAME egress policy get), or give --socket or --url"
        elif isinstance(error, PermissionError):
            advice = "the socket is for the sidecar's own user; be root, or use --url with the token"
        else:
            advice = "is the sidecar running? egress serve makes this socket"
        return CommandError(f"{self.label}: {words}; {advice}", NOT)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=PATIENCE)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
