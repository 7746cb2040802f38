"""Learned addresses: set elements written and read over one netlink socket, in microseconds.

libnftables rereads every interval set of a table for each command (30 ms with 20,000 prefixes); a message of our own
reads nothing. Since Linux 6.12 adding an element again gives it its new time-out. Before, it leaves the old one in
place, and a refresh has to be [NEW, DEL, NEW] in one batch: a DEL alone fails when the element has expired but is not
collected yet, and the three together are one transaction. Even so, of a million lookups beside renewals without pause
one may find neither: the old element is unlinked as soon as the generations change, while a reader may be on its way
along the chain. The kernel runs the batch inside send(); its acknowledgements are in the socket when send() returns.
"""

from __future__ import annotations

import errno
import os
import struct

from egress.firewall import FirewallError
from egress.firewall.nfnetlink import (
    ACK,
    BATCH_BEGIN,
    BATCH_END,
    CREATE,
    DELSETELEM,
    DUMP,
    EXCL,
    GETSETELEM,
    HEAD,
    INET,
    NESTED,
    NEWSETELEM,
    NFTABLES,
    NLMSG_ERROR,
    REQUEST,
    KernelError,
    attributes,
    dump,
    failure,
    message,
    text,
    walk,
)
from egress.netns import NETLINK_NETFILTER, Namespace
from policies.values import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence

UPDATES = (6, 12)  # the first Linux on which an element that is added again gets its new time-out
CHUNK = 1024  # elements a message: one attribute holds 64 KiB
ANSWER = 16_384  # octets read of what the kernel says to one message
_MSG_DONTWAIT = 0x40
_GENERIC = struct.pack(">BBH", INET, 0, 0)
_GENERIC_BATCH = struct.pack(">BBH", 0, 0, NFTABLES)
_BEGIN = struct.Struct("=IHHII4s")
_HEADING = struct.Struct("=IHH")
_ATTR = struct.Struct("=HH")
# NFTA_LIST_ELEM { NFTA_SET_ELEM_KEY { NFTA_DATA_VALUE key } NFTA_SET_ELEM_TIMEOUT milliseconds }, by length of the key
_NEW = {
    size: _ATTR.pack(24 + size, 1 | NESTED) + _ATTR.pack(8 + size, 1 | NESTED) + _ATTR.pack(4 + size, 1)
    for size in (4, 16)
}
_TIMEOUT = _ATTR.pack(12, 4)
# The same with NFTA_SET_ELEM_EXPIRATION behind it. Of an element that is there the time-out alone starts nothing anew.
_AGAIN = {
    size: _ATTR.pack(36 + size, 1 | NESTED) + _ATTR.pack(8 + size, 1 | NESTED) + _ATTR.pack(4 + size, 1)
    for size in (4, 16)
}
_EXPIRATION = _ATTR.pack(12, 5)
_DEL = {
    size: _ATTR.pack(12 + size, 1 | NESTED) + _ATTR.pack(8 + size, 1 | NESTED) + _ATTR.pack(4 + size, 1)
    for size in (4, 16)
}
_MILLISECONDS = struct.Struct(">Q")
_CODE = struct.Struct("=i")
_PUT = REQUEST | ACK | CREATE | EXCL
_OPENING = struct.Struct("=IHHII4sIHHII4s")  # the batch's beginning, and the head of its first message
_ANSWERED = struct.Struct("=4xH2xI4xi")  # of an acknowledgement: its kind, its number, its error


class Element(NamedTuple):
    """An element of a set: its key and the milliseconds it has left (None: for ever)."""

    key: bytes
    left: int | None


