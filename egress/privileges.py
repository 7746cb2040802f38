"""The minimum of privilege: what the guard gives up once its ports are bound, and for good.

    supervisor   capabilities   CAP_NET_ADMIN, permitted to its workers and without effect for itself
                 system calls   no program is started, no process read, nothing mounted (`callfilter.supervisor_filter`)
                 files          written below the policy file's folder only, none executed; signals stay among ourselves
                                (Landlock)
    worker       the same, CAP_NET_ADMIN in effect, and no process is forked (`callfilter.worker_filter`)

The kernel asks for CAP_NET_ADMIN again with each netlink message and each mark, of the sender and of the opener, so no
worker can do without. Nobody but the kernel reads our memory: the exemption and the token lie in it.

Every part is worth having alone and none is needed for the guard to guard: what a kernel refuses is told, by
`Held.shortcomings`, and the start goes on. Each call here is by ctypes, which the lock-down has loaded already.
"""

from __future__ import annotations

import ctypes
import os
import struct

from egress.callfilter import MACHINES, assembled, supervisor_filter, worker_filter
from policies.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from egress.callfilter import Line, Machine

CAP_DAC_OVERRIDE, CAP_NET_ADMIN = 1, 12
_NAMES = {CAP_NET_ADMIN: "NET_ADMIN", CAP_DAC_OVERRIDE: "DAC_OVERRIDE"}
_VERSION_3 = 0x20080522  # _LINUX_CAPABILITY_VERSION_3
_LAST_CAPABILITY = 63
_SET_DUMPABLE, _CAPBSET_READ, _CAPBSET_DROP = 4, 23, 24  # PR_*
_SET_NAME = 15
_SET_NO_NEW_PRIVS, _CAP_AMBIENT, _AMBIENT_CLEAR_ALL = 38, 47, 4
_MODE_FILTER, _TSYNC, _SPEC_ALLOW = 1, 1, 4  # SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_*
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # landlock_*(2), on every architecture
_BENEATH = 1  # LANDLOCK_RULE_PATH_BENEATH
# LANDLOCK_ACCESS_FS_*: execute, write, remove and make of every kind; reading stays free, there is nothing to hide
_EXECUTE, _WRITE, _REMOVE_FILE, _MAKE_REG, _TRUNCATE = 1, 1 << 1, 1 << 5, 1 << 8, 1 << 14
_FILES = _EXECUTE | _WRITE | sum(1 << bit for bit in range(4, 13))
_REFER, _DEVICES = 1 << 13, 1 << 15
_ABSTRACT_SOCKETS, _SIGNALS = 1, 2  # LANDLOCK_SCOPE_*


class Held(NamedTuple):
    """What a process could give up."""

    capabilities: int  # a set: those that it keeps
    bounded: bool  # nothing it starts could have others
    filtered: bool  # system calls
    landlock: int  # the kernel's version of it, 0 where there is none

    def shortcomings(self) -> tuple[str, ...]:
        """What could not be given up, one sentence each."""
        found = []
        if not self.filtered:
            found.append("system calls are not filtered (no seccomp filter for this kernel and machine)")
        if not self.landlock:
            found.append("files are not closed off (no Landlock in this kernel)")
        return tuple(found)

    def words(self) -> str:
        """What was given up, on one line for people."""
        kept = [name for number, name in _NAMES.items() if self.capabilities >> number & 1]
        parts = [f"capabilities but {' and '.join(kept)} given up" if kept else "all capabilities given up"]
        if self.filtered:
            parts.append("system calls filtered")
        if self.landlock:
            parts.append(f"files closed off (Landlock {self.landlock})")
        return ", ".join(parts)


def settle(policy_file: str = "", rules: str = "") -> Held:
    """Give up, for this process and all that it forks, what no worker needs; the worker then calls `take_up`.

    `policy_file` is the one file that is written, `rules` a folder that is read; "" = none. Call it with one thread
    only, when every port is bound. Raises OSError where the kernel refuses to take capabilities back.
    """
    library = ctypes.CDLL(None, use_errno=True)
    folder = os.path.dirname(os.path.abspath(policy_file)) if policy_file else ""
    bounded = _drop_capabilities(library, lambda: _shut_out(folder, policy_file, rules))
    library.prctl(_SET_DUMPABLE, 0, 0, 0, 0)
    library.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    landlock = _close_files(library, folder)
    filtered = _filter(library, supervisor_filter)
    return Held(_capabilities(library)[1], bounded, filtered, landlock)


def take_up() -> None:
    """In a worker: what it is permitted takes effect, and it forks no more."""
    library = ctypes.CDLL(None, use_errno=True)
    permitted = _capabilities(library)[1]
    _set_capabilities(library, permitted, permitted)
    _filter(library, worker_filter)


