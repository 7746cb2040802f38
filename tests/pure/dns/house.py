"""A service between a real client socket and a real resolver; the kernel's sets are a list."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from egress.dns.interceptor import Interceptor
from egress.dns.listener import TcpListener
from egress.dns.service import Service
from egress.firewall.leases import Leases
from tests.pure.dns.plays import A, Reply, allow, ask_bytes, deny, policy, read
from tests.pure.dns.resolvers import Resolver, Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from egress.dns.interceptor import Denial
    from egress.firewall.leases import Grant

RULES = (deny("bad.example.com"), allow("*.example.com"))


class House:
    """The whole DNS side of one sandbox."""

    def __init__(self, *rules: dict[str, Any], capacity: int = 16_384, names_only: bool = False) -> None:
        self.resolver = Resolver()
        self.stage = Stage(self.resolver.server)
        self.clock = self.stage.clock
        self.events: list[tuple[str, Any]] = []  # what happened, in order
        self.reports: list[str] = []
        self.denials: list[Denial] = []
        self.fault: Exception | None = None
        self.leases = Leases(capacity)
        self.service = Service(
            self.clock, self.judge(*(rules or RULES)), self.leases, None if names_only else self._open,  # type: ignore[arg-type]
            self._remember, self.reports.append,
        )  # fmt: skip
        self.service.upstream = self.stage.upstream
        self.stage.upstream._on_ready = self.stage.upstream._ready.call = self.service.round
        self.door = self._udp()
        self.service.listen(self.door)
        self.client = self._udp()
        self.client.connect(self.door.getsockname())
        self.gate = socket.create_server(("127.0.0.1", 0), backlog=2048)
        self.gate.setblocking(False)
        self.tcp = TcpListener(self.clock, self.gate, self.service.handle_stream)  # type: ignore[arg-type]

    def _udp(self) -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind(("127.0.0.1", 0))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        sock.setblocking(False)
        return sock

    def judge(self, *rules: dict[str, Any], default: str = "deny") -> Interceptor:
        return Interceptor(policy(*rules, default=default), 1, self.denials.append)

    def _open(self, grants: Sequence[Grant]) -> None:
        self.events.append(("write", [(socket.inet_ntoa(packed), ports) for packed, ports, _, _, _ in grants]))
        if self.fault is not None:
            raise self.fault

    def _remember(self, grants: Sequence[Grant]) -> None:
        unwritten, self.leases.unwritten = self.leases.unwritten, []
        names = [teaching.name for *_, teaching in grants if teaching] + [known.name for _, known in unwritten]
        self.events.append(("remember", sorted(names)))

    def ask(self, name: str = "api.example.com", qtype: int = A, **more: Any) -> None:
        self.client.send(ask_bytes(name, qtype, **more))
        self.clock.settle()

    def replies(self) -> list[Reply]:
        self.clock.settle()
        found: list[Reply] = []
        while True:
            try:
                found.append(read(self.client.recv(65535)))
            except BlockingIOError:
                return found

    def one(self) -> Reply:
        (reply,) = self.replies()
        return reply

    def resolve(self, name: str = "api.example.com", address: str = "198.51.100.7") -> Reply:
        """The whole way of an uncached question."""
        self.ask(name)
        self.resolver.answer(self.resolver.one(), address)
        return self.one()

    def change(self, *rules: dict[str, Any], default: str = "deny") -> None:
        self.service.swap(self.judge(*rules, default=default), self.leases)

    def written(self) -> list[str]:
        return [address for kind, what in self.events if kind == "write" for address, _ in what]

    def close(self) -> None:
        self.service.close()
        self.tcp.close()
        self.gate.close()
        self.stage.close()
        self.resolver.close()
        self.door.close()
        self.client.close()
