"""PID 1: locks down first, then keeps alive whoever serves.

    lock down ─▶ settings ─▶ ports bound ─▶ what the worker needs is imported once ─▶ fork
                                                         ▲                              │ died
                                                         └──────── fork again ◀─────────┘

It runs no loop and reads nothing that comes from the sandbox: it waits for signals. Sockets, memory files and the
ruleset belong to it, so a worker's death costs the sandbox a few milliseconds of waiting in a socket's queue and no
packet that was not allowed. The lock-down is `firewall/shut.py`, which `__main__` asks for before this is imported.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

EXIT_CONFIG = 2
STOP_WITHIN = 0.7  # seconds a worker has to end before it is killed
KILLED_WITHIN = 0.2  # seconds
SETTLED = 5.0  # seconds after which a worker counts as well
LACKING = 0.1  # seconds until a process is tried again where there was no room for one
LISTEN = 0.01  # seconds between looks for signals while a process is due
BACK_OFF = (0.0, 0.0, 0.01, 0.05, 0.1, 0.5, 1.0)  # seconds before the n-th restart of a worker that does not settle
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGCHLD, signal.SIGHUP)


def serve(environ: Mapping[str, str]) -> int:
    """Run the sidecar until SIGTERM. Returns the exit code."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    from egress.firewall import FirewallError
    from egress.firewall.guardhouse import Firewall
    from egress.runtimes import below, beside

    foreign = below()
    if foreign:
        return _refuse(f"cannot guard: {foreign}", 1)
    try:
        firewall = Firewall()
        firewall.close_up()
    except (FirewallError, OSError) as error:
        return _refuse(f"cannot lock down: {error}", 1)

    from egress.config import ConfigError, from_env
    from egress.listeners import StartError, bind

    try:
        config = from_env(environ, _read("/etc/resolv.conf"))
        stack = beside(firewall.namespace)
        if stack is not None and not stack.held:
            raise FirewallError(stack.words)
        sockets = bind(config)
        from egress import app

        plan = app.prepare(config, firewall, sockets)
        from egress import privileges
        from egress.control.rulefiles import FOLDER

        plan = plan._replace(held=privileges.settle(config.policy_file, FOLDER))
    except (ConfigError, StartError) as error:
        firewall.deny()
        return _refuse(str(error), EXIT_CONFIG)
    except (FirewallError, OSError) as error:
        firewall.deny()
        return _refuse(f"cannot start: {error}", 1)
    works: dict[str, Callable[[], int]] = {"worker": lambda: app.work(plan)}
    if sockets.names is not None:
        works["name guard"] = lambda: app.relay(plan)
    code = _supervise([_Child(name, work) for name, work in works.items()])
    from egress.firewall import xdp

    xdp.release(plan.places)  # a runtime that stops us waits for that
    return code


class _Child:
    """A process that is started again whenever it ends."""

    def __init__(self, name: str, work: Callable[[], int]) -> None:
        self.name = name
        self._work = work
        self._started = 0.0
        self._failures = 0
        self._lacking = False  # no process was to be had
        self.pid = 0

    def start(self) -> float | None:
        """None, or where the kernel has no room for a process: in how many seconds to try again."""
        try:
            self.pid = _fork(self.name, self._work)
        except OSError as error:
            if not self._lacking:
                _say("error", f"{self.name} cannot be started, trying again: {error.strerror}; enforcement stands")
            self._lacking = True
            return LACKING
        self._started = time.monotonic()
        self._lacking = False
        return None

    def ended(self, status: int) -> float:
        """Say so; in how many seconds to start it again."""
        self.pid = 0
        code = os.waitstatus_to_exitcode(status)
        if time.monotonic() - self._started > SETTLED:
            self._failures = 0
        pause = BACK_OFF[min(self._failures, len(BACK_OFF) - 1)]
        self._failures += 1
        how = f"signal {-code}" if code < 0 else f"exit {code}"
        _say("warn", f"{self.name} ended by {how}; enforcement stands, starting the next one")
        return pause


def _supervise(children: Sequence[_Child]) -> int:
    import gc

    spare_memory()
    gc.freeze()  # the workers share these pages for as long as nobody writes to them
    due = dict.fromkeys(children, 0.0)  # when those that do not run are started
    while True:
        now = time.monotonic()
        for child in [child for child, when in due.items() if when <= now]:
            pause = child.start()
            if pause is None:
                del due[child]
            else:
                due[child] = now + pause
        number = _heard(min(due.values())) if due else signal.sigwaitinfo(_SIGNALS).si_signo
        if number not in (signal.SIGCHLD, signal.SIGHUP):  # a terminal that went away is no reason to leave
            _stop([child for child in children if child.pid])
            return 0
        ended = _reap()
        now = time.monotonic()
        for child in children:
            if child.pid in ended:
                due[child] = now + child.ended(ended[child.pid])


def _heard(until: float) -> int:
    """The next signal; SIGCHLD when there is none until then, as `time.monotonic` counts.

    `sigtimedwait` is given no time to wait: to a process that was stopped or frozen (SIGSTOP, `docker pause`) beyond it
    CPython returns a signal that nobody has sent.
    """
    while True:
        heard = signal.sigtimedwait(_SIGNALS, 0)
        if heard is not None:
            return heard.si_signo
        left = until - time.monotonic()
        if left <= 0:
            return signal.SIGCHLD
        time.sleep(min(left, LISTEN))


def spare_memory() -> None:
    """One arena for all threads, and what the lock-down used goes back: two processes share little, so both are small
    (mallopt(3), malloc_trim(3)). A C library without these does without."""
    import ctypes

    library = ctypes.CDLL(None)
    try:
        library.mallopt(-8, 1)  # M_ARENA_MAX
        library.malloc_trim(0)
    except AttributeError:
        pass


def _reap() -> dict[int, int]:
    """Collect every ended child (as PID 1 also strangers'): process id to status."""
    found: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        found[pid] = status


def _stop(children: Sequence[_Child]) -> None:
    left = {child.pid for child in children}
    for number, patience in ((signal.SIGTERM, STOP_WITHIN), (signal.SIGKILL, KILLED_WITHIN)):
        for pid in left:
            os.kill(pid, number)
        end = time.monotonic() + patience  # killed: its sockets are its successor's to bind
        while left and time.monotonic() < end:
            signal.sigtimedwait((signal.SIGCHLD,), max(0.0, end - time.monotonic()))
            left -= _reap().keys()


def _fork(name: str, work: Callable[[], int]) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        die_with_parent(parent)
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):  # a terminal's: the supervisor decides
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        code = work()
    except BaseException as error:  # noqa: BLE001 - whatever it was, the next worker is the answer
        _say("error", f"{name}: {type(error).__name__}: {error}")
    finally:
        os._exit(code)


def die_with_parent(parent: int) -> None:
    """PR_SET_PDEATHSIG (prctl(2)): a worker never outlives its supervisor."""
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(65536)
    except OSError:
        return ""


def _say(level: str, message: str) -> None:
    from egress.log import emit

    emit(level, message)  # which closes what it opens: all that is open here is every later worker's too


def _refuse(message: str, code: int) -> int:
    print(f"egress: {message}", file=sys.stderr, flush=True)
    return code
