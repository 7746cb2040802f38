"""A firewall in the lab's sandbox, driven from the test's process; no sidecar, no policy, only packets."""

from __future__ import annotations

import ipaddress
import os
import socket
from typing import TYPE_CHECKING, Any

import pytest

from egress.firewall.conntrack import flows
from egress.firewall.guardhouse import Firewall
from egress.firewall.ruleset import RulesetSpec
from egress.firewall.tables import ACCEPTED
from egress.netns import NETLINK_NETFILTER, Exemption, Namespace
from policies.address_plan import AddressRange
from policies.ports import EVERYTHING, FULL, NOTHING, PortSet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from egress.firewall.conntrack import Flow
    from lab import Lab

WEB = PortSet(((80, 80),), ((443, 443),), False)
RESOLVER = "203.0.113.53"
RESOLVER6 = "2001:db8:113::53"


def packed(text: str) -> bytes:
    return ipaddress.ip_address(text).packed


def part(prefix: str, *, deny: PortSet = NOTHING, allow: PortSet = NOTHING) -> AddressRange:
    network = ipaddress.ip_network(prefix)
    return AddressRange(network[0].packed, network[-1].packed, deny, allow)


def secret() -> Exemption:
    return Exemption(int.from_bytes(os.urandom(4)) | 1, int.from_bytes(os.urandom(4)) | 1)


class Guarded:
    """The lab's sandbox behind a firewall, with listening sockets where intercepted DNS arrives."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.namespace = Namespace(lab.sandbox.fd)
        self.firewall = Firewall(self.namespace)
        self.exemption = secret()
        self.listeners: dict[str, socket.socket] = {}
        for name, family, kind, host in (
            ("udp4", socket.AF_INET, socket.SOCK_DGRAM, "127.0.0.1"),
            ("tcp4", socket.AF_INET, socket.SOCK_STREAM, "127.0.0.1"),
            ("udp6", socket.AF_INET6, socket.SOCK_DGRAM, "::1"),
            ("tcp6", socket.AF_INET6, socket.SOCK_STREAM, "::1"),
        ):
            sock = lab.sandbox.socket(family, kind)
            sock.bind((host, 0))
            if kind == socket.SOCK_STREAM:
                sock.listen(8)
            sock.settimeout(10.0)
            self.listeners[name] = sock

    def spec(self, **changes: Any) -> RulesetSpec:
        udp4, tcp4, udp6, tcp6 = (int(sock.getsockname()[1]) for sock in self.listeners.values())
        ports = (udp4, tcp4, udp6, tcp6)
        spec = RulesetSpec(
            mode="dns+nft",
            default_allow=False,
            plan=(),
            classes=(EVERYTHING, WEB),
            learned={},
            upstreams=((packed(RESOLVER), 53), (packed(RESOLVER6), 53)),
            exempt=(),
            doh_all=False,
            doh_networks=(),
            dns_ports=ports,
            own=(),
            exemption=self.exemption,
            stamp=secret(),
            flow_mark=secret().mark | ACCEPTED,
        )
        return spec._replace(**changes)

    def load(self, *, has_socket_match: bool = True, **changes: Any) -> RulesetSpec:
        spec = self.spec(**changes)
        self.assume(socket_match=has_socket_match)
        self.firewall.load(spec)
        return spec

    def assume(self, **abilities: Any) -> None:
        """Have the firewall believe this of the kernel."""
        loader = self.firewall._loader
        loader.site = loader.look()._replace(**abilities)

    def learn(self, address: str, index: int = 0, seconds: float = 60) -> None:
        self.firewall.write_learned({index: {packed(address): int(seconds * 1000)}})

    def forget(self, *addresses: str, name: str = "learned4_0", table: str = "sallyport") -> None:
        """Take elements out of a set, which the sidecar itself never does."""
        self.lab.sandbox.nft(f"delete element inet {table} {name} {{ {', '.join(addresses)} }}\n")

    def flows(self) -> list[Flow]:
        """Every flow the kernel knows, ours included."""
        with self.namespace.netlink(NETLINK_NETFILTER) as sock:
            return flows(self.namespace, sock)

    def close(self) -> None:
        self.firewall.close()
        for sock in self.listeners.values():
            sock.close()


@pytest.fixture
def guarded(lab: Lab) -> Iterator[Guarded]:
    """The sandbox before any ruleset: call `firewall.lock()` or `load()`."""
    fixture = Guarded(lab)
    yield fixture
    fixture.close()


__all__ = ["EVERYTHING", "FULL", "NOTHING", "RESOLVER", "RESOLVER6", "WEB", "Guarded", "packed", "part", "secret"]
