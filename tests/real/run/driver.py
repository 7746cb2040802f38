"""`egress run` with a stand-in for the guard: what is around the guard is tested here, whatever the guard does.

`driver.py MODE ARGUMENT ...`; the arguments are those of `egress run`. The stand-in locks the sandbox's network with a
table of its own and says what it sees, as lines "note KEY VALUE" on standard error. Modes: `closed` rejects everything
off loopback, `open` nothing; `mortal` dies soon after the start; `slow` takes its time at each step. With HELPER in
the environment only that network program is looked for.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from egress.commands import run
from egress.isolation import connectivity, privileges

if TYPE_CHECKING:
    from egress.isolation.guard import Seat

CLOSED = """
table inet sp_stand_in {
    chain output {
        type filter hook output priority 0; policy drop;
        oif lo accept
        meta l4proto tcp reject with tcp reset
        reject with icmpx admin-prohibited
    }
}
"""


def main() -> int:
    """Run the rest of the command line with the stand-in that the first word names."""
    mode = sys.argv[1]
    helper = os.environ.get("HELPER")
    if helper:
        connectivity.PROGRAMS = (helper,)

    def note(seat: Seat, key: str, value: object) -> None:
        seat.warn(f"note {key} {json.dumps(value)}")

    def guard(seat: Seat) -> int:
        note(seat, "pid", int(os.readlink("/proc/self")))  # as the host counts
        note(seat, "devices", devices())
        note(seat, "host", reaches(seat))
        note(seat, "policy", seat.policy.to_document())
        privileges.make_ambient()  # for nft, a program; the real guard loads its ruleset itself
        if mode != "open":
            subprocess.run(["nft", "-f", "-"], input=CLOSED.encode(), check=True)
        if mode == "slow":
            time.sleep(0.3)
            note(seat, "devices-before-lock", devices())
        seat.locked()
        if mode == "slow":
            time.sleep(0.3)
        note(seat, "ready", time.monotonic())
        seat.denied_name("denied.example.com", "denied.example.com: default deny", "default")
        seat.ready()
        if mode == "mortal":
            time.sleep(0.5)
            return 3
        os.read(seat.stop_fd, 1)
        for _ in range(3):
            seat.denied_packet("192.0.2.9", "tcp", 443, [])  # only now: last words are heard too
        return 0

    return run.main(sys.argv[2:], guard)


def devices() -> list[str]:
    """The network devices of this thread's namespace."""
    with open("/proc/thread-self/net/dev", encoding="ascii") as file:
        return [line.split(":")[0].strip() for line in file.readlines()[2:]]


def reaches(seat: Seat) -> dict[str, str]:
    """Whether the port of HOST_PORT on loopback is reached by a socket of the host's network, and by one of ours."""
    port = int(os.environ.get("HOST_PORT", "0"))
    found = {}
    for name, sock in (
        ("host", seat.host.socket(socket.AF_INET, socket.SOCK_STREAM)),
        ("own", socket.socket(socket.AF_INET, socket.SOCK_STREAM)),
    ):
        sock.setblocking(True)
        sock.settimeout(2)
        with sock:
            try:
                sock.connect(("127.0.0.1", port))
                found[name] = "connected"
            except OSError as error:
                found[name] = os.strerror(error.errno or 0)
    return found


if __name__ == "__main__":
    raise SystemExit(main())
