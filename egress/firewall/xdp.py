"""XDP sockets: what they send passes no hook of the namespace, so their places are taken before the sandbox can.

`socket(AF_XDP)` needs CAP_NET_RAW and nothing else, and in copy mode its frames go straight to the driver, past every
chain, the netdev egress hook too (net/xdp/xsk.c, `__dev_direct_xmit`). But a queue of a device takes one such socket:
the next gets EBUSY. So the supervisor binds one to every queue of every device, reads and sends nothing, and keeps them
for its life. Without CAP_NET_RAW it cannot; then that is said.

Only making such a socket needs the privilege, binding it does not. So a stock of unbound ones is made too, and the
worker, which has given CAP_NET_RAW up, binds of these to devices that come later. They are the supervisor's as well:
what a worker has bound outlives it. Which device each was bound to stands in a memory file that all of them share.
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
    from egress.netns import Device, Namespace

_AF_XDP, _SOL_XDP = 44, 283  # linux/socket.h
_TX_RING, _UMEM_REG, _FILL_RING, _COMPLETION_RING = 3, 4, 5, 6  # XDP_*, linux/if_xdp.h
_COPY = 1 << 1
_PAGE = 4096
_MOST_QUEUES = 1024
_IFF_UP = 1
_NOTE = struct.Struct("=I")
PATIENCE = 0.5  # seconds: the kernel takes a dead predecessor's socket off its queue in its own time
STOCK = 64
"""Sockets for queues of devices that come later, where there are descriptors for them. A device that goes takes its own
along: the kernel binds none twice."""

NEEDS = "give this container NET_RAW (it is given up once the start is over), or take NET_RAW from the sandbox"


class Gap(NamedTuple):
    """A device whose place is not ours."""

    number: int
    words: str
    up: bool  # else nobody sends there
    told: bool  # before


class Places:
    """The sockets that hold the queues, and `problem`, why that was not all of them at the start; "" where it was."""

    def __init__(self, problem: str = "") -> None:
        self.problem = problem
        self.sockets: list[int] = []
        self._devices: list[int] = []  # the number of the device of each; 0: not used yet
        self._memory = -1  # the same for all processes that share the sockets, where more than one binds them
        self._told: set[int] = set()

    def look(self, namespace: Namespace, *, patience: float = 0.0) -> list[Gap]:
        """Hold what is new, down or up. Not for two threads at once. Raises OSError."""
        self._read()
        held: dict[int, int] = {}
        for fd, number in zip(self.sockets, self._devices, strict=True):
            if number and _holds(fd):
                held[number] = held.get(number, 0) + 1
        gaps, devices = [], namespace.devices()
        for device in devices:
            words = self._fill(namespace, device, held.get(device.number, 0), time.monotonic() + patience)
            if words:
                up = bool(device.flags & _IFF_UP)
                gaps.append(Gap(device.number, words, up, not up or device.number in self._told))
        self._told &= {device.number for device in devices}
        self._told |= {gap.number for gap in gaps if gap.up}
        if self._memory < 0:
            self._tidy()
        return gaps

    def follow(self, namespace: Namespace, *, shut: bool) -> list[Gap]:
        """`look` for what has come after the start. `shut`: what is not ours is put down. Raises OSError."""
        gaps = self.look(namespace)
        if shut:
            for gap in [gap for gap in gaps if gap.up]:
                namespace.put_down(gap.number)
            gaps = [gap._replace(words=f"{gap.words}; the device was put down") for gap in gaps]
        return gaps

    def lay_in(self, namespace: Namespace) -> None:
        """Make the stock, for who gives CAP_NET_RAW up and forks. Raises OSError."""
        self._memory = os.memfd_create("xdp-places", os.MFD_CLOEXEC)
        os.ftruncate(self._memory, (len(self.sockets) + STOCK) * _NOTE.size)
        for slot, number in enumerate(self._devices):
            self._note(slot, number)
        most = os.sysconf("SC_OPEN_MAX")
        for _ in range(STOCK if most < 0 else min(STOCK, most // 16)):
            self._add(_socket(namespace))

    def bound(self) -> list[int]:
        """Those of `sockets` that were bound."""
        self._read()
        return [fd for fd, number in zip(self.sockets, self._devices, strict=True) if number]

    def forsake(self) -> None:
        """Close this process's copies: for a fork that has no business with them."""
        for fd in (*self.sockets, self._memory):
            if fd >= 0:
                os.close(fd)

    def _fill(self, namespace: Namespace, device: Device, queue: int, end: float) -> str:
        """Hold the device's queues from this one on; why not, or ""."""
        up = device.flags & _IFF_UP
        whole = queue > 0 and device.number not in self._told
        while queue < _MOST_QUEUES:
            slot = self._unused(namespace)
            if slot < 0:
                need = up and not whole
                return f"no socket is left to hold {device.name}: what one sends there passes no rule" if need else ""
            self._note(slot, device.number)  # first: who dies in between has lost a socket, and not its trace
            code = _bind(self.sockets[slot], device.number, queue)
            if code == 0:
                queue += 1
                continue
            self._note(slot, 0)
            if code == errno.EBUSY and time.monotonic() < end:
                time.sleep(0.005)
                continue
            if code == errno.EBUSY:
                return f"somebody has one on {device.name} already: what it sends passes no rule"
            if code in (errno.EINVAL, errno.ENETDOWN, errno.ENODEV) and (queue or code != errno.EINVAL):
                return ""  # behind the last queue, or no device to send through
            return f"{device.name}: {os.strerror(code)}" if up else ""
        return ""

    def _unused(self, namespace: Namespace) -> int:
        """The place in `sockets` of one that can be bound; -1 for none."""
        if 0 not in self._devices:
            if self._memory >= 0:
                return -1  # one of this process alone would not outlive it
            self._add(_socket(namespace))
        slot = self._devices.index(0)
        _prepare(self.sockets[slot])
        return slot

    def _add(self, fd: int) -> None:
        self.sockets.append(fd)
        self._devices.append(0)

    def _tidy(self) -> None:
        """Close what holds nothing, where another can be made at any time."""
        for fd, number in list(zip(self.sockets, self._devices, strict=True)):
            if not number or not _holds(fd):
                at = self.sockets.index(fd)
                del self.sockets[at], self._devices[at]
                os.close(fd)

    def _note(self, slot: int, number: int) -> None:
        self._devices[slot] = number
        if self._memory >= 0:
            os.pwrite(self._memory, _NOTE.pack(number), slot * _NOTE.size)

    def _read(self) -> None:
        if self._memory >= 0:
            data = os.pread(self._memory, len(self.sockets) * _NOTE.size, 0)
            self._devices = [number for (number,) in _NOTE.iter_unpack(data)]


