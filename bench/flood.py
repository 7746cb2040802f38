"""A bounded flood of DNS queries, from inside a sandbox: so many a second, for so long, from so many sockets.

    python -m bench.flood KIND SOCKETS RATE SECONDS HOST

It prints what came of it as JSON. Packets go out a millisecond's worth at a time. Over loopback the sender pays for
the whole way into the listener's socket, so one core reaches some 100,000 a second.

    distinct  names below an allowed wildcard, each once     zones   names below a new zone each time
    denied    names that no rule allows, each once           same    one allowed name
    unheard   as distinct, and the resolver never answers    garbage octets, and names that lead back to themselves
    addressed as distinct, with a new address each           stream  half-open and slow connections, RATE a second
    pipeline  denied names over SOCKETS connections, each full of them, as many as are taken up to RATE
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import sys
import time
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

UNHEARD = b"u"  # the first letter of a name that bench.resolver does not answer
_TICK = 0.001  # seconds
_HEAD = b"\1\0\0\1\0\0\0\0\0\0"  # recursion desired, one question
_TAIL = b"\0\0\1\0\1"


def _wire(name: str) -> bytes:
    return b"".join(bytes((len(label),)) + label.encode() for label in name.split("."))


def _numbered(first: bytes, below: str) -> Callable[[int], bytes]:
    """Queries for a first label of eight octets that is another one each time."""
    end = _wire(below) + _TAIL
    head = _HEAD + bytes((8,)) + first

    def make(number: int) -> bytes:
        return (number & 0xFFFF).to_bytes(2, "big") + head + b"%07x" % number + end

    return make


def _zones(number: int) -> bytes:
    return (number & 0xFFFF).to_bytes(2, "big") + _HEAD + b"\1p\x08z%07x" % number + _wire("com") + _TAIL


def _garbage() -> Callable[[int], bytes]:
    chance = Random(5)
    some = [chance.randbytes(chance.randrange(0, 1400)) for _ in range(1000)]
    some += [b"\1\2" + _HEAD + b"\1a\xc0\x0c\0\1\0\1"] * 500
    chance.shuffle(some)
    return lambda number: some[number % len(some)]


KINDS: dict[str, Callable[[int], bytes]] = {
    "distinct": _numbered(b"p", "flood.example.com"),
    "addressed": _numbered(b"n", "flood.example.com"),
    "unheard": _numbered(UNHEARD, "flood.example.com"),
    "denied": _numbered(b"p", "denied.example.net"),
    "zones": _zones,
    "same": lambda number: (number & 0xFFFF).to_bytes(2, "big") + _HEAD + _wire("same.example.org") + _TAIL,
    "garbage": _garbage(),
}


def datagrams(make: Callable[[int], bytes], count: int, rate: int, seconds: float, host: str) -> dict[str, float]:
    """Send; answers are left where they arrive, in receive buffers that are soon full."""
    socks = []
    for _ in range(count):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        sock.setblocking(False)
        sock.connect((host, 53))
        socks.append(sock)
    sends = [sock.send for sock in socks]
    sent = failed = turn = 0
    clock = time.monotonic
    begin = clock()
    number = int.from_bytes(os.urandom(2), "big") << 11  # another run's names are others
    while (passed := clock() - begin) < seconds:
        due = min(int(passed * rate) - sent - failed, rate // 50)  # behind by more than that: it can't keep up
        for _ in range(due):
            turn = turn + 1 if turn + 1 < count else 0
            try:
                sends[turn](make(number))
                sent += 1
            except OSError:  # refused, or an ICMP error of an earlier one
                failed += 1
            number += 1
        if due < rate * _TICK:
            time.sleep(_TICK)
    return {"sent": sent, "failed": failed, "seconds": clock() - begin}


def streams(rate: int, seconds: float, host: str) -> dict[str, float]:
    """Connections: some say nothing, some give an octet a tick, some ask and do not read; a thousand at a time."""
    question = KINDS["same"](7)
    framed = len(question).to_bytes(2, "big") + question
    held: list[tuple[socket.socket, int]] = []
    opened = 0
    begin = time.monotonic()
    while (passed := time.monotonic() - begin) < seconds:
        while opened < passed * rate:
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            sock.setblocking(False)
            sock.connect_ex((host, 53))
            held.append((sock, opened % 3))
            opened += 1
            if len(held) > 1000:
                held.pop(0)[0].close()
        for number, (sock, kind) in enumerate(held):
            with contextlib.suppress(OSError):
                if kind == 1 and number % 10 == opened % 10:
                    sock.send(framed[number % len(framed) : number % len(framed) + 1])
                elif kind == 2 and number % 10 == opened % 10:
                    sock.send(framed)
        time.sleep(0.01)
    return {"sent": opened, "failed": 0, "seconds": time.monotonic() - begin}


def pipelines(count: int, rate: int, seconds: float, host: str) -> dict[str, float]:
    """Every connection is kept full; answers are read and forgotten. Opened again where somebody hangs up, as on what
    follows a batch that was cut: that is no question any more."""
    make = KINDS["denied"]
    batch = b"".join(len(question).to_bytes(2, "big") + question for question in map(make, range(64)))
    size = len(batch) // 64
    socks: list[socket.socket | None] = [None] * count
    octets = 0
    begin = time.monotonic()
    while (passed := time.monotonic() - begin) < seconds:
        for number, sock in enumerate(socks):
            try:
                if sock is None:
                    sock = socks[number] = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
                    sock.setblocking(False)
                    sock.connect_ex((host, 53))
                if octets < passed * rate * size:
                    octets += sock.send(batch)
                sock.recv(65536)
            except BlockingIOError:
                pass
            except OSError:
                if sock is not None:
                    sock.close()
                socks[number] = None
        time.sleep(_TICK)
    return {"sent": octets // size, "failed": 0, "seconds": time.monotonic() - begin}


def main() -> None:
    kind, count, rate, seconds, host = sys.argv[1], *map(int, sys.argv[2:4]), float(sys.argv[4]), sys.argv[5]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if kind == "stream":
        done = streams(rate, seconds, host)
    elif kind == "pipeline":
        done = pipelines(count, rate, seconds, host)
    else:
        done = datagrams(KINDS[kind], count, rate, seconds, host)
    print(json.dumps(done), flush=True)


if __name__ == "__main__":
    main()
