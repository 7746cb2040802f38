"""What the packet side can hold, found out by holding it: our real rulesets, loaded into a scratch namespace.

Where no namespace may be made (an ordinary container has CAP_NET_ADMIN and nothing else) the kernel is asked to check
small rulesets without taking them: less is certain then, and nothing is changed either.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from egress.commands.scratch import ScratchError, apart, within

if TYPE_CHECKING:
    from egress.firewall.ruleset import RulesetSpec

_CAP_NET_ADMIN = 12


class Trial(NamedTuple):
    """What was found. None: not tried."""

    where: str  # "scratch", "user" (a user namespace around it), "check" (asked only), "" (nothing could be tried)
    problem: str  # why our rulesets cannot be loaded, or why nothing could be tried
    raw: str | None = None  # "prefix", "devices", "none"
    nflog: bool | None = None
    ct_timeout: bool | None = None
    socket_match: bool | None = None
    ip_options: bool | None = None
    destroy: bool | None = None
    conntrack: bool | None = None


def net_admin() -> bool:
    """Whether this process has CAP_NET_ADMIN."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("CapEff:"):
                    return bool(int(line.split()[1], 16) >> _CAP_NET_ADMIN & 1)
    except OSError:
        pass
    return False


def library() -> str:
    """Why libnftables cannot be used, or ""."""
    from egress.firewall import FirewallError

    def load() -> str:
        from egress.firewall.nft import run

        try:
            run("list tables\n", check=True)
        except FirewallError as error:
            return str(error) if "missing" in str(error) or "context" in str(error) else ""
        return ""

    try:
        return str(apart(load))
    except ScratchError as error:
        return str(error)


def trial() -> Trial:
    """Load what a sidecar loads, in the best place there is."""
    reasons = []
    for user in (False, True):
        try:
            found = Trial(*within(_load, user=user))._replace(where="user" if user else "scratch")
        except ScratchError as error:
            reasons.append(str(error))
            continue
        if found.raw == "devices":
            try:
                if within(_prefix, user=user):
                    found = found._replace(raw="prefix")
            except ScratchError:
                pass
        return found
    if net_admin():
        try:
            return Trial(*apart(_check))
        except ScratchError as error:
            reasons.append(str(error))
    return Trial("", "; ".join(dict.fromkeys(reasons)))


def _load() -> Trial:
    """In the scratch namespace: lock down, load a policy with one of everything, learn, list flows."""
    from egress.firewall import FirewallError
    from egress.firewall.guardhouse import Firewall

    firewall = Firewall()
    try:
        firewall.lock()
        firewall.load(_spec())
        firewall.write_learned({0: {bytes((192, 0, 2, 1)): 60_000}})
    except (FirewallError, OSError) as error:
        return Trial("scratch", str(error))
    try:
        firewall.flows()
        conntrack = True
    except (FirewallError, OSError):
        conntrack = False
    can = firewall.capabilities()
    return Trial(
        "scratch", "", can.raw, can.nflog, can.ct_timeout, can.socket_match, can.ip_options, can.destroy, conntrack
    )


def _spec() -> RulesetSpec:
    from egress.firewall.ruleset import RulesetSpec
    from egress.netns import Exemption
    from policies.matcher import compile_policy
    from policies.parser import parse_policy

    compiled = compile_policy(parse_policy(_SAMPLE))
    secrets = [int.from_bytes(os.urandom(4), "big") | 1 for _ in range(5)]
    return RulesetSpec(
        mode="dns+nft",
        default_allow=False,
        plan=compiled.address_plan(),
        classes=compiled.port_classes(),
        learned={},
        upstreams=((bytes((192, 0, 2, 53)), 53),),
        exempt=(),
        doh_all=True,
        doh_networks=(),
        dns_ports=(20053, 20053, 20053, 20053),
        own=(),
        exemption=Exemption(secrets[0], secrets[1]),
        stamp=Exemption(secrets[2], secrets[3]),
        flow_mark=secrets[4],
    )


_SAMPLE = """{"egress": [
  {"action": "deny", "target": "192.0.2.128/25"}, {"action": "allow", "target": "192.0.2.0/24", "ports": [443]},
  {"action": "allow", "target": "2001:db8::/32", "protocol": "udp"}, {"action": "allow", "target": "api.example.com"},
  {"action": "allow", "target": "*.example.com", "ports": ["8000-8100"], "protocol": "tcp"}]}"""


def _prefix() -> bool:
    """In a scratch namespace of its own, because old versions of nft cannot live beside what this makes."""
    from egress.firewall.devices import make_prefix_chain
    from egress.netns import NETLINK_NETFILTER, Namespace

    with Namespace().netlink(NETLINK_NETFILTER) as sock:
        return make_prefix_chain(sock)


def _check() -> Trial:
    """Where we are, changing nothing: the kernel looks at each piece and takes none."""
    from egress.firewall import FirewallError
    from egress.firewall.conntrack import can_destroy
    from egress.firewall.nft import Nft
    from egress.firewall.ruleset import lockdown
    from egress.firewall.tables import Site
    from egress.netns import Exemption, Namespace

    nft = Nft()

    def problem(text: str) -> str:
        try:
            nft.run(text, check=True)
        except FirewallError as error:
            return str(error)
        return ""

    def takes(body: str, table: str = "inet") -> bool:
        return not problem(f"table {table} sallyport_probe {{\n {body}\n }}\n")

    def rule(hook: str, words: str) -> str:
        return f"chain probe {{\n type filter hook {hook} priority 0; policy accept;\n {words}\n }}"

    trouble = problem(lockdown(Site(), Exemption(1, 1)))
    if trouble:
        return Trial("check", trouble)
    return Trial(
        "check",
        "",
        "devices" if takes(rule('egress devices = { "lo" }', ""), "netdev") else "none",
        takes(rule("output", "log group 5353")),
        takes("ct timeout probe {\n protocol udp\n l3proto ip\n policy = { unreplied: 2, replied: 2 }\n }"),
        takes(rule("input", "socket mark 1 drop")),
        takes(rule("output", "ip option lsrr exists drop")),
        can_destroy(Namespace()),
        takes(rule("output", "ct state established accept")),
    )
