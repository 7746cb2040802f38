"""One relayed connection, from its first octet to its end.

    accepted ─▶ hello: read, until it says its name ─▶ asked: the worker judges ─▶ (starved: of a socket) ─▶ connecting
      ─▶ the hello is replayed ─▶ (TLS: the server's first word; for another hello, that too is read) ─▶ two lanes

Whatever is refused ends with a reset, at once.
"""

from __future__ import annotations

import errno
import socket
import struct
from functools import lru_cache

from egress.sni import messages
from egress.sni.clienthello import Reader, asks_again
from egress.sni.lane import Lane
from egress.sni.names import Refused
from egress.sni.requests import Requests
from policies.values import TYPE_CHECKING

if TYPE_CHECKING:
    from socket import SocketType

    from egress.sni.clienthello import Hello
    from egress.sni.relay import Relay

READ = 16_384  # octets read at a time before the name is known
HELLO, ASKED, STARVED, CONNECTING, WORD, RELAYED, GONE = range(7)
_RESET = struct.pack("=ii", 1, 0)  # SO_LINGER: close sends a reset
_ENCRYPTED = "an encrypted ClientHello (ECH), behind which the name cannot be seen"
_TCP_CLOSE = 7  # the first octet of struct tcp_info


_written = lru_cache(256)(socket.inet_ntop)  # an address is connected to many times


def _dial(sock: SocketType, packed: bytes, port: int) -> bool:
    """Begin to connect; False: it cannot be."""
    return sock.connect_ex((_written(sock.family, packed), port)) in (0, errno.EINPROGRESS)


class Again:
    """Reads along for the ClientHello that a HelloRetryRequest has asked for: it has to say the same name."""

    def __init__(self, first: Hello) -> None:
        self.done = False
        self._first = first
        self._reader = Reader(first)

    def feed(self, data: bytes) -> bytes:
        """Raises Refused."""
        hello = self._reader.feed(data)
        if hello is None:
            return b""
        if (hello.name, hello.encrypted) != (self._first.name, self._first.encrypted):
            raise Refused("another server name (SNI) in the second ClientHello")
        self.done = True
        return bytes(self._reader.raw)


