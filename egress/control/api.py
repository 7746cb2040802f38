"""The control API: what may be asked of the sidecar, by whom, and how the answers look.

    GET    /policy    the policy in force                       token, where one is configured
    POST   /policy    replace it; PUT is the same               token
    PATCH  /policy    a JSON array of rules, put before         token
    DELETE /policy    a JSON array of targets to take out       token
    GET    /healthz   "ok", or 503 and the reason               nobody is asked
    GET    /metrics   what is counted, as Prometheus reads it   nobody is asked: no name and no address is in it

Whoever connects over TCP may be the sandbox itself, loopback included, so the token is the only guard there; without
one nobody can change anything over TCP. The unix socket is guarded by its file mode and needs none.

Errors are `{"status": "error", "reason": "..."}`, with `"path": "$.egress[2].target"` where a document is at fault.
Bodies are parsed and edited off the loop: 4,096 rules take tens of milliseconds.
"""

from __future__ import annotations

import json
import re
from _operator import _compare_digest  # what hmac.compare_digest is without OpenSSL, whose import costs 2 MB
from typing import TYPE_CHECKING, NamedTuple, Protocol

from egress.control.exchange import Head, Reply
from egress.events import TOLD
from policies.model import NetworkPolicy, PolicyError

if TYPE_CHECKING:
    from collections.abc import Callable

    from egress.events import Events
    from egress.loop import Loop
    from policies.model import Rule

TOKEN_HEADER = "OPENSANDBOX-EGRESS-AUTH"  # noqa: S105 - the header's name
BODY_BYTES = 4 * 1024 * 1024
"""The largest body of a change: 4,096 rules of the longest names with ports and full comments are 2.4 MB."""

_WRITES = ("POST", "PUT", "PATCH", "DELETE")
_READS = ("GET", "HEAD")
_SMALL_BODY = 4096  # a GET has none; what is sent is read and ignored
_LARGE = 256  # rules above which the document is built off the loop
_BLANK = re.compile(rb"\s*")
_NOTHING = re.compile(rb"\s*(?:null|\{\s*\})\s*")
_ROUTES = {"/policy": (*_READS, *_WRITES), "/healthz": _READS, "/metrics": _READS}


