"""Who goes on asking as ever while somebody else floods: names, the health check, the API.

    python -m bench.honest SECONDS HOST

A question every 20 ms, each from a new port, as a stub resolver asks: in turn a name that is known, and one that
nobody asked before below another wildcard than the flood's. What is not answered within a second has failed, though a
stub would ask again. Once a second the health check and the policy are asked for. Prints JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import sys
import threading
import time

from bench.load import question
from lab import http

EVERY = 0.02  # seconds
PATIENCE = 1.0  # seconds
API_PORT = 18080
TOKEN = "of-the-bench"


class Asker:
    """Questions that do not wait for each other's answers."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._poll = select.poll()
        self._open: dict[int, tuple[socket.socket, float, list[float | None]]] = {}

    def ask(self, name: str, number: int, into: list[float | None]) -> None:
        """Its seconds, or None, are put into `into` one day."""
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setblocking(False)
        begin = time.monotonic()
        try:
            sock.connect((self._host, 53))
            sock.send(question(name, number & 0xFFFF))
        except OSError:
            sock.close()
            into.append(None)
            return
        self._open[sock.fileno()] = sock, begin, into
        self._poll.register(sock.fileno(), select.POLLIN)

    def listen(self, until: float) -> None:
        """Take answers until that time."""
        while (left := until - time.monotonic()) > 0:
            for fd, _ in self._poll.poll(left * 1000):
                self._done(fd)
        for fd in [fd for fd, (_, begin, _) in self._open.items() if until - begin > PATIENCE]:
            self._done(fd, late=True)

    def _done(self, fd: int, *, late: bool = False) -> None:
        sock, begin, into = self._open.pop(fd)
        took = time.monotonic() - begin
        try:
            data = sock.recv(2048)
        except OSError:
            data = bytes(12)
        self._poll.unregister(fd)
        sock.close()
        good = data[2] & 0x80 and not data[3] & 15 and data[6:8] != b"\0\0"
        into.append(took if good and not late else None)


def call(path: str) -> float | None:
    begin = time.monotonic()
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
            sock.settimeout(PATIENCE)
            sock.connect(("127.0.0.1", API_PORT))
            answer = http.exchange(sock, "GET", path, headers={"OPENSANDBOX-EGRESS-AUTH": TOKEN})
    except OSError:
        return None
    return time.monotonic() - begin if answer.status == 200 else None


def main() -> None:
    seconds, host = float(sys.argv[1]), sys.argv[2]
    with contextlib.suppress(OSError):
        os.nice(-5)  # it shares its core with the flood; what waits for that is not to be measured
    end = time.monotonic() + seconds
    calls: list[float | None] = []

    def watch() -> None:
        while time.monotonic() < end:
            calls.extend((call("/healthz"), call("/policy")))
            time.sleep(1)

    thread = threading.Thread(target=watch)
    thread.start()
    asked: dict[str, list[float | None]] = {"known": [], "new": []}
    asker = Asker(host)
    number = 0
    due = time.monotonic()
    while due < end:
        asker.listen(due)
        number += 1
        if number % 2:
            asker.ask(f"service{number % 8}.example.org", number, asked["known"])
        else:
            asker.ask(f"p{os.getpid():x}n{number}.honest.example.com", number, asked["new"])
        due += EVERY
    asker.listen(time.monotonic() + PATIENCE + EVERY)
    thread.join()
    print(json.dumps({**asked, "calls": calls}), flush=True)


if __name__ == "__main__":
    main()
