"""The last door before a device: only packets that the IP path stamped pass, and the stamp is cleared as it is checked.

Packet sockets come straight to here. The stamp is 64 bits against guessing; against reading it is the clearing that
holds, since this hook runs before packet taps. On `lo` too: what is sent there comes back to sockets that can ask for
a packet's mark.
"""

from __future__ import annotations

from egress.firewall.addressmap import chain, show
from egress.firewall.tables import TABLE, TOP, Site, class_id, gone, named_set
from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    from egress.netns import Exemption

COUNTER = "unstamped"  # packets that came without the stamp


def let_in(stamp: Exemption) -> str:
    """Let another stamp pass the standing door too. A packet is stamped and checked in two places: had both changed in
    one instant, what is between them then would be lost."""
    return f"insert rule netdev {TABLE} egress {_pass(stamp)}\n"


def _pass(stamp: Exemption) -> str:
    mark = f"meta mark {stamp.mark:#010x} meta priority {class_id(stamp.priority)}"
    return f"{mark} meta mark set 0 meta priority set 0:0 accept"


def netdev(site: Site, stamp: Exemption) -> list[str]:
    """The netdev table for `site`; nothing for "untouched". With "prefix" and "standing" the base chain is already
    there, on the right devices, and only its rules are replaced: the first only a netlink message of our own can make
    (`devices.py`)."""
    if site.raw == "untouched":
        return []
    if site.raw == "none":
        return gone("netdev", TABLE)
    rules = [_pass(stamp)]
    if site.own4:
        # The frame's own type, not only what the packet socket claims it to be; nothing behind the 28 octets of ARP
        # but the padding to an Ethernet frame.
        rules.append(
            "ether type arp meta protocol arp arp htype 1 arp ptype ip arp hlen 6 arp plen 4 "
            "arp operation { request, reply } arp saddr ip @own4 meta length <= 64 accept"
        )
    rules.append(f"counter name {COUNTER} drop")
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
