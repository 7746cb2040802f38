"""The policy in force and its changes: queued, one at a time, all or nothing.

    change ─▶ edit + compile (helper thread) ─▶ written and fsynced beside the file ─▶ guard.apply
                                                                                        │ one nft transaction
    200 ◀─ forbidden flows cut ◀─ interceptor swapped ◀─ renamed over the file ◀────────┘ (fails: old ruleset again)

Any failure leaves the old policy everywhere: in the kernel, in the interceptor, in the file and in the memory file
that the next worker reads. The operator's rules are a change like any other, with the policy itself left as it is.
"""

from __future__ import annotations

import json
from collections import deque

from egress.control.sources import Always
from policies.matcher import CompiledPolicy, compile_policy
from policies.model import NetworkPolicy
from policies.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from egress.control.api import PolicySnapshot
    from egress.control.files import PolicyFile, Staged
    from egress.guard import Guard
    from egress.loop import Loop

    Edit = Callable[[NetworkPolicy], NetworkPolicy]
    Done = Callable[[Exception | None], None]

QUEUED = 64  # changes that may wait
_INDENTED = 256  # rules that are written down for people to read


class ApplyError(Exception):
    """A change that could not be applied; nothing of it holds."""


class _Change(NamedTuple):
    edit: Edit | None
    always: Always | None
    done: Done


class _Prepared(NamedTuple):
    policy: NetworkPolicy
    compiled: CompiledPolicy
    document: bytes
    staged: Staged | None


class PolicyStore:
    """Everything that changes the policy goes through here; the control API's `PolicyService`."""

    def __init__(self, loop: Loop, guard: Guard, file: PolicyFile | None) -> None:
        self.policy = NetworkPolicy()
        self.always = Always()
        self.problem: str | None = "starting"
        self.trouble = ""  # all is in place, and yet something here is not guarded, or dead
        self.file = file
        self._loop = loop
        self._guard = guard
        self._queue: deque[_Change] = deque()
        self._busy = False
        self._snapshot: PolicySnapshot | None = None

    # -- reading -------------------------------------------------------------------------------------------------
    def health(self) -> str | None:
        """None when policy, ruleset and DNS are in place, and the sandbox is behind them."""
        return self.problem or self.trouble or None

    def snapshot(self) -> PolicySnapshot:
        """The policy in force."""
        from egress.control.api import PolicySnapshot

        known = self._snapshot
        locked = self.problem or ""
        if known is None or known.policy is not self.policy or known.locked != locked:
            mode = self._guard.placement.mode
            idle = () if mode != "dns" else tuple(r.target for r in self.policy.egress if r.network is not None)
            known = self._snapshot = PolicySnapshot(self.policy, self.policy.mode, mode, idle, locked)
        return known

    # -- changing ------------------------------------------------------------------------------------------------
    def start(self, policy: NetworkPolicy, always: Always, done: Done) -> None:
        """Load the first ruleset of this process. Raises PolicyError for one that is too intricate to compile."""
        compiled = compile_policy(policy, always.deny, always.allow)

        def started(error: BaseException | None) -> None:
            if error is None:
                self.policy, self.always = policy, always
            done(None if error is None else ApplyError(f"the ruleset could not be loaded: {error}"))

        self._guard.start(compiled, document_of(policy), started)

    def change(self, edit: Edit, done: Done) -> None:
        """Replace the policy by what `edit` makes of it; `done(None)` once it holds everywhere."""
        self._submit(_Change(edit, None, done))

    def change_always(self, always: Always, done: Done) -> None:
        """The operator's rules changed; the policy stays."""
        self._submit(_Change(None, always, done))

    def _submit(self, change: _Change) -> None:
        if len(self._queue) >= QUEUED:
            change.done(ApplyError(f"{QUEUED} changes are waiting already; try again"))
            return
        self._queue.append(change)
        self._next()

    def _next(self) -> None:
        if self._busy or not self._queue:
            return
        self._busy = True
        change = self._queue.popleft()
        before, always = self.policy, change.always or self.always

        def prepare() -> _Prepared:
            policy = change.edit(before) if change.edit is not None else before
            compiled = compile_policy(policy, always.deny, always.allow)
            compiled.port_classes(), compiled.address_plan()  # computed here, not under the hold
            document = document_of(policy)
            staged = self.file.stage(document) if self.file is not None and change.edit is not None else None
            return _Prepared(policy, compiled, document, staged)

        def prepared(ready: _Prepared | None, error: BaseException | None) -> None:
            if ready is None:
                finish(error if isinstance(error, Exception) else ApplyError(str(error)))
                return
            commit = ready.staged.commit if ready.staged is not None else None
            self._guard.apply(ready.compiled, ready.document, commit, lambda failed: applied(ready, failed))

        def applied(ready: _Prepared, failed: BaseException | None) -> None:
            if failed is None:
                self.policy, self.always = ready.policy, always
                finish(None)
                return
            if ready.staged is not None:
                ready.staged.discard()
            finish(ApplyError(f"nothing was changed: {failed}"))

        def finish(error: Exception | None) -> None:
            self._busy = False
            try:
                change.done(error)
            finally:
                self._next()

        self._loop.run_in_thread(prepare, prepared)


def document_of(policy: NetworkPolicy) -> bytes:
    """The policy as JSON, as the API shows it and the file keeps it."""
    document = policy.to_document()
    if len(policy.egress) <= _INDENTED:
        text = json.dumps(document, ensure_ascii=False, indent=1)
    else:  # indented by Python's own encoder, which takes three times as long
        text = json.dumps(document, ensure_ascii=False, separators=(",\n ", ": "))
    return text.encode() + b"\n"
