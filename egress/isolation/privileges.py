"""What the command may not have: capabilities, and every way to get them back.

The sandbox's init does this to itself before it forks the command, so nothing with more rights than the command
lives in the sandbox's namespaces. The network namespace belongs to the user namespace one floor above: what the
command may become inside a user namespace of its own gives it nothing there (user_namespaces(7)).
"""

from __future__ import annotations

import os

from egress.isolation import syscalls as sys_

CAP_SETUID = 7
CAP_NET_ADMIN = 12
CAP_SYS_ADMIN = 21


def has(capability: int) -> bool:
    """Whether this process holds `capability` effectively (in its own user namespace)."""
    return bool(sys_.capabilities()[0] >> capability & 1)


def make_ambient() -> None:
    """Let programs started from here keep this process's capabilities, whatever its user id (capabilities(7))."""
    _, permitted, _ = sys_.capabilities()
    sys_.set_capabilities(permitted, permitted, permitted)
    for number in range(_last_capability() + 1):
        if permitted >> number & 1:
            sys_.prctl(sys_.PR_CAP_AMBIENT, sys_.PR_CAP_AMBIENT_RAISE, number)


def nest_user_namespace(uid: int, gid: int) -> bool:
    """Enter one more user namespace, same user, so that not even the owner of the network's one is left here.

    False where the kernel gives no more of them: dropping every capability is what holds either way.
    """
    try:
        sys_.unshare(sys_.CLONE_NEWUSER)
    except OSError:
        return False
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{uid} {uid} 1")
    _write("/proc/self/gid_map", f"{gid} {gid} 1")
    return True


def drop_all() -> None:
    """Give up every capability for good: bounding set, ambient set, securebits, and no new privileges by exec."""
    for number in range(_last_capability() + 1):
        sys_.prctl(sys_.PR_CAPBSET_DROP, number)
    sys_.prctl(sys_.PR_SET_SECUREBITS, sys_.SECUREBITS_LOCKED)
    sys_.prctl(sys_.PR_CAP_AMBIENT, sys_.PR_CAP_AMBIENT_CLEAR_ALL)
    sys_.set_capabilities(0, 0, 0)
    sys_.prctl(sys_.PR_SET_NO_NEW_PRIVS, 1)


def _last_capability() -> int:
    try:
        with open("/proc/sys/kernel/cap_last_cap", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 40


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
