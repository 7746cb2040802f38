"""Network stacks that the rules of this namespace do not hold, and how they are noticed.

    below us     a kernel in user space (gVisor): its nftables, where it has any, guards nothing. Never started.
    beside us    gVisor, in our namespace, takes the addresses away and sends by packet sockets: the last door drops all
                 of it. Closed, and dead: no name can be answered. Told, and not healthy.
                 A virtual machine whose tap device is joined to eth0 by tc (Kata): what tc redirects passes neither
                 the IP path nor the netdev egress hook (`nf_skip_egress`, net/core/dev.c). Open: never started, and
                 where it comes later told, and not healthy.

What holds where, and how it was tried: docs/runtimes.md.
"""

from __future__ import annotations

import os

from policies.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from egress.loop import Loop
    from egress.netns import Namespace

EVERY = 2.0  # seconds between looks
_UP, _LOOPBACK, _RUNNING = 1, 8, 64  # IFF_*
_READ_ALL, _SIZE = 3, 1 << 16  # syslog(2): SYSLOG_ACTION_READ_ALL
_OLD_RELEASE = "4.4.0"  # what gVisor called itself before it said so


class Stack(NamedTuple):
    """A network stack of its own in our namespace; `held` if nothing of it leaves."""

    held: bool
    words: str


def below(release: str = "", log: str | None = None) -> str:
    """Why the kernel below us cannot guard anything; "" for Linux. The arguments are for tests."""
    release = release or os.uname().release
    old = release == _OLD_RELEASE and "gVisor" in (_kernel_log() if log is None else log)
    if "gvisor" not in release.lower() and not old:
        return ""
    return (
        "gVisor is the kernel here, and our rules do not hold its network stack; run the guard in an ordinary "
        "container and the sandbox with runsc --network=host, or guard at the host's end (docs/runtimes.md)"
    )


def _kernel_log() -> str:
    """The start of the kernel's log, as far as we may read it."""
    import ctypes

    buffer = ctypes.create_string_buffer(_SIZE)
    length = ctypes.CDLL(None).klogctl(_READ_ALL, buffer, _SIZE)
    return buffer.raw[: max(0, length)].decode(errors="replace")


def beside(namespace: Namespace) -> Stack | None:
    """A stack that shares our namespace, or None. Raises OSError."""
    around = namespace.redirected()
    if around:
        return Stack(
            False,
            f"tc redirects what comes in on {', '.join(around)} to another device, past every rule; a virtual machine "
            "(Kata) whose tap device is here is not guarded from here: guard inside it, or at the host's end",
        )
    outward = [device for device in namespace.devices() if not device.flags & _LOOPBACK]
    live = {device.number: device.name for device in outward if device.flags & _UP and device.flags & _RUNNING}
    if not live or any(address.device in {device.number for device in outward} for address in namespace.addresses()):
        return None
    return Stack(
        True,
        f"{', '.join(live.values())} has no address, not even a link-local one: a network stack of its own (gVisor) "
        "has taken them. Nothing of it passes, and no name can be answered: use runsc --network=host, or guard at the "
        "host's end",
    )


class Watch:
    """Looks every two seconds; `tell` hears the words when they change, "" when all is well again."""

    def __init__(self, loop: Loop, namespace: Namespace, tell: Callable[[str], None]) -> None:
        self._loop = loop
        self._namespace = namespace
        self._tell = tell
        self._told = ""
        self._seen: str | None = None
        self._look()

    def _look(self) -> None:
        def done(found: Stack | None, error: BaseException | None) -> None:
            self._loop.call_later(EVERY, self._look)
            if error is not None:
                return  # what could not be looked for is not gone
            words = found.words if found is not None else ""
            # Addresses may be on their way to a device that has just come: what was not here at the start has to stay.
            settled = self._seen in (None, words) or (found is not None and not found.held)
            self._seen = words
            if settled and words != self._told:
                self._told = words
                self._tell(words)

        self._loop.run_in_thread(lambda: beside(self._namespace), done)
