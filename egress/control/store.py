"""The policy in force and its changes: queued, one at a time, all or nothing.

    change ─▶ edit + compile (helper thread) ─▶ written and fsynced beside the file ─▶ guard.apply
                                                                                        │ one nft transaction
    200 ◀─ forbidden flows cut ◀─ interceptor swapped ◀─ renamed over the file ◀────────┘ (fails: old ruleset again)

Any failure leaves the old policy everywhere: in the kernel, in the interceptor, in the file and in the memory file
that the next worker reads. Rule files are a change like any other, with the policy itself left as it is.
"""

from __future__ import annotations

import json
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from policies.matcher import CompiledPolicy, compile_policy
from policies.parser import PolicyError

if TYPE_CHECKING:
    from collections.abc import Callable

    from egress.control.files import PolicyFile, Staged
    from egress.guard import Guard
    from egress.loop import Loop
    from policies.model import NetworkPolicy, Rule

QUEUED = 64  # changes that may wait


class Always(NamedTuple):
    """What stands above every user's policy: the operator's rule files and variables."""

    deny: tuple[Rule, ...] = ()
    allow: tuple[Rule, ...] = ()


class ApplyError(Exception):
    """A change that could not be applied; nothing of it holds."""


Done = "Callable[[Exception | None], None]"


class PolicyStore:
    """Everything that changes the policy goes through here."""

    def __init__(self, loop: Loop, guard: Guard, policy: NetworkPolicy, always: Always, file: PolicyFile | None) -> None:
        self.policy = policy
        self.always = always
        self._loop = loop
        self._guard = guard
        self._file = file
        self._queue: deque[tuple[Callable[[NetworkPolicy], NetworkPolicy] | None, Always | None, Callable[[Exception | None], None]]] = deque()  # noqa: E501
        self._busy = False

    def change(
        self, edit: Callable[[NetworkPolicy], NetworkPolicy], done: Callable[[Exception | None], None]
    ) -> None:
        """Replace the policy by what `edit` makes of it; `done(None)` once it holds everywhere."""
        self._submit(edit, None, done)

    def change_always(self, always: Always, done: Callable[[Exception | None], None]) -> None:
        """The operator's rules changed; the policy stays."""
        self._submit(None, always, done)

    def _submit(
        self,
        edit: Callable[[NetworkPolicy], NetworkPolicy] | None,
        always: Always | None,
        done: Callable[[Exception | None], None],
    ) -> None:
        if len(self._queue) >= QUEUED:
            done(ApplyError(f"{QUEUED} changes are waiting already; try again"))
            return
        self._queue.append((edit, always, done))
        self._next()

    def _next(self) -> None:
        if self._busy or not self._queue:
            return
        self._busy = True
        edit, new_always, done = self._queue.popleft()
        always = self.always if new_always is None else new_always
        before = self.policy
        file = self._file if edit is not None else None

        def prepare() -> tuple[NetworkPolicy, CompiledPolicy, bytes, Staged | None]:
            policy = before if edit is None else edit(before)
            compiled = compile_policy(policy, always.deny, always.allow)
            document = document_of(policy)
            return policy, compiled, document, file.stage(document) if file is not None else None

        def prepared(
            result: tuple[NetworkPolicy, CompiledPolicy, bytes, Staged | None] | None, error: BaseException | None
        ) -> None:
            if result is None:
                finish(_as_error(error))
                return
            policy, compiled, document, staged = result
            self._guard.apply(
                compiled, document, staged.commit if staged is not None else None, lambda failed: applied(policy, staged, failed)
            )

        def applied(policy: NetworkPolicy, staged: Staged | None, failed: BaseException | None) -> None:
            if failed is not None:
                if staged is not None:
                    staged.discard()
                finish(ApplyError(f"nothing was changed: {failed}"))
                return
            self.policy = policy
            self.always = always
            finish(None)

        def finish(error: Exception | None) -> None:
            self._busy = False
            try:
                done(error)
            finally:
                self._next()

        self._loop.run_in_thread(prepare, prepared)


def document_of(policy: NetworkPolicy) -> bytes:
    return json.dumps(policy.to_document(), ensure_ascii=False).encode()


def _as_error(error: BaseException | None) -> Exception:
    if isinstance(error, PolicyError):
        return error
    return ApplyError(f"nothing was changed: {error}")