class ChangeError(Exception):
    """A change that was not made; nothing of it holds. `status` is the HTTP status that says so."""

    def __init__(self, status: int, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.path = path


class PolicySnapshot(NamedTuple):
    """The policy as it is in force now."""

    policy: NetworkPolicy
    mode: str  # allow_all, deny_all or enforcing
    enforcement_mode: str  # dns or dns+nft
    not_enforced: tuple[str, ...] = ()  # IP rules that this mode keeps but cannot hold
    locked: str = ""  # why everything is closed and nothing may be changed; "" when that is not so


class PolicyService(Protocol):
    """What the API works on."""

    def snapshot(self) -> PolicySnapshot:
        """The policy in force; cheap."""

    def change(self, edit: Callable[[NetworkPolicy], NetworkPolicy], done: Callable[[Exception | None], None]) -> None:
        """Replace the policy by `edit` of it: queued, one at a time, all or nothing.

        `edit` may run on any thread and may raise; then nothing changes and `done` gets what it raised, wrapped or
        not. `done(None)` comes on the loop when the new policy holds everywhere.
        """

    def health(self) -> str | None:
        """None when all is well, else the reason for 503."""


class Api:
    """The `Application` behind the control sockets."""

    def __init__(
        self,
        loop: Loop,
        service: PolicyService,
        token: str,
        max_rules: int,
        events: Events | None = None,
        metrics: Callable[[], bytes] | None = None,
    ) -> None:
        """`metrics` gives the text for Prometheus; cheap."""
        self._loop = loop
        self._service = service
        self._token = token.encode()
        self._max_rules = max_rules
        self._events = events
        self._metrics = metrics
        self._shown: tuple[PolicySnapshot | None, bytes] = (None, b"")

    # -- who may ---------------------------------------------------------------------------------------------------
    def admit(self, head: Head) -> Reply | int:
        """Everything that can be said before the body is read."""
        allowed = _ROUTES.get(head.path)
        if allowed is None or (head.path == "/metrics" and self._metrics is None):
            return _error(404, "no such path; there are /policy, /healthz and /metrics")
        if head.method not in allowed:
            return _error(405, f"{head.path} takes {', '.join(allowed)}", headers=(("Allow", ", ".join(allowed)),))
        if head.path != "/policy":
            return _SMALL_BODY
        refusal = None if head.local else self._unauthorized(head)
        if refusal is not None:
            return refusal
        if head.method in _READS:
            return _SMALL_BODY
        encodings = [value.strip().lower() for value in head.values(b"content-encoding")]
        if any(value not in (b"", b"identity") for value in encodings):
            return _error(415, "the body is to be sent as plain JSON, without a content encoding")
        locked = self._service.snapshot().locked
        return _error(503, f"locked down: {locked}") if locked else BODY_BYTES

    def _unauthorized(self, head: Head) -> Reply | None:
        if not self._token:
            if head.method in _READS:
                return None
            reason = (
                "changes over TCP need a token and none is configured: start the sidecar with OPENSANDBOX_EGRESS_TOKEN "
                f"and send it as {TOKEN_HEADER}, or use the sidecar's unix socket"
            )
        else:
            values = head.values(TOKEN_HEADER.lower().encode())
            if len(values) == 1 and _compare_digest(values[0], self._token):
                return None
            reason = f"missing or wrong token in the header {TOKEN_HEADER}"
            if len(values) > 1:
                reason = f"the header {TOKEN_HEADER} may be sent once only"
        return _error(401, reason, headers=(("WWW-Authenticate", f'Token header="{TOKEN_HEADER}"'),))

    # -- what is asked -----------------------------------------------------------------------------------------------
    def handle(self, head: Head, body: bytes, reply: Callable[[Reply], None]) -> None:
        """Answer an admitted request."""
        if head.path == "/healthz":
            reason = self._service.health()
            text = "ok" if reason is None else reason
            reply(Reply(200 if reason is None else 503, text.encode("utf-8", "replace"), "text/plain; charset=utf-8"))
        elif head.path == "/metrics" and self._metrics is not None:
            reply(Reply(200, self._metrics(), "text/plain; version=0.0.4; charset=utf-8"))
        elif head.method in _READS:
            self._show(reply)
        else:
            self._change(head.method, body, reply)

    def fault(self, status: int, reason: str) -> Reply:
        """The reply to a broken or oversized request."""
        return _error(status, reason)

    def _show(self, reply: Callable[[Reply], None]) -> None:
        snapshot = self._service.snapshot()
        if self._shown[0] is snapshot or self._shown[0] == snapshot:
            reply(Reply(200, self._shown[1]))
        elif len(snapshot.policy.egress) <= _LARGE:
            self._keep(snapshot, _policy_document(snapshot))
            reply(Reply(200, self._shown[1]))
        else:

            def built(body: bytes | None, error: BaseException | None) -> None:
                if body is None:
                    reply(_error(500, f"the policy could not be shown: {error}"))
                    return
                self._keep(snapshot, body)
                reply(Reply(200, body))

            self._loop.run_in_thread(lambda: _policy_document(snapshot), built)

    def _keep(self, snapshot: PolicySnapshot, body: bytes) -> None:
        self._shown = (snapshot, body)

    def _change(self, method: str, body: bytes, reply: Callable[[Reply], None]) -> None:
        def parsed(edit: _Edit | None, error: BaseException | None) -> None:
            if edit is None:
                reply(self._refused(error))
            else:
                self._service.change(edit, lambda failed: done(edit, failed))

        def done(edit: _Edit, failed: BaseException | None) -> None:
            if edit.unchanged:
                reply(self._changed("no matching targets found"))
            elif failed is not None:
                reply(self._refused(edit.refusal or failed))
            else:
                if self._events is not None:
                    default = self._service.snapshot().policy.default.value
                    rules = edit.rules[:TOLD]
                    more = {"rules.count": len(edit.rules)} if len(edit.rules) > TOLD else {}
                    self._events.updated(default, [rule.to_document() for rule in rules], method=method, **more)
                reply(self._changed(edit.note, blank=edit.blank))

        self._loop.run_in_thread(lambda: _parse(method, body, self._max_rules), parsed)

    def _refused(self, error: BaseException | None) -> Reply:
        """The reply to a change that was not made."""
        if isinstance(error, PolicyError):
            failure = _error(400, str(error), error.path)
        elif isinstance(error, ChangeError):
            failure = _error(error.status, error.reason, error.path)
        else:
            failure = _error(500, f"the change was not applied: {error}")
        if self._events is not None:
            level = "warn" if failure.status < 500 else "error"
            self._events.update_failed(str(error), level=level, status=failure.status)
        return failure

    def _changed(self, note: str, *, blank: bool = False) -> Reply:
        snapshot = self._service.snapshot()
        document: dict[str, object] = {"status": "ok", "mode": snapshot.mode}
        if not blank:  # an empty body is answered in the short form that clients know
            document["enforcementMode"] = snapshot.enforcement_mode
            if snapshot.not_enforced:
                document["notEnforced"] = list(snapshot.not_enforced)
        if note:
            document["reason"] = note
        return Reply(200, _json(document))


_RESET = "policy reset to default deny-all"


class _Edit:
    """One requested change. It keeps what it raised, so that no service can lose it on the way."""

    __slots__ = ("_make", "_max_rules", "blank", "note", "refusal", "rules", "unchanged")

    def __init__(
        self,
        make: Callable[[NetworkPolicy], NetworkPolicy | None],
        max_rules: int,
        rules: tuple[Rule, ...] = (),
        note: str = "",
        *,
        blank: bool = False,
    ) -> None:
        self._make = make
        self._max_rules = max_rules
        self.rules = rules  # of the request, to be told
        self.note = note
        self.blank = blank  # the request had no body
        self.refusal: BaseException | None = None
        self.unchanged = False

    def __call__(self, policy: NetworkPolicy) -> NetworkPolicy:
        try:
            changed = self._make(policy)
            if changed is None:
                self.unchanged = True
                raise ChangeError(200, "nothing to change")
            _count(len(changed.egress), self._max_rules)
        except (PolicyError, ChangeError) as error:
            self.refusal = error
            raise
        return changed


def _count(rules: int, most: int) -> None:
    if most and rules > most:
        raise ChangeError(413, f"{rules} rules are more than the {most} that OPENSANDBOX_EGRESS_MAX_RULES allows")


def _parse(method: str, body: bytes, max_rules: int) -> _Edit:
    """Turn a request's body into an edit; runs on the helper thread. Raises PolicyError or ChangeError."""
    from policies.edit import delete, patch
    from policies.parser import parse_delete, parse_patch, parse_policy

    if method == "PATCH":
        rules = parse_patch(body)
        return _Edit(lambda policy: patch(policy, rules), max_rules, rules)
    if method == "DELETE":
        selectors = parse_delete(body)

        def without(policy: NetworkPolicy) -> NetworkPolicy | None:
            changed, count = delete(policy, selectors)
            return changed if count else None

        return _Edit(without, 0)  # taking rules out is always allowed, also from above a cap
    blank = _BLANK.fullmatch(body) is not None
    if blank or _NOTHING.fullmatch(body):
        return _Edit(lambda _: NetworkPolicy(), max_rules, note=_RESET, blank=blank)
    policy = parse_policy(body)
    _count(len(policy.egress), max_rules)
    return _Edit(lambda _: policy, max_rules, policy.egress)


def _policy_document(snapshot: PolicySnapshot) -> bytes:
    document: dict[str, object] = {
        "status": "ok",
        "mode": snapshot.mode,
        "enforcementMode": snapshot.enforcement_mode,
        "policy": snapshot.policy.to_document(),
    }
    if snapshot.not_enforced:
        document["notEnforced"] = list(snapshot.not_enforced)
    return _json(document)


def _json(document: dict[str, object]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def _error(status: int, reason: str, path: str = "", headers: tuple[tuple[str, str], ...] = ()) -> Reply:
    document: dict[str, object] = {"status": "error", "reason": reason}
    if path:
        document["path"] = path
    return Reply(status, _json(document), headers=headers)
