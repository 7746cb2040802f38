"""`egress docker watch`: every container with the label is guarded, from its start event on, by this one process.

    register (a thread) ──seen─▶ Watch ─▶ Ward: rules and DNS in the container's namespace ─▶ gate opened for its ports
                        ──gone─▶       ─▶ gate closed, ward closed

The order is what holds: a container's frames get past the gate only when its rules stand and its DNS answers. Whatever
goes wrong on the way leaves it closed. The gate and the rules are the kernel's: they stand when this process doesn't,
and the next one takes them over.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import time
from hashlib import blake2s
from typing import TYPE_CHECKING, NamedTuple

from egress.control.files import look
from egress.docker.containers import LabelError, policy_of
from egress.docker.entrance import alone, ended
from egress.docker.gate import Gate
from egress.docker.network import NetworkError, Wanted, ensure, needs_dns
from egress.docker.register import Register
from egress.docker.ward import Ward, words_of
from egress.firewall import FirewallError
from egress.log import Log
from egress.loop import Loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from egress.config import Config
    from egress.control.files import Stamp
    from egress.docker.api import Docker
    from egress.docker.containers import Container, Said
    from egress.docker.register import Refused, Seen

LOOK = 0.5
"""Seconds between looks at the gate, and at the policy files that labels name."""
RESYNC = 60.0
"""Seconds after which every container is looked at again, whatever the events said."""
_STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class WatchError(Exception):
    """It cannot begin; one line with what to do."""


class _File(NamedTuple):
    """A policy file as it was last read, and whether it has been still since it changed."""

    read: Stamp | None
    seen: Stamp | None


class Watch:
    """One daemon, one network, any number of containers."""

    def __init__(self, docker: Docker, wanted: Wanted, config: Config, *, daemon_has_dns: bool = False) -> None:
        self._docker = docker
        self._wanted = wanted
        self._config = config
        self._daemon_has_dns = daemon_has_dns
        self.log = Log(1, config.log_level)
        self.loop = Loop(lambda error: self.log.error("unexpected", error=f"{type(error).__name__}: {error}"))
        self._gate = Gate(wanted.bridge)
        self._wards: dict[str, Ward] = {}
        self._closed: dict[str, str] = {}  # id -> the life that stays closed, so that it is told once
        self._files: dict[str, _File] = {}
        self._register = Register(
            docker,
            self.loop,
            wanted.name,
            self._prepare,
            self._seen,
            self._refused,
            self._gone,
            self._listed,
            lambda level, text: self.log.write(level, text, {"docker.host": docker.host}),
        )
        self._held: tuple[socket.socket, ...] = ()
        self._failed = ""

    def run(self) -> int:
        """Watch until SIGTERM. Raises WatchError where it cannot begin."""
        self._held = _alone(self._wanted.bridge, self._docker)
        try:
            fresh = self._gate.lay()
        except FirewallError as error:
            raise WatchError(f"the host's gate can't be laid: {error}") from error
        _many_files()
        _warm_up()
        how = "laid: closed" if fresh else f"stands, {len(self._gate.ports)} ports pass"
        self.log.info(f"the gate of {self._wanted.bridge} {how}", network=self._wanted.name)
        self._listen_for_the_end()
        self._register.start()
        self.loop.call_later(LOOK, self._look)
        self.loop.call_later(RESYNC, self._again)
        self.loop.run()
        if self._failed:
            raise WatchError(self._failed)
        self.log.info("ended; rules and gate stand, names are not answered until it runs again")
        return 0

    def _listen_for_the_end(self) -> None:
        theirs, ours = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        signal.set_wakeup_fd(theirs.fileno())
        for number in _STOP:
            signal.signal(number, lambda *_: None)
        self.loop.add_reader(ours.fileno(), self.loop.stop)
        self._bell = (theirs, ours)

    # -- on the register's thread ----------------------------------------------------------------------------------
    def _prepare(self) -> None:
        try:
            if ensure(self._docker, self._wanted):
                name, bridge = self._wanted.name, self._wanted.bridge
                self.loop.call_threadsafe(lambda: self.log.info(f"network {name} created", bridge=bridge))
        except NetworkError as error:
            words = str(error)
            self.loop.call_threadsafe(lambda: self._fail(words))
            return
        asked = self._register.asked = "" if self._daemon_has_dns else needs_dns(self._docker)
        if asked:
            warning = (
                f"Docker asks {asked} for its containers from the host's network: only those with --dns are guarded"
            )
            self.loop.call_threadsafe(lambda: self.log.warn(warning, advice='"dns" in /etc/docker/daemon.json'))

    def _fail(self, reason: str) -> None:
        self._failed = reason
        self.loop.stop()

    # -- on the loop -----------------------------------------------------------------------------------------------
    def _seen(self, seen: Seen) -> None:
        container = seen.container
        ward = self._wards.get(container.id)
        life = f"{container.pid} {container.started}"
        if ward is not None and ward.life == (container.pid, container.started):
            os.close(seen.fd)
            self._shut(ward.ports - seen.ports)
            ward.ports = seen.ports
            ward.rename(container)
            if ward.guarded:
                self._open_more(ward, seen.ports - self._gate.ports)
            return
        if ward is not None:
            self._end(ward)
        if self._closed.get(container.id) == life:
            os.close(seen.fd)
            return
        try:
            said = self._policy(container.label or "")
        except LabelError as error:
            os.close(seen.fd)
            self._closed[container.id] = life
            self._stays_closed(container, str(error), seen.ports)
            return
        try:
            ward = Ward(self.loop, self._config, container, said, seen.fd)
        except Exception as error:  # noqa: BLE001 - no descriptor left, or whatever: it is tried again at the next reading
            os.close(seen.fd)
            self._stays_closed(container, words_of(error), seen.ports)
            return
        self._wards[container.id] = ward
        ward.ports = seen.ports
        ward.start(lambda reason: self._guarded(ward, seen, reason), lock=bool(seen.ports & self._gate.ports))

    def _guarded(self, ward: Ward, seen: Seen, reason: str) -> None:
        container = ward.container
        if self._wards.get(container.id) is not ward:
            return  # it has ended meanwhile
        if reason:
            if ended(container.pid):  # and its network was taken apart under our hands
                self._gone(container.id)
                return
            del self._wards[container.id]
            ward.close()
            self._stays_closed(container, reason, ward.ports)
            return
        self._closed.pop(container.id, None)
        ports = ward.ports & seen.ports  # those that the guard has seen
        self._open_more(ward, ward.ports - ports)
        if ward.outdated:
            self._renew(ward)

        def opened(_: object, error: BaseException | None) -> None:
            if self._wards.get(container.id) is not ward:
                return
            if error is not None:
                ward.log.error(f"{container.name} stays closed: the gate can't be opened: {error}")
                return
            more: dict[str, object] = {"opensandbox.container": "guarded"}
            if seen.since:
                more["after_ms"] = round((time.time() - seen.since) * 1000, 1)
            ward.tell_loaded(**more)

        self.loop.run_in_thread(lambda: self._gate.open(ports), opened)

    def _open_more(self, ward: Ward, ports: frozenset[int]) -> None:
        """A guarded container was connected anew: on a device that its guard has not looked at."""

        def looked(reason: str) -> None:
            if self._wards.get(ward.container.id) is not ward:
                return
            if not reason:
                self.loop.run_in_thread(lambda: self._gate.open(ports), self._told("open", ward.log))
            elif not ended(ward.container.pid):
                self._stays_closed(ward.container, reason, ports)

        if ports:
            ward.look_again(looked)

    def _stays_closed(self, container: Container, reason: str, ports: frozenset[int]) -> None:
        self._shut(ports)
        self._tell("error", container, "closed", f"{container.name} stays closed: {reason}", error=reason)

    def _tell(self, level: str, container: Container, what: str, message: str, **more: object) -> None:
        fields = {"sandbox_id": container.name, "container": container.id[:12], "opensandbox.container": what}
        self.log.write(level, message, fields | more)

    def _refused(self, refused: Refused) -> None:
        container, reason = refused.container, refused.reason
        self._gone(container.id)
        self._tell("error", container, "refused", f"{container.name} {refused.done}: {reason}", error=reason)

    def _gone(self, identity: str) -> None:
        self._closed.pop(identity, None)
        ward = self._wards.get(identity)
        if ward is not None:
            self._tell("info", ward.container, "ended", f"{ward.container.name} has ended")
            self._end(ward)

    def _end(self, ward: Ward) -> None:
        self._wards.pop(ward.container.id, None)
        self._shut(ward.ports)
        ward.close()

    def _listed(self) -> None:
        """All that there is has been seen: what else the gate lets pass belongs to nobody."""
        held = frozenset().union(*(ward.ports for ward in self._wards.values()))
        self.loop.run_in_thread(lambda: self._gate.close(self._gate.ports - held), self._told("close"))

    # -- the gate ----------------------------------------------------------------------------------------------------
    def _shut(self, ports: frozenset[int]) -> None:
        if ports:
            self.loop.run_in_thread(lambda: self._gate.close(ports), self._told("close"))

    def _told(self, what: str, log: Log | None = None) -> Callable[[object, BaseException | None], None]:
        def done(_: object, error: BaseException | None) -> None:
            if error is not None:
                (log or self.log).error(f"the gate could not {what}: {error}")

        return done

    # -- what changes meanwhile ----------------------------------------------------------------------------------------
    def _policy(self, label: str) -> Said:
        text = label.strip()
        if text.startswith("/"):
            stamp = look(text)
            self._files.setdefault(text, _File(stamp, stamp))
        return policy_of(label)

    def _look(self) -> None:
        self.loop.call_later(LOOK, self._look)
        self.loop.run_in_thread(self._gate.mend, self._mended)
        for path, file in list(self._files.items()):
            now = look(path)
            if now == file.read:
                continue
            if now != file.seen:
                self._files[path] = file._replace(seen=now)  # still for a whole round, so that no half of it is read
                continue
            self._files[path] = _File(now, now)
            self._follow(path)

    def _again(self) -> None:
        self.loop.call_later(RESYNC, self._again)
        self._register.again()

    def _mended(self, mended: bool | None, error: BaseException | None) -> None:
        if error is not None:
            self.log.error(f"somebody removed or changed the host's gate, and it can't be laid again: {error}")
        elif mended:
            self.log.error("somebody removed or changed the host's gate; it is laid again")

    def _follow(self, path: str) -> None:
        """A policy file has changed: for who is guarded by it, and for who stays closed because of it."""
        used = [ward for ward in self._wards.values() if ward.said.path == path]
        if not used and not self._closed:
            del self._files[path]
            return
        for ward in used:
            if ward.guarded:
                self._renew(ward)
            else:
                ward.outdated = True  # it is being started, and takes the change once it is
        if self._closed:
            self._closed.clear()
            self._register.again()

    def _renew(self, ward: Ward) -> None:
        ward.outdated = False
        try:
            said = policy_of(ward.said.path)
        except LabelError as error:
            ward.log.error(f"policy update failed, the one before it stands: {error}")
            return
        if said.policy != ward.said.policy:
            ward.change(said, lambda reason: self._changed(ward, reason))

    def _changed(self, ward: Ward, reason: str) -> None:
        if self._wards.get(ward.container.id) is not ward or ended(ward.container.pid):
            return
        if reason:
            ward.log.error(f"policy update failed, the one before it stands: {reason}")
        else:
            ward.tell_loaded(**{"opensandbox.container": "updated"})


def _alone(bridge: str, docker: Docker) -> tuple[socket.socket, ...]:
    """Only one watches a bridge, and only one a daemon: with another network than the first's, the second would kill
    all whom the first guards. Raises WatchError."""
    daemon = blake2s(os.fsencode(os.path.realpath(docker.path)), digest_size=16).hexdigest()
    held: list[socket.socket] = []
    for what, name in ((bridge, f"watch-{bridge}"), (docker.host, f"daemon-{daemon}")):
        mine = alone(name)
        if mine is None:
            for other in held:
                other.close()
            raise WatchError(f"another egress docker watch runs for {what}; end that one first")
        held.append(mine)
    return tuple(held)


def _warm_up() -> None:
    """What the first container would wait for otherwise: modules that a sidecar imports when it needs them."""
    from egress.firewall import abilities, conntrack, nflog, replacement

    del abilities, conntrack, nflog, replacement


def _many_files() -> None:
    """A container takes some twenty descriptors; as many as we are allowed."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
