"""A sidecar's life: how fast it stands, how fast it is back, what it weighs, how it takes a large policy."""

from __future__ import annotations

import compileall
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.contenders import API_PORT, POLICY, TOKEN
from bench.load import question
from bench.place import CHECKOUT, wait_for
from lab import http

if TYPE_CHECKING:
    from bench.contenders import Contender, Ours
    from bench.place import Place, Sandbox

NAME = "p-life.example.com"
RULES = 4096
PATIENCE = 0.03  # seconds until a question counts as lost


class Start(NamedTuple):
    """ms from exec."""

    locked: float
    answered: float
    ready: float  # the API listens


class Change(NamedTuple):
    """A policy replaced over HTTP, ms."""

    took: float
    gap: float  # longest time without an answer meanwhile
    quiet_gap: float  # the same in as much time without a change
    lost: int  # questions that had to be asked again


class Probe:
    """Asks every millisecond, each time from a new port: a flow from before the redirect would keep its way."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._gateway = sandbox.gateway
        self._poll = select.poll()
        self._socks: dict[int, socket.socket] = {}
        self._message = question(NAME)

    def ask(self) -> None:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setblocking(False)
        self._socks[sock.fileno()] = sock
        self._poll.register(sock.fileno(), select.POLLIN)
        try:
            sock.sendto(self._message, (self._gateway, 53))
        except OSError:
            pass  # refused: not yet

    def answered(self, milliseconds: float) -> bool:
        for fd, _ in self._poll.poll(milliseconds):
            try:
                data = self._socks[fd].recv(2048)
            except OSError:
                data = b""
            if len(data) > 12 and data[6:8] != b"\0\0":
                return True
            self._poll.unregister(fd)
        return False

    def close(self) -> None:
        for sock in self._socks.values():
            sock.close()


def compiled() -> None:
    """Byte code for all of ours, as the images have it: the worker may write none, so it would compile what only it
    imports in every life."""
    for package in ("egress", "policies"):
        compileall.compile_dir(CHECKOUT / package, quiet=2)


def starting(contender: Contender) -> Start:
    """From exec to lockdown, first answer and API; for a peer only the answer counts."""
    sandbox = contender.sandbox
    contender.start(wait=False)
    begin = contender.running.started
    locked = answered = 0.0
    with sandbox.namespace.entered():
        probe = Probe(sandbox)
        stranger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            while not answered:
                if not locked:
                    try:
                        stranger.sendto(b"x", ("192.0.2.1", 9))
                    except PermissionError:
                        locked = time.monotonic() - begin
                probe.ask()
                if probe.answered(1):
                    answered = time.monotonic() - begin
                elif time.monotonic() - begin > 10:
                    raise TimeoutError(f"{contender.name} does not answer")
        finally:
            stranger.close()
            probe.close()
    ready = 0.0
    if hasattr(contender, "ready"):
        wait_for("API", contender.ready)
        ready = time.monotonic() - begin
    return Start(locked * 1000, answered * 1000, ready * 1000)


def interpreter(place: Place, sandbox: Sandbox) -> float:
    """ms from exec to exit of a Python that does nothing: what every other figure here starts from."""
    process = place.start(sandbox.namespace, [sys.executable, "-c", ""], place.cores.server)
    process.wait()
    return (time.monotonic() - process.started) * 1000


def reviving(ours: Ours) -> float:
    """ms from SIGKILL of the worker to the next answer."""
    worker = ours.running.pids()[1]
    with ours.sandbox.namespace.entered():
        probe = Probe(ours.sandbox)
        try:
            os.kill(worker, signal.SIGKILL)
            begin = time.monotonic()
            while True:
                probe.ask()
                if probe.answered(1):
                    return (time.monotonic() - begin) * 1000
                if time.monotonic() - begin > 10:
                    raise TimeoutError("no answer after the worker's death")
        finally:
            probe.close()


def large_policy(turn: int) -> dict[str, Any]:
    """4,096 rules: half names, half networks; `turn` makes them new."""
    rules: list[dict[str, Any]] = [{"action": "allow", "target": "*.example.com"}]
    for number in range(RULES // 2 - 1):
        rules.append({"action": "allow", "target": f"host{number}.part{turn}.example.org"})
    for number in range(RULES // 2):
        packed = ((11 + turn % 8 << 24) + number * 512).to_bytes(4, "big")
        rules.append({"action": "deny" if number % 4 else "allow", "target": f"{socket.inet_ntoa(packed)}/24"})
    return {"defaultAction": "deny", "egress": rules}


def call(sandbox: Sandbox, method: str, path: str, body: Any = None) -> http.Response:
    data = None if body is None else json.dumps(body).encode()
    with sandbox.namespace.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.settimeout(20)
        sock.connect(("127.0.0.1", API_PORT))
        return http.exchange(sock, method, path, body=data, headers={"OPENSANDBOX-EGRESS-AUTH": TOKEN})


def changing(ours: Ours, turn: int) -> Change:
    """Replace the policy by 4,096 rules while somebody keeps asking."""
    quiet = _Asker(ours.sandbox)
    time.sleep(0.25)
    quiet_gap = quiet.stop()
    asker = _Asker(ours.sandbox)
    time.sleep(0.02)
    begin = time.monotonic()
    answer = call(ours.sandbox, "PUT", "/policy", large_policy(turn))
    took = time.monotonic() - begin
    time.sleep(0.02)
    gap = asker.stop()
    if answer.status != 200:
        raise RuntimeError(f"the policy was not taken: {answer.status} {answer.text}")
    return Change(took * 1000, gap * 1000, quiet_gap * 1000, asker.lost)


def back_to_small(ours: Ours) -> None:
    answer = call(ours.sandbox, "PUT", "/policy", POLICY)
    if answer.status != 200:
        raise RuntimeError(f"the policy was not taken: {answer.status} {answer.text}")


class _Asker:
    """Asks on a thread of its own, a millisecond after each answer; remembers the longest gap and what got lost."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sock = sandbox.namespace.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._sock.settimeout(PATIENCE)
        self._sock.connect((sandbox.gateway, 53))
        self._going = True
        self._longest = 0.0
        self.lost = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        last = time.monotonic()
        number = 0
        while self._going:
            number += 1
            message = question(NAME, number & 0xFFFF)
            try:
                self._sock.send(message)
                while self._sock.recv(2048)[:2] != message[:2]:
                    pass  # late, for a question that was given up
            except OSError:  # refused, or no answer
                self.lost += 1
                continue
            now = time.monotonic()
            self._longest = max(self._longest, now - last)
            last = now
            time.sleep(0.001)

    def stop(self) -> float:
        """Seconds of the longest time between two answers."""
        self._going = False
        self._thread.join()
        self._sock.close()
        return self._longest
