"""WebSockets: the upgrade's answer is checked, then octets pass untouched in both directions.

Of the frames only their boundaries are followed, and only toward the client: between two frames is the one place where
the gateway can say that it is going away (RFC 6455 sections 5.2 and 7.4.1). Nothing is buffered, whatever their size.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import socket
import sys
from typing import TYPE_CHECKING, cast

from ingress.http1.headers import response_head

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingress.http1.core import Gateway
    from ingress.http1.endpoint import Endpoint
    from ingress.http1.exchange import Exchange
    from ingress.http1.head import Fields, ResponseHead
    from ingress.http1.upstream import Upstream

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_GOING_AWAY = b"\x88\x02\x03\xe9"
"""A close frame with status 1001."""
_UPGRADED = b"Connection: Upgrade\r\nUpgrade: websocket\r\n"

CLOSING_SECONDS = 2
"""How long a client may take to answer the gateway's close frame."""
_LAST_DATA_RECV = slice(52, 56)
"""tcpi_last_data_recv in struct tcp_info: milliseconds since the last octets came (linux/tcp.h)."""
LATELY = 1500
"""Milliseconds; a little more than from one tick to the next."""
HALF_CLOSED_SECONDS = 30
"""How long one direction may go on, quietly, after the other has ended."""


def accepts(asked: Fields, answer: ResponseHead) -> bool:
    """Is this 101 the right answer to that opening (RFC 6455 section 4.1)? A wrong one is not relayed."""
    key = asked.all(b"sec-websocket-key")
    accept = answer.fields.all(b"sec-websocket-accept")
    upgrade = answer.fields.all(b"upgrade")
    if len(key) != 1 or len(accept) != 1 or len(upgrade) != 1 or answer.version != 11:
        return False
    digest = base64.b64encode(hashlib.sha1(key[0] + _GUID, usedforsecurity=False).digest())
    return (
        hmac.compare_digest(digest, accept[0])
        and upgrade[0].lower() == b"websocket"
        and b"upgrade" in answer.fields.tokens(b"connection")
    )


class Boundaries:
    """Follows frame boundaries through a stream of octets, however it is cut."""

    __slots__ = ("_head", "_left", "between", "lost")

    def __init__(self) -> None:
        self._left = 0
        self._head = b""
        self.between = True
        """Is this the place between two frames?"""
        self.lost = False
        """The stream isn't frames as a server sends them; where one ends is not known any more."""

    def feed(self, data: bytes) -> None:
        """Pass over these octets."""
        if self.lost or not data:
            return
        left = self._left
        size = len(data)
        if left >= size:
            self._left = left - size
            self.between = left == size
            return
        at = left
        if self._head:
            data = self._head + data[at:]
            size = len(data)
            at = 0
        while at < size:
            if size - at < 2:
                break
            length = data[at + 1]
            if length > 127:  # masked: a server must not (section 5.1)
                self.lost = True
                self.between = False
                return
            if length < 126:
                at += 2 + length
                continue
            wide = 2 if length == 126 else 8
            if size - at < 2 + wide:
                break
            at += 2 + wide + int.from_bytes(data[at + 2 : at + 2 + wide])
        if at >= size:
            self._left = at - size
            self._head = b""
        else:
            self._left = 0
            self._head = data[at:]
        self.between = at == size


class Tunnel:
    """Two connections, joined."""

    __slots__ = ("boundaries", "client", "closing", "core", "endpoint", "intent", "lost", "quiet", "sandbox")

    def __init__(self, core: Gateway, endpoint: Endpoint, client: Exchange, upstream: Upstream) -> None:
        self.core = core
        self.endpoint = endpoint
        self.quiet = 0
        self.closing = 0
        """Seconds since its end began, and at least CLOSING_SECONDS once nothing more is relayed."""
        self.lost = 0
        """How many of its two connections are gone."""
        self.boundaries = Boundaries()
        admission = client.admission
        self.intent = (admission.asked, admission.port, admission.request_uri) if admission.renew else None
        self.client = ClientSide(self, client.transport)
        self.sandbox = SandboxSide(self, upstream.transport)
        self.client.join(self.sandbox)
        self.sandbox.join(self.client)

    def tick(self) -> None:
        """A second has passed."""
        client, sandbox = self.client, self.sandbox
        if self.closing:
            self.closing += 1
            if self.closing > CLOSING_SECONDS + self.core.limits.body_timeout:
                client.transport.abort()  # whoever does not read what is left for it
                sandbox.transport.abort()
            elif self.closing > CLOSING_SECONDS:
                self.close()
            return
        if sandbox.moved or client.heard_lately():
            sandbox.moved = False
            self.quiet = 0
            renewer = self.core.renewer
            if renewer is not None and self.intent is not None:
                renewer.note(*self.intent)
            return
        self.quiet += 1
        limit = self.core.limits.tunnel_timeout
        if (limit and self.quiet > limit) or ((client.ended or sandbox.ended) and self.quiet > HALF_CLOSED_SECONDS):
            self.going_away()

    def going_away(self) -> None:
        """End it, with a close frame where the gateway may speak."""
        if self.closing:
            return
        if self.boundaries.between and not self.sandbox.ended:
            self.closing = 1
            self.client.transport.write(_GOING_AWAY)
            self.sandbox.mute()
        else:
            self.close()

    def close(self) -> None:
        """End both sides; what is written already still leaves, where it is read."""
        self.closing = max(self.closing, CLOSING_SECONDS)
        self.client.transport.close()
        self.sandbox.transport.close()

    def ended(self) -> None:
        """One side is gone. Until both are it counts: the other may have much to read yet, or not read at all."""
        core = self.core
        self.closing = max(self.closing, CLOSING_SECONDS)
        self.lost += 1
        if self.lost == 2:
            core.tunnels.discard(self)
            core.stats.tunnels -= 1
            self.endpoint.load.connections -= 1


