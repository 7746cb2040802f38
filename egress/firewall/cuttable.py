"""Flows that were cut: dropped both ways before anything accepts on connection state.

Each packet stopped renews its tuple. With a plain time-out the peer's next datagram would open the flow again, as one
from outside. The table stands through loads; only its rules are written anew.
"""

from __future__ import annotations

from egress.firewall.addressmap import chain
from egress.firewall.tables import ADDRESS, CUT_TABLE, REFUSE, base_chain

CUT_SIZE = 65536
CUT_SECONDS = 60  # a cut tuple lives that long after the last packet it stopped


def cut_table() -> list[str]:
    """The table's lines, to be read whether it stands already or not."""
    lines = [f"table inet {CUT_TABLE} {{"]
    for family in (4, 6):
        address = ADDRESS[family]
        lines += [
            f"\tset cut{family} {{",
            f"\t\ttype {address} . inet_proto . inet_service . {address} . inet_service",
            f"\t\tsize {CUT_SIZE}",
            "\t\tflags dynamic,timeout",
            f"\t\ttimeout {CUT_SECONDS}s",
            "\t}",
        ]
    lines += chain("refuse", [])
    lines += chain("cut_in", [], base_chain("prerouting", -290, "accept"))
    lines += chain("cut_out", [], base_chain("output", -10, "accept"))
    lines.append("}")
    lines += [f"flush chain inet {CUT_TABLE} {name}" for name in ("refuse", "cut_in", "cut_out")]
    into, out = [], []
    for family in (4, 6):
        ip = "ip" if family == 4 else "ip6"
        arriving = f"{ip} daddr . meta l4proto . th dport . {ip} saddr . th sport"
        leaving = f"{ip} saddr . meta l4proto . th sport . {ip} daddr . th dport"
        renewed = f"timeout {CUT_SECONDS}s"
        into.append(f'iifname != "lo" {arriving} @cut{family} update @cut{family} {{ {arriving} {renewed} }} drop')
        out.append(f'oifname != "lo" {leaving} @cut{family} update @cut{family} {{ {leaving} {renewed} }} goto refuse')
    lines.append(f"table inet {CUT_TABLE} {{")
    lines += chain("refuse", ["counter", *REFUSE])
    lines += chain("cut_in", into)
    lines += chain("cut_out", out)
    lines.append("}")
    return lines
