"""The way out of the sandbox's network: `pasta`, else `slirp4netns`, a process that carries packets in user space.

Neither may open a door of its own: no port of the host is forwarded into the sandbox or out of it, and the gateway's
address does not stand for the host's loopback. They run in the host's network with the capabilities of the sandbox's
user namespace only; what they carry has passed the guard's rules before it reaches them.
"""

from __future__ import annotations

import os
import shutil
import signal
from typing import NamedTuple, NoReturn

from egress.isolation import privileges
from egress.isolation import syscalls as sys_

HOOK = "/tmp/network"  # noqa: S108 - in a mount namespace of this helper's own, on a fresh tmpfs
INSTALL = "install pasta (Debian: apt-get install passt) or slirp4netns"
PROGRAMS: tuple[str, ...] = ("pasta", "slirp4netns")  # the first that is installed is used
FOLDERS: tuple[str, ...] = ("/usr/local/bin", "/usr/bin", "/usr/sbin", "/bin")  # looked into besides PATH
START_WITHIN = 10.0  # seconds


class Helper(NamedTuple):
    """A user-mode network program and how it is called."""

    name: str
    path: str

    def command(self, ready_fd: int) -> list[str]:
        if self.name == "pasta":
            closed = [word for flag in ("-t", "-u", "-T", "-U") for word in (flag, "none")]
            return [self.path, "--quiet", "--config-net", *closed, "--no-map-gw", "--netns", HOOK]
        return [
            self.path, "--configure", "--mtu=65520", "--disable-host-loopback", "--disable-dns", "--enable-ipv6",
            "--netns-type=path", f"--ready-fd={ready_fd}", HOOK, "tap0",
        ]  # fmt: skip


def find() -> tuple[Helper | None, str]:
    """The program to use, or None and one line that says what is missing and what to do."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), *FOLDERS))
    for name in PROGRAMS:
        found = shutil.which(name, path=path)
        if found:
            if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
                return None, (
                    "this user may not open /dev/net/tun, so the sandbox has only its loopback; an administrator can "
                    "allow it: chmod 0666 /dev/net/tun"
                    if os.path.exists("/dev/net/tun")
                    else "there is no /dev/net/tun here (modprobe tun; in a container: --device /dev/net/tun), so the "
                    "sandbox has only its loopback"
                )
            return Helper(name, found), ""
    return None, f"no user-mode network program is installed, so the sandbox has only its loopback; {INSTALL}"


def start(helper: Helper, network_fd: int) -> tuple[int, str]:
    """Connect the network; returns (PID to watch or 0 where it put itself into the background, problem or "").

    The caller is the first process of a PID namespace, so that the helper dies with it whatever happens.
    """
    words = os.memfd_create("connectivity")
    ready, signal_ready = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        _become(helper, network_fd, words, signal_ready)
    os.close(signal_ready)
    try:
        if helper.name == "pasta":  # it goes into the background when the network stands
            _, status = os.waitpid(pid, 0)
            return 0, "" if status == 0 else _said(words, helper)
        if _readable(ready):
            return pid, ""
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return 0, _said(words, helper)
    finally:
        os.close(ready)
        os.close(words)


def _become(helper: Helper, network_fd: int, words: int, ready_fd: int) -> NoReturn:
    try:
        sys_.unshare(sys_.CLONE_NEWNS)
        sys_.mount("none", "/", flags=sys_.MS_REC | sys_.MS_PRIVATE)
        sys_.mount("tmpfs", "/tmp", "tmpfs", sys_.MS_NOSUID | sys_.MS_NODEV, "size=64k,mode=755")  # noqa: S108
        os.close(os.open(HOOK, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        # A path, because pasta gives up the right to look into /proc/PID of a process that has more than it.
        sys_.mount(f"/proc/self/fd/{network_fd}", HOOK, flags=sys_.MS_BIND)
        privileges.make_ambient()
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # pasta of 2023 takes an inherited "ignore" for an error
        nothing = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        for target, source in ((0, nothing), (1, words), (2, words)):
            os.dup2(source, target)
        os.set_inheritable(ready_fd, True)
        os.execv(helper.path, helper.command(ready_fd))  # noqa: S606
    except OSError as error:
        os.write(words, f"{error}\n".encode())
    os._exit(127)


def _readable(fd: int) -> bool:
    """Whether a byte came (ready) and not the end (it died)."""
    import select

    found, _, _ = select.select([fd], [], [], START_WITHIN)
    return bool(found) and os.read(fd, 1) != b""


def _said(words: int, helper: Helper) -> str:
    text = os.pread(words, 4096, 0).decode("utf-8", "replace")
    lines = [line.strip() for line in text.splitlines() if line.strip() and "to syslog" not in line]
    reason = "; ".join(lines[-2:]) or "no reason given"
    return f"{helper.name} could not connect the sandbox: {reason}"
