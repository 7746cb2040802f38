"""The kinds of lives: the sidecar as most have it, with the name guard, and in mode `dns`; what may pass in each."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

from soak.model import Model, Probe, Teaching
from tests.pure.policies import naive

WEB = (80, 443)
"""TCP ports on which the name guard reads whom a connection is for: docs/sni.md."""
_FORGOTTEN = "?"


class Guarded(Model):
    """With the name guard: on `WEB` of an address that names have opened a connection is for a name, which has to be
    allowed on that port, and one of those whose answers led there. UDP 443 is closed there."""

    def passes(self, probe: Probe, now: float) -> bool | None:
        if (probe.protocol, probe.port) == ("udp", 443):
            if self._said(probe) is None and self.taught.get(probe.address):
                sure, maybe = self.teachings(probe.address, now)
                if sure or self.document["defaultAction"] == "deny":
                    return False
                return None if maybe else True
            return super().passes(probe, now)
        if not self.asks(probe):
            return super().passes(probe, now)
        sure, maybe = ([one for one in some if self._opens(one, probe)] for some in self.teachings(probe.address, now))
        if not sure and not maybe:
            return super().passes(probe, now)
        judged = self._judged(probe, now)
        if sure:
            return judged
        others = self.document["defaultAction"] == "allow" and not self.teachings(probe.address, now)[0]
        return judged if judged == others else None  # not asked at all, where no name opens the port any more

    def keeps(self, probe: Probe, chain: tuple[str, ...], now: float) -> bool | None:
        """Both have to be allowed: its name, and the address, by whichever name. The end of a lease ends none."""
        if probe.name is None or not self.asks(probe):
            return super().keeps(probe, chain, now)
        if not self.open(probe.name, chain, "tcp", probe.port) or not self.teaches(probe.address):
            return False
        here = self.taught.get(probe.address, {}).values()
        if not here:
            return bool(self.document["defaultAction"] == "allow")
        opening = [one for one in here if self._opens(one, probe)]
        sure, _ = self.teachings(probe.address, now)
        return True if any(one in sure for one in opening) else None if opening else False

    def relays(self, probe: Probe, now: float) -> bool:
        """Is the name read, for sure, and known to have led there?"""
        if not self.asks(probe) or self._said(probe) is not None:
            return False
        one = self.taught.get(probe.address, {}).get(probe.name or "")
        sure, _ = self.teachings(probe.address, now)
        return one in sure and not any(other.nameless for other in self.taught[probe.address].values())

    def asks(self, probe: Probe) -> bool:
        """May a name be asked for? Not where a rule speaks of the address."""
        return probe.protocol == "tcp" and probe.port in WEB and self._said(probe) is None

    def forget_names(self) -> None:
        """What is known of an address without its names stays beside what is learned of it again."""
        for address, teachings in self.taught.items():
            self.taught[address] = {
                name if one.nameless else _FORGOTTEN + name: one._replace(nameless=True)
                for name, one in teachings.items()
            }

    def because(self, probe: Probe, now: float) -> str:
        words = super().because(probe, now)
        if probe.name is None:
            return words
        allowed = "allows" if naive.by_name(self.document, probe.name, "tcp", probe.port) else "does not allow"
        return f"{words}; the policy {allowed} {probe.name!r} there"

    def _said(self, probe: Probe) -> str | None:
        return naive.by_address_rules(self.document, ipaddress.ip_address(probe.address), probe.protocol, probe.port)

    def _opens(self, one: Teaching, probe: Probe) -> bool:
        return self.open(one.name, one.chain, "tcp", probe.port)

    def _judged(self, probe: Probe, now: float) -> bool | None:
        name = (probe.name or "").lower()
        if not name or not naive.by_name(self.document, name, "tcp", probe.port):
            return False
        sure, maybe = self.teachings(probe.address, now)
        mine = self.taught[probe.address].get(name)  # its lease may be over: the address is open by another
        if mine is not None and mine in sure:
            return self._opens(mine, probe)
        verdicts: set[bool | None] = (
            {True} if any(one.nameless and self._opens(one, probe) for one in sure) else {False}
        )
        if any(one.nameless and self._opens(one, probe) for one in maybe):
            verdicts |= {True}
        if mine is not None:
            verdicts |= {self._opens(mine, probe)}
        return verdicts.pop() if len(verdicts) == 1 else None


class NamesOnly(Model):
    """Mode `dns`: answers are the policy's, packets pass, but to port 853."""

    def passes(self, probe: Probe, now: float) -> bool | None:
        del now
        return probe.port != 853

    def because(self, probe: Probe, now: float) -> str:
        del probe, now
        return "mode dns"


class Kind(NamedTuple):
    """One kind of life."""

    model: type[Model]
    env: dict[str, str]
    weight: int  # how many of a dozen lives
    mode: str = "dns+nft"  # what GET /policy says of it


KINDS = {
    "dns+nft": Kind(Model, {}, 6),
    "guard": Kind(Guarded, {"SNI": "enforce"}, 4),
    "dns": Kind(NamesOnly, {"MODE": "dns"}, 2, "dns"),
}
