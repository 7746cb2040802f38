"""What the demo plays on: the lab, the sidecar, a shell in the sandbox and one outside."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demo.residue import Watch, left_behind
from demo.shell import Shell
from lab import CONTAINER_ROOT, ROOT, Lab, LabError, Sidecar
from lab.network import METADATA, RESOLVER
from lab.sidecar import TOKEN

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from demo.result import Row, Typed
    from demo.screen import Screen

ALLOWED = "api.example.com"
PACKAGES = "packages.example.org"
INTRANET = "intranet.example.com"  # the policy allows the name; its address is private
POLICY: dict[str, Any] = {"egress": [{"action": "allow", "target": "*.example.com"}]}
_LAST_LINES = 8


class Stage:
    """Everything that has to be there, and to go again. A context manager.

    `policy` is what the sidecar starts with; another one than POLICY shows what the demo says when a guard does not
    hold. `unhurried`: no step fails for the time it took.
    """

    def __init__(self, screen: Screen, policy: dict[str, Any] | None = None, *, unhurried: bool = False) -> None:
        self.screen = screen
        self.unhurried = unhurried
        self.policy = POLICY if policy is None else policy
        self.rows: list[Row] = []
        self.history: list[Typed] = []
        with contextlib.ExitStack() as undo:
            self.folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="sallyport-demo-")))
            self.lab = lab = undo.enter_context(Lab())
            self.watch = Watch((lab.sandbox, lab.internet.namespace))
            self.allowed, self.packages, self.private = lab.site("web"), lab.site("other"), lab.site("private")
            lab.dns.a(ALLOWED, self.allowed)
            lab.dns.a(PACKAGES, self.packages)
            lab.dns.a(INTRANET, self.private)
            for address, name in (
                (self.allowed, "the API"),
                (self.packages, "the package index"),
                (self.private, "the intranet"),
                (METADATA, "the cloud's metadata service (credentials inside)"),
            ):
                lab.sites.name(address, name)
            self.sidecar = Sidecar(lab, policy=self.policy, wait=False, argv=sidecar_argv())
            undo.callback(self.sidecar.close)
            self.sandbox = Shell(
                lab.sandbox,
                CONTAINER_ROOT,
                self.folder / "sandbox",
                prompt="sandbox$",
                nameserver=RESOLVER,
                hosts={},
                env={},
            )
            undo.callback(self.sandbox.close)
            self.operator = Shell(
                lab.internet.namespace,
                ROOT,
                self.folder / "operator",
                prompt="operator$",
                nameserver=RESOLVER,
                hosts={"guard": lab.link.sandbox},
                env={"TOKEN": TOKEN, "OPENSANDBOX_EGRESS_RULES": json.dumps(self.policy)},
            )
            undo.callback(self.operator.close)
            self._undo = undo.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close()
        if kind is not None:
            self.left_behind()  # what was killed has a moment to go; else the play shows it

    def close(self) -> None:
        """Take it all away. May be called twice."""
        self._undo.close()

    def left_behind(self) -> list[str]:
        """After `close`: what is still there."""
        try:
            return left_behind(self.watch, (self.folder, self.sidecar.state))
        finally:
            self.watch.close()

    # -- playing --------------------------------------------------------------------------------------------------
    def type(self, shell: Shell, command: str, lines: int = _LAST_LINES) -> Typed:
        """Type a command for everybody to see; of what comes back, the first `lines` lines are shown."""
        self.screen.typed(shell.prompt, command)
        done = shell.run(command)
        self.note(done)
        shown = done.output.splitlines()[:lines]
        self.screen.came(shown or ([f"(nothing; exit {done.code})"] if done.code else []))
        return done

    def note(self, done: Typed) -> None:
        """Keep what was typed for the result."""
        self.history.append(done)

    def row(self, row: Row) -> bool:
        """Note a step and show how it came out."""
        self.rows.append(row)
        self.screen.verdict(row)
        return row.ok

    def in_time(self, took: float, limit: float) -> bool:
        """Whether a step took no longer than it may, both in milliseconds."""
        return self.unhurried or took < limit

    def rules(self) -> list[dict[str, Any]]:
        """The rules as the control API tells them."""
        found: list[dict[str, Any]] = self.sidecar.api("GET", "/policy").json()["policy"]["egress"]
        return found

    def arrived(self, address: str) -> bool:
        """Whether anything has reached that address since the sites were told to forget."""
        time.sleep(0.02)  # what was sent a moment ago may still be on its way up
        return bool(self.lab.sites.arrivals(address=address))


def sidecar_argv() -> tuple[str, ...]:
    """The installed command; where this interpreter has none beside it, the module."""
    if Path(sys.prefix, "bin", "egress").exists():
        return ()
    return ("/usr/bin/env", f"PYTHONPATH={':'.join(filter(None, sys.path))}", sys.executable, "-m", "egress", "serve")


def until(condition: Callable[[], bool], seconds: float, what: str) -> float:
    """Wait for `condition`; how many seconds it took. Raises LabError."""
    started = time.monotonic()
    while not condition():
        if time.monotonic() - started > seconds:
            raise LabError(f"not within {seconds:g} s: {what}")
        time.sleep(0.0005)
    return time.monotonic() - started