class Connection:
    """A client that was redirected, and the server that it wanted."""

    __slots__ = (
        "_client", "_head", "_heard", "_lanes", "_later", "_life", "_reader", "_relay", "_server", "chain",
        "family", "loop", "name", "number", "packed", "pipes", "port", "state", "unjudged",
    )  # fmt: skip

    def __init__(self, relay: Relay, number: int, client: SocketType, packed: bytes, port: int) -> None:
        self.number = number
        self.packed = packed
        self.port = port
        self.family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
        self.name = ""
        self.state = HELLO
        self.chain: tuple[str, ...] = ()  # what the worker said of the name; it wants it back
        self.loop = relay.loop
        self.pipes = relay.pipes
        self.unjudged = 0  # octets that wait for a verdict
        self._relay = relay
        self._client = client
        self._server: SocketType | None = None
        self._life = 0  # of the worker that made the server's socket
        self._reader: Reader | Requests = Reader() if port == 443 else Requests()
        self._head = b""  # goes to the server first
        self._later = b""  # of what the client has sent, what the server has to wait for
        self._lanes: tuple[Lane, ...] = ()
        self._heard = False  # the loop reads the client

    def begin(self) -> None:
        self._heard = True
        self.loop.add_reader(self._client.fileno(), self._read)

    # -- the name --------------------------------------------------------------------------------------------------
    def _read(self) -> None:
        if self.state != HELLO:  # it goes on before it is its turn (early data): what it says waits where it is
            self._heard = False
            self.loop.remove_reader(self._client.fileno())
            return
        try:
            data = self._client.recv(READ)
        except BlockingIOError:
            return
        except OSError:
            self.close(reset=True)
            return
        if not data:
            self.close(reset=False)
            return
        self.unjudged += len(data)
        room = self._relay.room(len(data))
        reader = self._reader
        try:
            if not room:
                raise Refused("too much waits for a verdict")
            if isinstance(reader, Requests):
                self._head += reader.feed(data)
                self.name = reader.name
            else:
                hello = reader.feed(data)
                if hello is not None:
                    if hello.encrypted and not self._relay.passes_encrypted:
                        raise Refused(_ENCRYPTED)
                    self.name = hello.name
                    self._head, self._later = bytes(reader.raw[: reader.end]), bytes(reader.raw[reader.end :])
        except Refused as refusal:
            self.refuse(str(refusal))
            return
        if self.name:
            self.state = ASKED
            self._relay.ask(self)

    def too_late(self) -> None:
        """Time is up for the client to say its name, and for the worker to judge."""
        if self.state == HELLO:
            self.refuse("the client did not say in time for which name it is" if self.unjudged else
                        "the client said nothing: only TLS on 443 and HTTP on 80 can be let through")  # fmt: skip
        elif self.state in (ASKED, STARVED):
            self.refuse("no verdict came in time")

    # -- the server ------------------------------------------------------------------------------------------------
    def allowed(self, chain: tuple[str, ...]) -> None:
        """The worker's word: go on."""
        self.chain = chain
        self._relay.judged(self)
        self.connect()

    def connect(self) -> None:
        """With a socket that the worker has made; once more when there was none."""
        self.state = STARVED
        server = self._server = self._relay.spare(self)
        if server is None:
            return
        self.state = CONNECTING
        self._life = self._relay.spares.life
        if _dial(server, self.packed, self.port):
            self._replay(registered=False)
        else:
            self.close(reset=True)

    def _replay(self, *, registered: bool) -> None:
        server, loop = self._server, self.loop
        assert server is not None
        try:
            self._head = self._head[server.send(self._head) :]
        except BlockingIOError:
            pass
        except OSError:
            self.close(reset=True)  # refused, unreachable, timed out: the client has to hear of it
            return
        if self._head:
            if not registered:
                loop.add_writer(server.fileno(), lambda: self._replay(registered=True))
            return
        if registered:
            loop.remove_writer(server.fileno())
        reader = self._reader
        if isinstance(reader, Requests):
            self._relay_on(b"", b"", reader, spoken=False)
        else:
            self.state = WORD
            loop.add_reader(server.fileno(), self._first_word)

    def _first_word(self) -> None:
        """Whether the server wants another ClientHello; until that is known, nothing more of the client's goes on."""
        server, reader = self._server, self._reader
        assert server is not None
        assert isinstance(reader, Reader)
        assert reader.hello is not None
        try:
            data = server.recv(READ)
        except BlockingIOError:
            return
        except OSError:
            self.close(reset=True)
            return
        self._head += data
        again = asks_again(self._head) if data else False
        if again is None:
            return
        later, through = self._later, Again(reader.hello) if again else None
        if through is not None and later:
            try:
                later = through.feed(later)
            except Refused as refusal:
                self.refuse(str(refusal))
                return
        self._relay_on(later, self._head, None if through is None or through.done else through, spoken=True)

    def _relay_on(self, up: bytes, down: bytes, through: Requests | Again | None, *, spoken: bool) -> None:
        """`spoken`: the loop reads the server already."""
        server, client = self._server, self._client
        assert server is not None
        self.state = RELAYED
        self._head = self._later = b""
        if through is None:
            self._reader = _DONE  # the hello is needed no more
        there = Lane(self, client, server, up, through, reading=self._heard)
        back = Lane(self, server, client, down, None, reading=spoken)
        self._lanes = (there, back)
        if down or not spoken:
            back.begin()
        if self.state == RELAYED and (up or not self._heard):
            there.begin()

    # -- the end ---------------------------------------------------------------------------------------------------
    def ended(self, lane: Lane) -> None:
        there, back = self._lanes
        if there.done and back.done:
            self.close(reset=False)
        else:
            lane.close()
            lane.sink.shutdown(socket.SHUT_WR)

    def broke(self, error: Exception) -> None:
        if isinstance(error, Refused):
            self.refuse(str(error))
        else:
            self.close(reset=True)

    def half_dead(self) -> bool:
        """Somebody whose octets are not waited for has been reset, so that only asking tells."""
        quiet = [lane.source for lane in self._lanes if lane.done]
        if self.state in (CONNECTING, WORD):
            quiet.append(self._client)
        return any(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_CLOSE for sock in quiet)

    def refuse(self, reason: str) -> None:
        """Reset, and tell why."""
        name = self.name
        self.close(reset=True)
        self._relay.refused(self.packed, self.port, name, reason)

    def close(self, *, reset: bool) -> None:
        relay, client, server = self._relay, self._client, self._server
        if self.state == GONE:
            return
        self.state = GONE
        relay.judged(self)
        for lane in self._lanes:
            lane.close(sockets_too=True)
        self._lanes = ()
        self._end(client, reset=reset)
        if server is not None:
            if not reset and relay.spares.take_back(server, self.family, self._life):
                self.loop.remove_reader(server.fileno())
                self.loop.remove_writer(server.fileno())
            else:
                self._end(server, reset=reset)
        relay.forget(self)

    def _end(self, sock: SocketType, *, reset: bool) -> None:
        self.loop.forget(sock.fileno())
        if reset:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        sock.close()

    def check(self) -> messages.Message:
        """Asks whether it may go on."""
        return messages.Message(messages.CHECK, self.number, self.packed, self.port, (self.name, *self.chain))


_DONE = Requests()  # in the place of a reader that is needed no more
