"""What a policy makes of what was learned under another one."""

from __future__ import annotations

from policies.matcher import Teach
from policies.model import Action
from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from egress.firewall.leases import Teaching
    from policies.matcher import CompiledPolicy
    from policies.ports import PortSet

NAMELESS = "?"  # begins the name of a lease whose name is not known any more; no query name begins so


def digest(compiled: CompiledPolicy) -> str:
    """Equal for policies that decide alike: kept in the ruleset, so that a restart knows which one stands."""
    from _blake2 import blake2s  # what hashlib gives, without 3 MB of OpenSSL

    lines = [compiled.policy.default.value, *(rule.describe() for rule in compiled.rules)]
    return str(blake2s("\n".join(lines).encode(), digest_size=16).hexdigest())


def decider(compiled: CompiledPolicy, *, same: bool) -> Callable[[bytes, Teaching], PortSet | None]:
    """`effective` for a policy; a lease without its name can only go on under the `same` policy."""

    def decide(packed: bytes, teaching: Teaching) -> PortSet | None:
        if teaching.name.startswith(NAMELESS):
            return teaching.ports if same else None
        return effective(compiled, packed, teaching)

    return decide


def effective(compiled: CompiledPolicy, packed: bytes, teaching: Teaching) -> PortSet | None:
    """What a remembered teaching opens under another policy: the same reading as a fresh answer's."""
    decision = compiled.decide_name(teaching.name)
    if decision.action is not Action.ALLOW or compiled.teach(packed) is not Teach.LEARN:
        return None
    ports = decision.ports
    for link in teaching.chain:
        stop = compiled.chain_deny(link)
        if stop is not None:
            ports = ports.minus(stop.ports)
    return compiled.learnable(ports) if teaching.chain else ports
