"""XDP sockets: what they send passes no hook of the namespace, so their places are taken before the sandbox can.

`socket(AF_XDP)` needs CAP_NET_RAW and nothing else, and in copy mode its frames go straight to the driver, past every
chain, the netdev egress hook too (net/xdp/xsk.c, `__dev_direct_xmit`). But a queue of a device takes one such socket:
the next gets EBUSY. So the supervisor binds one to every queue of every device, reads and sends nothing, and keeps them
for its life. Without CAP_NET_RAW it cannot; then that is said.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import time

from policies.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from egress.netns import Namespace

_AF_XDP, _SOL_XDP = 44, 283  # linux/socket.h
_TX_RING, _UMEM_REG, _FILL_RING, _COMPLETION_RING = 3, 4, 5, 6  # XDP_*, linux/if_xdp.h
_COPY = 1 << 1
_PAGE = 4096
_MOST_QUEUES = 1024
_IFF_UP = 1
PATIENCE = 0.5  # seconds: the kernel takes a dead predecessor's socket off its queue in its own time

NEEDS = "give this container NET_RAW (it is given up once the start is over), or take NET_RAW from the sandbox"


class Places(NamedTuple):
    """The sockets that hold the queues, and why that is not all of them; "" where it is."""

    sockets: tuple[int, ...] = ()
    problem: str = ""


def take(namespace: Namespace) -> Places:
    """Hold every queue of every device of this namespace that is up. The sockets live until they are closed."""
    held: list[int] = []
    problems: list[str] = []
    try:
        names = [device.name for device in namespace.devices() if device.flags & _IFF_UP]
        for name in names:
            problem = namespace.inside(lambda name=name: _take_device(name, held))  # type: ignore[misc]
            if problem:
                problems.append(problem)
    except OSError as error:
        if error.errno == errno.EAFNOSUPPORT:
            return Places()  # a kernel without them
        if error.errno in (errno.EPERM, errno.EACCES):
            problems.append(f"CAP_NET_RAW is missing to hold their places: {NEEDS}")
        else:
            problems.append(f"their places cannot be held: {error.strerror}")
    return Places(tuple(held), "; ".join(problems))


def release(places: Places) -> None:
    """Close them all at once: each close waits until no processor looks at the device any more, some 10 ms."""
    import threading

    closing = []
    for fd in places.sockets:
        thread = threading.Thread(target=os.close, args=(fd,))
        try:
            thread.start()
        except RuntimeError:  # no room for a thread: the end of the process closes the rest
            break
        closing.append(thread)
    for thread in closing:
        thread.join()


def _take_device(name: str, held: list[int]) -> str:
    index = socket.if_nametoindex(name)
    end = time.monotonic() + PATIENCE
    queue = 0
    while queue < _MOST_QUEUES:
        fd = _open()
        code = _bind(fd, index, queue)
        if code == 0:
            held.append(fd)
            queue += 1
            continue
        os.close(fd)
        if code == errno.EBUSY and time.monotonic() < end:
            time.sleep(0.005)
            continue
        if code == errno.EBUSY:
            return f"somebody has one on {name} already: what it sends passes no rule"
        if code in (errno.EINVAL, errno.ENETDOWN, errno.ENODEV) and (queue or code != errno.EINVAL):
            return ""  # behind the last queue, or no device to send through
        return f"{name}: {os.strerror(code)}"
    return ""


def _open() -> int:
    """An XDP socket that could be bound, with a page of memory. Raises OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    fd = int(library.socket(_AF_XDP, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0))
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    memory = library.mmap(None, _PAGE, 3, 0x22, -1, 0)  # read, write; private, anonymous
    try:
        _set(library, fd, _UMEM_REG, struct.pack("=QQIIII", memory, _PAGE, _PAGE, 0, 0, 0))
        for ring in (_FILL_RING, _COMPLETION_RING, _TX_RING):
            _set(library, fd, ring, struct.pack("=I", 1))
    except OSError:
        os.close(fd)
        raise
    finally:
        library.munmap(memory, _PAGE)  # the socket holds the page
    return fd


def _set(library: ctypes.CDLL, fd: int, option: int, value: bytes) -> None:
    if library.setsockopt(fd, _SOL_XDP, option, value, len(value)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _bind(fd: int, index: int, queue: int) -> int:
    """0, or why not."""
    library = ctypes.CDLL(None, use_errno=True)
    address = struct.pack("=HHIII", _AF_XDP, _COPY, index, queue, 0)
    return ctypes.get_errno() if library.bind(fd, address, len(address)) else 0
