"""The lab's DNS server: every address of its namespace, UDP and TCP, steered by `lab.dns.DnsServer`."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import random
import socket
import struct
import sys
import time
from typing import Any

from lab import pktinfo, rdata
from lab.service import serve
from lab.zone import Behaviour, Question, Record, Zone, message, parse

_DRAIN = 64  # datagrams a turn, so that control calls are heard under load
_LOGGED = 200_000
_TCP_IDLE = 30.0


class Server:
    """The zone, the log of what was asked, and the sockets."""

    def __init__(self) -> None:
        self.zone = Zone()
        self.log: collections.deque[dict[str, Any]] = collections.deque(maxlen=_LOGGED)
        self.count = 0
        self.logging = True
        self.other_port: dict[int, socket.socket] = {}

    # -- answering ----------------------------------------------------------------------------------------------

    def note(
        self, data: bytes, transport: str, server: str, client: tuple[str, int], question: Question | None
    ) -> None:
        self.count += 1
        if not self.logging:
            return
        self.log.append({
            "name": question.name if question else "",
            "qtype": rdata.type_name(question.qtype) if question else "",
            "transport": transport,
            "server": server,
            "client": client[0],
            "port": client[1],
            "ident": question.ident if question else -1,
            "flags": question.flags if question else -1,
            "size": question.size if question else None,
            "options": question.options.hex() if question else "",
            "raw": data.hex(),
            "time": time.monotonic(),
        })  # fmt: skip

    def respond(self, question: Question, behaviour: Behaviour, limit: int) -> bytes:
        """The true answer, as the behaviour bends it."""
        if behaviour.raw is not None:
            return struct.pack(">H", question.ident) + behaviour.raw[2:]
        rcode, answers = self.zone.answer(question.name.lower(), question.qtype, chase=not behaviour.no_chain)
        if behaviour.only is not None:
            rcode, answers = 0, list(behaviour.only)
        if behaviour.rcode is not None:
            rcode = behaviour.rcode
            answers = [] if rcode not in (0, 3) else answers
        authorities: list[Record] = []
        wanted = any(record.rtype == question.qtype for record in answers)
        if rcode in (0, 3) and not wanted and not behaviour.no_soa:
            zone = ".".join(question.name.lower().split(".")[-2:])
            authorities = [Record(zone, rdata.TYPES["SOA"], 300, rdata.soa(zone, 30))]
        return message(
            question,
            rcode,
            answers + behaviour.extra,
            authorities,
            limit=limit,
            truncate=(behaviour.truncate or behaviour.truncate_full) and limit < 65535,
            keep=behaviour.truncate_full,
            edns=not behaviour.no_edns,
        )

    @staticmethod
    def forged(question: Question, behaviour: Behaviour) -> bytes:
        """An answer that must not be believed."""
        ident, section, name = question.ident, question.section, question.name.lower()
        if behaviour.forge == "id":
            ident ^= 0x5A5A
        elif behaviour.forge == "case":
            swapped = question.name.swapcase()
            section = rdata.encode_name(swapped) + section[-4:]
        elif behaviour.forge == "question":
            name = "other.example.net"
            section = rdata.encode_name(name) + section[-4:]
        lie = Question(ident, question.flags, name, question.qtype, question.qclass, section, question.size, b"")
        rtype, data = rdata.address(behaviour.forged_address)
        return message(lie, 0, [Record(name, rtype, 300, data)], [], limit=65535)

    # -- UDP ----------------------------------------------------------------------------------------------------

    def readable(self, sock: socket.socket) -> None:
        for _ in range(_DRAIN):
            try:
                data, client, server = pktinfo.receive(sock)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                continue  # an ICMP error for an earlier answer
            question = parse(data)
            self.note(data, "udp", server, client, question)
            if question is None:
                continue
            behaviour = self.zone.behaviour(question.name.lower(), question.qtype) or Behaviour()
            if behaviour.drop or behaviour.drop_udp:
                continue
            if behaviour.delay or behaviour.forge or behaviour.held:
                task = asyncio.ensure_future(self.later(sock, question, behaviour, server, client))
                _tasks.add(task)
                task.add_done_callback(_tasks.discard)
                continue
            for _copy in range(behaviour.repeat):
                self.send(sock, self.respond(question, behaviour, question.size or 512), server, client)

    @staticmethod
    def send(sock: socket.socket, data: bytes, server: str, client: tuple[str, int]) -> None:
        with contextlib.suppress(OSError):
            pktinfo.send(sock, data, server, client)

    async def later(
        self, sock: socket.socket, question: Question, behaviour: Behaviour, server: str, client: tuple[str, int]
    ) -> None:
        await wait(behaviour)
        if behaviour.forge:
            lie = self.forged(question, behaviour)
            sender, address = sock, server
            if behaviour.forge == "port":
                sender = self.other_port[sock.family]
            elif behaviour.forge == "source":
                address = "198.51.100.200" if sock.family == socket.AF_INET else "2001:db8:100::200"
            self.send(sender, lie, address, client)
            if behaviour.only_forged:
                return
            await asyncio.sleep(behaviour.gap)
        for _copy in range(behaviour.repeat):
            self.send(sock, self.respond(question, behaviour, question.size or 512), server, client)

    # -- TCP ----------------------------------------------------------------------------------------------------

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client, server = writer.get_extra_info("peername"), writer.get_extra_info("sockname")
        try:
            while True:
                async with asyncio.timeout(_TCP_IDLE):
                    (length,) = struct.unpack(">H", await reader.readexactly(2))
                    data = await reader.readexactly(length)
                question = parse(data)
                self.note(data, "tcp", server[0], (client[0], client[1]), question)
                if question is None:
                    break
                behaviour = self.zone.behaviour(question.name.lower(), question.qtype) or Behaviour()
                await wait(behaviour)
                if behaviour.close:
                    break
                if behaviour.drop:
                    continue
                lie = behaviour.forge in ("id", "case", "question")
                answer = self.forged(question, behaviour) if lie else self.respond(question, behaviour, 65535)
                writer.write(struct.pack(">H", len(answer)) + answer)
                await writer.drain()
        except (TimeoutError, OSError, EOFError):
            pass
        finally:
            writer.close()

    async def open(self) -> None:
        for family in (socket.AF_INET, socket.AF_INET6):
            udp = pktinfo.wildcard(family, 53)
            asyncio.get_running_loop().add_reader(udp, self.readable, udp)
            self.other_port[family] = pktinfo.wildcard(family, random.randrange(20000, 30000))
            await asyncio.start_server(self.connected, sock=pktinfo.wildcard(family, 53, socket.SOCK_STREAM))

    # -- what the test calls ------------------------------------------------------------------------------------

    def add(self, owner: str, rtype: int, ttl: int, data: str) -> None:
        self.zone.add(owner, rtype, ttl, bytes.fromhex(data))

    def behave(self, name: str, qtype: int, fields: dict[str, Any]) -> None:
        self.zone.behaviours[name.lower().rstrip("."), qtype] = Behaviour.from_json(fields)

    def forget_behaviour(self, name: str, qtype: int) -> None:
        found = self.zone.behaviours.pop((name.lower().rstrip("."), qtype), None)
        if found is not None:
            found.held = False

    def generate(self, suffix: str, network: str, prefix: int, ttl: int) -> None:
        self.zone.generate(suffix, bytes.fromhex(network), prefix, ttl)

    def queries(self) -> list[dict[str, Any]]:
        return list(self.log)

    def forget(self) -> None:
        self.log.clear()
        self.count = 0

    def set_logging(self, *, on: bool) -> None:
        self.logging = on


_tasks: set[asyncio.Future[None]] = set()


async def wait(behaviour: Behaviour) -> None:
    """Until it is time to answer."""
    if behaviour.delay:
        await asyncio.sleep(behaviour.delay)
    while behaviour.held:  # noqa: ASYNC110 - the zone knows of no loop
        await asyncio.sleep(0.005)


async def main(fd: int) -> None:
    server = Server()
    await server.open()
    await serve(
        fd,
        {
            "ready": lambda: True,
            "add": server.add,
            "remove": server.zone.remove,
            "clear": server.zone.clear,
            "behave": server.behave,
            "forget_behaviour": server.forget_behaviour,
            "generate": server.generate,
            "queries": server.queries,
            "count": lambda: server.count,
            "forget": server.forget,
            "set_logging": server.set_logging,
        },
    )


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
