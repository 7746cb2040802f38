"""The same pieces on the sidecar's own reactor: nothing here depends on the tests' clock."""

from __future__ import annotations

import socket
import time

from egress.dns.interceptor import Interceptor
from egress.dns.listener import TcpListener
from egress.dns.service import Service
from egress.dns.upstream import Ports, Server, Upstream
from egress.firewall.leases import Leases
from egress.loop import Loop
from tests.pure.dns.plays import allow, ask_bytes, policy, read
from tests.pure.dns.resolvers import LOCALHOST, Resolver, framed


def test_questions_over_udp_and_tcp_on_the_real_loop() -> None:
    errors: list[BaseException] = []
    loop = Loop(errors.append)
    resolver = Resolver()

    def dial(kind: int, server: Server) -> socket.socket:
        sock = socket.socket(socket.AF_INET, kind | socket.SOCK_NONBLOCK)
        sock.connect_ex(("127.0.0.1", server.port))
        return sock

    ports = Ports(lambda server: dial(socket.SOCK_DGRAM, server), lambda server: dial(socket.SOCK_STREAM, server))
    judge = Interceptor(policy(allow("*.example.com")), 1, lambda _: None)
    service = Service(loop, judge, Leases(), lambda _: None, lambda _: None, lambda _: None)
    service.upstream = Upstream(loop, (Server(LOCALHOST, resolver.port),), ports, 20.0, service.round)
    door = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    door.bind(("127.0.0.1", 0))
    door.setblocking(False)
    service.listen(door)
    gate = socket.create_server(("127.0.0.1", 0))
    gate.setblocking(False)
    listener = TcpListener(loop, gate, service.handle_stream)
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    stream = socket.create_connection(gate.getsockname())
    replies = []
    told = b""
    until = time.monotonic() + 20

    def play() -> None:
        nonlocal told
        for asked in resolver.take():
            resolver.answer(asked)
        try:
            while True:
                replies.append(read(client.recv(4096)))
        except BlockingIOError:
            pass
        try:
            told += stream.recv(4096)
        except BlockingIOError:
            pass
        if (len(replies) >= 100 and told) or time.monotonic() > until:
            loop.stop()
        else:
            loop.call_later(0.005, play)

    for n in range(100):
        client.sendto(ask_bytes(f"n{n}.example.com", ident=n), door.getsockname())
    client.setblocking(False)
    stream.sendall(framed(ask_bytes("stream.example.com", ident=1000)))
    stream.setblocking(False)
    loop.call_soon(play)
    loop.run()
    assert len(told) == 2 + int.from_bytes(told[:2], "big")  # one segment on loopback
    assert read(told[2:]).id == 1000
    assert {reply.id for reply in replies} == set(range(100))
    assert {reply.rcode for reply in replies} == {0}
    assert errors == []
    service.close()
    listener.close()
    loop.close()
    resolver.close()
    for sock in (door, gate, client, stream):
        sock.close()
