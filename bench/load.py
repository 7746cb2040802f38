"""Load: dnsperf for a hundred in flight, a blocking socket of our own for one at a time.

dnsperf is C and fast enough to keep every contender's core busy. One question at a time it would add the hand-over
between its two threads; a blocking `send` and `recv` measures what a stub resolver feels.
"""

from __future__ import annotations

import itertools
import re
import socket
import struct
import subprocess
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    from bench.contenders import Contender
    from bench.place import Sandbox

IN_FLIGHT = 100
CLIENTS = 10  # sockets that dnsperf asks from
_serial = itertools.count(1)


class Burst(NamedTuple):
    """One contender under load."""

    qps: float
    cpu: float  # µs of processor per query
    busy: float  # share of its core that it used
    good: float  # share of queries answered NOERROR
    completed: int


class Spread(NamedTuple):
    """Latency in µs."""

    p50: float
    p99: float


def question(name: str, ident: int = 1) -> bytes:
    labels = b"".join(bytes((len(label),)) + label.encode() for label in name.split("."))
    return struct.pack("!HHHHHH", ident, 0x0100, 1, 0, 0, 0) + labels + b"\0\0\1\0\1"


def lookup(sandbox: Sandbox, name: str, timeout: float) -> bytes | None:
    """Ask once from the sandbox; None where no good answer comes in time."""
    with sandbox.namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(timeout)
        try:
            sock.connect((sandbox.gateway, 53))
            sock.send(question(name))
            data = sock.recv(2048)
        except OSError:
            return None
    return data if not data[3] & 15 and data[6:8] != b"\0\0" else None


def names(folder: Path, count: int, letter: str) -> Path:
    """A file of `count` names for dnsperf that nobody was ever asked."""
    path = folder / f"names-{letter}"
    start = next(_serial)
    path.write_text("\n".join([f"{letter}{start:04d}x{number:07d}.example.com A" for number in range(count)]) + "\n")
    return path


def fixed_names(folder: Path, count: int) -> Path:
    """A file of the same names every time."""
    path = folder / "names-fixed"
    path.write_text("\n".join([f"p-same-{number}.example.com A" for number in range(count)]) + "\n")
    return path


def burst(contender: Contender, file: Path, seconds: float, *, once: bool) -> Burst:
    """A hundred in flight for `seconds`; `once`: stop when the names are used up."""
    process = contender.running
    before = process.cpu()
    output = _dnsperf(contender.sandbox, file, ["-l", f"{seconds:g}", *(["-n", "1"] if once else [])])
    used = process.cpu() - before
    completed = int(_number(output, r"Queries completed:\s+(\d+)"))
    sent = int(_number(output, r"Queries sent:\s+(\d+)"))
    qps = _number(output, r"Queries per second:\s+([\d.]+)")
    run = _number(output, r"Run time \(s\):\s+([\d.]+)")
    good = re.search(r"NOERROR (\d+)", output)
    if not completed:
        raise RuntimeError(f"{contender.name} answered nothing:\n{output}")
    return Burst(qps, used / completed * 1e6, used / run, (int(good[1]) if good else 0) / max(sent, 1), completed)


def crowd(contender: Contender, file: Path, count: int) -> Spread:
    """Latency with a hundred in flight: `count` queries, each told by dnsperf."""
    output = _dnsperf(contender.sandbox, file, ["-v", "-n", "1"])
    found = [float(match) * 1e6 for match in re.findall(r"^> \w+ \S+ A ([\d.]+)", output, re.MULTILINE)]
    if len(found) < count * 0.9:
        raise RuntimeError(f"{contender.name} answered {len(found)} of {count}")
    return spread(found[len(found) // 10 :])


def single(contender: Contender, asked: list[str]) -> Spread:
    """One at a time: send, wait for the answer, send the next."""
    taken: list[float] = []
    clock = time.perf_counter_ns
    with contender.sandbox.namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(2)
        sock.connect((contender.sandbox.gateway, 53))
        for number, name in enumerate(asked):
            message = question(name, number & 0xFFFF)
            begin = clock()
            sock.send(message)
            data = sock.recv(2048)
            end = clock()
            if data[:2] != message[:2] or data[3] & 15:
                raise RuntimeError(f"{contender.name} did not answer {name}: {data[:12].hex()}")
            taken.append((end - begin) / 1000)
    return spread(taken[len(taken) // 10 :])


def fresh(count: int, letter: str) -> list[str]:
    """The same to be asked one at a time."""
    start = next(_serial)
    return [f"{letter}{start:04d}y{number:07d}.example.com" for number in range(count)]


def spread(values: list[float]) -> Spread:
    values = sorted(values)
    return Spread(values[len(values) // 2], values[min(len(values) - 1, len(values) * 99 // 100)])


def _dnsperf(sandbox: Sandbox, file: Path, options: list[str]) -> str:
    argv = [
        "dnsperf", "-f", "inet", "-s", sandbox.gateway, "-d", str(file), "-q", str(IN_FLIGHT), "-c", str(CLIENTS),
        "-T", "1", "-t", "2", "-b", "4096", *options,
    ]  # fmt: skip
    with sandbox.namespace.entered():
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise RuntimeError(f"dnsperf: {done.stderr.strip()}")
    return done.stdout


def _number(text: str, pattern: str) -> float:
    found = re.search(pattern, text)
    if not found:
        raise RuntimeError(f"dnsperf did not say {pattern}:\n{text[-400:]}")
    return float(found[1])