def give_up() -> None:
    """In the name guard's relay: no capability at all, and it forks no more. Raises OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    _set_capabilities(library, 0, 0)
    _filter(library, worker_filter)
    library.prctl(_SET_NAME, b"egress-names", 0, 0, 0)  # what `ps` shows of it


# -- capabilities ----------------------------------------------------------------------------------------------------
def _drop_capabilities(library: ctypes.CDLL, shut_out: Callable[[], bool]) -> bool:
    """Keep what is needed as permitted, nothing as effective. Whether nothing is left in the bounding set."""
    _, permitted = _capabilities(library)
    kept = 1 << CAP_NET_ADMIN & permitted
    for number in range(_LAST_CAPABILITY + 1):  # while CAP_SETPCAP is still there; without it they stay
        if library.prctl(_CAPBSET_READ, number, 0, 0, 0) == 1:
            library.prctl(_CAPBSET_DROP, number, 0, 0, 0)
    library.prctl(_CAP_AMBIENT, _AMBIENT_CLEAR_ALL, 0, 0, 0)
    _set_capabilities(library, 0, permitted)
    override = 1 << CAP_DAC_OVERRIDE & permitted
    if override and shut_out():
        kept |= override
    _set_capabilities(library, 0, kept)
    return all(library.prctl(_CAPBSET_READ, number, 0, 0, 0) != 1 for number in range(_LAST_CAPABILITY + 1))


def _capabilities(library: ctypes.CDLL) -> tuple[int, int]:
    """(effective, permitted) of this thread. Raises OSError."""
    data = (ctypes.c_uint32 * 6)()
    if library.capget(struct.pack("=Ii", _VERSION_3, 0), data):
        raise OSError(ctypes.get_errno(), "capget")
    return data[0] | data[3] << 32, data[1] | data[4] << 32


def _set_capabilities(library: ctypes.CDLL, effective: int, permitted: int) -> None:
    """Inheritable ones: none. Raises OSError."""
    low = 0xFFFFFFFF
    data = struct.pack("=6I", effective & low, permitted & low, 0, effective >> 32, permitted >> 32, 0)
    if library.capset(struct.pack("=Ii", _VERSION_3, 0), data):
        raise OSError(ctypes.get_errno(), "capset")


def _shut_out(folder: str, policy_file: str, rules: str) -> bool:
    """Whether our files are somebody else's, mounted into our container: there root may read and write as ever."""
    wanted = [(folder, os.R_OK | os.W_OK | os.X_OK), (policy_file, os.R_OK), (rules, os.R_OK | os.X_OK)]
    if rules:
        try:
            wanted += [(entry.path, os.R_OK) for entry in os.scandir(rules)]
        except OSError:
            pass
    return any(os.path.exists(path) and not os.access(path, mode, effective_ids=True) for path, mode in wanted if path)


# -- system calls ----------------------------------------------------------------------------------------------------
class _Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("lines", ctypes.c_char_p))


def _filter(library: ctypes.CDLL, write: Callable[[Machine], list[Line]]) -> bool:
    machine = MACHINES.get(os.uname().machine)
    if machine is None or ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    lines = write(machine)
    program = _Program(len(lines), assembled(lines))
    # All threads, and no mitigations for code that we don't run: older kernels would slow every branch down.
    result = library.syscall(
        ctypes.c_long(machine.seccomp),
        ctypes.c_ulong(_MODE_FILTER),
        ctypes.c_ulong(_TSYNC | _SPEC_ALLOW),
        ctypes.byref(program),
    )
    return bool(result == 0)


# -- files -----------------------------------------------------------------------------------------------------------
def _close_files(library: ctypes.CDLL, folder: str) -> int:
    """Landlock (landlock(7)): the version that holds, 0 for none."""
    version = int(library.syscall(ctypes.c_long(_CREATE_RULESET), None, ctypes.c_size_t(0), ctypes.c_uint(1)))
    if version < 1:
        return 0
    handled, scoped = _FILES, 0
    if version >= 2:
        handled |= _REFER
    if version >= 3:
        handled |= _TRUNCATE
    if version >= 5:
        handled |= _DEVICES
    if version >= 6:
        scoped = _ABSTRACT_SOCKETS | _SIGNALS
    attributes = struct.pack("=QQQ", handled, 0, scoped)[: 24 if version >= 6 else 16 if version >= 4 else 8]
    ruleset = int(
        library.syscall(ctypes.c_long(_CREATE_RULESET), attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint(0))
    )
    if ruleset < 0:
        return 0
    try:
        if folder:
            allowed = (_WRITE | _REMOVE_FILE | _MAKE_REG | _TRUNCATE) & handled
            _allow(library, ruleset, folder, allowed)
        done = library.syscall(ctypes.c_long(_RESTRICT_SELF), ctypes.c_int(ruleset), ctypes.c_uint(0))
    except OSError:
        return 0  # the folder cannot be opened: better no walls than a policy that cannot be kept
    finally:
        os.close(ruleset)
    return version if done == 0 else 0


def _allow(library: ctypes.CDLL, ruleset: int, folder: str, access: int) -> None:
    """Raises OSError."""
    fd = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("=Qi", access, fd)
        if library.syscall(
            ctypes.c_long(_ADD_RULE), ctypes.c_int(ruleset), ctypes.c_int(_BENEATH), rule, ctypes.c_uint(0)
        ):
            raise OSError(ctypes.get_errno(), "landlock_add_rule")
    finally:
        os.close(fd)
