"""What a kernel, with this process's privileges, can hold; asked only when it refused something."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from egress.firewall import FirewallError, devices
from egress.firewall.conntrack import can_destroy
from egress.netns import NETLINK_NETFILTER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from egress.firewall.nft import Nft
    from egress.firewall.tables import Site
    from egress.netns import Namespace


class Capabilities(NamedTuple):
    """What this kernel, with this process's privileges, can hold."""

    raw: str  # packet sockets: "prefix" every device, "devices" the listed ones, followed, "none"
    nflog: bool  # refused packets can be told
    ct_timeout: bool  # redirected DNS is forgotten as soon as no answer can come, not after 30 s
    socket_match: bool  # packets to our own sockets can be recognised
    ip_options: bool  # source routing can be refused
    destroy: bool  # sockets of cut flows can be destroyed
    ipv6: bool  # ::1 is there, so IPv6 DNS can be redirected

    def shortcomings(self) -> tuple[str, ...]:
        """What cannot be held, one sentence each."""
        words = {
            "nflog": "refused packets are counted but not told (no NFLOG)",
            "ct_timeout": "a flood of DNS queries can use up redirections for 30 s (no ct timeout objects)",
            "ip_options": "source-routed packets to allowed addresses pass (no IPv4 option matching)",
            "destroy": "programs are told of a cut connection only when they send (no SOCK_DESTROY)",
            "ipv6": "no ::1 here: IPv6 DNS is refused, not answered",
        }
        found = [text for name, text in words.items() if not getattr(self, name)]
        if self.raw == "none":
            found.insert(0, "packet sockets are not guarded (no netdev egress hook, Linux 5.16): drop CAP_NET_RAW")
        return tuple(found)


def capabilities(site: Site, namespace: Namespace) -> Capabilities:
    """What holds in this namespace, where `site` is what its kernel has taken. Raises OSError."""
    ipv6 = any(address.packed == b"\0" * 15 + b"\1" for address in namespace.addresses())
    log, timeout, match, options = bool(site.log_group), site.ct_timeout, site.socket_match, site.ip_options
    return Capabilities(site.raw, log, timeout, match, options, can_destroy(namespace), ipv6)


def negotiate(site: Site, namespace: Namespace, nft: Nft, log_group: int) -> Site:
    """`site` without what this kernel refuses: each part is asked for alone, and nothing is changed by it."""

    def takes(text: str) -> bool:
        try:
            namespace.inside(lambda: nft.run(text, check=True))
        except FirewallError:
            return False
        return True

    def rule(hook: str, words: str) -> str:
        chain = f"chain probe {{\n type filter hook {hook} priority 0; policy accept;\n {words}\n }}"
        return f"table inet sallyport_probe {{\n {chain}\n }}\n"

    def door(names: Sequence[str]) -> str:
        listed = ", ".join(f'"{name}"' for name in names)
        chain = f"chain probe {{\n type filter hook egress devices = {{ {listed} }} priority 0; policy accept;\n }}"
        return f"table netdev sallyport_probe {{\n {chain}\n }}\n"

    if site.raw == "prefix":
        with namespace.netlink(NETLINK_NETFILTER) as sock:
            if not devices.make_prefix_chain(sock):
                site = site._replace(raw="devices")
    if site.raw == "devices" and not takes(door(site.devices)):
        present = tuple(["lo"] + [device.name for device in namespace.devices() if device.name != "lo"])
        site = site._replace(devices=present, raw="devices" if takes(door(present)) else "none")
    timeout = "ct timeout probe {\n protocol udp\n l3proto ip\n policy = { unreplied: 2, replied: 2 }\n }"
    return site._replace(
        socket_match=takes(rule("input", "socket mark 1 drop")),
        ip_options=takes(rule("output", "ip option lsrr exists drop")),
        ct_timeout=takes(f"table inet sallyport_probe {{\n {timeout}\n }}\n"),
        log_group=log_group if takes(rule("output", f"log group {log_group}")) else 0,
    )
