"""The lab's web sites and other peers, at every address of their namespace. Run by `lab.sites.Sites`."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import socket
import sys
import time
from typing import Any

from lab import pktinfo
from lab.service import serve
from lab.sites import HTTP_PORTS, STREAM_PORT, TCP_ECHO_PORTS, UDP_ECHO_PORTS

_LOGGED = 100_000
_BEAT = 0.02  # seconds between two lines of a peer that keeps sending
_STREAM_SECONDS = 60.0
_HEAD_LIMIT = 16384


class Sites:
    """Every listener, and the log of what arrived at them."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.log: collections.deque[dict[str, Any]] = collections.deque(maxlen=_LOGGED)
        self.streams: dict[tuple[str, str, int], asyncio.Task[None]] = {}

    def note(self, kind: str, local: tuple[Any, ...], peer: tuple[Any, ...], data: bytes = b"") -> None:
        self.log.append({
            "kind": kind,
            "address": local[0],
            "port": local[1],
            "peer": peer[0],
            "peer_port": peer[1],
            "data": data[:200].hex(),
            "time": time.monotonic(),
        })  # fmt: skip

    # -- TCP ----------------------------------------------------------------------------------------------------

    async def http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        local, peer = writer.get_extra_info("sockname"), writer.get_extra_info("peername")
        self.note("tcp", local, peer)
        with contextlib.suppress(OSError, EOFError, TimeoutError, asyncio.LimitOverrunError, ValueError):
            while True:
                async with asyncio.timeout(30):
                    head = await reader.readuntil(b"\r\n\r\n")
                lines = head.decode("latin-1").split("\r\n")
                method, path, _ = lines[0].split(" ", 2)
                fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
                await reader.readexactly(int(fields.get("content-length", 0)))
                self.note("http", local, peer, head)
                name = self.names.get(local[0], "somewhere")
                body = f"Hello from {name} at {local[0]}\nhost {fields.get('host', '')}\npath {path}\n".encode()
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
                    + f"Content-Length: {len(body)}\r\nX-Site: {name}\r\n\r\n".encode()
                    + (b"" if method == "HEAD" else body)
                )
                await writer.drain()
                if fields.get("connection", "").lower() == "close":
                    break
        writer.close()

    async def echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.note("tcp", writer.get_extra_info("sockname"), writer.get_extra_info("peername"))
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del reader  # whatever the other side says, this one goes on
        self.note("tcp", writer.get_extra_info("sockname"), writer.get_extra_info("peername"))
        count = 0
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_STREAM_SECONDS):
                while True:
                    writer.write(b"%08d\n" % count)
                    await writer.drain()
                    count += 1
                    await asyncio.sleep(_BEAT)
        writer.transport.abort()

    # -- UDP ----------------------------------------------------------------------------------------------------

    def udp(self, sock: socket.socket, port: int) -> None:
        while True:
            try:
                data, peer, local = pktinfo.receive(sock)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                continue  # an ICMP error for an earlier answer
            self.note("udp", (local, port), peer, data)
            if port == STREAM_PORT:
                key = (local, *peer)
                if key not in self.streams or self.streams[key].done():
                    self.streams[key] = asyncio.ensure_future(self.udp_stream(sock, local, peer))
                continue
            with contextlib.suppress(OSError):
                pktinfo.send(sock, data, local, peer)

    async def udp_stream(self, sock: socket.socket, local: str, peer: tuple[str, int]) -> None:
        until, count = time.monotonic() + _STREAM_SECONDS, 0
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                pktinfo.send(sock, b"%08d\n" % count, local, peer)
            count += 1
            await asyncio.sleep(_BEAT)

    # -- set-up -------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        listeners = [
            *((port, self.http) for port in HTTP_PORTS),
            *((port, self.echo) for port in TCP_ECHO_PORTS),
            (STREAM_PORT, self.stream),
        ]
        for family in (socket.AF_INET, socket.AF_INET6):
            for port, handler in listeners:
                sock = pktinfo.wildcard(family, port, socket.SOCK_STREAM)
                await asyncio.start_server(handler, sock=sock, limit=_HEAD_LIMIT)
            for port in (*UDP_ECHO_PORTS, STREAM_PORT):
                udp = pktinfo.wildcard(family, port)
                loop.add_reader(udp, self.udp, udp, port)

    def name(self, address: str, name: str) -> None:
        self.names[address] = name

    def forget(self) -> None:
        self.log.clear()
        for task in self.streams.values():
            task.cancel()
        self.streams.clear()


async def main(fd: int) -> None:
    sites = Sites()
    await sites.open()
    await serve(
        fd,
        {"ready": lambda: True, "name": sites.name, "arrivals": lambda: list(sites.log), "forget": sites.forget},
    )
    # Peers that keep sending are cancelled now, and asyncio's streams (Python 3.11) report that as an error of theirs.
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
