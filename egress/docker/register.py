"""Follows the daemon: what every container that matters is now, told on the loop.

The stream of events is opened before the list is read, so that nothing falls between the two. An event only says where
to look: what counts is what the daemon says of the container then. All of it happens on a thread of its own, since each
look waits for the daemon; the loop hears of results.
"""

from __future__ import annotations

import json
import os
import threading
import time
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from egress.docker.api import DockerError
from egress.docker.containers import LABEL, Container, objection, read, stranger
from egress.netns import Namespace

if TYPE_CHECKING:
    from collections.abc import Callable

    from egress.docker.api import Docker
    from egress.loop import Loop

PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
"""Seconds before the daemon is tried again."""
UNSEEN = 30.0
"""Seconds after which a container that runs and has no process here is spoken of: until then it may just be ending."""
_EVENTS = ["start", "die", "destroy", "connect", "disconnect"]


def ended(pid: int) -> bool:
    """Whether a process is gone or on its way: one that exits gives up its namespaces before its number."""
    try:
        os.stat(f"/proc/{pid}/ns/net")
    except (FileNotFoundError, ProcessLookupError):
        return True
    except OSError:
        return False
    return False


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
        self._known: dict[str, str] = {}  # id -> name
        self._unseen: dict[str, tuple[str, float]] = {}  # id -> the life without a process here, since when
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
        try:
            self.resync()
        except DockerError:
            pass  # when the daemon is back everything is looked at

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
        found: set[str] = set()
        for name, value in (("label", LABEL), ("network", self._network)):
            listed = self._docker.call("GET", "/containers/json", {"filters": json.dumps({name: [value]})})
            found |= {str(each.get("Id", "")) for each in listed or () if isinstance(each, dict)}
        found.discard("")
        for identity in (self._known.keys() | self._unseen.keys()) - found:
            self._forget(identity)
        for identity in sorted(found):
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

    def _inspect(self, identity: str) -> Container | None:
        """What the daemon says of it, None where it knows none. Raises DockerError."""
        try:
            return read(self._docker.inspect(identity))
        except DockerError as error:
            if error.status == 404:
                return None
            raise

    def _look(self, identity: str, since: float) -> None:
        container = self._inspect(identity)
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
            fd = os.open(f"/proc/{container.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if ended(container.pid):
                self._miss(container)
            else:
                self._say("error", f"{container.name} stays closed: its network can't be opened: {error.strerror}")
            return
        try:
            ports = frozenset(device.peer for device in Namespace(fd).devices() if device.peer)
            again = self._inspect(identity)  # else the number may be another process's by now
            if again is None or (again.pid, again.started) != (container.pid, container.started):
                os.close(fd)
                return
        except (OSError, DockerError):
            os.close(fd)
            raise
        self._unseen.pop(identity, None)
        self._known[identity] = container.name
        seen = Seen(container, fd, ports, since)
        self._loop.call_threadsafe(lambda: self._seen(seen))

    def _miss(self, container: Container) -> None:
        """The daemon says that it runs, and its process isn't there: an event will tell of its end, unless processes
        here are not the daemon's."""
        now = time.monotonic()
        life, since = self._unseen.setdefault(container.id, (container.started, now))
        if life != container.started:
            self._unseen[container.id] = (container.started, now)
        elif now - since > UNSEEN:
            self._say(
                "error",
                f"{container.name} stays closed: its process {container.pid} can't be seen from here; "
                "is this in the daemon's PID namespace?",
            )

    def _look_at_stranger(self, container: Container) -> None:
        """One without the label: on our network it stays closed, and in a guarded one's it is held as that one is."""
        if self._network in container.networks and container.id not in self._known:
            self._known[container.id] = container.name
            self._say("warn", f"{container.name} is on {self._network} without the label {LABEL}: it stays closed")
        joined = container.mode.removeprefix("container:") if container.mode.startswith("container:") else ""
        if joined in self._known or joined in self._known.values():
            reason = objection(container._replace(mode=""))
            if reason:
                name = self._known.get(joined, joined)
                self._end(container, f"it has joined the network of {name}, which is guarded, and {reason}")

    def _end(self, container: Container, reason: str) -> None:
        """What was not guarded from its first moment is not left running. Raises DockerError."""
        try:
            self._docker.call("POST", f"/containers/{quote(container.id, safe='')}/kill")
            done = "killed"
        except DockerError as error:
            done = f"could not be killed ({error})" if error.status not in (404, 409) else "it has ended"
        refused = Refused(container, reason, done)
        self._loop.call_threadsafe(lambda: self._refused(refused))

    def _forget(self, identity: str) -> None:
        self._known.pop(identity, None)
        self._unseen.pop(identity, None)
        self._loop.call_threadsafe(lambda: self._gone(identity))
