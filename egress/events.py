"""What the guard tells its operator: policy changes and what the sandbox tried to reach, as log lines.

A sandbox decides how often it is denied, so it must not decide how much is written. The first occurrence of something
is told at once; repetitions within `WINDOW` seconds are counted and told as one line with `count` when the window
ends. At most `KINDS` different things are kept apart at a time, what goes beyond is told as one sum per window. Names
that were allowed, what was denied and budgets that are used up are kept in tables of their own, so that no flood of the
one hides the other.

Field names are those that OpenSandbox's tools read (`opensandbox.event`, `target.host`, `target.ips`, `error`,
`egress.default`, `rules`, `sandbox_id`); ours beside them are `action`, `reason`, `rule`, `target.port`,
`target.protocol` and `count`.
"""

from __future__ import annotations

from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Protocol

    from egress.config import Config
    from egress.log import Log

    class Clock(Protocol):
        """The part of the loop that this module needs."""

        def now(self) -> float: ...
        def call_later(self, seconds: float, callback: Callable[[], None]) -> object: ...

    class Silence(Protocol):
        """The targets of `log_skip.always`."""

        def covers_name(self, name: str) -> bool: ...
        def covers_address(self, text: str) -> bool: ...


WINDOW = 10.0
"""Seconds for which repetitions are counted instead of told."""
KINDS = 1024
"""Different things kept apart within one window, in each of the tables."""
TOLD = 50
"""Rules listed in one line at most."""
_ROUND = 128  # lines told in one turn of the loop at most


def identity(config: Config) -> dict[str, object]:
    """The fields that every line of the log carries: the operator's attributes and the sandbox's id."""
    fields: dict[str, object] = dict(config.extra_attributes)
    if config.sandbox_id:
        fields["sandbox_id"] = config.sandbox_id
    return fields


class Events:
    """Emits the log's events; belongs to the loop's thread."""

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._silence: Silence | None = None
        self._denied = _Table()
        self._allowed = _Table()
        self._spent = _Table()
        self._armed = False

    def silence(self, targets: Silence | None) -> None:
        """Tell nothing more of what the sandbox tries at these targets."""
        self._silence = targets

    # -- policy --------------------------------------------------------------------------------------------------
    def loaded(self, default: str, rules: Sequence[Mapping[str, object]], **more: object) -> None:
        """The first policy is in force; `rules` are documents in the policy's own shape."""
        self._policy("egress.loaded", "policy loaded", default, rules, more)

    def updated(self, default: str, rules: Sequence[Mapping[str, object]], **more: object) -> None:
        """A changed policy is in force; `rules` are those of the request."""
        self._policy("egress.updated", "policy updated", default, rules, more)

    def update_failed(self, error: str, *, level: str = "error", **more: object) -> None:
        """A change was not made, the policy before it stands; "warn" where only the request was at fault."""
        self._log.write(
            level, "policy update failed", {"opensandbox.event": "egress.update_failed", "error": error} | more
        )

    def _policy(
        self, event: str, message: str, default: str, rules: Sequence[Mapping[str, object]], more: dict[str, object]
    ) -> None:
        fields: dict[str, object] = {
            "opensandbox.event": event,
            "egress.default": default,
            "rules": list(rules[:TOLD]),
        }
        if len(rules) > TOLD:
            fields["rules.count"] = len(rules)
        self._log.write("info", message, fields | more)

    # -- what the sandbox tries ----------------------------------------------------------------------------------
    def denied_name(self, host: str, reason: str, rule: str = "") -> None:
        """A look-up was refused; `host` is the canonical name."""
        if self._denied.repeats(("name", host)) or (self._silence and self._silence.covers_name(host)):
            return
        fields: dict[str, object] = {"action": "deny", "target.host": host, "reason": reason}
        if rule:
            fields["rule"] = rule
        self._tell(self._denied, ("name", host), "warn", f"denied name {host}", fields)

    def over_budget(self, host: str, zone: str, reason: str, rule: str) -> bool:
        """A look-up was refused because names below `zone` had carried too much; `host` is the canonical name.

        False where that was told already in this window, and is counted. `log_skip.always` does not silence it.
        """
        key = ("budget", zone)
        if self._spent.repeats(key):
            return False
        fields: dict[str, object] = {"action": "deny", "target.host": host, "reason": reason, "rule": rule}
        self._tell(self._spent, key, "warn", f"names below {zone} are over their budget", fields)
        return True

    def denied_packet(self, address: str, protocol: str, port: int | None, host: str = "", reason: str = "") -> None:
        """A packet was refused; `address` as text, `host` a name that the address is known by."""
        key = (address, protocol, port)
        if self._denied.repeats(key):
            return
        if self._silence and (self._silence.covers_address(address) or (host and self._silence.covers_name(host))):
            return
        fields: dict[str, object] = {"action": "deny", "target.ips": [address], "target.protocol": protocol}
        if port is not None:
            fields["target.port"] = port
        if host:
            fields["target.host"] = host
        if reason:
            fields["reason"] = reason
        where = f"{address} {protocol}" + ("" if port is None else f"/{port}")
        self._tell(self._denied, key, "warn", f"denied packet to {where}", fields)

    def denied_connection(self, address: str, port: int, host: str, reason: str, rule: str = "") -> None:
        """The name guard refused a connection; `host` is the name that it was for, "" where it did not say one."""
        key = ("connection", host or address, port, reason)
        if self._denied.repeats(key):
            return
        if self._silence and (self._silence.covers_address(address) or (host and self._silence.covers_name(host))):
            return
        fields: dict[str, object] = {"action": "deny", "target.ips": [address], "target.protocol": "tcp"}
        fields["target.port"] = port
        if host:
            fields["target.host"] = host
        fields["reason"] = reason
        if rule:
            fields["rule"] = rule
        self._tell(self._denied, key, "warn", f"denied connection to {host or address} tcp/{port}", fields)

    def wants_allowed(self, host: str) -> bool:
        """Whether `allowed_name` would tell of it; counted where not. Cheap: asked for every address that is opened."""
        return (
            self._log.enabled("info")
            and not self._allowed.repeats((host, ""))
            and not self._allowed.overflows(self._clock.now() + WINDOW)
        )

    def allowed_name(self, host: str, addresses: Sequence[str], error: str = "") -> None:
        """A look-up was allowed and answered, or, with `error`, could not be answered."""
        key = (host, error)
        if not self._log.enabled("info") or self._allowed.repeats(key):
            return
        if self._silence and self._silence.covers_name(host):
            return
        fields: dict[str, object] = {"action": "allow", "target.host": host, "target.ips": list(addresses[:16])}
        if error:
            fields["error"] = error
        self._tell(self._allowed, key, "info", f"resolved {host}" if not error else f"could not resolve {host}", fields)

    def _tell(self, table: _Table, key: _Key, level: str, message: str, fields: dict[str, object]) -> None:
        fields = {"opensandbox.event": "egress.outbound", **fields}
        if table.add(key, self._clock.now() + WINDOW, level, message, fields):
            self._log.write(level, message, fields)
        if not self._armed:
            self._armed = True
            self._clock.call_later(1.0, self._tick)

    def _tick(self) -> None:
        now = self._clock.now()
        for table, action in ((self._spent, "deny"), (self._denied, "deny"), (self._allowed, "allow")):
            for level, message, fields, count in table.due(now):
                self._log.write(level, message, fields | {"count": count})
            beyond = table.beyond(now)
            if beyond and (action == "deny" or self._log.enabled("info")):
                self._log.write(
                    "warn" if action == "deny" else "info",
                    "more than can be told one by one",
                    {"opensandbox.event": "egress.outbound", "action": action, "count": beyond},
                )
        self._armed = bool(self._denied or self._allowed or self._spent)
        if self._armed:
            self._clock.call_later(1.0, self._tick)


