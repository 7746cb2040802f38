"""Where the policy comes from at start, and which operator's rules stand above it.

The file wins, also over what a worker accepted before it died: a change is answered only after its rename, so a valid
file is never behind. A file that is there but cannot be used is never passed over for the variable, which may be
laxer; only what was already accepted may stand in for it.
"""

from __future__ import annotations

from egress.config import ConfigError
from policies.model import Action, NetworkPolicy, PolicyError
from policies.parser import parse_policy, parse_target_list
from policies.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from egress.config import Config
    from egress.control.files import PolicyFile
    from egress.state import Handover
    from policies.model import Rule

PREFIX = "OPENSANDBOX_EGRESS_"


class Always(NamedTuple):
    """What stands above every user's policy: the operator's rule files and variables."""

    deny: tuple[Rule, ...] = ()
    allow: tuple[Rule, ...] = ()

    def over(self, deny: tuple[Rule, ...], allow: tuple[Rule, ...]) -> Always:
        """These, and then others of the same rank."""
        return Always(self.deny + deny, self.allow + allow)


class Variables(NamedTuple):
    """The policy texts of the environment, parsed."""

    policy: NetworkPolicy
    always: Always


def read_variables(config: Config) -> Variables:
    """Parse them once, before anything depends on them. Raises ConfigError, which names the variable."""
    try:
        policy = parse_policy(config.rules)
    except PolicyError as error:
        raise ConfigError(PREFIX + "RULES", str(error)) from error
    return Variables(
        policy,
        Always(
            _targets("ALWAYS_DENY", config.always_deny, Action.DENY),
            _targets("ALWAYS_ALLOW", config.always_allow, Action.ALLOW),
        ),
    )


def _targets(name: str, text: str, action: Action) -> tuple[Rule, ...]:
    try:
        return parse_target_list(text, action, PREFIX + name)
    except PolicyError as error:
        raise ConfigError(PREFIX + name, str(error)) from error


def starting_policy(variables: Variables, file: PolicyFile | None, handover: Handover) -> NetworkPolicy:
    """The policy to start a worker with. Raises FileError where only an unusable file could say."""
    from egress.control.files import FileError

    accepted = handover.policy()
    if file is not None:
        try:
            policy = file.load()
        except FileError:
            if accepted is None:
                raise
        else:
            if policy is not None:
                return policy
    if accepted is not None:
        return parse_policy(accepted.document)
    return variables.policy
