"""One JSON object a line on stderr, and the access log; never a reason to wait.

Whoever reads may be slow, stuck or gone, and no request must notice: what can't be written at once is dropped and
counted, and the count is told with the next line that gets through. A pipe or a terminal is opened again through /proc,
so that O_NONBLOCK is ours alone and not also a shell's that shares the open file. Workers share one pipe: a write stays
within PIPE_BUF, because only that much is written whole, and not into another's line (pipe(7)).

No value of a header is ever written, and of a signed path the signature is not.
"""

from __future__ import annotations

import errno
import json
import os
import re
import select
import socket
import stat
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ingress.admission.verdict import Admission
    from ingress.http1.head import RequestHead

_LEVELS = {"debug": 0, "info": 1, "warn": 2, "error": 3}
_MOST = 4096  # PIPE_BUF on Linux
_PATH = 400  # octets of a path; each becomes six at worst
_encode = json.JSONEncoder(separators=(",", ":"), default=str).encode
_quote = json.encoder.encode_basestring_ascii
# A path that could be signed: its fourth segment begins as a signature does. Looser than what the gate takes for one,
# for a signature with a slip in it still is one to whoever reads the log.
_SIGNED = re.compile(rb"(/[^/?]*/[^/?]*/[^/?]*/)[0-9A-Fa-f]{8}[^/?]*")
_ENTER = b"/.sallyport/enter"


