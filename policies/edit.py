"""PATCH and DELETE as functions from policy to policy.

Rules are the same when target, ports and protocol mean the same; the action doesn't count, so a patch can turn an
allowance into a denial. Parsing has made meaning into equality already (`Rule.key`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from policies.model import NetworkPolicy, Rule, numbered

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from policies.parser import Selector


def patch(policy: NetworkPolicy, rules: Iterable[Rule]) -> NetworkPolicy:
    """The rules before those of the policy; of the same rule the first in the patch stays, older ones go."""
    first: dict[object, Rule] = {}
    for rule in rules:
        first.setdefault(rule.key, rule)
    kept = [rule for rule in policy.egress if rule.key not in first]
    return policy._replace(egress=numbered([*first.values(), *kept]))


def delete(policy: NetworkPolicy, selectors: Sequence[Selector]) -> tuple[NetworkPolicy, int]:
    """The policy without the rules selected, and how many these were (0: the very same policy)."""
    targets = {selector.target for selector in selectors if selector.whole}
    keys = {(selector.target, selector.ports, selector.protocol) for selector in selectors if not selector.whole}
    kept = [rule for rule in policy.egress if rule.target not in targets and rule.key not in keys]
    removed = len(policy.egress) - len(kept)
    return (policy._replace(egress=numbered(kept)) if removed else policy), removed
