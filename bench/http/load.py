"""Load for small answers: wrk for many connections, a blocking socket of our own for one.

wrk is C and keeps every contender busy. With one connection its event loop would be part of what is measured; a
blocking `send` and `recv` is what a plain client feels.
"""

from __future__ import annotations

import re
import socket
import struct
import subprocess
import time
from typing import TYPE_CHECKING, NamedTuple

from bench.http.place import ANSWER
from lab.lacking import search_path

if TYPE_CHECKING:
    from bench.http.contender import Contender
    from bench.http.place import Place

_TIMEOUT = struct.pack("ll", 10, 0)
_PRINT = """
done = function(summary, latency, requests)
    local e = summary.errors
    local bad = e.connect + e.read + e.write + e.status + e.timeout
    io.write(string.format("BENCH requests=%d us=%d bytes=%d bad=%d p50=%.0f p99=%.0f\\n", summary.requests,
        summary.duration, summary.bytes, bad, latency:percentile(50), latency:percentile(99)))
end
"""
# Each request has a path and a header value that nobody has sent before.
_VARIED = """
local before, between, after
local count = math.random(1000000) * 10000
init = function(args)
    before = "GET " .. wrk.path .. "item/"
    between = " HTTP/1.1\\r\\n"
    for name, value in pairs(wrk.headers) do between = between .. name .. ": " .. value .. "\\r\\n" end
    between = between .. "X-Request-Id: "
    after = "\\r\\n\\r\\n"
    math.randomseed(os.time())
    count = math.random(100000) * 10000000
end
request = function()
    count = count + 1
    return before .. count .. between .. count .. after
end
"""


class Burst(NamedTuple):
    """One contender under load."""

    rate: float  # requests, messages or octets a second
    cpu: float  # µs of processor for each
    busy: float  # share of its core that it used
    p50: float = 0.0  # µs
    p99: float = 0.0
    bad: int = 0  # requests that failed


class Spread(NamedTuple):
    """Latency in µs."""

    p50: float
    p99: float


def write_scripts(place: Place) -> None:
    (place.folder / "same.lua").write_text(_PRINT)
    (place.folder / "varied.lua").write_text(_PRINT + _VARIED)


def wrk_argv(contender: Contender, connections: int, seconds: int, *, varied: bool = False) -> list[str]:
    place = contender.place
    script = place.folder / ("varied.lua" if varied else "same.lua")
    headers = [part for name, value in contender.headers(place.plain).items() for part in ("-H", f"{name}: {value}")]
    url = f"http://127.0.0.1:{contender.address(place.plain)}{contender.prefix(place.plain)}/"
    return ["wrk", "-t", "1", "-c", str(connections), "-d", f"{seconds}s", "--timeout", "10s", "-s", str(script),
            *headers, url]  # fmt: skip


def burst(contender: Contender, connections: int, seconds: int, *, varied: bool = False) -> Burst:
    """So many keep-alive connections for so many seconds. Raises RuntimeError where nothing is answered."""
    process = contender.running
    before = process.cpu()
    argv = wrk_argv(contender, connections, seconds, varied=varied)
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=seconds + 30, check=False, env={"PATH": search_path()}
    )
    used = process.cpu() - before
    found = wrk_figures(done.stdout)
    if not found.get("requests"):
        said = (done.stderr or done.stdout).strip().splitlines()
        raise RuntimeError(f"{contender.name} answered nothing: {said[-1] if said else 'wrk said nothing'}")
    if found["bad"] * 100 > found["requests"] or found["bytes"] < found["requests"] * ANSWER:
        raise RuntimeError(f"{found['bad']:.0f} of {found['requests']:.0f} requests failed or had no answer to read")
    took = found["us"] / 1e6
    return Burst(
        found["requests"] / took, used / found["requests"] * 1e6, used / took, found["p50"], found["p99"],
        int(found["bad"]),
    )  # fmt: skip


def wrk_figures(output: str) -> dict[str, float]:
    """What our script made wrk print; empty where it did not get that far."""
    line = re.search(r"^BENCH (.*)$", output, re.MULTILINE)
    if not line:
        return {}
    return {name: float(value) for name, value in (part.split("=") for part in line[1].split())}


def single(contender: Contender, seconds: float, most: int) -> Spread:
    """One connection, one request after the other: for `seconds`, or `most` of them."""
    port = contender.place.plain
    message = head(contender, "GET", port, "/")
    taken: list[float] = []
    clock = time.perf_counter_ns
    with connect(contender, port) as sock:
        size = len(response(sock, message))
        until = clock() + int(seconds * 1e9)
        while len(taken) < most:
            begin = clock()
            sock.send(message)
            got = len(sock.recv(65536))
            while got < size:
                part = len(sock.recv(65536))
                if not part:
                    raise RuntimeError(f"{contender.name} ended a connection")
                got += part
            end = clock()
            taken.append((end - begin) / 1000)
            if end > until:
                break
    return spread(taken[len(taken) // 10 :])


def head(contender: Contender, method: str, port: int, path: str, **fields: str) -> bytes:
    """The head of a request for this origin through this contender."""
    lines = [f"{method} {contender.prefix(port)}{path} HTTP/1.1", f"Host: 127.0.0.1:{contender.address(port)}"]
    lines += [f"{name}: {value}" for name, value in contender.headers(port).items()]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def response(sock: socket.socket, message: bytes) -> bytes:
    """Send, and read one whole answer. Raises RuntimeError where it is not a 200, or ends early."""
    sock.sendall(message)
    data = b""
    while not complete(data):
        part = sock.recv(1 << 18)
        if not part:
            raise RuntimeError(f"the connection ended after {data[:100]!r}")
        data += part
    if not data.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"not a 200: {data[:100]!r}")
    return data


def complete(data: bytes) -> bool:
    """Is this a whole response with a Content-Length, or with chunks?"""
    fields, blank, body = data.partition(b"\r\n\r\n")
    if not blank:
        return False
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", fields)
    return len(body) >= int(length[1]) if length else body.endswith(b"0\r\n\r\n")


def connect(contender: Contender, port: int) -> socket.socket:
    """A blocking connection for this origin. Waiting ends after ten seconds: SO_RCVTIMEO costs no system call."""
    sock = socket.create_connection(("127.0.0.1", contender.address(port)), 10)
    sock.settimeout(None)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEOUT)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEOUT)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def spread(values: list[float]) -> Spread:
    values = sorted(values)
    return Spread(values[len(values) // 2], values[min(len(values) - 1, len(values) * 99 // 100)])
