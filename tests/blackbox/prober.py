"""A program in the sandbox that knocks, all the time, where nothing must ever open; and what has to go on meanwhile."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Self

from lab import CONTAINER_ROOT
from lab.client import NoReply
from tests.blackbox.place import REJECTED, allow

if TYPE_CHECKING:
    from lab import Identity, Lab, Sidecar

FORBIDDEN = ("203.0.113.66", "2001:db8:113::66")
"""No policy of a test that uses the prober allows them."""
NAMED, LISTED, LATER = "198.51.100.10", "198.51.100.99", "198.51.100.98"
POLICY = allow("api.example.com", LISTED)
OTHER = allow("api.example.com", LATER)
FILE = {"POLICY_FILE": "/var/egress/policy.json"}

# TCP and UDP, v4 and v6, as fast as the kernel refuses. A knock that is neither refused nor answered within a quarter
# of a second is an opening too when the answer comes: `late` sockets are looked at again.
_PROGRAM = r"""
import errno, json, select, socket, sys, time

targets = json.loads(sys.argv[1])
heard = {}
openings = []
poll = select.poll()
poll.register(0, select.POLLIN | select.POLLHUP)

def knock(kind, address):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, kind) as sock:
        sock.settimeout(0.25)
        try:
            sock.connect((address, 80 if kind == socket.SOCK_STREAM else 5000))
            if kind == socket.SOCK_DGRAM:
                sock.send(b"out")
                sock.recv(100)
        except OSError as error:
            return errno.errorcode.get(error.errno, "timeout")
    return "open"

print("knocking", flush=True)
while True:
    for address in targets:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            word = knock(kind, address)
            heard[word] = heard.get(word, 0) + 1
            if word == "open":
                openings.append((time.monotonic(), kind, address))
    if poll.poll(1):
        break
print(json.dumps({"heard": heard, "openings": openings[:100]}))
"""


class Prober:
    """Knocks while the `with` lasts; `openings` and `heard` are there afterwards."""

    def __init__(self, lab: Lab, identity: Identity = CONTAINER_ROOT, targets: tuple[str, ...] = FORBIDDEN) -> None:
        self._lab, self._identity, self._targets = lab, identity, targets
        self.heard: dict[str, int] = {}
        self.openings: list[Any] = []
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        argv = [sys.executable, "-I", "-c", _PROGRAM, json.dumps(self._targets)]
        self._process = self._lab.sandbox.popen(
            argv, identity=self._identity, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "knocking\n"
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        out, _none = self._process.communicate("", timeout=20)
        found = json.loads(out)
        self.heard, self.openings = found["heard"], found["openings"]

    @property
    def tries(self) -> int:
        return sum(self.heard.values())


def holds(lab: Lab, listed: str = LISTED) -> bool:
    """The policy of the test is in force, whole, and everything works."""
    closed = LATER if listed == LISTED else LISTED
    assert lab.connect(FORBIDDEN[0], 80) in REJECTED
    assert lab.connect(FORBIDDEN[1], 80) in REJECTED
    assert lab.connect(closed, 80) in REJECTED
    with contextlib.suppress(NoReply):
        named = lab.query("api.example.com").addresses == [NAMED]
        return named and lab.connect(NAMED, 80) == "connected" and lab.connect(listed, 80) == "connected"
    return False


def in_force(sidecar: Sidecar) -> Any:
    return sidecar.api("GET", "/policy").json()["policy"]
