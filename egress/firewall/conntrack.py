"""Flows: which there are, and how one is cut so that it stays cut.

Taking its conntrack entry away does not cut a flow whose peer goes on sending: the next packet from outside makes a
new entry, and the sandbox's packets are then replies. So the tuple goes into a set that is dropped before anything
accepts on state, then the entry goes, then the socket is destroyed, or a blocked reader would never notice.

    linux/netfilter/nfnetlink_conntrack.h, linux/inet_diag.h, linux/sock_diag.h
"""

from __future__ import annotations

import errno
import socket
import struct
from typing import TYPE_CHECKING, NamedTuple

from egress.firewall.cuttable import CUT_SECONDS
from egress.firewall.devices import transact
from egress.firewall.netlink import CHUNK, elements
from egress.firewall.nfnetlink import (
    ACK,
    CREATE,
    DELSETELEM,
    DUMP,
    HEAD,
    INET,
    NEWSETELEM,
    NLMSG_DONE,
    NLMSG_ERROR,
    REQUEST,
    KernelError,
    attribute,
    attributes,
    dump,
    failure,
    message,
    messages,
    nested,
    text,
    u32,
)
from egress.firewall.tables import ACCEPTED, CUT_TABLE
from egress.netns import NETLINK_SOCK_DIAG

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

    from egress.netns import Namespace

_CT_GET, _CT_DELETE = 1 << 8 | 1, 1 << 8 | 2  # NFNL_SUBSYS_CTNETLINK
_DIAG_BY_FAMILY, _DESTROY = 20, 21
_TCP_LISTEN = 1 << 10
_TCP_ESTABLISHED = 1 << 1
_SYN_SENT = 1 << 2
_CLOSED = 1 << 6 | 1 << 7  # TIME_WAIT, CLOSE
_NO_COOKIE = b"\xff" * 8
_PROTOCOLS = {socket.IPPROTO_TCP: "tcp", socket.IPPROTO_UDP: "udp", socket.IPPROTO_ICMP: "icmp", 58: "icmpv6"}


class Flow(NamedTuple):
    """One flow between the sandbox and somebody else; addresses packed, ports 0 where the protocol has none."""

    protocol: str  # "tcp", "udp", "icmp", "icmpv6", else the protocol's number
    local: bytes
    local_port: int
    remote: bytes
    remote_port: int
    outgoing: bool  # opened from inside
    mark: int  # what the ruleset that accepted it left on it; 0: older than every ruleset, or inbound
    redirected: bool  # its peer is not `remote` but a listener here (intercepted DNS)
    tracked: bytes  # its conntrack tuple as the kernel wrote it; empty when only a socket says that it is there


def flows(namespace: Namespace, sock: socket.socket) -> list[Flow]:
    """Every flow that has an end outside: what conntrack knows, and connected sockets that it does not know of.

    Conntrack takes whoever speaks first after it woke up for the one who opened the flow. So of a flow without our
    mark that seems to come from outside, the connected socket is asked: it was opened here when nobody listens on its
    port and the port is one of those that the kernel hands out.
    """
    own = frozenset(address.packed for address in namespace.addresses())
    listening = {end.port for kind, end, _, _ in _sockets(namespace, _TCP_LISTEN) if kind == "tcp"}
    first, last = namespace.inside(_ephemeral)
    connected: dict[tuple[str, bytes, int, bytes, int], bool] = {}
    # A socket in SYN_SENT that conntrack does not know of is being refused: its program is to hear just that.
    for kind, here, there, _ in _sockets(namespace, ~(_TCP_LISTEN | _CLOSED | _SYN_SENT) & 0xFFF):
        if there.port and there.packed not in own and there.packed[0] != 127 and any(there.packed):
            opened_here = not (kind == "tcp" and here.port in listening) and first <= here.port <= last
            connected[(kind, here.packed, here.port, there.packed, there.port)] = opened_here
    found = []
    for entry in _entries(sock):
        flow = _flow(entry, own)
        if flow is not None:
            key = (flow.protocol, flow.local, flow.local_port, flow.remote, flow.remote_port)
            if connected.pop(key, False) and not flow.mark and not flow.outgoing:
                flow = flow._replace(outgoing=True)
            found.append(flow)
    for key, opened_here in connected.items():
        found.append(Flow(*key, opened_here or (key[0] == "tcp" and key[2] not in listening), 0, False, b""))
    return found


def _ephemeral() -> tuple[int, int]:
    """The ports that the kernel hands out."""
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
            first, last = file.read().split()
    except (OSError, ValueError):
        return 32768, 60999
    return int(first), int(last)


