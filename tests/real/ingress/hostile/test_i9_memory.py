"""I9: a connection remembers what its last request was decided on. Every request is judged as if it were the first.

Each kind of request is made on a connection of its own, then all of them on one connection, in many orders: what the
client hears and what the sandbox sees has to be the same.
"""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.real.ingress.hostile import strict
from tests.real.ingress.hostile.gateway import Gateway
from tests.real.ingress.hostile.ground import Origin, echo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.real.ingress.hostile.client import Client
    from tests.real.ingress.hostile.ground import Ground

BASE = {
    "Host": "app.test",
    "OpenSandbox-Ingress-To": "locked-PORT",
    "OpenSandbox-Secure-Access": "secret",
    "Connection": "keep-alive, X-Hop",
    "Cookie": "a=b",
    "Authorization": "Bearer one",
    "X-Hop": "1",
    "X-Forwarded-For": "6.6.6.6",
    "Accept": "text/html",
}
CHANGES: dict[str, list[str | None]] = {
    "Host": ["other.test", "APP.TEST", "a b", None],
    "OpenSandbox-Ingress-To": ["locked-OTHER", "box-PORT", "twin-PORT", "nobody-PORT", "locked-0", None],
    "OpenSandbox-Secure-Access": ["wrong", "", "Secret", "secret2", None],
    "Connection": ["keep-alive", "X-Other", "keep-alive, Authorization", None],
    "Cookie": ["c=d", "sallyport-x=y", "c=d; sallyport-x=y", None],
    "Authorization": ["Bearer two", None],
    "X-Hop": ["2", None],
    "X-Forwarded-For": ["7.7.7.7", None],
    "Accept": ["text/plain", "application/json", None],
    "Content-Length": ["0", "5"],
    "Transfer-Encoding": ["chunked", "gzip"],
    "Expect": ["nothing"],
    "X-Forwarded_For": ["8.8.8.8"],
    "Upgrade": ["h2c", "websocket"],
    "OpenSandbox-Access-Renew": ["skip"],
}


class Heard(NamedTuple):
    """What became of a request, at both ends."""

    status: int
    body: bytes
    connection: str | None
    seen: tuple[tuple[str, bytes, bytes, tuple[tuple[bytes, bytes], ...]], ...]
    """Which origin, its start line and body, and the fields in order of their names."""


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    guarded = {"host": "127.0.0.1", "secure_access_token": "secret"}
    sandboxes = {"box": {"host": "127.0.0.1"}, "locked": guarded, "twin": guarded | {"secure_access_token": "other"}}
    with Gateway(tmp_path_factory.mktemp("memory"), sandboxes=sandboxes) as made:
        yield made


@pytest.fixture(scope="module")
def origins(ground: Ground) -> Iterator[tuple[Origin, Origin]]:
    pair = ground.origin(echo), ground.origin(echo)
    yield pair
    for origin in pair:
        origin.close()


def requests(origins: tuple[Origin, Origin]) -> list[bytes]:
    found = []
    kinds: list[dict[str, str]] = [BASE]
    for name, values in CHANGES.items():
        for value in values:
            changed = {key: text for key, text in BASE.items() if key != name or value is not None}
            if value is not None:
                changed[name] = value
            kinds.append(changed)
    for number, fields in enumerate(kinds):
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        lines = lines.replace("PORT", str(origins[0].port)).replace("OTHER", str(origins[1].port))
        body = {"5": "hello"}.get(fields.get("Content-Length", ""), "")
        body = {"chunked": "5\r\nhello\r\n0\r\n\r\n"}.get(fields.get("Transfer-Encoding", ""), body)
        found.append(f"POST /kind{number} HTTP/1.1\r\n{lines}\r\n{body}".encode())
    return found


def hear(client: Client, raw: bytes, origins: tuple[Origin, Origin]) -> Heard:
    marks = [origin.mark() for origin in origins]
    client.send(raw)
    answer = client.answer()
    seen = []
    for name, origin, mark in zip("ab", origins, marks, strict=True):
        for _, data in origin.since(mark):
            for message in strict.requests(data).messages:
                seen.append((name, message.start, message.body, tuple(sorted(message.headers))))
    return Heard(answer.status, answer.body, answer.one("connection"), tuple(seen))


def test_i9_every_request_is_judged_as_if_it_were_the_first(gate: Gateway, origins: tuple[Origin, Origin]) -> None:
    raws = requests(origins)
    alone = []
    for number, raw in enumerate(raws):
        with gate.client(source=f"127.0.3.{number + 1}") as client:
            alone.append(hear(client, raw, origins))
    assert {200, 400, 401, 404} <= {heard.status for heard in alone}, "the control: the kinds do differ"
    orders = [list(pair) for pair in itertools.permutations(range(len(raws)), 2)]
    random.Random(7).shuffle(orders)
    sources = (f"127.4.{number >> 8}.{number & 255}" for number in itertools.count(1))
    for order in orders[:600]:
        with gate.client(source=next(sources)) as client:
            for number in order:
                heard = hear(client, raws[number], origins)
                expected = _as_from(alone[number], client)
                assert _as_from(heard, client) == expected, (raws[order[0]], raws[number])
                if client.ended or heard.connection == "close":
                    break


def _as_from(heard: Heard, client: Client) -> Heard:
    """The client's address apart: throttles want each client to come from its own."""
    seen = [
        (name, start, body, tuple(field for field in fields if field[0] != b"x-forwarded-for"))
        for name, start, body, fields in heard.seen
    ]
    for _, _, _, fields in heard.seen:
        assert (b"x-forwarded-for", client.sock.getsockname()[0].encode()) in fields or heard.seen
    return heard._replace(seen=tuple(seen))
