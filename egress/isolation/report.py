"""The last words of a run: what was refused, how often, and the rule that would allow it."""

from __future__ import annotations

import json
from typing import Any

MOST = 1000  # distinct refusals that are counted apart; what comes after is counted together
DEFAULT = "default"  # the "rule" of a refusal that no rule made: one that allows would be the first to match
SHOWN = 20  # lines of the summary


class Report:
    """Counts refusals as the guard reports them."""

    def __init__(self) -> None:
        self._names: dict[str, dict[str, Any]] = {}
        self._packets: dict[tuple[str, str, int], dict[str, Any]] = {}
        self.more = 0

    def take(self, message: dict[str, Any]) -> None:
        """Count one message of the guard's feed ("name" or "packet"); others are ignored."""
        if message["kind"] == "name":
            name = str(message["name"])
            entry = self._names.get(name)
            if entry is None:
                if self._full():
                    return
                entry = self._names[name] = {
                    "name": name, "count": 0, "reason": str(message["reason"]).removeprefix(f"{name}: "),
                    "rule": message["rule"],
                    "allow": f"--allow {name}" if message["rule"] == DEFAULT else "",
                }  # fmt: skip
            entry["count"] += 1
        elif message["kind"] == "packet":
            key = (str(message["address"]), str(message["protocol"]), int(message["port"]))
            entry = self._packets.get(key)
            if entry is None:
                if self._full():
                    return
                address, protocol, port = key
                entry = self._packets[key] = {
                    "address": address, "protocol": protocol, "port": port, "count": 0,
                    "names": list(message["names"]), "allow": _rule(address, protocol, port, message["names"]),
                }  # fmt: skip
            entry["count"] += 1

    def _full(self) -> bool:
        if len(self._names) + len(self._packets) < MOST:
            return False
        self.more += 1
        return True

    def __bool__(self) -> bool:
        return bool(self._names or self._packets)

    def to_document(self, code: int) -> dict[str, Any]:
        """The report as a program reads it."""
        return {
            "exitCode": code,
            "deniedNames": _ordered(self._names.values()),
            "deniedPackets": _ordered(self._packets.values()),
            "deniedMore": self.more,
        }

    def to_json(self, code: int) -> str:
        return json.dumps(self.to_document(code), ensure_ascii=True) + "\n"

    def to_text(self) -> str:
        """The summary for a person; "" where nothing was refused."""
        if not self:
            return ""
        rows = []
        for entry in _ordered(self._names.values()):
            rows.append((entry["count"], entry["name"], entry["reason"] or "no rule allows it", entry["allow"]))
        for entry in _ordered(self._packets.values()):
            what = place(entry["address"], entry["port"]) + " " + entry["protocol"]
            known = f"known as {', '.join(entry['names'])}" if entry["names"] else "no allowed name led there"
            rows.append((entry["count"], what, known, entry["allow"]))
        hidden = max(0, len(rows) - SHOWN)
        rows = rows[:SHOWN]
        width = min(48, max(len(row[1]) for row in rows))
        lines = ["egress run: refused"]
        for count, what, why, allow in rows:
            lines.append(f"  {count:>5}x  {what:<{width}}  {why}")
            if allow:
                lines.append(f"          {'':<{width}}  to allow it: {allow}")
        if hidden or self.more:
            lines.append(f"  ... and {hidden + self.more} more (--json FILE has {MOST} of them)")
        return "\n".join(lines) + "\n"


def place(address: str, port: int) -> str:
    """`192.0.2.1:443`, `[2001:db8::1]:443`, the address alone where there is no port."""
    if not port:
        return address
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _rule(address: str, protocol: str, port: int, names: Any) -> str:
    if protocol not in ("tcp", "udp"):
        return f"--allow {address}" if protocol.startswith("icmp") else ""
    if names and port:
        return f"--allow {names[0]}:{port}"
    if port == 53:
        return ""  # a resolver is never opened: DNS is the guard's
    return f"--allow {place(address, port)}"


def _ordered(entries: Any) -> list[dict[str, Any]]:
    return sorted(entries, key=lambda entry: -entry["count"])