def active(namespace: Namespace, sock: socket.socket) -> set[bytes]:
    """The addresses outside that flows opened from inside lead to."""
    own = frozenset(address.packed for address in namespace.addresses())
    found = set()
    # The kernel leaves out what no ruleset of ours accepted: redirected DNS alone may be tens of thousands of entries.
    for entry in _entries(sock, u32(8, ACCEPTED) + u32(21, ACCEPTED)):  # CTA_MARK, CTA_MARK_MASK
        fields = attributes(entry)
        addresses = attributes(attributes(fields[1])[1])
        target = addresses.get(2) or addresses.get(4)
        if target and target not in own:
            found.add(target)
    return found


def _entries(sock: socket.socket, matching: bytes = b"") -> Iterator[bytes]:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            for _, body in dump(sock, message(_CT_GET, DUMP, family, family, matching), family):
                yield body
        except KernelError as error:
            if error.code not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOENT):
                raise  # else: no connection tracking for this family


class _End(NamedTuple):
    packed: bytes
    port: int


def _tuple(data: bytes) -> tuple[int, _End, _End]:
    fields = attributes(data)
    addresses = attributes(fields[1])
    protocol = attributes(fields[2])
    source = _End(addresses.get(1) or addresses.get(3) or b"", int.from_bytes(protocol.get(2, b""), "big"))
    target = _End(addresses.get(2) or addresses.get(4) or b"", int.from_bytes(protocol.get(3, b""), "big"))
    return protocol[1][0], source, target


def _flow(entry: bytes, own: frozenset[bytes]) -> Flow | None:
    fields = attributes(entry)
    if 1 not in fields or 2 not in fields:
        return None
    number, source, target = _tuple(fields[1])
    _, back, _ = _tuple(fields[2])
    outgoing = source.packed in own
    if outgoing:
        here, there = source, target
        if there.packed in own or (there.packed[0] == 127 and len(there.packed) == 4):
            return None
    else:
        here, there = target, source
    redirected = outgoing and (back.packed in own or (back.packed[:1] == b"\x7f" and len(back.packed) == 4))
    mark = int.from_bytes(fields.get(8, b""), "big")
    protocol = _PROTOCOLS.get(number, str(number))
    family = bytes([socket.AF_INET if len(here.packed) == 4 else socket.AF_INET6])
    zone = attribute(18, fields[18]) if 18 in fields else b""
    tracked = family + nested(1, fields[1]) + zone
    return Flow(protocol, here.packed, here.port, there.packed, there.port, outgoing, mark, redirected, tracked)


# -- cutting ---------------------------------------------------------------------------------------------------------
def cut(namespace: Namespace, sock: socket.socket, doomed: Sequence[Flow]) -> None:
    """Cut these flows. Raises FirewallError when the tuples could not be set; the rest is done as far as it goes."""
    if not doomed:
        return
    for at in range(0, len(doomed), CHUNK):
        _set_tuples(sock, doomed[at : at + CHUNK])
    for flow in doomed:
        if flow.tracked:
            _forget(sock, flow)
    destroy(namespace, doomed)


def _set_tuples(sock: socket.socket, doomed: Sequence[Flow]) -> None:
    timeout = attribute(4, struct.pack(">Q", CUT_SECONDS * 1000))
    changes = []
    for name, keys in _keys(doomed).items():
        entries = [nested(1, nested(1, attribute(1, key)), timeout) for key in keys]
        changes.append((NEWSETELEM, CREATE, INET, text(1, CUT_TABLE) + text(2, name) + nested(3, *entries)))
    if changes:
        transact(sock, changes)


def _keys(some: Sequence[Flow]) -> dict[str, dict[bytes, None]]:
    """Flows as keys of the cut sets; every part of a concatenated key is padded to four octets."""
    sets: dict[str, dict[bytes, None]] = {}
    for flow in some:
        number = {"tcp": socket.IPPROTO_TCP, "udp": socket.IPPROTO_UDP}.get(flow.protocol)
        if number is not None:
            here = flow.local + struct.pack("=B3x", number) + struct.pack(">H2x", flow.local_port)
            key = here + flow.remote + struct.pack(">H2x", flow.remote_port)
            sets.setdefault("cut4" if len(flow.local) == 4 else "cut6", {})[key] = None
    return sets


def severed(sock: socket.socket) -> list[Flow]:
    """The flows that are being held cut. Raises FirewallError."""
    found = []
    for name, size in (("cut4", 4), ("cut6", 16)):
        for element in elements(sock, CUT_TABLE, name):
            key = element.key
            number, local_port = struct.unpack_from("=B", key, size)[0], struct.unpack_from(">H", key, size + 4)[0]
            remote, remote_port = key[size + 8 : 2 * size + 8], struct.unpack_from(">H", key, 2 * size + 8)[0]
            protocol = _PROTOCOLS.get(number, str(number))
            found.append(Flow(protocol, key[:size], local_port, remote, remote_port, True, 0, False, b""))
    return found


def lift(sock: socket.socket, some: Sequence[Flow]) -> None:
    """Hold these flows cut no longer: a policy allows them again. What has timed out meanwhile is no error."""
    for flow in some:
        for name, keys in _keys([flow]).items():
            for key in keys:
                body = text(1, CUT_TABLE) + text(2, name) + nested(3, nested(1, nested(1, attribute(1, key))))
                try:
                    transact(sock, [(DELSETELEM, 0, INET, body)])
                except KernelError as error:
                    if error.code != errno.ENOENT:
                        raise


