"""What may pass: the policy read plainly, and what look-ups have taught. Nothing of the product's own is used here.

An answer is True or False, or None where the order of events leaves both open (an answer that was on its way when the
asker gave up; a lease that may have been renewed).
"""

from __future__ import annotations

import ipaddress
import json
from typing import Any, NamedTuple

from tests.pure.policies import naive

Document = dict[str, Any]
Rule = dict[str, Any]
LEAST, GRACE = 60.0, 60.0  # seconds: docs/egress.md, "Names and addresses"
_EARLY, _LATE = 5.0, 15.0  # seconds by which an end may be missed: this machine is busy


class Probe(NamedTuple):
    """One attempt: protocol "tcp", "udp" or "echo" (port 0), and the name that is said, if one is."""

    protocol: str
    address: str
    port: int
    name: str | None = None

    def __str__(self) -> str:
        said = "" if self.name is None else f" for {self.name!r}"
        return f"{self.protocol} {self.address} {self.port}".removesuffix(" 0") + said


class Teaching(NamedTuple):
    """A look-up that led to an address."""

    name: str
    chain: tuple[str, ...]  # the targets of its CNAMEs
    sure: float  # until then the lease lasts, by the clock that `Model.now` reads
    over: float  # from then on it has ended, where nobody used it
    certain: bool = True  # the answer was seen
    nameless: bool = False  # the sidecar has forgotten why: it goes with the next change


