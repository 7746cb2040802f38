"""What the name guard costs: TLS connections a second with it and without it, interleaved.

    make bench-sni, or: python -m bench.sni [rounds] [--write]

Two sandboxes on one machine and one internet, the one guarded by name, the other by address alone. A connection is a
full handshake and a request of one line, answered by one line; server and clients are Python's ssl over OpenSSL.
Clients verify the server's certificate, as honest ones do, or don't look at it, which leaves the guard a larger share.
A round is some seconds of each, one right after the other; what is told are the medians of the rounds, and of the
quotients of each round's two figures. On a machine that others use, processor time is what to believe.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lab import Internet, LabError
from lab.tls import TlsSites
from tests.blackbox.place import Place, allow

if TYPE_CHECKING:
    from collections.abc import Sequence

SECONDS = 2.0
BEGIN, END = "<!-- bench: written by bench.sni -->", "<!-- end -->"
PAGE = Path(__file__).resolve().parent.parent / "docs" / "sni.md"

_CLIENTS = r"""
import json, os, socket, ssl, sys, time
address, name, clients, seconds, authority = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), sys.argv[5]

def run(pipe):
    context = ssl.create_default_context(cafile=authority or None)
    if not authority:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    took, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        begun = time.monotonic()
        with socket.create_connection((address, 443), 20) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with context.wrap_socket(sock, server_hostname=name) as secure:
                secure.sendall(b"hello")
                assert secure.recv(4096)
        took.append(time.monotonic() - begun)
    os.write(pipe, (json.dumps(took) + "\n").encode())

read, write = os.pipe()
for _ in range(clients):
    if not os.fork():
        run(write)
        os._exit(0)
os.close(write)
found = [json.loads(line) for line in open(read)]
for _ in range(clients):
    assert os.wait()[1] == 0
print(json.dumps(sum(found, [])))
"""


class Round(NamedTuple):
    rate: float  # connections a second
    median: float  # seconds for one
    work: float  # seconds of processor time for one: clients, server and sidecar


class Kind(NamedTuple):
    """A row of the table."""

    key: str
    verified: bool  # clients look at the certificate
    clients: int


def measure(place: Place, tls: TlsSites, address: str, name: str, kind: Kind) -> Round:
    """One round in this sandbox."""
    authority = tls.authority if kind.verified else ""
    pids = [tls.pid, place.sidecar.worker_pid, *relays(place)]
    before = sum(map(used, pids)) + children()
    done = place.lab.python(_CLIENTS, address, name, str(kind.clients), str(SECONDS), authority, timeout=120)
    assert done.returncode == 0, done.stderr
    took = json.loads(done.stdout)
    work = sum(map(used, pids)) + children() - before
    return Round(len(took) / SECONDS, statistics.median(took), work / len(took))


def relays(place: Place) -> list[int]:
    with contextlib.suppress(LabError):
        return [place.sidecar.relay_pid]
    return []


def used(pid: int) -> float:
    """Seconds of processor time of a process so far (proc_pid_stat(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children() -> float:
    """The same of all programs that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def lines(found: dict[Kind, list[tuple[Round, Round]]]) -> list[str]:
    """A table's."""
    table = [
        "| key | verified | clients | a second, off | on | lost | one takes, off | on | processor, off | on | more |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (key, verified, clients), rounds in sorted(found.items()):
        off, on = (statistics.median(pair[which].rate for pair in rounds) for which in (0, 1))
        lost = statistics.median(1 - pair[1].rate / pair[0].rate for pair in rounds)
        times = [1000 * statistics.median(pair[which].median for pair in rounds) for which in (0, 1)]
        work = [1000 * statistics.median(pair[which].work for pair in rounds) for which in (0, 1)]
        more = statistics.median(pair[1].work / pair[0].work - 1 for pair in rounds)
        table.append(
            f"| {key} | {'yes' if verified else 'no'} | {clients} | {off:.0f} | {on:.0f} | {lost:.0%} "
            f"| {times[0]:.2f} ms | {times[1]:.2f} ms | {work[0]:.2f} ms | {work[1]:.2f} ms | {more:.0%} |"
        )
    return table


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rounds", nargs="?", type=int, default=10)
    parser.add_argument("--write", action="store_true", help="write the table into docs/sni.md")
    arguments = parser.parse_args(argv)
    name = "api.example.com"
    found: dict[Kind, list[tuple[Round, Round]]] = {}
    with (
        Internet() as internet,
        Place(internet, policy=allow(name)) as off,
        Place(internet, policy=allow(name), env={"SNI": "enforce"}) as on,
    ):
        address = off.host()
        for place in (off, on):
            place.teach(address, name=name)
        for key in ("P-256", "RSA 2048"):
            with TlsSites(internet.namespace, rsa=key != "P-256", name=name) as tls:
                tls.add(address)
                for number, verified, clients in itertools.product(range(arguments.rounds), (True, False), (1, 4)):
                    kind = Kind(key, verified, clients)
                    order = (off, on) if number % 2 else (on, off)
                    pair = {place: measure(place, tls, address, name, kind) for place in order}
                    found.setdefault(kind, []).append((pair[off], pair[on]))
                    print(f"{number + 1} {kind} off {pair[off]} on {pair[on]}", file=sys.stderr)
    text = "\n".join(lines(found))
    print(text)
    if arguments.write:
        page = PAGE.read_text()
        head, tail = page.split(BEGIN)[0], page.split(END, 1)[1]
        PAGE.write_text(f"{head}{BEGIN}\n{text}\n{END}{tail}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
