"""One guarded container: its rules, its DNS and its lines in the log, in a process that may hold many."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from egress.dns.budget import Budget
from egress.dns.interceptor import printable
from egress.docker.entrance import HeldError, claim, ended
from egress.effect import digest
from egress.events import Events
from egress.firewall import FirewallError, xdp
from egress.firewall.guardhouse import Firewall
from egress.listeners import StartError, bind_dns
from egress.log import Log
from egress.netns import Namespace
from egress.outside import Outside
from egress.runtimes import beside
from egress.supervisor import spare_memory
from policies.matcher import compile_policy
from policies.model import PolicyError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from egress.config import Config
    from egress.dns.interceptor import Denial
    from egress.docker.containers import Container, Said
    from egress.firewall.nflog import Denied
    from egress.loop import Loop
    from egress.outside import Listeners

REST = 1.0
"""Seconds after a change until what it needed is given back."""


class Ward:
    """A container in its present life. `fd` is its network namespace, and ours to close."""

    def __init__(self, loop: Loop, config: Config, container: Container, said: Said, fd: int) -> None:
        """Raises HeldError where another guards it, OSError."""
        self._claim = claim(fd)
        self.container = container
        self.said = said
        self.guarded = False  # its rules stand and its DNS answers
        self.outdated = False  # its policy file has changed since it was read
        self.ports: frozenset[int] = frozenset()  # the host's ends of its cables
        self._loop = loop
        self._config = config
        self._fd = fd
        self._closed = False
        self._outside: Outside | None = None
        self._places = xdp.Places()
        self._firewall = Firewall(Namespace(fd))
        fields = {"sandbox_id": container.name, "container": container.id[:12]}
        self.log = Log(1, config.log_level, fields)
        self._events = Events(self.log, loop)

    @property
    def life(self) -> tuple[int, str]:
        """What tells this life of the container from its next."""
        return self.container.pid, self.container.started

    @property
    def digest(self) -> str:
        """Of the policy; equal for policies that decide alike."""
        return digest(compile_policy(self.said.policy))[:12]

    def start(self, done: Callable[[str], None], *, lock: bool) -> None:
        """Guard it, then `done("")`; with a reason where that can't be, and never once it was closed. `lock` denies
        everything first of all: where the container can reach something already."""

        def prepare() -> Listeners:
            if lock:
                self._firewall.lock()
            return self._firewall.namespace.inside(bind_dns)

        def close(listeners: Listeners | None) -> None:
            for sock in sum(listeners or (), ()):
                sock.close()

        def prepared(listeners: Listeners | None, error: BaseException | None) -> None:
            if self._closed:  # and so is the way into its network
                close(listeners)
                return
            if listeners is None:
                done(words_of(error))
                return
            config = self._config
            budget = Budget(config.name_budget, config.search) if config.name_budget.octets else None
            opened = self._opened if self.log.enabled("info") else None
            try:
                self._outside = Outside(
                    self._loop, self._firewall, listeners, config, _socket, self._denied_name, self._denied_packet,
                    self._report, opened, budget,
                )  # fmt: skip
                self._outside.start(self.said.policy, loaded)
            except Exception as trouble:  # noqa: BLE001 - no descriptor left, or whatever: who waits hears of it
                if self._outside is None:
                    close(listeners)
                done(words_of(trouble))

        def loaded(error: BaseException | None) -> None:
            if error is not None:
                done(words_of(error))
                return
            self._loop.run_in_thread(self._shortcoming, finished)

        def finished(reason: str | None, error: BaseException | None) -> None:
            if self._closed:
                return
            self.guarded = reason == ""
            self._rest()
            done(words_of(error) if reason is None else reason)

        self._loop.run_in_thread(prepare, prepared)

    def _shortcoming(self) -> str:
        """Why what stands would not hold, "" where it does. On the helper thread."""
        stack = beside(self._firewall.namespace)
        if stack is not None and not stack.held:
            return stack.words
        if self.container.raw and self._firewall.capabilities().raw == "none":
            return "this kernel cannot hold packet sockets (Linux 5.16 can): run it with --cap-drop NET_RAW"
        if self.container.raw and (problem := self._hold_places()):
            return f"of XDP sockets {problem}; run it with --cap-drop NET_RAW"
        return ""

    def _hold_places(self) -> str:
        if not self._places.sockets:
            self._places = xdp.take(self._firewall.namespace)
            return self._places.problem
        gaps = self._places.look(self._firewall.namespace, patience=xdp.PATIENCE)
        return "; ".join(gap.words for gap in gaps if gap.up)

    def look_again(self, done: Callable[[str], None]) -> None:
        """A device has come while it is guarded: `done("")` once that is guarded too, with a reason where it isn't."""

        def look() -> str:
            self._firewall.refresh()
            return self._shortcoming()

        self._loop.run_in_thread(look, lambda reason, error: done(words_of(error) if reason is None else reason))

    def rename(self, container: Container) -> None:
        """The same life of it, which may have another name by now."""
        self.container = container
        self.log.fields["sandbox_id"] = container.name

    def _rest(self) -> None:
        """Now, or a moment later, nothing is left to be changed: the memory that took goes back."""

        def rest() -> None:
            self._firewall.rest()
            spare_memory()

        self._loop.call_later(REST, lambda: None if self._closed else self._loop.run_in_thread(rest, lambda *_: None))

    def change(self, said: Said, done: Callable[[str], None]) -> None:
        """Another policy; `done("")` once it holds, with a reason where the one before still does."""

        def changed(error: BaseException | None) -> None:
            if error is None:
                self.said = said
            self._rest()
            done("" if error is None else words_of(error))

        assert self._outside is not None  # only what is guarded changes
        try:
            self._outside.change(said.policy, changed)
        except PolicyError as error:
            done(str(error))

    def tell_loaded(self, **more: object) -> None:
        """The log's line for a policy that is in force."""
        document = self.said.policy.to_document()
        rules = document["egress"]
        assert isinstance(rules, list)
        fields = {"policy": self.said.source, "policy.digest": self.digest, **more}
        self._events.loaded(str(document["defaultAction"]), rules, **fields)

    def close(self) -> None:
        """Guard it no more; its rules stand for as long as its network does."""
        self._closed = True
        if self._outside is None:
            self._loop.run_in_thread(self._firewall.close, lambda *_: None)
        else:
            self._outside.close()
        fd, self._fd = self._fd, -1

        def last() -> None:  # behind what was begun there, which may have opened something
            for place in self._places.sockets:
                os.close(place)
            self._firewall.namespace.fd = -1  # or who comes late would enter whatever has that number next
            os.close(fd)
            self._claim.close()

        if fd >= 0:
            self._loop.run_in_thread(last, lambda *_: self.log.close())

    # -- what is told --------------------------------------------------------------------------------------------
    def _report(self, text: str) -> None:
        if not ended(self.container.pid):  # else its network is being taken apart, and that is no fault
            self.log.warn(text)

    def _denied_name(self, denial: Denial) -> None:
        if denial.expansion:
            self.log.debug("search-list expansion denied", **{"target.host": denial.name})
        elif denial.budget:
            self._events.over_budget(denial.name, denial.budget, denial.reason, denial.rule)
        else:
            self._events.denied_name(denial.name, denial.reason, denial.rule)

    def _denied_packet(self, denied: Denied, names: tuple[str, ...]) -> None:
        host = names[0] if names else ""
        self._events.denied_packet(printable(denied.destination), denied.protocol, denied.port, host)

    def _opened(self, name: str, addresses: Sequence[bytes]) -> None:
        if self._events.wants_allowed(name):
            self._events.allowed_name(name, [printable(packed) for packed in addresses])


def _socket(family: int, kind: int) -> socket.socket:
    return socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)


def words_of(error: BaseException | None) -> str:
    """Why it can't be guarded, on one line."""
    if isinstance(error, (FirewallError, HeldError, PolicyError, StartError)):
        return str(error)
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"{type(error).__name__}: {error}"
