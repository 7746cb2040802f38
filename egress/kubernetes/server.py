"""HTTPS for the webhook: few, known callers on one path, so everything is bounded and nothing is clever.

A connection takes one of `connections` slots before it is accepted; what comes beyond waits in the kernel's queue.
The hand-shake, and then a request with its answer, have their time, a body its size, a quiet connection `idle` seconds.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, NamedTuple

import h11

from egress.kubernetes.certificate import CertificateError
from egress.kubernetes.review import NotAReview

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable

    from egress.kubernetes.certificate import Certificate
    from egress.kubernetes.review import Verdict
    from egress.log import Log


class Limits(NamedTuple):
    """What callers may take. Times are seconds."""

    connections: int = 128
    body: int = 8 << 20  # a pod twice (old and new) and its patch; the API server takes 3 MiB for an object
    head: int = 32 << 10
    handshake: float = 10.0
    request: float = 10.0  # from its first octet to the end of its answer
    idle: float = 60.0
    linger: float = 1.0  # for a peer to read its answer and hang up
    follow: float = 1.0  # between looks at the certificate


class _Reply(NamedTuple):
    status: int
    body: bytes
    content_type: bytes = b"text/plain; charset=utf-8"
    allow: bytes = b""


class _TooLarge(Exception):
    pass


class Server:
    """One listener until `stop`. `judge` answers a body."""

    def __init__(
        self, certificate: Certificate, judge: Callable[[bytes], Verdict], log: Log, limits: Limits = Limits()  # noqa: B008
    ) -> None:  # fmt: skip
        self._certificate = certificate
        self._judge = judge
        self._log = log
        self._limits = limits
        self._slots = asyncio.Semaphore(limits.connections)
        self._open: dict[asyncio.Task[None], bool] = {}  # is it quiet, between two requests?
        self._stopping = False
        self.port = 0

    async def serve(self, listener: socket.socket, stop: asyncio.Event, delay: float, drain: float) -> None:
        """Serve until `stop`, then for `delay` seconds more as not ready, then give what is under way `drain`."""
        listener.setblocking(False)
        self.port = listener.getsockname()[1]
        follower = asyncio.create_task(self._follow())
        accepting = asyncio.create_task(self._accept(listener))
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait({accepting, stopped}, return_when=asyncio.FIRST_COMPLETED)
        self._stopping = True
        if not accepting.done():
            await asyncio.wait({accepting}, timeout=delay)
        for task in (follower, accepting, stopped):
            task.cancel()
        listener.close()
        for task, quiet in list(self._open.items()):
            if quiet:
                task.cancel()
        if self._open:
            await asyncio.wait(list(self._open), timeout=drain)
        for task in list(self._open):
            task.cancel()
        results = await asyncio.gather(follower, accepting, stopped, *self._open, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _follow(self) -> None:
        told = ""
        while True:
            await asyncio.sleep(self._limits.follow)
            try:
                if self._certificate.follow():
                    self._log.info("certificate loaded")
                told = ""
            except CertificateError as error:
                if str(error) != told:
                    self._log.error("the new certificate is not used, the one before serves on", reason=str(error))
                told = str(error)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._slots.acquire()
            try:
                peer, _ = await loop.sock_accept(listener)
            except OSError as error:  # out of descriptors, or the peer has gone already
                self._slots.release()
                self._log.warn("cannot accept", reason=error.strerror)
                await asyncio.sleep(0.1)
                continue
            task = asyncio.create_task(self._connection(peer))
            self._open[task] = False
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._slots.release()
        del self._open[task]
        if not task.cancelled() and task.exception() is not None:
            self._log.error("connection ended by a fault of ours", reason=repr(task.exception()))

    async def _connection(self, peer: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=1 << 16)
        protocol = asyncio.StreamReaderProtocol(reader)
        context: ssl.SSLContext = self._certificate.context
        try:
            async with asyncio.timeout(self._limits.handshake):
                transport, _ = await loop.connect_accepted_socket(
                    lambda: protocol, peer, ssl=context, ssl_handshake_timeout=self._limits.handshake,
                    ssl_shutdown_timeout=self._limits.linger,
                )  # fmt: skip
        except (OSError, TimeoutError):  # ssl's errors are OSErrors
            peer.close()
            return
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            await self._requests(reader, writer)
            writer.close()
            await writer.wait_closed()
        except (OSError, TimeoutError, h11.RemoteProtocolError):
            pass
        finally:
            if not transport.is_closing():  # asyncio's own goes wrong where it has been closed already
                transport.abort()

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=self._limits.head)
        first = True
        while not self._stopping or first:
            data = b""
            if not http.trailing_data[0]:
                self._open[task] = not first
                async with asyncio.timeout(self._limits.request if first else self._limits.idle):
                    data = await reader.read(1 << 16)
                self._open[task] = False
                if not data:
                    return
                http.receive_data(data)
            async with asyncio.timeout(self._limits.request):
                reply, method = await self._exchange(http, reader, writer)
                close = self._stopping or http.our_state is not h11.SEND_RESPONSE or http.their_state is not h11.DONE
                headers = [(b"Content-Type", reply.content_type), (b"Content-Length", b"%d" % len(reply.body))]
                headers += [(b"Connection", b"close")] if close else []
                headers += [(b"Allow", reply.allow)] if reply.allow else []
                parts = [
                    http.send(h11.Response(status_code=reply.status, headers=headers)),
                    http.send(h11.Data(data=reply.body)) if method != b"HEAD" else b"",
                    http.send(h11.EndOfMessage()),
                ]
                writer.write(b"".join(part for part in parts if part))
                await writer.drain()
                if close or http.our_state is not h11.DONE:
                    if http.their_state is h11.SEND_BODY:
                        await self._linger(reader)
                    return
            http.start_next_cycle()
            first = False

    async def _linger(self, reader: asyncio.StreamReader) -> None:
        """What is still on its way here would reset the connection before the answer is read."""
        left = self._limits.body
        async with asyncio.timeout(self._limits.linger):
            while left > 0 and (data := await reader.read(1 << 16)):
                left -= len(data)

    async def _exchange(
        self, http: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[_Reply, bytes]:
        """One request, whole; its answer and method."""
        try:
            request = await self._event(http, reader, writer)
            if not isinstance(request, h11.Request):
                raise h11.RemoteProtocolError("no request")
            method, path = request.method, request.target.partition(b"?")[0]
            body = bytearray()
            while isinstance(event := await self._event(http, reader, writer), h11.Data):
                body += event.data
                if len(body) > self._limits.body:
                    raise _TooLarge
        except _TooLarge:
            return _Reply(413, b"more than %d bytes\n" % self._limits.body), b""
        except h11.RemoteProtocolError as error:
            if http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
                raise
            return _Reply(error.error_status_hint, f"{error}\n".encode()), b""
        return self._answer(bytes(method), bytes(path), bytes(body)), bytes(method)

    async def _event(
        self, http: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> h11.Event | type[h11.PAUSED]:
        while True:
            event = http.next_event()
            if event is not h11.NEED_DATA:
                if isinstance(event, h11.ConnectionClosed):
                    raise ConnectionResetError
                return event  # type: ignore[return-value]
            if http.they_are_waiting_for_100_continue:
                writer.write(http.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
            http.receive_data(await reader.read(1 << 16))

    def _answer(self, method: bytes, path: bytes, body: bytes) -> _Reply:
        if path in (b"/healthz", b"/readyz"):
            if method not in (b"GET", b"HEAD"):
                return _Reply(405, b"write GET\n", allow=b"GET, HEAD")
            if path == b"/readyz" and self._stopping:
                return _Reply(503, b"stopping\n")
            return _Reply(200, b"ok\n")
        if path != b"/mutate":
            return _Reply(404, b"there is /mutate, /healthz and /readyz\n")
        if method != b"POST":
            return _Reply(405, b"write POST\n", allow=b"POST")
        started = time.monotonic()
        try:
            verdict = self._judge(body)
        except NotAReview as error:
            self._log.warn("not a review", reason=str(error))
            return _Reply(400, f"{error}\n".encode())
        self._log.info(
            "pod guarded" if verdict.patch else "pod let through" if verdict.allowed else "pod refused",
            event="kubernetes.admission", uid=verdict.uid, pod=verdict.subject,
            allowed=verdict.allowed, dry_run=verdict.dry_run, reason=verdict.message,
            milliseconds=round((time.monotonic() - started) * 1000, 1),
        )  # fmt: skip
        return _Reply(200, json.dumps(verdict.document()).encode(), b"application/json")