def timestamp(seconds: float) -> str:
    """RFC 3339 in UTC with milliseconds; `seconds` since the Unix epoch."""
    whole, milliseconds = divmod(int(seconds * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{milliseconds:03d}Z"


class Log:
    """Writes lines at or above `level` to `fd`; `fields` are added to each of them, a line's own fields win.

    dropped: lines that could not be written so far.
    """

    __slots__ = ("_fd", "_kind", "_level", "_rest", "_socket", "_told", "dropped", "fields")

    def __init__(self, fd: int = 2, level: str = "info", fields: Mapping[str, object] | None = None) -> None:
        self._level = _LEVELS[level]
        self._rest = b""  # what a terminal or a socket did not take of the last line
        self._told = 0
        self.dropped = 0
        self.fields = dict(fields or {})
        self._fd, self._kind = _open(fd)
        self._socket = socket.socket(fileno=os.dup(fd)) if self._kind == "socket" else None

    def enabled(self, level: str) -> bool:
        return _LEVELS[level] >= self._level

    def debug(self, message: str, **fields: object) -> None:
        self.write("debug", message, fields)

    def info(self, message: str, **fields: object) -> None:
        self.write("info", message, fields)

    def warn(self, message: str, **fields: object) -> None:
        self.write("warn", message, fields)

    def error(self, message: str, **fields: object) -> None:
        self.write("error", message, fields)

    def write(self, level: str, message: str, fields: Mapping[str, object]) -> None:
        """Write one line, or drop it; never raises and never waits."""
        if _LEVELS[level] >= self._level and self.put(self.line(level, message, fields), 1):
            self._told = self.dropped

    def line(self, level: str, message: str, fields: Mapping[str, object]) -> bytes:
        """The line, its end included; at most PIPE_BUF octets."""
        entry: dict[str, object] = {"time": timestamp(time.time()), "level": level, "msg": message}
        entry.update({key: value for key, value in self.fields.items() if key not in entry})
        entry.update(fields)
        if self.dropped > self._told:
            entry["log.dropped"] = self.dropped
        return _shortened(entry)

    def put(self, data: bytes, lines: int) -> bool:
        """Hand whole lines to the kernel, at most PIPE_BUF octets together; False: they are dropped and counted."""
        if self._rest:
            self._rest = self._rest[self._send(self._rest) :]
        sent = 0 if self._rest else self._send(data)
        if sent:
            self._rest = data[sent:]
        else:
            self.dropped += lines
        return bool(sent)

    def tell(self) -> None:
        """Say what was dropped since that was last said."""
        untold = self.dropped
        if untold > self._told:
            self.warn("log lines were dropped; whoever reads them is too slow")
            self.dropped = untold  # this line itself is none that anybody misses

    def close(self) -> None:
        if self._kind == "own":
            os.close(self._fd)
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._kind = "gone"

    def _send(self, data: bytes) -> int:
        """The number of octets taken, 0 for none."""
        if self._kind == "gone":
            return 0
        try:
            if self._socket is not None:
                return self._socket.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            if self._kind == "shared":
                poll = select.poll()
                poll.register(self._fd, select.POLLOUT)
                if not poll.poll(0):
                    return 0
            return os.write(self._fd, data)
        except OSError as error:
            if error.errno in (errno.EBADF, errno.EINVAL):
                self._kind = "gone"
            if error.errno not in (errno.EAGAIN, errno.EINTR):
                self._rest = b""  # the reader is gone: half a line is of no use to the next one
            return 0


def _open(fd: int) -> tuple[int, str]:
    """The descriptor to write to, and what it is: our own open file, shared with others, a socket, a file, or gone."""
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return -1, "gone"
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        try:
            return os.open(f"/proc/self/fd/{fd}", flags), "own"
        except OSError:
            return fd, "shared"  # no /proc, or another user's pipe: ask before each write whether it would block
    return fd, "socket" if stat.S_ISSOCK(mode) else "file"


def _shortened(entry: dict[str, object]) -> bytes:
    """`entry` as one line of at most _MOST octets; what is too long is cut inside its values."""
    data = _encode(entry)  # ASCII: a character is an octet
    for texts, items in ((400, 20), (80, 5), (30, 1)):
        if len(data) < _MOST:
            break
        entry = {key: _cut(value, texts, items) for key, value in entry.items()}
        entry["log.shortened"] = True
        data = _encode(entry)
    if len(data) >= _MOST:
        data = _encode({key: entry[key] for key in ("time", "level", "msg")} | {"log.shortened": True})
    return data.encode() + b"\n"


def _cut(value: object, texts: int, items: int) -> object:
    if isinstance(value, str):
        return value if len(value) <= texts else value[:texts] + "..."
    if isinstance(value, (list, tuple)):
        return [_cut(item, texts, items) for item in value[:items]]
    if isinstance(value, dict):
        return {str(key)[:texts]: _cut(item, texts, items) for key, item in list(value.items())[:items]}
    return value


class Served(Protocol):
    """What the access log reads of a connection when an answer is over."""

    @property
    def head(self) -> RequestHead | None: ...
    @property
    def admission(self) -> Admission | None: ...
    @property
    def version(self) -> int: ...
    @property
    def received(self) -> int: ...
    def total_sent(self) -> int: ...


class Access:
    """The access log: a line for each request, or for a share of them; refusals and faults of the gateway's own always.

    share: 0 to 1, kept by counting, so that of ten requests at 0.1 exactly one is written. query: with the query, which
    may hold secrets of the application. Lines are gathered; `flush` once a second.
    """

    __slots__ = ("_due", "_fields", "_held", "_lines", "_log", "_query", "_second", "_share", "_stamp")

    def __init__(self, log: Log, share: float = 1.0, *, query: bool = False) -> None:
        self._log = log
        self._share = share
        self._query = query
        self._due = 0.0
        self._held = b""
        self._lines = 0
        self._second = -1
        self._stamp = ""
        fields = {key: _cut(value, 100, 5) for key, value in log.fields.items()}
        self._fields = "," + _encode(fields)[1:-1] if fields else ""

    def request(self, client: Served, address: str, code: str, status: int, seconds: float) -> None:
        """An answer is over. code: "" where the sandbox made it. status 101: the tunnel has begun."""
        self._due += self._share
        if self._due >= 1.0:
            self._due -= 1.0
        elif not code or status < 400:
            return
        line = self._line(client, address, code, status, seconds)
        if len(self._held) + len(line) > _MOST:
            self.flush()
        self._held += line
        self._lines += 1

    def _line(self, client: Served, address: str, code: str, status: int, seconds: float) -> bytes:
        # Put together by hand: a dict and a JSON encoder take longer than a request.
        head, admission = client.head, client.admission
        now = time.time()
        if int(now) != self._second:
            self._second = int(now)
            self._stamp = timestamp(self._second)[:-4]
        line = f'{{"time":"{self._stamp}{int(now % 1 * 1000):03d}Z","level":"info","msg":"request"{self._fields}'
        line += f',"client":{_quote(address)}'
        if head is not None:
            prefix = None if admission is None or code else admission.prefix
            path = mask_target(head.target, prefix, query=self._query)
            line += f',"method":"{head.method.decode()}","path":{_quote(path)}'
        line += f',"status":{status}'
        if code:
            line += f',"code":{_quote(code)}'
        if admission is not None:
            line += f',"sandbox":{_quote(admission.sandbox.id)},"port":{admission.port}'
        protocol = "websocket" if status == 101 else "HTTP/1.0" if client.version == 10 else "HTTP/1.1"
        return (
            f'{line},"protocol":"{protocol}","bytes_in":{client.received},"bytes_out":{client.total_sent()}'
            f',"duration_ms":{seconds * 1000:.3f}}}\n'
        ).encode()

    def flush(self) -> None:
        """Write what was gathered, or drop it; never waits."""
        if self._held:
            if self._log.put(self._held, self._lines):
                self._log.tell()
            self._held = b""
            self._lines = 0


def mask_target(target: bytes, prefix: bytes | None, *, query: bool = False) -> str:
    """A request target for the log: its path, without what would open a sandbox, cut where it is long.

    prefix: the public prefix that the gate took off in path mode, b"" where the route was elsewhere, None where nobody
    knows: then whatever could be a signature is taken for one. query: keep it, but for the gateway's own links.
    """
    if target[:7].lower() == b"http://" or target[:8].lower() == b"https://":
        rest = target.partition(b"://")[2]
        slash = re.search(rb"[/?]", rest)
        target = rest[slash.start() :] if slash else b""  # a signed host name may stand before it
        target = target if target.startswith(b"/") else b"/" + target
    if prefix is None:
        target = _SIGNED.sub(rb"\1***", target, count=1)
    elif prefix and target.startswith(prefix):
        parts = prefix.split(b"/")
        if len(parts) > 4:
            target = b"/".join(parts[:4]) + b"/***" + target[len(prefix) :]
    path, _, rest = target.partition(b"?")
    if not query or path.endswith(_ENTER):
        target = path
    return target[:_PATH].decode(errors="backslashreplace")
