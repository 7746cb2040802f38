"""Other people's packet rules in this namespace, read over netlink, to find a second transparent interceptor.

Not through `nft list`: old versions read a ruleset for ever where a chain covers devices by prefix, and what is asked
here is one thing only: does somebody else redirect what programs send (a chain of type nat at hook output)?
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from egress.firewall.nfnetlink import DUMP, GETCHAIN, GETRULE, INET, attributes, dump, message, walk
from egress.netns import NETLINK_NETFILTER, Namespace

if TYPE_CHECKING:
    import socket

_IPV4, _IPV6 = 2, 10  # NFPROTO_*
_FAMILIES = {_IPV4: "ip", _IPV6: "ip6", INET: "inet"}
_OUTPUT = 3  # NF_INET_LOCAL_OUT
_OURS = ("sallyport", "sallyport_cut", "sallyport_shut")
_REWRITES = {"redir": "redirect", "nat": "dnat", "tproxy": "tproxy"}  # expressions
_XTABLES = ("REDIRECT", "DNAT", "TPROXY")  # targets of iptables-nft
_LEGACY = ("/proc/net/ip_tables_names", "/proc/net/ip6_tables_names")


class Redirect(NamedTuple):
    """A chain that rewrites where packets go, in a table that hooks nat into output."""

    table: str  # "ip nat"
    chain: str
    how: str  # redirect, dnat, tproxy

    @property
    def docker(self) -> bool:
        """Docker's own, for its resolver at 127.0.0.11: known and provided for."""
        return self.chain in ("DOCKER_OUTPUT", "DOCKER_POSTROUTING")

    @property
    def owner(self) -> str:
        """Whose it seems to be."""
        for mark, name in (("ISTIO", "Istio"), ("PROXY_INIT", "Linkerd"), ("CONSUL", "Consul"), ("KUMA", "Kuma")):
            if self.chain.upper().startswith(mark):
                return name
        return ""


def redirects(namespace: Namespace | None = None) -> tuple[Redirect, ...]:
    """Redirections of outgoing packets that aren't ours. Raises FirewallError, OSError."""
    found: dict[Redirect, None] = {}
    with (namespace or Namespace()).netlink(NETLINK_NETFILTER) as sock:
        for family, name in _FAMILIES.items():
            tables = _hooked(sock, family)
            if tables:
                for table, chain, how in _rewriting(sock, family):
                    if table in tables and table not in _OURS:
                        found[Redirect(f"{name} {table}", chain, how)] = None
    return tuple(found)


def legacy_nat() -> bool:
    """Whether the old iptables has a nat table here; its rules are not to be had over netlink."""
    for path in _LEGACY:
        try:
            with open(path, encoding="ascii", errors="replace") as file:
                if "nat" in file.read().split():
                    return True
        except OSError:
            continue
    return False


def _hooked(sock: socket.socket, family: int) -> set[str]:
    """Tables with a base chain of type nat at output."""
    tables = set()
    for _, body in dump(sock, message(GETCHAIN, DUMP, 1, family, b""), 1):
        fields = attributes(body)
        hook = attributes(fields.get(4, b"")).get(1, b"\xff")  # NFTA_HOOK_HOOKNUM, of base chains
        if _text(fields.get(7)) == "nat" and int.from_bytes(hook, "big") == _OUTPUT:
            tables.add(_text(fields.get(1)))
    return tables


def _rewriting(sock: socket.socket, family: int) -> list[tuple[str, str, str]]:
    """(table, chain, how) of each rule that rewrites destinations."""
    found = []
    for _, body in dump(sock, message(GETRULE, DUMP, 2, family, b""), 2):
        fields = attributes(body)
        for _, expression in walk(fields.get(4, b"")):
            how = _how(attributes(expression))
            if how:
                found.append((_text(fields.get(1)), _text(fields.get(2)), how))
    return found


def _how(expression: dict[int, bytes]) -> str:
    name = _text(expression.get(1))
    data = attributes(expression.get(2, b""))
    if name == "target":  # NFTA_TARGET_NAME
        target = _text(data.get(1))
        return target.lower() if target in _XTABLES else ""
    if name == "nat" and int.from_bytes(data.get(1, b""), "big") != 1:  # NFT_NAT_DNAT
        return ""
    return _REWRITES.get(name, "")


def _text(data: bytes | None) -> str:
    return data.rstrip(b"\0").decode(errors="replace") if data else ""
