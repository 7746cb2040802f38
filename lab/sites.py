"""The test's handle on the lab's web sites, echo servers and peers that keep sending."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from lab.service import Service

if TYPE_CHECKING:
    from lab.namespace import Namespace

HTTP_PORTS = (80, 443, 8080)
TCP_ECHO_PORTS = (7, 22, 25, 853, 5000, 8000, 9000)
UDP_ECHO_PORTS = (7, 123, 443, 853, 5000)
STREAM_PORT = 19  # TCP: sends from the first moment. UDP: from the first datagram on, whatever comes back


class Arrival(NamedTuple):
    """Something that reached a server: a connection (`tcp`), a request (`http`) or a datagram (`udp`)."""

    kind: str
    address: str
    port: int
    peer: str
    peer_port: int
    data: bytes  # at most its first 200 octets
    time: float  # CLOCK_MONOTONIC


class Sites:
    """Controls the peers' process."""

    def __init__(self, namespace: Namespace) -> None:
        self._service = Service(namespace, "lab.sites_server")

    def wait_ready(self) -> None:
        self._service.wait_ready()

    def close(self) -> None:
        self._service.close()

    def name(self, address: str, name: str) -> None:
        """What the web site at this address calls itself."""
        self._service.call("name", address=address, name=name)

    def arrivals(self, kind: str | None = None, address: str | None = None, port: int | None = None) -> list[Arrival]:
        """What arrived since `forget`, oldest first; only those that match what is given."""
        found = [Arrival(**{**entry, "data": bytes.fromhex(entry["data"])}) for entry in self._service.call("arrivals")]
        return [
            one
            for one in found
            if kind in (None, one.kind) and address in (None, one.address) and port in (None, one.port)
        ]

    def wait_for(self, kind: str, address: str, port: int, seconds: float = 20.0) -> list[Arrival]:
        """Until something of the kind has arrived there, or the time is over."""
        deadline = time.monotonic() + seconds
        while not (found := self.arrivals(kind, address, port)) and time.monotonic() < deadline:
            time.sleep(0.01)
        return found

    def forget(self) -> None:
        """Empty the log and silence the UDP peers that keep sending."""
        self._service.call("forget")
