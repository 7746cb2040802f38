"""Follows the daemon: what every container that matters is now, told on the loop.

The stream of events is opened before the list is read, so that nothing falls between the two. An event only says where
to look: what counts is what the daemon says of the container then. All of it happens on a thread of its own, since each
look waits for the daemon; the loop hears of results.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from egress.docker.api import DockerError
from egress.docker.containers import LABEL, Container, listed, objection, stranger
from egress.docker.entrance import OverError, UnseenError, enter, inspect
from egress.netns import Namespace

if TYPE_CHECKING:
    from collections.abc import Callable

    from egress.docker.api import Docker
    from egress.loop import Loop

PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
"""Seconds before the daemon is tried again."""
UNSEEN = 30.0
"""Seconds for which nothing is said of a container that runs and can't be looked at: it may just be ending."""
AGAIN = 5.0
"""Seconds until everything is looked at once more because something could not be."""
_EVENTS = ["start", "die", "destroy", "connect", "disconnect", "rename"]


class Seen(NamedTuple):
    """A container that runs, and may be guarded."""

    container: Container
    fd: int  # its network namespace; whoever hears of it closes it
    ports: frozenset[int]  # the host's ends of its cables
    since: float  # the daemon's clock, Unix seconds: the event that led here; 0.0 for a look without one


class Refused(NamedTuple):
    """A container that can't be guarded; `done` is what became of it."""

    container: Container
    reason: str
    done: str


class _Known(NamedTuple):
    """A container that was told of; `network` is its namespace's number, 0 for one that stays closed."""

    name: str
    network: int


