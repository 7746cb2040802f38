"""A `PolicyService` without a kernel: the same promises, kept in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from egress.control.api import ChangeError, PolicySnapshot
from policies.model import NetworkPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from egress.loop import Loop


class FakeService:
    """Applies changes in order on the loop; `fail` makes the next one fail, `ill` and `locked` set what is told."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.policy = NetworkPolicy()
        self.enforcement_mode = "dns+nft"
        self.not_enforced: tuple[str, ...] = ()
        self.locked = ""
        self.ill: str | None = None
        self.fail: Exception | None = None
        self.applied = 0
        self.delay = 0.0

    def snapshot(self) -> PolicySnapshot:
        return PolicySnapshot(self.policy, self.policy.mode, self.enforcement_mode, self.not_enforced, self.locked)

    def health(self) -> str | None:
        return self.ill

    def change(self, edit: Callable[[NetworkPolicy], NetworkPolicy], done: Callable[[Exception | None], None]) -> None:
        def apply() -> None:
            try:
                changed = edit(self.policy)
            except (ChangeError, ValueError) as error:
                done(RuntimeError(f"wrapped: {error}"))  # as a service may do
                return
            if self.fail is not None:
                failed, self.fail = self.fail, None
                done(failed)
                return
            self.policy = changed
            self.applied += 1
            done(None)

        if self.delay:
            self.loop.call_later(self.delay, apply)
        else:
            self.loop.call_soon(apply)
