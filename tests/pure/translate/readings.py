"""The source formats read plainly: does a document open this name, or this address, on this port.

Written from the formats' descriptions, with `ipaddress` and nothing of `policies`; slow, and one question at a time.
`name` is asked where a name led to an ordinary address, `address` where a program connects to a literal. Port 53 is
left out: it goes to the guard's resolver. `asks`: may the name be asked for.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Any

Document = dict[str, Any]
Question = tuple[str, str, int]  # host, protocol, port


DOCUMENTATION = ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32")


def inside(address: str, network: str) -> bool:
    one, other = ipaddress.ip_address(address), ipaddress.ip_network(network, strict=False)
    return one.version == other.version and one in other


def outside(address: str) -> bool:
    """On the internet, as far as an address says it; documentation's networks stand for it here."""
    return ipaddress.ip_address(address).is_global or any(inside(address, network) for network in DOCUMENTATION)


# -- Open Brain ------------------------------------------------------------------------------------------------------
class OpenBrain:
    def __init__(self, document: Document) -> None:
        network = document["security"]["sandbox"]["network"]
        self.open = network.get("allow_egress") is True and network.get("block_egress") is not True
        ports = network.get("allowed_ports")
        self.ports = None if network.get("restrict_egress") is False else ports

    def name(self, question: Question) -> bool:
        return self.open and (self.ports is None or question[2] in [int(port) for port in self.ports])

    def address(self, question: Question) -> bool:
        return self.name(question) and outside(question[0])

    def asks(self, name: str) -> bool:
        return self.open


# -- Kubernetes ------------------------------------------------------------------------------------------------------
class Kubernetes:
    def __init__(self, document: Document) -> None:
        self.rules = document["spec"].get("egress", [])

    def name(self, question: Question) -> bool:
        """Nothing in a NetworkPolicy opens an address because of its name."""
        return False

    def address(self, question: Question) -> bool:
        host, protocol, port = question
        return any(self._ports(rule, protocol, port) and self._to(rule, host) for rule in self.rules)

    def asks(self, name: str) -> bool:
        return any(self._ports(rule, protocol, 53) for rule in self.rules for protocol in ("tcp", "udp"))

    @staticmethod
    def _ports(rule: Document, protocol: str, port: int) -> bool:
        if not rule.get("ports"):
            return True
        for entry in rule["ports"]:
            if entry.get("protocol", "TCP").lower() != protocol or isinstance(entry.get("port"), str):
                continue
            if "port" not in entry or entry["port"] <= port <= entry.get("endPort", entry["port"]):
                return True
        return False

    @staticmethod
    def _to(rule: Document, host: str) -> bool:
        if not rule.get("to"):
            return True
        for peer in rule["to"]:
            block = peer.get("ipBlock")
            if (
                block
                and inside(host, block["cidr"])
                and not any(inside(host, hole) for hole in block.get("except", []))
            ):
                return True
        return False


# -- Cilium ----------------------------------------------------------------------------------------------------------
class Cilium:
    def __init__(self, document: Document) -> None:
        spec = document["spec"]
        self.allow, self.deny = spec.get("egress", []), spec.get("egressDeny", [])
        self.questions = [one for rule in self.allow for one in self._questions(rule)]

    def name(self, question: Question) -> bool:
        """An address that only its name opens: through toFQDNs, if the name could be asked for."""
        host, protocol, port = question
        if self.questions and not self.asks(host):
            return False
        found = [rule for rule in self.allow if any(pattern(one, host) for one in rule.get("toFQDNs", []))]
        return any(self._ports(rule, protocol, port) for rule in found)

    def address(self, question: Question) -> bool:
        host, protocol, port = question
        if any(self._ports(rule, protocol, port) and self._to(rule, host) for rule in self.deny):
            return False
        return any(self._ports(rule, protocol, port) and self._to(rule, host) for rule in self.allow)

    def asks(self, name: str) -> bool:
        if not self.questions:
            return any(pattern(one, name) for rule in self.allow for one in rule.get("toFQDNs", []))
        return any(one == "any" or pattern(one, name) for one in self.questions)

    def _questions(self, rule: Document) -> list[Any]:
        found: list[Any] = []
        if rule and "toPorts" not in rule and not any(key.startswith("to") for key in rule):
            return ["any"]
        for part in rule.get("toPorts", []):
            if not any(self._port(entry, protocol, 53) for entry in part["ports"] for protocol in ("tcp", "udp")):
                continue
            found += part.get("rules", {}).get("dns", ["any"])
        return found

    @classmethod
    def _ports(cls, rule: Document, protocol: str, port: int) -> bool:
        if "toPorts" not in rule:
            return bool(rule)
        return any(
            cls._port(entry, protocol, port)
            for part in rule["toPorts"] if "http" not in part.get("rules", {})
            for entry in part["ports"]
        )  # fmt: skip

    @staticmethod
    def _port(entry: Document, protocol: str, port: int) -> bool:
        if entry.get("protocol", "ANY").lower() not in (protocol, "any"):
            return False
        first = int(entry["port"])
        return first == 0 or first <= port <= entry.get("endPort", first)

    @staticmethod
    def _to(rule: Document, host: str) -> bool:
        keys = [key for key in rule if key in ("toCIDR", "toCIDRSet", "toEntities", "toFQDNs", "toEndpoints")]
        if not keys:
            return bool(rule)
        for block in [{"cidr": cidr} for cidr in rule.get("toCIDR", [])] + rule.get("toCIDRSet", []):
            if inside(host, block["cidr"]) and not any(inside(host, hole) for hole in block.get("except", [])):
                return True
        return any(entity in ("world", "all") and outside(host) for entity in rule.get("toEntities", []))