class Register:
    """`seen` hears of each that runs, again and again; `refused` of each that had to be ended; `gone` of an id;
    `listed` of every full reading; `report` of the daemon itself."""

    def __init__(
        self,
        docker: Docker,
        loop: Loop,
        network: str,
        prepare: Callable[[], None],
        seen: Callable[[Seen], None],
        refused: Callable[[Refused], None],
        gone: Callable[[str], None],
        listed: Callable[[], None],
        report: Callable[[str, str], None],
    ) -> None:
        """`prepare` runs on the thread whenever the daemon is there again, and may raise DockerError."""
        self._docker = docker
        self._loop = loop
        self._network = network
        self._prepare = prepare
        self._seen, self._refused, self._gone, self._listed = seen, refused, gone, listed
        self._report = report
        self._known: dict[str, _Known] = {}
        self._unseen: dict[str, tuple[str, float]] = {}  # id -> the life that could not be looked at, since when
        self._due = False  # everything is going to be looked at
        self.asked = ""  # whose resolvers Docker asks from the host's network for who names none; "" for nobody's
        self._busy = threading.Lock()  # held while looking: an event and a full reading must not overtake each other

    def start(self) -> None:
        threading.Thread(target=self._run, name="register", daemon=True).start()

    def _say(self, level: str, text: str) -> None:
        self._loop.call_threadsafe(lambda: self._report(level, text))

    def again(self) -> None:
        """Look at everything once more, soon."""
        threading.Thread(target=self._once_more, name="resync", daemon=True).start()

    def _once_more(self) -> None:
        self._due = False
        try:
            self.resync()
        except DockerError:
            pass  # when the daemon is back everything is looked at
        except Exception as error:  # noqa: BLE001 - as in `_run`
            self._say("error", f"unexpected: {type(error).__name__}: {error}")

    def _later(self) -> None:
        def wait() -> None:
            self._loop.call_later(AGAIN, self.again)

        if not self._due:
            self._due = True
            self._loop.call_threadsafe(wait)

    def _run(self) -> None:
        failures = 0
        pause = threading.Event()
        while True:
            try:
                stream = self._docker.events({"type": ["container", "network"], "event": _EVENTS})
                next(stream)
                self._prepare()
                self.resync()
                self._say("info", "following the Docker daemon" if not failures else "the Docker daemon is back")
                failures = 0
                for event in stream:
                    self._event(event)
            except DockerError as error:
                if not failures:
                    self._say("warn", f"{error}; what is guarded stays guarded, and nothing new is opened")
            except Exception as error:  # noqa: BLE001 - whatever it was, this thread goes on
                self._say("error", f"unexpected: {type(error).__name__}: {error}")
            pause.wait(PAUSES[min(failures, len(PAUSES) - 1)])
            failures += 1

    def resync(self) -> None:
        """Look at every container. Raises DockerError."""
        with self._busy:
            self._read()

    def _read(self) -> None:
        answer = self._docker.call("GET", "/containers/json")
        if not isinstance(answer, list):  # no list is not an empty one
            raise DockerError(f"{self._docker.host}: its answer is no list of containers")
        found, joined = set(), set()
        for container in map(listed, answer):
            if container.labelled or self._network in container.networks:
                found.add(container.id)
            elif container.mode.startswith("container:"):
                joined.add(container.id)
        for identity in (self._known.keys() | self._unseen.keys()) - found - joined:
            self._forget(identity)
        for identity in sorted(found):
            self._look(identity, 0.0)
        if any(known.network for known in self._known.values()):
            for identity in sorted(joined):  # behind those whose networks they may have joined
                self._look(identity, 0.0)
        self._loop.call_threadsafe(self._listed)

    def _event(self, event: dict[str, object]) -> None:
        actor = event.get("Actor")
        if not isinstance(actor, dict):
            return
        if event.get("Type") == "network":
            attributes = actor.get("Attributes")
            identity = str(attributes.get("container", "")) if isinstance(attributes, dict) else ""
        else:
            identity = str(actor.get("ID", ""))
        action = event.get("Action")
        with self._busy:
            if action in ("die", "destroy"):
                # Not looked at: the daemon holds it for as long as it clears up, and others would wait meanwhile.
                if identity in self._known or identity in self._unseen:
                    self._forget(identity)
            elif action == "start":
                self._look(identity, float(event.get("timeNano") or 0) / 1e9)  # type: ignore[arg-type]
            elif identity in self._known:  # connected while it runs; while it starts, the daemon holds it as well
                self._look(identity, 0.0)

    def _look(self, identity: str, since: float) -> None:
        try:
            self._examine(identity, since)
        except OverError:
            pass  # an event says so
        except DockerError as error:
            if not error.status:
                raise
            # It is this one that the daemon has trouble with, as a rule because it is being removed.
            self._miss(identity, "", f"{self._name(identity)} can't be looked at: {error}")
        except OSError as error:
            self._miss(identity, "", f"{self._name(identity)} can't be looked at: {error.strerror}")

    def _name(self, identity: str) -> str:
        known = self._known.get(identity)
        return known.name if known is not None else f"container {identity[:12]}"

    def _examine(self, identity: str, since: float) -> None:
        container = inspect(self._docker, identity)
        if container is None or not container.running or not container.pid:
            self._forget(identity)
            return
        if container.label is None:
            self._look_at_stranger(container)
            return
        reason = objection(container)
        other = "" if reason else stranger(container, self._network)
        if other:
            reason = f"it is on the network {other}: run it with --network {self._network}, and on no other"
        elif not reason and self.asked and not container.resolvers:
            reason = (
                f"Docker asks {self.asked} for it from the host's network, where no guard stands: run it with "
                '--dns, or set "dns" in /etc/docker/daemon.json'
            )
        if reason:
            self._end(container, reason)
            return
        try:
            fd = enter(self._docker, container)
        except UnseenError as error:
            self._miss(identity, container.started, f"{container.name} stays closed: {error}")
            return
        try:
            ports = frozenset(device.peer for device in Namespace(fd).devices() if device.peer)
        except BaseException:
            os.close(fd)
            raise
        self._unseen.pop(identity, None)
        self._known[identity] = _Known(container.name, os.fstat(fd).st_ino)
        seen = Seen(container, fd, ports, since)
        self._loop.call_threadsafe(lambda: self._seen(seen))

    def _miss(self, identity: str, life: str, words: str) -> None:
        """The daemon says that it runs, and it can't be looked at. As a rule it is ending, and an event will tell; what
        lasts is told."""
        now = time.monotonic()
        before, since = self._unseen.get(identity, ("", 0.0))
        if identity not in self._unseen or before != life:
            self._unseen[identity] = (life, now)
        elif now - since > UNSEEN:
            self._unseen[identity] = (life, now)
            self._say("error", words)
        self._later()

    def _look_at_stranger(self, container: Container) -> None:
        """One without the label: on our network it stays closed, and in a guarded one's it is held as that one is."""
        if self._network in container.networks and container.id not in self._known:
            self._known[container.id] = _Known(container.name, 0)
            self._say("warn", f"{container.name} is on {self._network} without the label {LABEL}: it stays closed")
        if not container.mode.startswith("container:"):
            return
        # Not by whom it names: that one may have joined as well, and be gone.
        try:
            network = os.stat(f"/proc/{container.pid}/ns/net").st_ino
        except OSError:
            return  # it has ended
        name = next((known.name for known in self._known.values() if known.network == network), "")
        reason = objection(container._replace(mode="")) if name else ""
        if reason:
            self._end(container, f"it has joined the network of {name}, which is guarded, and {reason}")

    def _end(self, container: Container, reason: str) -> None:
        """What was not guarded from its first moment is not left running."""
        try:
            self._docker.call("POST", f"/containers/{quote(container.id, safe='')}/kill")
            done = "killed"
        except DockerError as error:
            if error.status in (404, 409):
                done = "has ended by itself"
            else:
                done = f"could not be killed ({error})"
                self._later()
        refused = Refused(container, reason, done)
        self._loop.call_threadsafe(lambda: self._refused(refused))

    def _forget(self, identity: str) -> None:
        self._known.pop(identity, None)
        self._unseen.pop(identity, None)
        self._loop.call_threadsafe(lambda: self._gone(identity))