def forget_redirects(namespace: Namespace, sock: socket.socket, ports: Container[int]) -> None:
    """Forget redirections to other ports than these, an earlier life's: a query that comes from the same source port
    would follow the old one, to where nobody listens, and be refused. Raises FirewallError."""
    own = frozenset(address.packed for address in namespace.addresses())
    for entry in list(_entries(sock)):
        flow = _flow(entry, own)
        if flow is not None and flow.redirected and _tuple(attributes(entry)[2])[1].port not in ports:
            _forget(sock, flow)


def _forget(sock: socket.socket, flow: Flow) -> None:
    sock.send(message(_CT_DELETE, ACK, 7, flow.tracked[0], flow.tracked[1:]))
    for kind, _, number, body in messages(sock.recv(8192)):
        if kind == NLMSG_ERROR and number == 7:
            code = -int(struct.unpack_from("=i", body)[0])
            if code not in (0, errno.ENOENT):
                raise failure(code, body)


# -- sockets ---------------------------------------------------------------------------------------------------------
def _sockets(namespace: Namespace, states: int) -> Iterator[tuple[str, _End, _End, bytes]]:
    """(protocol, local end, remote end, inet_diag_sockid) of TCP and UDP sockets in these states."""
    with namespace.netlink(NETLINK_SOCK_DIAG) as sock:
        for protocol in (socket.IPPROTO_TCP, socket.IPPROTO_UDP):
            for family in (socket.AF_INET, socket.AF_INET6):
                wanted = states if protocol == socket.IPPROTO_TCP else _TCP_ESTABLISHED & states
                if not wanted:
                    continue
                request = struct.pack("=BBBBI48x", family, protocol, 0, 0, wanted)
                sock.send(HEAD.pack(16 + len(request), _DIAG_BY_FAMILY, REQUEST | DUMP, 1, 0) + request)
                yield from _diagnosed(sock, _PROTOCOLS[protocol])


def _diagnosed(sock: socket.socket, protocol: str) -> Iterator[tuple[str, _End, _End, bytes]]:
    while True:
        for kind, _, _, body in messages(sock.recv(1 << 17)):
            if kind in (NLMSG_DONE, NLMSG_ERROR):
                return  # an error: this kernel has no diagnosis for the protocol
            size = 4 if body[0] == socket.AF_INET else 16
            local_port, remote_port = struct.unpack_from(">HH", body, 4)
            here, there = _plain(body[8 : 8 + size]), _plain(body[24 : 24 + size])
            yield protocol, _End(here, local_port), _End(there, remote_port), body[:1] + body[4:52]


def _plain(packed: bytes) -> bytes:
    return packed[12:] if packed[:12] == b"\0" * 10 + b"\xff\xff" else packed


def destroy(namespace: Namespace, doomed: Iterable[Flow]) -> int:
    """SOCK_DESTROY the sockets that are these flows' ends here; how many were. Programs read ECONNABORTED."""
    wanted = {(f.protocol, f.local, f.local_port, f.remote, f.remote_port) for f in doomed}
    if not wanted:
        return 0
    victims = [
        (kind, identity)
        for kind, here, there, identity in _sockets(namespace, ~_TCP_LISTEN & 0xFFF)
        if (kind, here.packed, here.port, there.packed, there.port) in wanted
    ]
    destroyed = 0
    with namespace.netlink(NETLINK_SOCK_DIAG) as sock:
        for kind, identity in victims:
            protocol = socket.IPPROTO_TCP if kind == "tcp" else socket.IPPROTO_UDP
            destroyed += _destroy(sock, identity[0], protocol, identity[1:]) == 0
    return destroyed


def _destroy(sock: socket.socket, family: int, protocol: int, identity: bytes) -> int:
    request = struct.pack("=BBBBI", family, protocol, 0, 0, 0xFFF) + identity
    sock.send(HEAD.pack(16 + len(request), _DESTROY, REQUEST | ACK, 9, 0) + request)
    for kind, _, _, body in messages(sock.recv(8192)):
        if kind == NLMSG_ERROR:
            return -int(struct.unpack_from("=i", body)[0])
    return 0


def can_destroy(namespace: Namespace) -> bool:
    """Whether this kernel destroys sockets for us: asked for one that does not exist."""
    identity = struct.pack(">HH", 9, 9) + b"\x7f\0\0\1" + bytes(12) + b"\x7f\0\0\1" + bytes(16) + _NO_COOKIE
    try:
        with namespace.netlink(NETLINK_SOCK_DIAG) as sock:
            return _destroy(sock, socket.AF_INET, socket.IPPROTO_TCP, identity) in (0, errno.ENOENT)
    except OSError:
        return False