class Side(asyncio.Protocol):
    """One end of a tunnel: what it reads is written to its peer.

    A message is four system calls there and back, and they are four fifths of its cost. No BufferedProtocol: its two
    calls for each read, in place of one or none, cost a tenth more than the buffers that it spares.
    """

    __slots__ = ("ended", "peer", "transport", "tunnel")

    def __init__(self, tunnel: Tunnel, transport: asyncio.Transport) -> None:
        self.tunnel = tunnel
        self.transport = transport
        self.peer = self
        self.ended = False

    def eof_received(self) -> bool:
        self.ended = True
        peer = self.peer
        if peer.ended or not peer.transport.can_write_eof() or not self.transport.can_write_eof():
            self.tunnel.close()
            return False
        peer.transport.write_eof()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True
        peer = self.peer
        if exc is None:
            peer.transport.close()
        else:
            peer.transport.abort()
        self.tunnel.ended()

    def pause_writing(self) -> None:
        self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        self.tunnel.sandbox.moved = True
        self.peer.transport.resume_reading()


class ClientSide(Side):
    """The client's end. Its octets go from one transport to the other without a line of ours; when the last ones came,
    the kernel knows."""

    __slots__ = ("data_received",)

    def join(self, sandbox: SandboxSide) -> None:
        """Pass on to this one. Before the transport is given this protocol: it asks once for `data_received`."""
        self.peer = sandbox
        self.data_received = sandbox.transport.write  # type: ignore[method-assign]  # the slot above

    def heard_lately(self) -> bool:
        """Has the client sent anything since the last tick?"""
        try:
            info = self.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 64)
        except OSError:
            return False
        return int.from_bytes(info[_LAST_DATA_RECV], sys.byteorder) < LATELY


class SandboxSide(Side):
    """The sandbox's end: what it sends is followed, so that one knows where a frame ends."""

    __slots__ = ("_boundaries", "_pass_on", "moved")

    def join(self, client: ClientSide) -> None:
        """Pass on to this one."""
        self.peer = client
        self._boundaries = self.tunnel.boundaries
        self._pass_on: Callable[[bytes], None] = client.transport.write
        self.moved = True

    def mute(self) -> None:
        """Pass on no more: nothing follows a close frame (section 5.5.1)."""
        self._pass_on = _nowhere

    def data_received(self, data: bytes) -> None:
        self.moved = True
        boundaries = self._boundaries
        # Most reads are one whole small frame, after which we are where we were before it.
        if not boundaries.between or len(data) < 2 or not data[1] == len(data) - 2 < 126:
            boundaries.feed(data)
        self._pass_on(data)


def _nowhere(data: bytes) -> None:
    """Takes what a sandbox says behind the gateway's own close frame."""


def open_tunnel(client: Exchange, upstream: Upstream, answer: ResponseHead, early: bytes, rest: bytes) -> None:
    """Relay the 101 and join the connections. early: what the client sent before it; rest: the sandbox behind it."""
    core = client.core
    endpoint = upstream.endpoint
    head = response_head(answer, 0, True, 11, client.rewriter(), _UPGRADED + client.admission.set_cookie)
    tunnel = Tunnel(core, endpoint, client, upstream)
    core.tunnels.add(tunnel)
    core.stats.tunnels += 1
    core.stats.tunnels_total += 1
    tunnel.boundaries.feed(rest)
    client.transport.set_protocol(tunnel.client)
    upstream.transport.set_protocol(tunnel.sandbox)
    client.transport.write(head + rest)
    if early:
        upstream.transport.write(early)
    client.transport.resume_reading()
    upstream.transport.resume_reading()
    upstream.transport = cast("asyncio.Transport", None)
