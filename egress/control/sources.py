"""Where a policy comes from at start, and which operator's rules stand above it.

The file wins, also over what a worker accepted before it died: a change is answered only after its rename, so a valid
file is never behind. A file that is there but cannot be used is never passed over for the variable, which may be laxer;
only what was already accepted (`Handover`) may stand in for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from egress.config import ConfigError
from egress.control.store import Always
from policies.model import Action, NetworkPolicy, PolicyError
from policies.parser import parse_policy, parse_target_list

if TYPE_CHECKING:
    from egress.config import Config
    from egress.state import Handover

PREFIX = "OPENSANDBOX_EGRESS_"


class Found(NamedTuple):
    """A policy to start with; or `problem`, one line that says why there is none."""

    policy: NetworkPolicy
    always: Always
    problem: str | None


class Sources:
    """The variables, parsed once; the files, read whenever asked. Raises ConfigError for a bad variable."""

    def __init__(self, config: Config) -> None:
        self.variable = _policy(config.rules)
        self.always = Always(
            _targets("ALWAYS_DENY", config.always_deny, Action.DENY),
            _targets("ALWAYS_ALLOW", config.always_allow, Action.ALLOW),
        )


def _policy(text: str) -> NetworkPolicy:
    try:
        return parse_policy(text)
    except PolicyError as error:
        raise ConfigError(PREFIX + "RULES", str(error)) from error


def _targets(name: str, text: str, action: Action) -> tuple[object, ...]:
    try:
        return parse_target_list(text, action, PREFIX + name)
    except PolicyError as error:
        raise ConfigError(PREFIX + name, str(error)) from error
