"""One gateway takes over from another without a refused or reset connection.

    successor                                   predecessor (serving)
       │ connects to the unix socket ───────────────▶│ checks who it is (SO_PEERCRED)
       │◀──── listening sockets, memory (SCM_RIGHTS) │ goes on serving
       │ starts its workers on these sockets         │
       │ "ready" ───────────────────────────────────▶│ stops accepting, closes its copies, drains
       │◀──────────────────────────────────── "bye"  │
       │ puts its own unix socket in that place      ▼ exits

The sockets' queues belong to the sockets, which never close: somebody always holds them. A successor that dies before
it is ready is forgotten, and the predecessor has never stopped. Messages are JSON in a SEQPACKET each. The socket is
mode 0600, and both sides accept only their own user or root at the other end (unix(7)).
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from typing import Any, NamedTuple

from ingress.process.listeners import StartError

VERSION = 1
_AT_ONCE = 200  # descriptors in one message; the kernel takes 253
_LARGEST = 65_536


class Handed(NamedTuple):
    """What a predecessor hands over."""

    main: list[socket.socket]
    admin: list[socket.socket]
    memory: dict[str, tuple[int, bytes]]  # name -> descriptor of a memory file, and what is needed to read it


class Offer:
    """The place where a successor asks: a listening unix socket under a path."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fresh = f"{path}.{os.getpid()}"
        self._identity = (0, 0)
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        before = os.umask(0o177)  # mode 0600 from its first moment on
        try:
            _unlink(self._fresh)
            self.sock.bind(self._fresh)
            self.sock.listen(4)
            found = os.stat(self._fresh)
            self._identity = (found.st_dev, found.st_ino)
        except OSError as error:
            self.sock.close()
            words = (error.strerror or str(error)).lower()
            raise StartError(f"--handover: {path}: {words}; name a file in a folder that this user may write") from None
        finally:
            os.umask(before)

    def publish(self) -> None:
        """Take the path, whoever had it. Raises StartError."""
        try:
            os.rename(self._fresh, self.path)
        except OSError as error:
            raise StartError(f"--handover: {self.path}: {(error.strerror or str(error)).lower()}") from None

    def accept(self) -> socket.socket | None:
        """A successor, or None where there is none or it is not ours."""
        try:
            peer, _ = self.sock.accept()
        except OSError:
            return None
        if not _trusted(peer):
            peer.close()
            return None
        peer.setblocking(False)
        return peer

    def close(self, *, keep_path: bool = False) -> None:
        """Give the path back, unless somebody else has it by now or is about to."""
        self.sock.close()
        if not keep_path:
            for path in (self._fresh, self.path):
                if _identity(path) == self._identity:
                    _unlink(path)


def hand(peer: socket.socket, handed: Handed) -> bool:
    """Give a successor everything; False when it is gone."""
    descriptors = [sock.fileno() for sock in (*handed.main, *handed.admin)]
    descriptors += [descriptor for descriptor, _ in handed.memory.values()]
    notes = {name: note.hex() for name, (_, note) in handed.memory.items()}
    greeting = {"version": VERSION, "main": len(handed.main), "admin": len(handed.admin), "memory": notes}
    try:
        peer.send(json.dumps(greeting).encode())
        for start in range(0, len(descriptors), _AT_ONCE):
            socket.send_fds(peer, [b"{}"], descriptors[start : start + _AT_ONCE])
    except OSError:
        return False
    return True


def refuse(peer: socket.socket, why: str) -> None:
    """Tell somebody who asks that it is not the time."""
    try:
        peer.send(json.dumps({"version": VERSION, "refused": why}).encode())
    except OSError:
        pass
    peer.close()


def heard(peer: socket.socket) -> str:
    """What a successor has said since: "ready", "" for nothing yet, "gone" when it has left."""
    try:
        data = peer.recv(_LARGEST)
    except BlockingIOError:
        return ""
    except OSError:
        return "gone"
    return "ready" if data == b"ready" else "gone"


def farewell(peer: socket.socket) -> None:
    """The last word to a successor."""
    try:
        peer.send(b"bye")
    except OSError:
        pass
    peer.close()


class Claim:
    """The successor's side: what it was given, and the word that is still owed."""

    def __init__(self, peer: socket.socket, handed: Handed) -> None:
        self._peer = peer
        self.handed = handed

    def finish(self, timeout: float = 5.0) -> bool:
        """Say that we serve. False: the predecessor is gone already, which is as good."""
        try:
            self._peer.settimeout(timeout)
            self._peer.send(b"ready")
            return self._peer.recv(64) == b"bye"
        except OSError:
            return False
        finally:
            self._peer.close()

    def abandon(self) -> None:
        """Leave without taking over: the predecessor goes on."""
        self._peer.close()


def claim(path: str, timeout: float = 5.0) -> Claim | None:
    """Ask the gateway at this path for its sockets; None where there is nobody. Raises StartError."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peer.settimeout(timeout)
    try:
        peer.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        peer.close()
        return None
    except OSError as error:
        peer.close()
        raise StartError(f"--handover: {path}: {(error.strerror or str(error)).lower()}") from None
    try:
        if not _trusted(peer):
            raise StartError(f"--handover: {path} belongs to another user; remove it, or name another")
        return Claim(peer, _receive(peer, path, time.monotonic() + timeout))
    except (OSError, ValueError, KeyError, TypeError) as error:
        peer.close()
        raise StartError(f"--handover: {path}: whoever is there gave no sockets ({type(error).__name__})") from None
    except StartError:
        peer.close()
        raise


def _receive(peer: socket.socket, path: str, deadline: float) -> Handed:
    greeting: dict[str, Any] = json.loads(peer.recv(_LARGEST))
    if "refused" in greeting:
        raise StartError(f"--handover: {path}: {greeting['refused']}")
    if greeting["version"] != VERSION:
        raise StartError(f"--handover: {path}: the gateway there speaks another version; stop it first")
    expected = greeting["main"] + greeting["admin"] + len(greeting["memory"])
    descriptors: list[int] = []
    try:
        while len(descriptors) < expected:
            data, found, _, _ = socket.recv_fds(peer, 64, _AT_ONCE)
            descriptors += found
            if not data or time.monotonic() > deadline:
                raise ValueError
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        sockets = descriptors[: expected - len(greeting["memory"])]
        notes = [(name, bytes.fromhex(note)) for name, note in greeting["memory"].items()]
        memory = {
            name: (descriptor, note)
            for (name, note), descriptor in zip(notes, descriptors[len(sockets) :], strict=True)
        }
        opened = [socket.socket(fileno=descriptor) for descriptor in sockets]
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    return Handed(opened[: greeting["main"]], opened[greeting["main"] :], memory)


def _trusted(peer: socket.socket) -> bool:
    """The other end is our own user or root."""
    _, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return uid in (0, os.geteuid())


def _identity(path: str) -> tuple[int, int]:
    try:
        found = os.lstat(path)
    except OSError:
        return (-1, -1)
    return (found.st_dev, found.st_ino)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
