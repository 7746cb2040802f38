"""The parent process: forks the workers, and keeps them alive. What comes before is in start.py.

    bound ─▶ fork ─▶ every worker listens ─▶ "ready"
              ▲                 │ one died
              └── fork again ◀──┘

It runs no event loop and reads nothing that a client sends: it waits for signals, for its workers' first word and for
a successor (handover.py). The sockets and the shared memory are its own, so a worker's death costs those who were
connected to it their connections, and nobody else anything: what waits in its socket's queue is served by the next.

A worker that can't start at all ends the gateway with its message; one that dies later is started again, with a pause
that grows while it keeps dying.
"""

from __future__ import annotations

import os
import select
import signal
import time
from typing import TYPE_CHECKING, NamedTuple

from ingress.process import handover
from ingress.process.listeners import Listeners, StartError, shares, show
from ingress.process.system import die_with_parent, spare_memory

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from ingress.settings.config import Config
    from ingress.telemetry.log import Log

EXIT_FAILED = 1
LOADED_WITHIN = 60.0
"""Seconds in which a successor's workers have to be ready before it gives up and leaves the predecessor alone."""
GRACE = 5.0
"""Seconds beyond its own time that a draining worker has before it is killed."""
SETTLED = 5.0
"""Seconds after which a worker counts as well."""
BACK_OFF = (0.0, 0.0, 0.05, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds before the n-th restart of a worker that does not settle."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGCHLD)
DRAIN, RETIRE, NOW, RELOAD = signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP
"""What a worker is told by: leave; leave, a successor has the sockets; leave at once; read files again."""


class Seat(NamedTuple):
    """One worker's place, the same for each that comes to sit in it."""

    number: int
    main: list[socket.socket]
    admin: list[socket.socket]
    own: list[tuple[str, int]]  # where any of us listens: addresses and ports
    successor: bool  # a gateway before us still serves: listen only when there is something to serve
    started: Callable[[], None]  # to be called once, when everything listens
    signals: tuple[signal.Signals, ...]  # blocked; to be unblocked when their handlers stand


class Worker:
    """One process, or the wait for the next one."""

    __slots__ = ("failures", "index", "pid", "pipe", "restart_at", "started", "started_at")

    def __init__(self, index: int) -> None:
        self.index = index
        self.pid = 0
        self.pipe = -1
        self.started = False  # it has listened at least once in its life
        self.started_at = 0.0
        self.failures = 0
        self.restart_at = 0.0


class Master:
    """The loop that waits, and what it does about what it hears."""

    def __init__(
        self,
        config: Config,
        listeners: Listeners,
        count: int,
        offer: handover.Offer | None,
        claim: handover.Claim | None,
        memory: Mapping[str, tuple[int, bytes]],
    ) -> None:
        self._config = config
        self._listeners = listeners
        self._offer = offer
        self._claim = claim
        self._memory = dict(memory)
        self._workers = [Worker(index) for index in range(count)]
        self._shares = shares(listeners.main, count)
        self._asking: socket.socket | None = None  # a successor that has our sockets and has not said "ready" yet
        self._ready = False
        self._leaving = False
        self._asked = False  # by a signal, to leave
        self._deadline = 0.0  # when leaving: after it, workers are killed
        self._code = 0

    def run(self, work: Callable[[Seat], int], log: Log) -> int:
        """Until every worker has left; returns the exit code."""
        self._work, self._log = work, log
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for number in (*SIGNALS, RETIRE, NOW):
            signal.signal(number, lambda *_: None)  # what arrives is read from the pipe
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        self._inherited = [wake_read, wake_write]
        for warning in self._config.warnings:
            log.warn(warning)
        spare_memory()
        began = time.monotonic()
        for worker in self._workers:
            self._fork(worker)
        while True:
            late = self._claim is not None and not self._ready and time.monotonic() - began > LOADED_WITHIN
            if late and not self._leaving:
                self._log.error("not ready in time to take over; the gateway there goes on", seconds=LOADED_WITHIN)
                self._give_up(EXIT_FAILED)
            self._wait(wake_read)
            if self._leaving and not any(worker.pid for worker in self._workers):
                break
        if self._offer is not None:
            self._offer.close()
        return self._code

    # -- waiting ---------------------------------------------------------------------------------------------------
    def _wait(self, wake: int) -> None:
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        pipes = {worker.pipe: worker for worker in self._workers if worker.pipe >= 0}
        for pipe in pipes:
            poll.register(pipe, select.POLLIN)
        if self._offer is not None and self._ready and not self._leaving:
            poll.register(self._offer.sock, select.POLLIN)
        if self._asking is not None:
            poll.register(self._asking, select.POLLIN)
        for descriptor, _ in poll.poll(self._patience()):
            if descriptor == wake:
                for number in _drained(wake):
                    self._on_signal(number)
            elif descriptor in pipes:
                if pipes[descriptor].pipe == descriptor:  # its death may have been heard of a moment ago
                    self._on_started(pipes[descriptor])
            elif self._asking is not None and descriptor == self._asking.fileno():
                self._on_successor(self._asking)
            elif self._offer is not None:
                self._on_asked(self._offer)
        now = time.monotonic()
        for worker in self._workers:
            if not worker.pid and not self._leaving and worker.restart_at <= now:
                self._fork(worker)
        if self._leaving and now >= self._deadline:
            for worker in self._workers:
                if worker.pid:
                    self._log.error("a worker did not leave in time and is killed", pid=worker.pid)
                    self._code = EXIT_FAILED
                    os.kill(worker.pid, signal.SIGKILL)
            self._deadline = now + GRACE

    def _patience(self) -> float | None:
        """Milliseconds until something has to be done unasked; None: nothing."""
        times = [worker.restart_at for worker in self._workers if not worker.pid and not self._leaving]
        if self._leaving:
            times.append(self._deadline)
        if self._claim is not None and not self._ready:
            times.append(time.monotonic() + 1.0)
        return None if not times else max(0.0, min(times) - time.monotonic()) * 1000 + 1

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGCHLD:
            self._reap()
        elif number == RELOAD:
            self._tell(RELOAD)
        elif number in (RETIRE, NOW):
            pass  # what the master tells its workers by; nobody has to tell it to the master
        elif self._asked:
            self._tell(NOW)  # a second time: nobody wants to wait for connections
            self._deadline = min(self._deadline, time.monotonic() + GRACE)
        else:
            self._asked = True
            limits = self._config.limits
            self._log.info("stopping", signal=signal.Signals(number).name, drain=limits.drain)
            if not self._leaving:  # or a successor serves already, and what is open is being waited for
                self._leave(DRAIN, self._config.drain_delay + limits.drain + GRACE)
                if self._offer is not None:
                    self._offer.close()

    def _on_started(self, worker: Worker) -> None:
        said = os.read(worker.pipe, 16)
        os.close(worker.pipe)
        worker.pipe = -1
        if not said:
            return  # it died instead; SIGCHLD says so too
        worker.started = True
        if not self._ready and all(each.started for each in self._workers):
            self._ready = True
            self._announce()

    def _announce(self) -> None:
        """Everything listens: now the predecessor may leave, and a successor may ask."""
        if self._claim is not None and not self._claim.finish():
            self._log.warn("the gateway before this one left without a word")
        if self._offer is not None:
            try:
                self._offer.publish()
            except StartError as error:
                self._log.error(str(error))
        admin = self._listeners.admin
        self._log.info(
            "listening",
            address=show(self._listeners.main[0]),
            port=self._listeners.main[0].getsockname()[1],
            admin=show(admin[0]) if admin else "",
            admin_port=admin[0].getsockname()[1] if admin else 0,
            tls=bool(self._config.tls_cert),
            mode=self._config.mode,
            provider=self._config.provider_type,
            workers=len(self._workers),
            taken_over=self._claim is not None,
            pid=os.getpid(),
        )

    # -- workers ---------------------------------------------------------------------------------------------------
    def _fork(self, worker: Worker) -> None:
        read, write = os.pipe2(os.O_CLOEXEC)
        blocked = (*SIGNALS, RETIRE, NOW)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            os.close(read)
            self._sit_down(worker.index, write, parent, blocked)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(write)
        worker.pid, worker.pipe, worker.started_at = pid, read, time.monotonic()

    def _sit_down(self, index: int, pipe: int, parent: int, blocked: tuple[signal.Signals, ...]) -> None:
        """A worker's life, from fork to exit; never returns."""
        code = EXIT_FAILED
        try:
            die_with_parent(parent)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, *(SIGNALS[:3])):
                signal.signal(number, signal.SIG_DFL)
            for number in (signal.SIGINT, signal.SIGQUIT):  # a terminal's: the master decides
                signal.signal(number, signal.SIG_IGN)
            mine = self._shares[index]
            admin = self._listeners.admin if index == 0 else []
            own = [sock.getsockname()[:2] for sock in self._listeners.all()]
            self._close_what_others_have([*mine, *admin])

            def started() -> None:
                os.write(pipe, b"1")
                os.close(pipe)

            seat = Seat(index, mine, admin, own, self._claim is not None and not self._ready, started, blocked)
            code = self._work(seat)
        except BaseException as error:  # noqa: BLE001 - whatever it was, the next worker is the answer
            self._log.error("worker failed", error=f"{type(error).__name__}: {error}", worker=index)
        finally:
            os._exit(code)

    def _close_what_others_have(self, mine: list[socket.socket]) -> None:
        """A socket's queue ends with its last copy, so a worker keeps none that isn't its own."""
        for sock in self._listeners.all():
            if sock not in mine:
                sock.close()
        if self._offer is not None:
            self._offer.close(keep_path=True)
        if self._asking is not None:
            self._asking.close()
        if self._claim is not None and not self._ready:
            self._claim.abandon()
        for worker in self._workers:
            if worker.pipe >= 0:
                os.close(worker.pipe)
        for descriptor in self._inherited:
            os.close(descriptor)

    def _reap(self) -> None:
        """Collect every ended child (as PID 1 also strangers') and see to the workers among them."""
        by_pid = {worker.pid: worker for worker in self._workers if worker.pid}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in by_pid:
                self._on_death(by_pid[pid], os.waitstatus_to_exitcode(status))

    def _on_death(self, worker: Worker, code: int) -> None:
        worker.pid = 0
        if worker.pipe >= 0:
            self._on_started(worker)  # it may have said it and died at once
        if self._leaving:
            return
        if not worker.started:
            # Nothing has worked yet, so nothing would by trying again: the message is already out.
            self._give_up(code if code > 0 else EXIT_FAILED)
            return
        now = time.monotonic()
        if now - worker.started_at > SETTLED:
            worker.failures = 0
        pause = BACK_OFF[min(worker.failures, len(BACK_OFF) - 1)]
        worker.failures += 1
        worker.restart_at = now + pause
        how = f"signal {-code}" if code < 0 else f"exit {code}"
        self._log.error("worker ended, starting another", worker=worker.index, by=how, pause=pause)

    def _tell(self, number: signal.Signals) -> None:
        for worker in self._workers:
            if worker.pid:
                os.kill(worker.pid, number)

    def _leave(self, number: signal.Signals, within: float) -> None:
        """From here on workers only go. Their listening sockets are theirs alone now, to be closed in good order."""
        self._leaving = True
        self._deadline = time.monotonic() + within
        self._tell(number)
        self._listeners.close()
        if self._asking is not None:
            self._asking.close()
            self._asking = None

    def _give_up(self, code: int) -> None:
        self._code = code
        if self._claim is not None and not self._ready:
            self._claim.abandon()
        self._leave(NOW, GRACE)

    # -- a successor -----------------------------------------------------------------------------------------------
    def _on_asked(self, offer: handover.Offer) -> None:
        peer = offer.accept()
        if peer is None:
            return
        if self._asking is not None:
            handover.refuse(peer, "another gateway is taking over at this moment; try again when it has")
        elif handover.hand(peer, handover.Handed(*self._listeners, self._memory)):
            self._log.info("another gateway asks for the sockets; serving until it is ready")
            self._asking = peer
        else:
            peer.close()

    def _on_successor(self, peer: socket.socket) -> None:
        said = handover.heard(peer)
        if not said:
            return
        self._asking = None
        if said == "gone":
            peer.close()
            self._log.warn("the gateway that asked for the sockets has gone; serving on")
            return
        self._log.info("another gateway serves now; draining", drain=self._config.limits.drain)
        self._leave(RETIRE, self._config.limits.drain + GRACE)
        if self._offer is not None:
            self._offer.close(keep_path=True)
        handover.farewell(peer)


def _drained(descriptor: int) -> list[int]:
    """The numbers of the signals that came, each once and in order, children last: nothing is restarted on leaving."""
    try:
        numbers = list(os.read(descriptor, 4096))
    except BlockingIOError:
        return []
    return sorted(dict.fromkeys(numbers), key=lambda number: number == signal.SIGCHLD)
