"""The last door before a device: only packets that the IP path stamped pass, and the stamp is cleared as it is checked.

    stamp    top  (inet, postrouting) the last word of the IP path: mark and priority become the stamp
    egress   top  (netdev) stamped: cleared, out. Else dropped
    cleared -310  (inet, prerouting) a multicast packet is looped back behind the stamp and before the door

Packet sockets come straight to here. The stamp is 64 bits against guessing; against reading it is the clearing that
holds, since this hook runs before packet taps. On `lo` too: what is sent there comes back to sockets that can ask for
a packet's mark.
"""

from __future__ import annotations

from egress.firewall.addressmap import chain, show
from egress.firewall.tables import TABLE, TOP, Site, base_chain, carries, class_id, gone, named_set
from egress.netns import Exemption
from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

COUNTER = "unstamped"  # packets that came without the stamp
_CLEAR = "meta mark set 0 meta priority set 0:0"


def cleared(stamps: Sequence[Exemption]) -> Iterable[str]:
    """The chain that no packet brings a stamp through."""
    return chain("cleared", [_clear(stamp) for stamp in stamps], base_chain("prerouting", -310, "accept"))


def stamped(site: Site, exemptions: Sequence[Exemption], stamp: Exemption) -> Iterable[str]:
    """The chain that stamps. Without the last door, at least our exemptions don't leave on our packets."""
    rules = [_set(stamp)] if site.raw != "none" else [_clear(exemption) for exemption in exemptions]
    return chain("stamp", rules, base_chain("postrouting", TOP, "accept"))


def restamp(stamp: Exemption, before: Exemption) -> str:
    """Another stamp in a standing ruleset; the door is another matter (`let_in`)."""
    lines = [f"flush chain inet {TABLE} cleared", f"flush chain inet {TABLE} stamp"]
    lines += [f"add rule inet {TABLE} cleared {_clear(one)}" for one in (stamp, before)]
    lines += [f"add rule inet {TABLE} stamp {_set(stamp)}"]
    return "\n".join(lines) + "\n"


def let_in(stamp: Exemption) -> str:
    """Let another stamp pass the standing door too. A packet is stamped and checked in two places: had both changed in
    one instant, what is between them then would be lost."""
    return f"insert rule netdev {TABLE} egress {_clear(stamp)} accept\n"


def is_ajar(site: Site, rules: int) -> bool:
    """Does a door with so many rules let more than one stamp pass?"""
    return rules > len(_rules(site, Exemption(0, 0)))


def _clear(carried: Exemption) -> str:
    return f"{carries(carried)} {_CLEAR}"


def _set(stamp: Exemption) -> str:
    return f"meta mark set {stamp.mark:#010x} meta priority set {class_id(stamp.priority)}"


def _rules(site: Site, stamp: Exemption) -> list[str]:
    rules = [f"{_clear(stamp)} accept"]
    if site.own4:
        # The frame's own type, not only what the packet socket claims it to be; nothing behind the 28 octets of ARP
        # but the padding to an Ethernet frame.
        rules.append(
            "ether type arp meta protocol arp arp htype 1 arp ptype ip arp hlen 6 arp plen 4 "
            "arp operation { request, reply } arp saddr ip @own4 meta length <= 64 accept"
        )
    return [*rules, f"counter name {COUNTER} drop"]


def netdev(site: Site, stamp: Exemption) -> list[str]:
    """The netdev table for `site`; nothing for "untouched". With "prefix" and "standing" the base chain is already
    there, on the right devices, and only its rules are replaced: the first only a netlink message of our own can make
    (`devices.py`)."""
    if site.raw == "untouched":
        return []
    if site.raw == "none":
        return gone("netdev", TABLE)
    rules = _rules(site, stamp)
    count = [f"\tcounter {COUNTER} {{", "\t}"]
    addresses = [show(packed) for packed in dict.fromkeys(site.own4)]
    own = list(named_set("own4", "ipv4_addr", addresses)) if addresses else []
    if site.raw == "devices":
        names = ", ".join(f'"{name}"' for name in site.devices)
        base = f"type filter hook egress devices = {{ {names} }} priority {TOP}; policy drop;"
        return [*gone("netdev", TABLE), f"table netdev {TABLE} {{", *count, *own, *chain("egress", rules, base), "}"]
    flush = [f"flush chain netdev {TABLE} egress"]
    if own:
        flush += [f"add set netdev {TABLE} own4 {{ type ipv4_addr; }}", f"flush set netdev {TABLE} own4"]
    return [*flush, f"table netdev {TABLE} {{", *count, *own, *chain("egress", rules), "}"]