class SetWriter:
    """Writes elements of the sets of one inet table. Not for two threads at once; each worker has its own."""

    def __init__(self, namespace: Namespace, table: str) -> None:
        self._sock: socket.socket = namespace.netlink(NETLINK_NETFILTER, receive=1 << 20)
        try:
            self._sock.setsockopt(1, 32, 1 << 22)  # SO_SNDBUFFORCE: thousands of elements are one send
        except OSError:
            pass
        self._table = text(1, table)
        self._names: dict[str, bytes] = {}
        self._pieces: dict[tuple[str, int], _Pieces] = {}
        self._sequence = 1
        self._updates = _version(os.uname().release) >= UPDATES

    def close(self) -> None:
        self._sock.close()

    def write(self, sets: Mapping[str, Mapping[bytes, int]], *, new: bool = False) -> None:
        """set -> packed address -> milliseconds: put in place with exactly that time-out, whatever stood there before.

        All of it is one transaction, acknowledged by the kernel when this returns. Raises SetFull, or FirewallError;
        then nothing of it was written. `new`: none of them should be there, so they are only put in; where one is all
        the same, the kernel says so and has written nothing, and they are written as any others.
        """
        if new and len(sets) == 1:
            ((name, elements),) = sets.items()
            ends = set(elements.values())
            if len(ends) == 1 and len(elements) <= CHUNK:
                try:
                    self._put(self._names.get(name) or self._name(name), elements, ends.pop())
                except KernelError as error:
                    if error.code != errno.EEXIST:
                        raise
                    self.write(sets)
                return
        bodies: list[_Change] = []
        whole = not new and not self._updates
        for name, elements in sets.items():
            if not elements:
                continue
            prefix = self._names.get(name) or self._name(name)
            if len(elements) <= CHUNK:
                bodies += _refresh(prefix, elements, whole=whole)
                continue
            keys = list(elements)
            for at in range(0, len(keys), CHUNK):
                bodies += _refresh(prefix, {key: elements[key] for key in keys[at : at + CHUNK]}, whole=whole)
        if not bodies:
            return
        if new:
            try:
                self._commit(bodies, CREATE | EXCL)
            except KernelError as error:
                if error.code != errno.EEXIST:
                    raise
                self.write(sets)
        else:
            self._commit(bodies)

    def put(self, name: str, key: bytes, left: int) -> None:
        """`write` of one new element, which is what most answers come to: all that a set's messages do not have in
        common is put between what they have."""
        layout, begin, change, front, end = self._pieces.get((name, len(key))) or self._cut(name, len(key))
        sequence = self._sequence
        self._sequence = sequence + 3 if sequence < 0x7FFF0000 else 1
        try:
            self._transact(
                layout.pack(
                    begin, sequence, change, sequence + 1, front, key, _TIMEOUT, _MILLISECONDS.pack(left),
                    end, sequence + 2, 0, _GENERIC_BATCH,
                ),
                sequence,
                sequence + 1,
            )  # fmt: skip
        except KernelError as error:
            if error.code != errno.EEXIST:
                raise
            self.write({name: {key: left}})

    def _name(self, name: str) -> bytes:
        prefix = self._names[name] = self._table + text(2, name)
        return prefix

    def _put(self, prefix: bytes, elements: Mapping[bytes, int], left: int) -> None:
        """New elements of one set, all with the same end. As `_commit` of their message, with half of its steps."""
        front = _NEW[len(next(iter(elements)))]
        after = _TIMEOUT + _MILLISECONDS.pack(left)
        listed = front + (after + front).join(elements) + after
        sequence = self._sequence
        self._sequence = sequence + 3 if sequence < 0x7FFF0000 else 1
        self._transact(
            b"".join(
                (
                    _OPENING.pack(
                        20, BATCH_BEGIN, REQUEST, sequence, 0, _GENERIC_BATCH,
                        24 + len(prefix) + len(listed), NEWSETELEM, _PUT, sequence + 1, 0, _GENERIC,
                    ),
                    prefix,
                    _ATTR.pack(4 + len(listed), 3 | NESTED),
                    listed,
                    _BEGIN.pack(20, BATCH_END, REQUEST, sequence + 2, 0, _GENERIC_BATCH),
                )
            ),
            sequence,
            sequence + 1,
        )  # fmt: skip

    def _cut(self, name: str, size: int) -> _Pieces:
        """What the messages with one element of this set have in common, between their numbers, their key and time."""
        prefix = self._names.get(name) or self._name(name)
        front = _NEW[size]
        listed = len(front) + size + len(_TIMEOUT) + _MILLISECONDS.size
        begin = _HEADING.pack(20, BATCH_BEGIN, REQUEST)
        change = struct.pack("=I4s", 0, _GENERIC_BATCH) + _HEADING.pack(24 + len(prefix) + listed, NEWSETELEM, _PUT)
        head = struct.pack("=I4s", 0, _GENERIC) + prefix + _ATTR.pack(4 + listed, 3 | NESTED) + front
        layout = struct.Struct(f"=8sI{len(change)}sI{len(head)}s{size}s4s8s8sII4s")
        found = layout, begin, change, head, _HEADING.pack(20, BATCH_END, REQUEST)
        self._pieces[name, size] = found
        return found

    def _commit(self, bodies: Sequence[_Change], only: int = CREATE) -> None:
        first = sequence = self._sequence
        pack = _BEGIN.pack
        parts = [pack(20, BATCH_BEGIN, REQUEST, sequence, 0, _GENERIC_BATCH)]
        last = len(bodies)
        for kind, body in bodies:
            sequence += 1
            last -= 1
            flags = REQUEST if last else REQUEST | ACK  # the errors of all the others come without being asked for
            if kind == NEWSETELEM:
                flags |= only
            parts.append(pack(20 + len(body), kind, flags, sequence, 0, _GENERIC))
            parts.append(body)
        acknowledged = sequence
        sequence += 1
        parts.append(pack(20, BATCH_END, REQUEST, sequence, 0, _GENERIC_BATCH))
        self._sequence = sequence + 1 if sequence < 0x7FFF0000 else 1
        self._transact(b"".join(parts), first, acknowledged)

    def _transact(self, batch: bytes, first: int, acknowledged: int) -> None:
        """Have the kernel do a batch whose first message is number `first`. Only the last change, number
        `acknowledged`, asks for an acknowledgement; the end of the batch comes right behind it."""
        sock = self._sock
        try:
            sock.send(batch)
        except OSError as error:
            raise FirewallError(f"netlink: {error.strerror}") from error
        trouble: FirewallError | None = None
        done = False
        while not done:  # errors come in the order of the messages, so none comes behind the last one's acknowledgement
            try:
                data = sock.recv(ANSWER, _MSG_DONTWAIT)
            except BlockingIOError:
                break
            except OSError as error:  # ENOBUFS: something was lost, so nothing is certain
                trouble = FirewallError(f"netlink: {error.strerror}")
                continue
            if trouble is None and len(data) >= 20 and _ANSWERED.unpack_from(data) == (NLMSG_ERROR, acknowledged, 0):
                return  # as a rule: the acknowledgement, and nothing before it
            at = 0
            while at + 20 <= len(data):
                length, kind, _, number, _ = HEAD.unpack_from(data, at)
                if kind == NLMSG_ERROR and first <= number <= acknowledged + 1:
                    code = -_CODE.unpack_from(data, at + 16)[0]
                    if code == 0:
                        done = number == acknowledged
                    elif trouble is None:
                        trouble = failure(code, data[at + 16 : at + length])
                at += max((length + 3) & ~3, 16)
        if trouble is not None:
            raise trouble
        if not done:
            raise FirewallError("netlink: the kernel did not acknowledge the change")


