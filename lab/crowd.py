"""A crowd of flows, TCP and UDP, whose both ends keep sending and count what arrives.

    python -m lab.crowd answer PORT ADDRESS...           outside: who speaks to the port is spoken to
    python -m lab.crowd hold PORT COUNT ADDRESS...       inside: COUNT flows, in turn to each address, every other UDP

Every EVERY seconds each end sends the next number on each flow. `hold` says "holding" when all are open. Asked by a
line on its standard input a program prints what it has seen as JSON: for each flow `[last, heard, lost, ended]`, that
is when something last arrived (CLOCK_MONOTONIC, the same inside and outside), how many numbers came, how many were
passed over, and the error that ended it. At the end of its input it ends.
"""

from __future__ import annotations

import errno
import json
import resource
import select
import socket
import struct
import sys
import time
from typing import Any

EVERY = 0.1  # seconds
SLICES = 10  # of a crowd: one after the other has its turn
_MESSAGE = struct.Struct("!II")  # the flow's number, the message's


class Flow:
    """One end of one flow."""

    def __init__(self, number: int, sock: socket.socket, address: Any = None) -> None:
        self.number = number
        self.sock = sock
        self.address = address  # where an unconnected socket answers
        self.sent = self.heard = self.lost = 0
        self.expected = 0
        self.last = 0.0
        self.ended = ""
        self.buffer = b""

    def send(self) -> None:
        """The next number. What the kernel does not take is not counted as sent."""
        message = _MESSAGE.pack(self.number, self.sent)
        try:
            if self.address is None:
                self.sock.send(message)
            else:
                self.sock.sendto(message, self.address)
        except OSError as error:
            self.trouble(error)
            return
        self.sent += 1

    def arrived(self, data: bytes, now: float) -> None:
        self.buffer += data
        while len(self.buffer) >= _MESSAGE.size:
            number = _MESSAGE.unpack_from(self.buffer)[1]
            self.buffer = self.buffer[_MESSAGE.size :]
            self.last = now
            self.heard += 1
            self.lost += max(0, number - self.expected)
            self.expected = number + 1

    def trouble(self, error: OSError) -> None:
        if not isinstance(error, BlockingIOError):
            self.ended = self.ended or errno.errorcode.get(error.errno or 0, str(error))

    def told(self) -> list[Any]:
        return [self.last, self.heard, self.lost, self.ended]


class Crowd:
    """Everything one program holds."""

    def __init__(self) -> None:
        self.flows: dict[int, Flow] = {}
        self.poll = select.epoll()
        self.streams: dict[int, Flow] = {}  # by descriptor
        self.doors: dict[int, socket.socket] = {}  # listeners and unconnected UDP sockets
        self.by_address: dict[Any, Flow] = {}
        self.poll.register(0, select.EPOLLIN | select.EPOLLHUP)

    def keep(self, flow: Flow) -> None:
        flow.sock.setblocking(False)
        self.streams[flow.sock.fileno()] = flow
        self.poll.register(flow.sock.fileno(), select.EPOLLIN)

    def open_door(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.doors[sock.fileno()] = sock
        self.poll.register(sock.fileno(), select.EPOLLIN)

    def run(self) -> None:
        """Until the standard input ends. Its lines are read one at a time: one is written for each answer."""
        turn = 0
        due = time.monotonic()
        while True:
            for number, flow in list(self.flows.items()):
                if number % SLICES == turn:
                    flow.send()
            turn = (turn + 1) % SLICES
            due = max(due + EVERY / SLICES, time.monotonic() - EVERY)
            while True:
                left = due - time.monotonic()
                for fd, _ in self.poll.poll(max(0.0, left)):
                    if fd == 0:
                        if not sys.stdin.buffer.readline():
                            return
                        print(json.dumps({number: flow.told() for number, flow in self.flows.items()}), flush=True)
                    elif fd in self.doors:
                        self._door(self.doors[fd])
                    else:
                        self._stream(self.streams[fd])
                if left <= 0:
                    break

    def _door(self, sock: socket.socket) -> None:
        now = time.monotonic()
        try:
            if sock.type == socket.SOCK_STREAM:
                self.keep(Flow(-1, sock.accept()[0]))  # it says its number
                return
            while True:
                data, address = sock.recvfrom(64)
                number = _MESSAGE.unpack(data)[0]
                if number not in self.flows:
                    self.flows[number] = Flow(number, sock, address)
                self.flows[number].arrived(data, now)
        except OSError:
            pass

    def _stream(self, flow: Flow) -> None:
        try:
            data = flow.sock.recv(65536)
        except BlockingIOError:
            return
        except OSError as error:
            flow.trouble(error)
            data = b""
        if data:
            if flow.number < 0 and len(data) >= _MESSAGE.size:
                flow.number = _MESSAGE.unpack_from(data)[0]
                self.flows[flow.number] = flow
            flow.arrived(data, time.monotonic())
        elif flow.sock.type == socket.SOCK_STREAM:
            flow.ended = flow.ended or "EOF"
            self.poll.unregister(flow.sock.fileno())
            del self.streams[flow.sock.fileno()]


def _family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def answer(port: int, addresses: list[str]) -> None:
    crowd = Crowd()
    for address in addresses:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            sock = socket.socket(_family(address), kind)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
            sock.setsockopt(socket.SOL_IP, 15, 1)  # IP_FREEBIND: every address is here, none of them on a device
            sock.bind((address, port))
            if kind == socket.SOCK_STREAM:
                sock.listen(1024)
            crowd.open_door(sock)
    print("answering", flush=True)
    crowd.run()


def hold(port: int, count: int, addresses: list[str]) -> None:
    crowd = Crowd()
    for number in range(count):
        address = addresses[number % len(addresses)]
        kind = socket.SOCK_DGRAM if number // len(addresses) % 2 else socket.SOCK_STREAM
        sock = socket.socket(_family(address), kind)
        sock.settimeout(10)
        sock.connect((address, port))
        if kind == socket.SOCK_STREAM:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        flow = crowd.flows[number] = Flow(number, sock)
        crowd.keep(flow)
    print("holding", flush=True)
    crowd.run()


if __name__ == "__main__":
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if sys.argv[1] == "answer":
        answer(int(sys.argv[2]), sys.argv[3:])
    else:
        hold(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
