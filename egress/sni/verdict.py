"""Which names may be spoken to at a learned address. Pure.

A name has to be allowed by the policy on that port, and to be one of those whose answers led to the address. The
second keeps DNS in charge of who is where: on a shared address somebody else's tenant may well claim a name that a
wildcard allows.
"""

from __future__ import annotations

from policies.model import Action
from policies.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from egress.firewall.leases import Teaching
    from policies.matcher import CompiledPolicy


class Verdict(NamedTuple):
    """`chain` are the names that CNAMEs led through; `rule` is there where a rule denies."""

    allowed: bool
    chain: tuple[str, ...] = ()
    reason: str = ""
    rule: str = ""


def judge(compiled: CompiledPolicy, teachings: Sequence[Teaching], nameless: str, name: str, port: int) -> Verdict:
    """A new connection; `teachings` are all that is known of its address. Those whose name begins with `nameless`
    are of an earlier life of the sidecar under this very policy: the address was taught by names that it allows, which
    ones is not known any more."""
    decision = compiled.decide_name_port(name, "tcp", port)
    if decision.action is not Action.ALLOW:
        rule = decision.rule
        return Verdict(False, (), decision.reason, rule.describe() if rule is not None else "")
    for teaching in teachings:
        if teaching.name == name:
            if teaching.ports.contains("tcp", port):
                return Verdict(True, teaching.chain)
            return Verdict(False, (), f"what the name leads through is denied on port {port}")
    for teaching in teachings:
        if teaching.name.startswith(nameless) and teaching.ports.contains("tcp", port):
            return Verdict(True)
    return Verdict(False, (), "this address was not answered for the name")
