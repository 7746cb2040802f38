"""The lab's two namespaces and what joins them. `Internet` is the dear half (two processes), `Lab` the cheap one."""

from __future__ import annotations

import contextlib
import itertools
import socket
from typing import TYPE_CHECKING, NamedTuple

from lab.capture import Capture
from lab.client import Client
from lab.dns import DnsServer
from lab.errors import Lacking
from lab.identity import ROOT, Identity
from lab.lacking import lacking
from lab.namespace import Namespace, sweep
from lab.sites import Sites

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping, Sequence
    from typing import Self

RESOLVER = "203.0.113.53"
RESOLVER6 = "2001:db8:113::53"
PUBLIC_RESOLVER = "8.8.8.8"
PUBLIC_RESOLVER6 = "2001:4860:4860::8888"
METADATA = "169.254.169.254"
METADATA6 = "fd00:ec2::254"

# Documentation nets (RFC 5737, RFC 3849) stand for the public internet: to the guard they are ordinary addresses.
SITES = {
    "web": ("198.51.100.10", "2001:db8:100::10"),
    "other": ("198.51.100.20", "2001:db8:100::20"),
    "shared": ("198.51.100.30", "2001:db8:100::30"),
    "blocked": ("203.0.113.66", "2001:db8:113::66"),
    "private": ("10.99.0.10", "fd99::10"),
    "metadata": (METADATA, METADATA6),
}


class Link(NamedTuple):
    """The addresses of one veth pair."""

    sandbox: str
    gateway: str
    sandbox6: str
    gateway6: str


class Internet:
    """A namespace where every address answers: DNS on port 53, web sites, echo, peers that keep sending.

    Raises Lacking where the machine can't. Several labs may share one, one after the other or at once.
    """

    def __init__(self) -> None:
        reason = lacking()
        if reason:
            raise Lacking(reason)
        sweep()
        self._links = itertools.count()
        self.namespace = Namespace("internet")
        with contextlib.ExitStack() as undo:
            undo.callback(self.namespace.close)
            self.namespace.sysctl(
                {
                    "net.ipv4.ip_forward": 0,
                    "net.ipv6.conf.all.forwarding": 0,
                    "net.ipv6.conf.default.accept_dad": 0,
                    "net.ipv4.conf.all.rp_filter": 0,
                    "net.ipv4.conf.default.rp_filter": 0,
                    # The bypass tests are answered by the hundred; an ICMP limit would make them look dropped.
                    "net.ipv4.icmp_ratelimit": 0,
                }
            )
            # Every address that is not a neighbour's is ours: no test has to say beforehand where it will knock.
            self.namespace.ip_batch(
                ["route add local default dev lo table main", "route add local ::/0 dev lo table main"]
            )
            self.dns = DnsServer(self.namespace)
            undo.callback(self.dns.close)
            self.sites = Sites(self.namespace)
            undo.callback(self.sites.close)
            self.dns.wait_ready()
            self.sites.wait_ready()
            for name, addresses in SITES.items():
                for address in addresses:
                    self.sites.name(address, name)
            self._undo = undo.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._undo.close()

    def reset(self) -> None:
        """An empty zone, empty logs, every server well-behaved."""
        self.dns.clear()
        self.sites.forget()

    def join(self, sandbox: Namespace, *, ipv6: bool) -> Link:
        """Lay a veth pair to `sandbox`, with addresses and default routes there."""
        number = next(self._links) % 250
        link = Link(f"10.77.{number}.2", f"10.77.{number}.1", f"fd77:{number:x}::2", f"fd77:{number:x}::1")
        outer = f"sb{number}"
        # The kernel takes a namespace down in its own time: this end of a link of long ago may still be there.
        self.namespace.run(["ip", "link", "del", outer])
        sandbox.ip("link", "add", "eth0", "type", "veth", "peer", "name", outer, "netns", self.namespace.name)
        lines = [f"addr add {link.sandbox}/24 dev eth0", "link set eth0 up"]
        gateway_lines = [f"addr add {link.gateway}/24 dev {outer}", f"link set {outer} up"]
        routes = [f"route add default via {link.gateway}"]
        if ipv6:
            lines.append(f"addr add {link.sandbox6}/64 dev eth0 nodad")
            gateway_lines.append(f"addr add {link.gateway6}/64 dev {outer} nodad")
            routes.append(f"route add ::/0 via {link.gateway6}")
        self.namespace.ip_batch(gateway_lines)
        sandbox.ip_batch(lines + routes)
        sandbox.wait_running("eth0", link.sandbox6 if ipv6 else "")
        self.namespace.wait_running(outer, link.gateway6 if ipv6 else "")
        return link


class Lab:
    """A fresh sandbox namespace joined to an internet; a context manager that leaves nothing behind.

    Without `internet` it makes one of its own, and closes it. With `ipv6=False` the sandbox has IPv6 switched off, `lo`
    included, as a container runtime does it by sysctl.
    """

    def __init__(self, internet: Internet | None = None, *, ipv6: bool = True) -> None:
        with contextlib.ExitStack() as undo:
            self.internet = internet if internet is not None else undo.enter_context(Internet())
            self.dns = self.internet.dns
            self.sites = self.internet.sites
            self.sandbox = Namespace("sandbox")
            undo.callback(self.sandbox.close)
            self.sandbox.sysctl(
                {
                    "net.ipv4.ip_forward": 0,
                    "net.ipv6.conf.default.accept_dad": 0,
                    "net.ipv6.conf.all.disable_ipv6": int(not ipv6),
                    "net.ipv6.conf.default.disable_ipv6": int(not ipv6),
                    "net.ipv6.conf.lo.disable_ipv6": int(not ipv6),
                }
            )
            self.link = self.internet.join(self.sandbox, ipv6=ipv6)
            self.client = Client(self.sandbox)
            undo.callback(self.client.close)
            self._undo = undo.pop_all()
        # What most tests say most often.
        self.query = self.client.query
        self.connect = self.client.connect
        self.udp = self.client.udp
        self.ping = self.client.ping
        self.fetch = self.client.fetch
        self.open = self.client.open

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._undo.close()

    @staticmethod
    def site(name: str, *, ipv6: bool = False) -> str:
        """The address of one of SITES."""
        return SITES[name][ipv6]

    def capture(self) -> Capture:
        """Record what arrives at the internet's end of the wire, whatever the sandbox's own kernel thinks it sent."""
        return Capture(self.internet.namespace)

    def run(
        self,
        argv: Sequence[str],
        *,
        identity: Identity = ROOT,
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        check: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program inside the sandbox as `identity`, to its end."""
        return self.sandbox.run(argv, identity=identity, env=env, timeout=timeout, check=check)

    def python(
        self, code: str, *arguments: str, identity: Identity = ROOT, timeout: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Run Python code (standard library only) inside the sandbox as `identity`."""
        return self.sandbox.python(code, *arguments, identity=identity, timeout=timeout)

    def dial_in(self, port: int, *, timeout: float = 60.0) -> socket.socket:
        """A TCP connection from the internet into the sandbox, as a gateway makes them."""
        with self.internet.namespace.entered():
            return socket.create_connection((self.link.sandbox, port), timeout)

    def unguard(self) -> None:
        """Take the guard's tables out of the sandbox, so that it stands open again."""
        tables = [("inet", f"sallyport{name}") for name in ("", "_cut", "_shut")] + [("netdev", "sallyport")]
        for family, name in tables:
            # `add` first: nft 1.0.6 has no `destroy`, and deleting what isn't there is an error.
            with contextlib.suppress(Exception):
                self.sandbox.nft(f"add table {family} {name}\ndelete table {family} {name}\n")
