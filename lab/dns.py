"""The test's handle on the lab's DNS server: fill the zone, make it misbehave, read what it was asked."""

from __future__ import annotations

import itertools
import socket
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from lab import rdata
from lab.service import Service

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lab.namespace import Namespace


class SeenQuery(NamedTuple):
    """One query as it arrived. `server` is the address it was sent to: which resolver was really reached."""

    name: str  # case kept
    qtype: str
    transport: str  # "udp" or "tcp"
    server: str
    client: str
    port: int  # the client's
    ident: int
    flags: int
    size: int | None  # EDNS payload size
    options: bytes  # EDNS options
    raw: bytes
    time: float  # CLOCK_MONOTONIC


class DnsServer:
    """Controls the server process. Every call is in force when it returns."""

    def __init__(self, namespace: Namespace) -> None:
        self._service = Service(namespace, "lab.dns_server")

    def wait_ready(self) -> None:
        self._service.wait_ready()

    def close(self) -> None:
        self._service.close()

    # -- the zone -----------------------------------------------------------------------------------------------

    def add(self, owner: str, rtype: str | int, data: bytes, ttl: int = 60) -> None:
        """Any record; `data` as `lab.rdata` makes it. `*.example.com` is a wildcard for what has no name of its own."""
        self._service.call("add", owner=owner, rtype=rdata.type_number(rtype), ttl=ttl, data=data.hex())

    def a(self, owner: str, *addresses: str, ttl: int = 60) -> None:
        """Address records: A or AAAA, as each address is."""
        for text in addresses:
            rtype, data = rdata.address(text)
            self.add(owner, rtype, data, ttl)

    def cname(self, owner: str, target: str, ttl: int = 60) -> None:
        self.add(owner, "CNAME", rdata.encode_name(target), ttl)

    def chain(self, names: Sequence[str], *addresses: str, ttl: int = 60) -> None:
        """CNAMEs from each name to the next; the last has the addresses."""
        for owner, target in itertools.pairwise(names):
            self.cname(owner, target, ttl)
        self.a(names[-1], *addresses, ttl=ttl)

    def txt(self, owner: str, *strings: str, ttl: int = 60) -> None:
        self.add(owner, "TXT", rdata.txt(*strings), ttl)

    def generate(self, suffix: str, network: str = "198.18.0.0/15", ttl: int = 60) -> None:
        """Every name below `suffix` exists, with one address in `network` told by a hash of the name."""
        text, _, prefix = network.partition("/")
        family = socket.AF_INET6 if ":" in text else socket.AF_INET
        packed = socket.inet_pton(family, text)
        self._service.call("generate", suffix=suffix, network=packed.hex(), prefix=int(prefix), ttl=ttl)

    def remove(self, owner: str, rtype: str | int | None = None) -> None:
        number = None if rtype is None else rdata.type_number(rtype)
        self._service.call("remove", owner=owner, rtype=number)

    def clear(self) -> None:
        """Forget the zone, the behaviours and the log."""
        self._service.call("clear")
        self._service.call("set_logging", on=True)
        self.forget()

    # -- misbehaving --------------------------------------------------------------------------------------------

    def behave(
        self,
        name: str = "*",
        qtype: str | int = 0,
        *,
        rcode: str | int | None = None,
        extra: Iterable[tuple[str, str | int, int, bytes]] = (),
        only: Iterable[tuple[str, str | int, int, bytes]] | None = None,
        raw: bytes | None = None,
        **fields: Any,
    ) -> None:
        """Answer `name` (`*`: every name) otherwise than the zone says; the fields are those of `lab.zone.Behaviour`.

        `extra` and `only` are (owner, type, ttl, data). A second call for the same name and type replaces the first.
        """
        if rcode is not None:
            fields["rcode"] = rdata.RCODES[rcode] if isinstance(rcode, str) else rcode
        fields["extra"] = [(owner, rdata.type_number(rtype), ttl, data.hex()) for owner, rtype, ttl, data in extra]
        if only is not None:
            fields["only"] = [(owner, rdata.type_number(rtype), ttl, data.hex()) for owner, rtype, ttl, data in only]
        if raw is not None:
            fields["raw"] = raw.hex()
        self._service.call("behave", name=name, qtype=rdata.type_number(qtype), fields=fields)

    def normal(self, name: str = "*", qtype: str | int = 0) -> None:
        """Take one `behave` back."""
        self._service.call("forget_behaviour", name=name, qtype=rdata.type_number(qtype))

    # -- what was asked -----------------------------------------------------------------------------------------

    def queries(self, name: str | None = None, qtype: str | None = None) -> list[SeenQuery]:
        """What arrived since `forget`, oldest first; only those for a name (case apart) or type where given."""
        seen = [
            SeenQuery(**{**entry, "raw": bytes.fromhex(entry["raw"]), "options": bytes.fromhex(entry["options"])})
            for entry in self._service.call("queries")
        ]
        return [
            query
            for query in seen
            if (name is None or query.name.lower() == name.lower()) and qtype in (None, query.qtype)
        ]

    def count(self) -> int:
        """How many arrived since `forget`, whether logged or not."""
        return int(self._service.call("count"))

    def wait_for(self, name: str, count: int = 1, seconds: float = 20.0) -> list[SeenQuery]:
        """Until `count` queries for `name` have arrived, or the time is over; what has."""
        deadline = time.monotonic() + seconds
        while len(seen := self.queries(name)) < count and time.monotonic() < deadline:
            time.sleep(0.01)
        return seen

    def forget(self) -> None:
        self._service.call("forget")

    def set_logging(self, on: bool) -> None:
        """Switch the log off for load; `count` goes on."""
        self._service.call("set_logging", on=on)