_Change = tuple[int, bytes]
_Pieces = tuple[struct.Struct, bytes, bytes, bytes, bytes]


def _version(release: str) -> tuple[int, int]:
    """Of a kernel's release, the two numbers that it begins with."""
    first, _, rest = release.partition(".")
    second = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    return (int(first), int(second)) if first.isdecimal() and second else (0, 0)


def _refresh(prefix: bytes, elements: Mapping[bytes, int], *, whole: bool) -> list[_Change]:
    """Elements of one set, all of one family, at least one. `whole`: what is there already has to go first."""
    size = len(next(iter(elements)))
    ends = set(elements.values())
    body = b""
    for left in ends:  # as a rule one: what is the same between two keys is put there by `join`
        keys = elements if len(ends) == 1 else [key for key, end in elements.items() if end == left]
        time = _MILLISECONDS.pack(left)
        after = _TIMEOUT + time + _EXPIRATION + time
        body += _AGAIN[size] + (after + _AGAIN[size]).join(keys) + after
    add = (NEWSETELEM, prefix + _ATTR.pack(4 + len(body), 3 | NESTED) + body)
    if not whole:
        return [add]
    body = _DEL[size] + _DEL[size].join(elements)
    return [add, (DELSETELEM, prefix + _ATTR.pack(4 + len(body), 3 | NESTED) + body), add]


def elements(sock: socket.socket, table: str, name: str, family: int = INET) -> list[Element]:
    """Read a set back, over a netlink socket of NETLINK_NETFILTER. Raises FirewallError (no such set)."""
    found = []
    body = text(1, table) + text(2, name)
    for _, answer in dump(sock, message(GETSETELEM, DUMP, 1, family, body), 1):
        listed = attributes(answer).get(3)
        if listed is None:
            continue
        for _, entry in walk(listed):
            fields = attributes(entry)
            if 1 not in fields:
                continue
            key = attributes(fields[1])[1]
            left = None
            if 4 in fields:  # has a time-out: what is left of it, or all of it in the first instant
                left = int.from_bytes(fields.get(5, fields[4]), "big")
            found.append(Element(key, left))
    return found