_Key = tuple[object, ...]


class _Kind:
    """One thing that was told, and how often it has happened since."""

    __slots__ = ("count", "fields", "level", "message", "until")

    def __init__(self, until: float, level: str, message: str, fields: dict[str, object]) -> None:
        self.until = until
        self.level = level
        self.message = message
        self.fields = fields
        self.count = 0


class _Table:
    """The things of the last window. A dict keeps the order of insertion, which is here the order of expiry."""

    __slots__ = ("_beyond", "_beyond_until", "_kinds")

    def __init__(self) -> None:
        self._kinds: dict[_Key, _Kind] = {}
        self._beyond = 0
        self._beyond_until = 0.0

    def __bool__(self) -> bool:
        return bool(self._kinds) or self._beyond > 0

    def repeats(self, key: _Key) -> bool:
        """Count one more of something already told; False when it is new."""
        kind = self._kinds.get(key)
        if kind is None:
            return False
        kind.count += 1
        return True

    def overflows(self, until: float) -> bool:
        """Whether the table is full; then one more is counted that can't be told by itself."""
        if len(self._kinds) < KINDS:
            return False
        if not self._beyond:
            self._beyond_until = until
        self._beyond += 1
        return True

    def add(self, key: _Key, until: float, level: str, message: str, fields: dict[str, object]) -> bool:
        """Take note of something new; False when the table is full and it only counts."""
        if self.overflows(until):
            return False
        self._kinds[key] = _Kind(until, level, message, fields)
        return True

    def due(self, now: float) -> list[tuple[str, str, dict[str, object], int]]:
        """Take out what has run its window; what was repeated is returned and begins another."""
        told: list[tuple[str, str, dict[str, object], int]] = []
        while self._kinds and len(told) < _ROUND:
            key = next(iter(self._kinds))
            kind = self._kinds[key]
            if kind.until > now:
                break
            del self._kinds[key]
            if kind.count:
                told.append((kind.level, kind.message, kind.fields, kind.count))
                kind.count = 0
                kind.until = now + WINDOW
                self._kinds[key] = kind
        return told

    def beyond(self, now: float) -> int:
        """How many went beyond the table in the window that has ended, 0 while it lasts."""
        if not self._beyond or self._beyond_until > now:
            return 0
        count, self._beyond = self._beyond, 0
        return count
