"""Send a raw request, and say whether both sides of the gateway saw one thing."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tests.real.ingress.hostile import strict
from tests.real.ingress.hostile.client import answers
from tests.real.ingress.hostile.corpus import HOST, ROUTE

if TYPE_CHECKING:
    from tests.real.ingress.hostile.gateway import Gateway
    from tests.real.ingress.hostile.ground import Link, Origin

SENTINEL = b"GET /sentinel HTTP/1.1\r\n" + HOST + b"\r\n" + ROUTE + b"\r\nConnection: close\r\n\r\n"
"""Follows a request on its connection: if the two are not told apart as they should be, it goes missing or astray."""
PROBE = b"GET /probe HTTP/1.1\r\n" + HOST + b"\r\n" + ROUTE + b"\r\nConnection: close\r\n\r\n"


class Verdict(NamedTuple):
    """Both ends' sight of one client connection."""

    answers: list[strict.Message]
    arrived: list[strict.Message]
    """What the sandbox saw whole, probes left out."""
    cut: list[Link]
    """Connections to the sandbox on which a request began and didn't end."""

    @property
    def first(self) -> int:
        """The first answer's status; 0 for none."""
        return self.answers[0].status if self.answers else 0


def exchange(
    gate: Gateway, origin: Origin, raw: bytes, *, pieces: int = 0, alone: bool = False, after: bytes = b""
) -> Verdict:
    """Send it with the sentinel behind it, or with the end of the client's half, and wait for the gateway to close.

    after: a request that is answered on the same connection first; that answer is left out. Unclear when the answers,
    or what arrived, can't be read in exactly one way.
    """
    port = str(origin.port).encode()
    mark = origin.mark()
    with gate.client() as client:
        if after:
            assert client.ask(after.replace(b"PORT", port)).status == 200
        client.send((raw if alone else raw + SENTINEL).replace(b"PORT", port), pieces=pieces)
        if alone:
            client.half_close()
        heard = client.rest()
    # What the gateway sent before it closed is in the origin's socket by now: a request made after it is read later.
    assert gate.ask(PROBE.replace(b"PORT", port)).body == b"GET /probe 0"
    arrived: list[strict.Message] = []
    cut: list[Link] = []
    for link, data in origin.since(mark):
        reading = strict.requests(data)
        arrived += [message for message in reading.messages if message.target != b"/probe"]
        if reading.partial:
            cut.append(link)
    methods = [b"HEAD" if raw.startswith(b"HEAD ") else b"GET"] + [b"GET"] * 20
    return Verdict(list(answers(heard, methods)), arrived, cut)