def pattern(selector: Document, name: str) -> bool:
    if "matchName" in selector:
        return bool(selector["matchName"].lower() == name)
    text = selector["matchPattern"].lower()
    if text == "*":
        return True
    if text.startswith("**."):
        return labels(text[3:], name, deep=True)
    labels_ = text.split(".")
    theirs = name.split(".")
    return len(labels_) == len(theirs) and all(
        re.fullmatch(one.replace("*", "[^.]*"), other) for one, other in zip(labels_, theirs, strict=True)
    )


def labels(suffix: str, name: str, *, deep: bool) -> bool:
    """Is the name below the suffix, by one label or, `deep`, by any number."""
    if not name.endswith("." + suffix):
        return False
    return deep or "." not in name[: -len(suffix) - 1]


# -- lists -----------------------------------------------------------------------------------------------------------
def split(entry: str) -> tuple[str, int | None]:
    if entry.startswith("["):
        host, _, port = entry[1:].partition("]")
        return host, int(port[1:]) if port else None
    if entry.count(":") == 1:
        host, _, port = entry.partition(":")
        return host, int(port)
    return entry, None


def matches(entry: str, host: str, port: int, *, one_label: bool = False) -> bool:
    """Does an entry of a list speak of a host, be it a name or an address, and a port."""
    text, wanted = split(entry)
    if wanted is not None and wanted != port:
        return False
    literal = re.fullmatch(r"[0-9.]+|.*:.*", host) is not None
    if re.fullmatch(r"[0-9./]+|.*:.*", text):
        return literal and inside(host, text)
    if text in ("*", "**"):
        return not literal or text == "**"
    if literal:
        return False
    if text.startswith("**."):
        return labels(text[3:], host, deep=True)
    if text.startswith("*."):
        return labels(text[2:], host, deep=not one_label)
    if text.startswith("."):
        return host == text[1:] or labels(text[1:], host, deep=True)
    return host == text


class Hosts:
    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def name(self, question: Question) -> bool:
        host, _, port = question
        if any(line.startswith("!") and matches(line[1:], host, port) for line in self.lines):
            return False
        return any(not line.startswith("!") and matches(line, host, port) for line in self.lines)

    address = name

    def asks(self, name: str) -> bool:
        return any(self.name((name, "tcp", port)) for port in (split(line.lstrip("!"))[1] or 1 for line in self.lines))


class SandboxRuntime:
    def __init__(self, document: Document) -> None:
        self.network = document["network"]

    def name(self, question: Question) -> bool:
        host, protocol, port = question
        denied = any(one == "*" or matches(one, host, port) for one in self.network.get("deniedDomains", []))
        allowed = any(matches(one, host, port) for one in self.network.get("allowedDomains", []))
        return protocol == "tcp" and allowed and not denied

    address = name

    def asks(self, name: str) -> bool:
        return any(self.name((name, "tcp", split(one)[1] or 1)) for one in self.network.get("allowedDomains", []))


class DockerSandbox:
    def __init__(self, document: Document) -> None:
        self.rules = document["rules"]

    def name(self, question: Question) -> bool:
        host, protocol, port = question
        decisions = {
            rule["decision"]
            for rule in self.rules
            for one in rule["resources"]
            if f"connect:{protocol}" in rule["actions"] and matches(one, host, port, one_label=True)
        }
        return decisions == {"allow"}

    address = name

    def asks(self, name: str) -> bool:
        ports = {split(one)[1] or 1 for rule in self.rules for one in rule["resources"]}
        return any(self.name((name, protocol, port)) for protocol in ("tcp", "udp") for port in ports)


class E2b:
    def __init__(self, document: Document) -> None:
        network = document.get("network", {})
        self.allow = network.get("allowOut", network.get("allow_out", []))
        self.deny = network.get("denyOut", network.get("deny_out", []))
        if document.get("allowInternetAccess") is False:
            self.deny = [*self.deny, "0.0.0.0/0"]

    def name(self, question: Question) -> bool:
        """An ordinary address that the name led to, and that no list names."""
        host, protocol, port = question
        web = protocol == "tcp" and port in (80, 443)
        if web and any(matches(one, host, port) for one in self.allow):
            return True
        return "0.0.0.0/0" not in self.deny

    def address(self, question: Question) -> bool:
        host = question[0]
        if any(matches(one, host, 1) for one in self.allow):
            return True
        return ":" not in host and outside(host) and not any(matches(one, host, 1) for one in self.deny)

    def asks(self, name: str) -> bool:
        return "0.0.0.0/0" not in self.deny or any(not re.fullmatch(r"[0-9./]+", one) for one in self.allow)


class Devcontainer:
    def __init__(self, document: Document) -> None:
        self.domains, self.networks, self.ports = document["domains"], document["networks"], document["ports"]

    def name(self, question: Question) -> bool:
        return question[0] in self.domains or tuple(question[1:]) in self.ports

    def address(self, question: Question) -> bool:
        host, protocol, port = question
        if ":" in host:
            return False
        return (protocol, port) in self.ports or any(inside(host, one) for one in self.networks)

    def asks(self, name: str) -> bool:
        return name in self.domains or any(port == 53 for _, port in self.ports)
