"""The sidecar's own connections, besides its DNS: to exactly the endpoints that the operator configured.

They pass the sandbox's rules with the same exemption as the resolvers' questions, and only after the endpoint itself,
address and port, stands in the ruleset. A name is resolved here, with the operator's resolvers and without the policy:
what it resolves to opens nothing for the sandbox, and what no guard should ever talk to is refused.
"""

from __future__ import annotations

from egress.dns.straight import Plain
from egress.dns.upstream import Upstream
from policies.address import AddressError, parse_address, unmap
from policies.special import AddressClass, classify
from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from typing import TypeVar

    from egress.dns.answer import Answer
    from egress.dns.upstream import Ports, Server
    from egress.firewall.guardhouse import Firewall
    from egress.guard import Guard
    from egress.loop import Loop

    T = TypeVar("T")

ENDPOINTS = 8  # that stand in the ruleset at a time; the oldest makes room
PATIENCE = 10.0  # seconds a thread waits for the loop
_A, _AAAA, _CNAME = 1, 28, 5


class Own:
    """Opens connections for threads of the sidecar; everything but `connect` belongs to the loop's thread."""

    def __init__(
        self, loop: Loop, guard: Guard, firewall: Firewall, servers: tuple[Server, ...], ports: Ports, timeout: float
    ) -> None:
        self._loop = loop
        self._guard = guard
        self._firewall = firewall
        self._upstream = Upstream(loop, servers, ports, timeout, self._collect)

    def connect(self, host: str, port: int) -> socket.socket:
        """A blocking socket that is connecting to the endpoint; from any thread but the loop's. Raises OSError."""
        try:
            addresses = [parse_address(host.strip("[]"))]
        except AddressError:
            addresses = self._wait(lambda done: self._resolve(host, done))
        if not addresses:
            raise OSError(f"{host} has no address")
        packed = unmap(addresses[0])
        kind = classify(packed)
        if kind.address_class not in (AddressClass.ORDINARY, AddressClass.INTERNAL):
            raise OSError(f"{host} leads to {kind.label}, where the guard sends nothing")
        endpoint = (packed, "tcp", port)

        def admit(done: Callable[[BaseException | None], None]) -> None:
            self._guard.open_own(endpoint, done, ENDPOINTS)

        refused = self._wait(admit)
        if refused is not None:
            raise OSError(f"{host}: the ruleset could not be opened for it: {refused}")
        sock = self._firewall.tcp(packed, port, self._guard.exemption)
        sock.setblocking(True)
        return sock

    def _wait(self, work: Callable[[Callable[[T], None]], None]) -> T:
        """Run `work` on the loop and wait for what it hands to its argument. Raises TimeoutError."""
        from threading import Event

        finished = Event()
        found: list[T] = []

        def done(result: T) -> None:
            found.append(result)
            finished.set()

        self._loop.call_threadsafe(lambda: work(done))
        if not finished.wait(PATIENCE):
            raise TimeoutError("the guard was busy")
        return found[0]

    # -- names ---------------------------------------------------------------------------------------------------
    def _resolve(self, host: str, done: Callable[[list[bytes]], None]) -> None:
        if not self._upstream.ask(host, _A, done, self._loop.now()):
            done([])

    def _collect(self) -> None:
        now = self._loop.now()
        for question, answer in self._upstream.collect(now):
            if isinstance(answer, Plain):
                answer = answer.answer(question.name, question.qtype)
            found = _addresses(question.name, question.qtype, answer)
            for done in question.waiters:
                if found or question.qtype == _AAAA or not self._upstream.ask(question.name, _AAAA, done, now):
                    done(found)


def _addresses(name: str, qtype: int, answer: Answer | None) -> list[bytes]:
    """The addresses of the name and of the names its CNAMEs lead to."""
    if answer is None or answer.rcode:
        return []
    from egress.dns.wire import cname_target

    chain = {name}
    for record in answer.answers:
        if record.rtype == _CNAME and record.owner in chain:
            chain.add(cname_target(record.rdata))
    return [record.rdata for record in answer.answers if record.rtype == qtype and record.owner in chain]