class Model:
    """The policy in force and every teaching that still counts."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.taught: dict[str, dict[str, Teaching]] = {}
        self.used: set[str] = set()  # addresses that were tried since they were learned: their leases may be renewed

    # -- the policy ------------------------------------------------------------------------------------------------
    def change(self, document: Document) -> None:
        """Another policy holds: of what was learned stays what it still opens."""
        same = canonical(document) == canonical(self.document)
        self.document = document
        for address, teachings in list(self.taught.items()):
            kept = {
                name: one
                for name, one in teachings.items()
                if (same or not one.nameless) and self.teaches(address) and self.opens_any(one)
            }
            if kept:
                self.taught[address] = kept
            else:
                del self.taught[address]

    def patch(self, rules: list[Rule]) -> Document:
        """The document after PATCH: the new rules first, each once, in the place of the same ones."""
        first: dict[Any, Rule] = {}
        for rule in rules:
            first.setdefault(key(rule), rule)
        kept = [rule for rule in self.document["egress"] if key(rule) not in first]
        return {**self.document, "egress": [*first.values(), *kept]}

    def delete(self, selectors: list[Any]) -> Document:
        """The document after DELETE: a text takes every rule of that target, an object the one rule."""
        whole = {one for one in selectors if isinstance(one, str)}
        keys = {key(one) for one in selectors if not isinstance(one, str)}
        kept = [rule for rule in self.document["egress"] if rule["target"] not in whole and key(rule) not in keys]
        return {**self.document, "egress": kept}

    # -- names -----------------------------------------------------------------------------------------------------
    def open(self, name: str, chain: tuple[str, ...], protocol: str, port: int) -> bool:
        """Does what the name teaches along this chain open the port?"""
        if not naive.by_name(self.document, name, protocol, port):
            return False
        return not any(naive.link_denied(self.document, link, protocol, port) for link in chain)

    def answers(self, name: str, chain: tuple[str, ...]) -> bool:
        """Is the name answered at all: some TCP or UDP port is open, by itself and along its chain."""
        ports = naive.interesting_ports(self.document)
        return any(self.open(name, chain, protocol, port) for protocol in ("tcp", "udp") for port in ports)

    def opens_any(self, one: Teaching) -> bool:
        return self.answers(one.name, one.chain)

    def teaches(self, address: str) -> bool:
        return naive.teach(self.document, ipaddress.ip_address(address)) == "learn"

    def passed_on(self, address: str) -> bool:
        """May this address be in an answer?"""
        return naive.teach(self.document, ipaddress.ip_address(address)) != "strip"

    def learned(
        self, name: str, chain: tuple[str, ...], address: str, ttl: int, now: float, *, certain: bool = True
    ) -> None:
        """An answer of `ttl` seconds left for the client has led to the address; or may have, unseen."""
        if not self.teaches(address):
            return
        lasts = max(ttl, LEAST) + GRACE
        least = now + (ttl + GRACE if ttl > LEAST else LEAST if ttl else GRACE) - _EARLY
        one = Teaching(name, chain, least, now + lasts + _LATE, certain)
        before = self.taught.setdefault(address, {}).get(name)
        if before is not None:
            if before.certain and not certain:
                one = before._replace(over=max(before.over, one.over))
            else:
                one = one._replace(
                    sure=max(before.sure if before.certain else 0, one.sure), over=max(before.over, one.over)
                )
        self.taught[address][name] = one

    def forget_names(self) -> None:
        """The whole sidecar ended: the kernel's sets go on, the names are gone."""
        for teachings in self.taught.values():
            for name, one in list(teachings.items()):
                teachings[name] = one._replace(nameless=True)

    # -- packets ---------------------------------------------------------------------------------------------------
    def passes(self, probe: Probe, now: float) -> bool | None:
        """What a plain reading says of one attempt."""
        address = ipaddress.ip_address(probe.address)
        said = naive.by_address_rules(self.document, address, probe.protocol, probe.port)
        if said is not None:
            return said == "allow"
        sure, maybe = self.teachings(probe.address, now)
        opened = [one for one in sure if self.open(one.name, one.chain, probe.protocol, probe.port)]
        if opened:
            return True
        perhaps = [one for one in maybe if self.open(one.name, one.chain, probe.protocol, probe.port)]
        default = self.document["defaultAction"] == "allow" and probe.port != 853
        if not default:
            return None if perhaps else False
        if sure:  # a name that may be reached on some ports closes the others where everything else is open
            return None if perhaps else False
        return None if maybe else True

    def keeps(self, probe: Probe, chain: tuple[str, ...], now: float) -> bool | None:
        """Does an open flow outlive a change? `chain` is that of the name it is for, where it is for one."""
        del chain  # packets have no names
        return self.passes(probe, now)

    def teachings(self, address: str, now: float) -> tuple[list[Teaching], list[Teaching]]:
        """Those that count, and those that may."""
        sure, maybe = [], []
        for one in self.taught.get(address, {}).values():
            if one.certain and now < one.sure:
                sure.append(one)
            elif now < one.over or address in self.used:
                maybe.append(one)
        return sure, maybe

    def because(self, probe: Probe, now: float) -> str:
        """The reading in words."""
        address = ipaddress.ip_address(probe.address)
        said = naive.by_address_rules(self.document, address, probe.protocol, probe.port)
        if said is not None:
            return f"a rule for the address (or its block) says {said}"
        words = []
        for certainty, teachings in zip(("taught", "perhaps taught"), self.teachings(probe.address, now), strict=True):
            for one in teachings:
                way = " -> ".join((one.name, *one.chain))
                opens = "opens" if self.open(one.name, one.chain, probe.protocol, probe.port) else "does not open"
                words.append(f"{certainty} by {way}{' (names forgotten)' * one.nameless}, which {opens} it")
        return "; ".join(words) or f"nothing speaks of it: default {self.document['defaultAction']}"


def key(rule: Rule) -> tuple[str, tuple[tuple[int, int], ...], str]:
    """What makes two rules the same for PATCH and DELETE."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(naive.ranges(rule)):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return rule["target"], tuple(merged), rule.get("protocol") or ""


def canonical(document: Document) -> str:
    """Documents that mean the same rules in the same order are the same text."""
    rules = [(rule["action"], *key(rule)) for rule in document["egress"]]
    return json.dumps([document["defaultAction"], rules])
