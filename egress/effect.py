"""What a policy makes of what is there already: of what was learned under another one, and of open flows. Pure."""

from __future__ import annotations

from egress.firewall.tables import RELAYED
from policies.matcher import Teach
from policies.model import Action
from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from egress.firewall.conntrack import Flow
    from egress.firewall.leases import Leases, Teaching
    from egress.placement import Placement
    from policies.matcher import CompiledPolicy
    from policies.ports import PortSet

NAMELESS = "?"  # begins the name of a lease whose name is not known any more; no query name begins so


def digest(compiled: CompiledPolicy) -> str:
    """Equal for policies that decide alike: kept in the ruleset, so that a restart knows which one stands."""
    from _blake2 import blake2s  # what hashlib gives, without 3 MB of OpenSSL

    lines = [compiled.policy.default.value, *(rule.describe() for rule in compiled.rules)]
    return str(blake2s("\n".join(lines).encode(), digest_size=16).hexdigest())


def decider(compiled: CompiledPolicy, *, same: bool) -> Callable[[bytes, Teaching], PortSet | None]:
    """What a remembered teaching opens under this policy, by the same reading as a fresh answer's; one without its name
    can only go on under the `same` policy."""

    def decide(packed: bytes, teaching: Teaching) -> PortSet | None:
        if teaching.name.startswith(NAMELESS):
            return teaching.ports if same else None
        return _effective(compiled, packed, teaching.name, teaching.chain)

    return decide


def _effective(compiled: CompiledPolicy, packed: bytes, name: str, chain: tuple[str, ...]) -> PortSet | None:
    decision = compiled.decide_name(name)
    if decision.action is not Action.ALLOW or compiled.teach(packed) is not Teach.LEARN:
        return None
    ports = decision.ports
    for link in chain:
        stop = compiled.chain_deny(link)
        if stop is not None:
            ports = ports.minus(stop.ports)
    return compiled.learnable(ports) if chain else ports


def allows(compiled: CompiledPolicy, leases: Leases, placement: Placement, flow: Flow) -> bool:
    """Whether a flow that was opened in the sandbox may go on."""
    decision = compiled.decide_address(flow.remote, flow.protocol, flow.remote_port)
    if decision.rule is not None:
        return decision.action is Action.ALLOW
    if leases.opens(flow.remote, flow.protocol, flow.remote_port):
        return bool(flow.mark & RELAYED) or not placement.relays(flow.protocol, flow.remote_port)
    # Where everything is open, what names teach is open on their ports only; but not before the kernel knows of it:
    # this is asked on the helper thread, in the middle of an answer too.
    return decision.action is Action.ALLOW and not leases.holds(flow.remote)


def still_allows(compiled: CompiledPolicy, packed: bytes, port: int, name: str, chain: tuple[str, ...]) -> bool:
    """Whether a connection that the name guard let through may go on; the end of a lease ends none."""
    decision = compiled.decide_address(packed, "tcp", port)
    if decision.rule is not None:
        return decision.action is Action.ALLOW
    ports = _effective(compiled, packed, name, chain)
    return ports is not None and ports.contains("tcp", port)
