"""Where a guard stands and what it holds to, whatever the policy; with a policy it gives a ruleset's specification."""

from __future__ import annotations

import struct

from egress.effect import digest
from egress.firewall.ruleset import RulesetSpec
from egress.firewall.tables import ACCEPTED, RELAYED
from egress.netns import Exemption, secret
from policies.model import Action
from policies.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from egress.firewall.relayed import Relay
    from policies.address import Network
    from policies.matcher import CompiledPolicy
    from policies.ports import PortSet


class Placement(NamedTuple):
    """What the ruleset has to know besides the policy."""

    mode: str  # "dns" or "dns+nft"
    dns_ports: tuple[int, int, int, int]  # udp4, tcp4, udp6, tcp6; 0 where there is none
    upstreams: tuple[tuple[bytes, int], ...]  # resolvers asked from inside this namespace
    exempt: tuple[bytes, ...]
    doh_all: bool
    doh_networks: tuple[Network, ...]
    own: tuple[tuple[bytes, str, int], ...]  # endpoints of the sidecar's own traffic besides DNS
    answer_within: float = 5.0  # seconds a question may take
    relay_ports: tuple[int, int] = (0, 0)  # where the name guard's relay listens, v4 and v6; 0 where it does not

    def specify(
        self,
        compiled: CompiledPolicy,
        classes: tuple[PortSet, ...],
        learned: Mapping[int, Sequence[tuple[bytes, int]]],
        exemption: Exemption,
    ) -> RulesetSpec:
        """The ruleset of `compiled` here, with a stamp and a flow mark of its own; `learned` by index of `classes`."""
        return RulesetSpec(
            mode=self.mode,
            default_allow=compiled.policy.default is Action.ALLOW,
            plan=compiled.address_plan(),
            classes=classes,
            learned=learned,
            upstreams=self.upstreams,
            exempt=self.exempt,
            doh_all=self.doh_all,
            doh_networks=self.doh_networks,
            dns_ports=self.dns_ports,
            own=self.own,
            exemption=exemption,
            digest=digest(compiled),
            stamp=secret(),
            flow_mark=secret().mark & ~RELAYED | ACCEPTED,
            dns_seconds=min(int(self.answer_within) + 1, 30),
            relay=self._relay(exemption),
        )

    def _relay(self, exemption: Exemption) -> Relay | None:
        """The name guard's, with an exemption that follows from the sidecar's own and does not betray it."""
        if not any(self.relay_ports):
            return None
        from _blake2 import blake2s

        from egress.firewall.relayed import Relay

        derived = blake2s(struct.pack(">II", *exemption), digest_size=8, person=b"relay").digest()
        mark, priority = struct.unpack(">II", derived)
        return Relay(*self.relay_ports, Exemption(mark | 1, priority | 1))

    def relays(self, protocol: str, port: int) -> bool:
        """Whether learned addresses are reached on that port through the name guard alone."""
        if not any(self.relay_ports):
            return False
        from egress.firewall.relayed import CLOSED

        return CLOSED.contains(protocol, port)
