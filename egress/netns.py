"""The one door to the kernel's network: every socket that touches the sandbox's side is opened here.

A socket stays in the network namespace it was opened in, so one process can guard several sandboxes: `Namespace(None)`
is the one this process lives in, `Namespace(fd)` any other. For those a short-lived thread enters (setns(2) moves only
the calling thread), does the work and ends; the process itself never moves and has nothing to restore.
"""

from __future__ import annotations

import _thread
import errno
import os
import socket
import struct

from policies.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeVar

    T = TypeVar("T")

NETLINK_ROUTE, NETLINK_SOCK_DIAG, NETLINK_NETFILTER = 0, 4, 12
_CLONE_NEWNET = 0x40000000
_SO_MARK, _SO_PRIORITY = 36, 12
_SOL_NETLINK, _NETLINK_CAP_ACK, _NETLINK_EXT_ACK = 270, 10, 11
_RTMGRP_LINK, _RTMGRP_IPV4_IFADDR, _RTMGRP_IPV6_IFADDR = 0x1, 0x10, 0x100
_RTM_NEWLINK, _RTM_NEWADDR, _RTM_NEWROUTE = 16, 20, 24
_RTM_GETLINK, _RTM_GETADDR, _RTM_GETROUTE = 18, 22, 26
_RTM_NEWTFILTER, _RTM_GETTFILTER = 44, 46
_INGRESS = (0xFFFF0000, 0xFFFFFFF2)  # where filters of `ingress` and of `clsact` hang: ffff: and ffff:fff2
_NLM_REQUEST, _NLM_ACK, _NLM_DUMP = 0x1, 0x4, 0x300
_IFF_UP = 0x1
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_HEAD = struct.Struct("=IHHII")
_ATTR = struct.Struct("=HH")


class Exemption(NamedTuple):
    """Mark and priority of a socket whose packets pass the ruleset: 64 bits that only this process knows."""

    mark: int
    priority: int


def secret() -> Exemption:
    """64 bits of the kernel's randomness, both halves non-zero."""
    data = os.urandom(8)
    return Exemption(int.from_bytes(data[:4], "big") | 1, int.from_bytes(data[4:], "big") | 1)


class Address(NamedTuple):
    """An address of this namespace: packed, prefix length, the index of its device."""

    packed: bytes
    length: int
    device: int


class Device(NamedTuple):
    """A network device: number, name, IFF_* flags."""

    number: int
    name: str
    flags: int
    peer: int = (
        0  # the number, in its own namespace, of the other end of a veth pair that leads out of this one; else 0
    )