def take(namespace: Namespace, *, stock: bool = False) -> Places:
    """Hold every queue of every device of this namespace. The sockets live until they are closed. `stock`: see
    `Places.lay_in`."""
    places = Places()
    problems: list[str] = []
    try:
        problems = [gap.words for gap in places.look(namespace, patience=PATIENCE) if gap.up]
        if stock:
            places.lay_in(namespace)
    except OSError as error:
        if error.errno == errno.EAFNOSUPPORT:
            return places  # a kernel without them
        if error.errno in (errno.EPERM, errno.EACCES):
            problems.append(f"CAP_NET_RAW is missing to hold their places: {NEEDS}")
        else:
            problems.append(f"their places cannot be held: {error.strerror}")
    places.problem = "; ".join(problems)
    return places


def release(places: Places) -> None:
    """Close them all at once: each close waits until no processor looks at the device any more, some 10 ms."""
    import threading

    closing = []
    for fd in places.bound():
        thread = threading.Thread(target=os.close, args=(fd,))
        try:
            thread.start()
        except RuntimeError:  # no room for a thread: the end of the process closes the rest
            break
        closing.append(thread)
    for thread in closing:
        thread.join()


def _socket(namespace: Namespace) -> int:
    """An XDP socket in this namespace. Raises OSError."""

    def make() -> int:
        library = ctypes.CDLL(None, use_errno=True)
        fd = int(library.socket(_AF_XDP, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0))
        if fd < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return fd

    return namespace.inside(make)


def _prepare(fd: int) -> None:
    """Give it a page of memory, without which it cannot be bound; once or more. Raises OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    memory = library.mmap(None, _PAGE, 3, 0x22, -1, 0)  # read, write; private, anonymous
    try:
        _set(library, fd, _UMEM_REG, struct.pack("=QQIIII", memory, _PAGE, _PAGE, 0, 0, 0), errno.EBUSY)
        for ring in (_FILL_RING, _COMPLETION_RING, _TX_RING):
            _set(library, fd, ring, struct.pack("=I", 1), errno.EINVAL)
    finally:
        library.munmap(memory, _PAGE)  # the socket holds the page


def _set(library: ctypes.CDLL, fd: int, option: int, value: bytes, there: int) -> None:
    """`there` is what the kernel says where it has been set before."""
    if library.setsockopt(fd, _SOL_XDP, option, value, len(value)) and ctypes.get_errno() != there:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _bind(fd: int, index: int, queue: int) -> int:
    """0, or why not."""
    library = ctypes.CDLL(None, use_errno=True)
    address = struct.pack("=HHIII", _AF_XDP, _COPY, index, queue, 0)
    return ctypes.get_errno() if library.bind(fd, address, len(address)) else 0


def _holds(fd: int) -> bool:
    """Is it bound to a device that is still there? To send none of its frames is an error where it is not."""
    library = ctypes.CDLL(None, use_errno=True)
    return library.sendto(fd, None, 0, socket.MSG_DONTWAIT, None, 0) >= 0 or ctypes.get_errno() != errno.ENXIO
