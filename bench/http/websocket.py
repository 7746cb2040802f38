"""WebSocket messages there and back, and tunnels that do nothing. Our own client: blocking for one, epoll for many."""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
import select
import time
from typing import TYPE_CHECKING

from bench.http.load import Burst, Spread, connect, head, spread

if TYPE_CHECKING:
    import socket

    from bench.http.contender import Contender

TEXT = b"thirty-two octets of a message.."
_MASK = b"\x37\xfa\x21\x3d"
_ECHOED = b"\x81" + bytes((len(TEXT),)) + TEXT
_SENT = (
    b"\x81" + bytes((0x80 | len(TEXT),)) + _MASK + bytes(a ^ b for a, b in zip(TEXT, itertools.cycle(_MASK)))
)  # RFC 6455, 5.3
_KEY = base64.b64encode(b"sixteen octets..").decode()
_ACCEPT = base64.b64encode(hashlib.sha1(_KEY.encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
_STUCK = 10.0


def opened(contender: Contender) -> socket.socket:
    """A tunnel to the origin that echoes; the handshake is checked. Raises RuntimeError."""
    sock = connect(contender, contender.place.echo)
    sock.sendall(
        head(contender, "GET", contender.place.echo, "/echo", Connection="Upgrade", Upgrade="websocket",
             Sec_WebSocket_Version="13", Sec_WebSocket_Key=_KEY)
    )  # fmt: skip
    data = b""
    while b"\r\n\r\n" not in data:
        part = sock.recv(4096)
        if not part:
            break
        data += part
    accept = re.search(rb"(?i)\r\nsec-websocket-accept: *([^\r]*)\r\n", data)
    if not data.startswith(b"HTTP/1.1 101") or accept is None or accept[1] != _ACCEPT:
        sock.close()
        raise RuntimeError(f"no tunnel: {data[:100]!r}")
    return sock


def ask(sock: socket.socket) -> None:
    """One message and its echo. Raises RuntimeError where something else comes back."""
    sock.send(_SENT)
    data = sock.recv(4096)
    while len(data) < len(_ECHOED):
        part = sock.recv(4096)
        if not part:
            break
        data += part
    if data != _ECHOED:
        raise RuntimeError(f"not the echo: {data[:80]!r}")


def single(contender: Contender, seconds: float, most: int) -> Spread:
    """One tunnel, one message after the other."""
    taken: list[float] = []
    clock = time.perf_counter_ns
    with opened(contender) as sock:
        until = clock() + int(seconds * 1e9)
        while len(taken) < most:
            begin = clock()
            ask(sock)
            end = clock()
            taken.append((end - begin) / 1000)
            if end > until:
                break
    return spread(taken[len(taken) // 10 :])


def many(contender: Contender, connections: int, seconds: float, least: int) -> Burst:
    """So many tunnels, each with one message under way: for so long, and longer where `least` of them take longer."""
    socks = [opened(contender) for _ in range(connections)]
    poll = select.epoll()
    by_fd = {sock.fileno(): sock for sock in socks}
    clock = time.perf_counter_ns
    process = contender.running
    taken: list[int] = []
    try:
        for sock in socks:
            ask(sock)
            sock.setblocking(False)
            poll.register(sock.fileno(), select.EPOLLIN)
        before = process.cpu()
        begin = clock()
        until = begin + int(seconds * 1e9)
        sent = dict.fromkeys(by_fd, begin)
        for sock in socks:
            sock.send(_SENT)
        now = begin
        while now < until or len(taken) < least:
            ready = poll.poll(_STUCK)
            if not ready:
                raise RuntimeError(f"no message came for {_STUCK:g} s")
            for fd, _ in ready:
                sock = by_fd[fd]
                if sock.recv(4096) != _ECHOED:  # 34 octets come in one piece
                    raise RuntimeError("not the echo")
                now = clock()
                taken.append(now - sent[fd])
                sent[fd] = now
                sock.send(_SENT)
        took = (now - begin) / 1e9
        used = process.cpu() - before
    finally:
        poll.close()
        for sock in socks:
            sock.close()
    found = spread([one / 1000 for one in taken])
    return Burst(len(taken) / took, used / len(taken) * 1e6, used / took, found.p50, found.p99)


def idle(contender: Contender, count: int) -> list[socket.socket]:
    """So many tunnels that have carried a message each and now do nothing; the caller closes them."""
    socks: list[socket.socket] = []
    try:
        for _ in range(count):
            sock = opened(contender)
            socks.append(sock)
            ask(sock)
    except BaseException:
        for sock in socks:
            sock.close()
        raise
    return socks