class Namespace:
    """A network namespace; `fd` is an open /proc/PID/ns/net or /run/netns file, None the process's own."""

    __slots__ = ("fd",)

    def __init__(self, fd: int | None = None) -> None:
        self.fd = fd

    def inside(self, work: Callable[[], T]) -> T:
        """Run `work` with the calling thread in this namespace. Entering another one needs CAP_SYS_ADMIN (OSError)."""
        fd = self.fd
        if fd is None:
            return work()
        done = _thread.allocate_lock()
        done.acquire()
        outcome: list[T] = []
        trouble: list[BaseException] = []

        def visit() -> None:
            try:
                _setns(fd)
                outcome.append(work())
            except BaseException as error:  # noqa: BLE001 - handed to the caller below
                trouble.append(error)
            finally:
                done.release()

        _thread.start_new_thread(visit, ())
        done.acquire()
        if trouble:
            raise trouble[0]
        return outcome[0]

    def open(self, family: int, kind: int, protocol: int = 0) -> socket.socket:
        """A close-on-exec socket in this namespace."""
        return self.inside(lambda: socket.socket(family, kind | socket.SOCK_CLOEXEC, protocol))

    def netlink(self, protocol: int, *, groups: int = 0, receive: int = 1 << 20) -> socket.socket:
        """A bound netlink socket with short, explained errors; `receive` is its buffer in octets."""
        sock = self.open(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
        try:
            for option in (_NETLINK_CAP_ACK, _NETLINK_EXT_ACK):
                try:
                    sock.setsockopt(_SOL_NETLINK, option, 1)
                except OSError:
                    pass  # older kernels echo the request: longer, not wrong
            try:
                sock.setsockopt(socket.SOL_SOCKET, 33, receive)  # SO_RCVBUFFORCE, with CAP_NET_ADMIN
            except OSError:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
            sock.bind((0, groups))
        except OSError:
            sock.close()
            raise
        return sock

    def connect(self, packed: bytes, port: int, kind: int, exemption: Exemption | None = None) -> socket.socket:
        """A non-blocking UDP or TCP socket to `packed`; for TCP the connection may still be in progress.

        With an exemption the ruleset lets its packets pass and keeps what comes over `lo` in the far end's name away
        from it. (Binding it to the device would not: a packet to an own address counts as received on that address's
        device, though it never left `lo`.)
        """
        family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
        sock = self.exempted(family, kind, exemption)
        try:
            if kind == socket.SOCK_DGRAM:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)
            code = sock.connect_ex((socket.inet_ntop(family, packed), port))
            if code not in (0, errno.EINPROGRESS):
                raise OSError(code, os.strerror(code))
        except OSError:
            sock.close()
            raise
        return sock

    def exempted(self, family: int, kind: int, exemption: Exemption | None) -> socket.socket:
        """A non-blocking socket that is not connected yet. Raises OSError."""
        sock = self.open(family, kind | socket.SOCK_NONBLOCK)
        try:
            if exemption is not None:
                # As bytes: these options are ints to Python, and half of the range is negative numbers.
                sock.setsockopt(socket.SOL_SOCKET, _SO_MARK, struct.pack("=I", exemption.mark))
                sock.setsockopt(socket.SOL_SOCKET, _SO_PRIORITY, struct.pack("=I", exemption.priority))
        except OSError:
            sock.close()
            raise
        return sock

    # -- what is here ----------------------------------------------------------------------------------------------
    def devices(self) -> tuple[Device, ...]:
        """Every network device of this namespace."""
        found = []
        for kind, body in self._dump(_RTM_GETLINK, b"\0" * 16):
            if kind == _RTM_NEWLINK:
                _, _, _, index, flags, _ = struct.unpack_from("=BBHiII", body)
                attributes = _attributes(body, 16)
                name = attributes.get(3, b"").rstrip(b"\0").decode(errors="replace")
                elsewhere = 37 in attributes  # IFLA_LINK_NETNSID: IFLA_LINK, 5, is another namespace's
                peer = struct.unpack("=I", attributes[5])[0] if elsewhere and 5 in attributes else 0
                found.append(Device(index, name, flags, peer))
        return tuple(found)

    def addresses(self) -> tuple[Address, ...]:
        """Every address of this namespace, IPv4 and IPv6."""
        found = []
        for kind, body in self._dump(_RTM_GETADDR, b"\0" * 8):
            if kind == _RTM_NEWADDR:
                _, length, _, _, index = struct.unpack_from("=BBBBI", body)
                attributes = _attributes(body, 8)
                packed = attributes.get(2) or attributes.get(1)  # IFA_LOCAL is ours, IFA_ADDRESS a peer's when both
                if packed:
                    found.append(Address(packed, length, index))
        return tuple(found)

    def onlink6(self) -> tuple[tuple[bytes, int], ...]:
        """IPv6 prefixes reached without a gateway (routes with a device and no next hop), link-local left out."""
        found: dict[tuple[bytes, int], None] = {}
        for kind, body in self._dump(_RTM_GETROUTE, struct.pack("=BBBBBBBBI", socket.AF_INET6, *([0] * 8))):
            if kind != _RTM_NEWROUTE:
                continue
            _, length, _, _, table, _, _, route_type, _ = struct.unpack_from("=BBBBBBBBI", body)
            attributes = _attributes(body, 12)
            target = attributes.get(1)
            gateway = 5 in attributes or 18 in attributes or 9 in attributes  # RTA_GATEWAY, RTA_VIA, RTA_MULTIPATH
            if route_type != 1 or table == 255 or gateway or target is None or length < 8:
                continue
            if target[0] == 0xFF or (target[0] == 0xFE and target[1] & 0xC0 == 0x80):
                continue
            found[(target, length)] = None
        return tuple(found)

    def redirected(self) -> tuple[str, ...]:
        """Devices on which tc sends what comes in to another device (act_mirred, at ingress)."""
        found: dict[str, None] = {}
        for device in self.devices():
            for parent in _INGRESS:
                request = struct.pack("=BxxxiIII", 0, device.number, 0, parent, 0)
                try:
                    answer = [body for kind, body in self._dump(_RTM_GETTFILTER, request) if kind == _RTM_NEWTFILTER]
                except OSError:
                    continue  # no such place on this device, or no tc in this kernel
                if any(b"mirred\0" in body for body in answer):
                    found[device.name] = None
        return tuple(found)

    def put_down(self, number: int) -> None:
        """Switch a device off, as `ip link set down` does: nobody sends on it. Raises OSError."""
        request = struct.pack("=BxHiII", 0, 0, number, 0, _IFF_UP)
        with self.netlink(NETLINK_ROUTE) as sock:
            sock.send(_HEAD.pack(16 + len(request), _RTM_NEWLINK, _NLM_REQUEST | _NLM_ACK, 1, 0) + request)
            (code,) = struct.unpack_from("=i", sock.recv(1 << 16), 16)
        if code:
            raise OSError(-code, os.strerror(-code))

    def watch(self) -> socket.socket:
        """A non-blocking socket that becomes readable when a device or an address comes, changes or goes."""
        sock = self.netlink(NETLINK_ROUTE, groups=_RTMGRP_LINK | _RTMGRP_IPV4_IFADDR | _RTMGRP_IPV6_IFADDR)
        sock.setblocking(False)
        return sock

    def _dump(self, request: int, body: bytes) -> Iterator[tuple[int, bytes]]:
        with self.netlink(NETLINK_ROUTE) as sock:
            sock.send(_HEAD.pack(16 + len(body), request, _NLM_REQUEST | _NLM_DUMP, 1, 0) + body)
            while True:
                data = sock.recv(1 << 17)
                at = 0
                while at + 16 <= len(data):
                    length, kind, _, _, _ = _HEAD.unpack_from(data, at)
                    if kind == _NLMSG_DONE:
                        return
                    if kind == _NLMSG_ERROR:
                        code = -int(struct.unpack_from("=i", data, at + 16)[0])
                        raise OSError(code, os.strerror(code))
                    yield kind, data[at + 16 : at + length]
                    at += (length + 3) & ~3


def _attributes(body: bytes, at: int) -> dict[int, bytes]:
    found = {}
    while at + 4 <= len(body):
        length, kind = _ATTR.unpack_from(body, at)
        if length < 4:
            break
        found[kind & 0x3FFF] = body[at + 4 : at + length]
        at += (length + 3) & ~3
    return found


def _setns(fd: int) -> None:
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    if library.setns(fd, _CLONE_NEWNET):
        code = ctypes.get_errno()
        raise OSError(code, f"cannot enter the network namespace: {os.strerror(code)}")
