"""A sandbox with the running sidecar in it, for suites that ask many small questions of one.

Names and addresses are never used twice, so that no cached answer and no lease of one test helps another. What was
tried from inside is told by a program that runs there as whoever the test says: `attempt`.
"""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from lab import ROOT, Lab, Sidecar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lab import Identity, Internet
    from lab.reply import Reply

DENY_ALL: dict[str, Any] = {"defaultAction": "deny", "egress": []}
ALLOW_ALL: dict[str, Any] = {"defaultAction": "allow", "egress": []}
RESOLVER = "203.0.113.53"
REJECTED = ("refused", "admin-prohibited")
"""What an application hears at once when the guard says no."""

_serial = itertools.count(1)

_ATTEMPTS = r"""
import errno, json, os, select, socket, struct, sys, time

def outcome(error):
    if isinstance(error, TimeoutError): return "timeout"
    if isinstance(error, ConnectionResetError): return "refused"
    return {errno.ECONNREFUSED: "refused", errno.EPERM: "dropped", errno.EACCES: "admin-prohibited",
            errno.EHOSTUNREACH: "unreachable", errno.ENETUNREACH: "unreachable"}.get(error.errno, str(error))

def sock(address, kind, proto=0):
    made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, kind, proto)
    made.settimeout(10)
    return made

def errors(made, v6):
    made.setsockopt(socket.IPPROTO_IPV6 if v6 else socket.IPPROTO_IP, 25 if v6 else 11, 1)

def said(made, error):
    "What an ICMP error said, where there is one: a hop's word, not the kernel's folding of it."
    no = "admin-prohibited"
    try:
        _, ancillary, _, _ = made.recvmsg(512, 512, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)
    except OSError:
        return outcome(error)
    for level, kind, value in ancillary:
        _, origin, type_, code = struct.unpack_from("=IBBB", value)
        if (origin, type_) == (2, 3): return {3: "refused", 9: no, 10: no, 13: no}.get(code, "unreachable")
        if (origin, type_) == (3, 1): return {4: "refused", 1: no}.get(code, "unreachable")
    return outcome(error)

def tcp(address, port):
    with sock(address, socket.SOCK_STREAM) as made:
        made.settimeout(1)  # the kernel's affair, done at once; a SYN that was lost is sent again after a second
        try:
            made.connect((address, port))
        except OSError as error:
            return outcome(error)
        return "connected"

def udp(address, port, payload="ping"):
    with sock(address, socket.SOCK_DGRAM) as made:
        errors(made, ":" in address)
        try:
            made.connect((address, port))
            made.send(payload.encode())
            made.recv(2048)
        except OSError as error:
            return said(made, error)
        return "connected"

def ping(address):
    v6 = ":" in address
    with sock(address, socket.SOCK_DGRAM, socket.IPPROTO_ICMPV6 if v6 else socket.IPPROTO_ICMP) as made:
        errors(made, v6)
        try:
            made.connect((address, 0))
            made.send(struct.pack(">BBHHH", 128 if v6 else 8, 0, 0, 0, 1) + b"sandbox")
            made.recv(2048)
        except OSError as error:
            return said(made, error)
        return "connected"

def message(name, qtype=1):
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split(".") if part)
    return os.urandom(2) + struct.pack(">5H", 0x0100, 1, 0, 0, 0) + labels + struct.pack(">BHH", 0, qtype, 1)

def dns(server, port, name, over_tcp=False, source=0):
    "The rcode and the A records' count of the answer."
    query = message(name)
    with sock(server, socket.SOCK_STREAM if over_tcp else socket.SOCK_DGRAM) as made:
        errors(made, ":" in server)
        try:
            if source:
                made.bind(("", source))
            made.connect((server, port))
            made.send(struct.pack(">H", len(query)) + query if over_tcp else query)
            answer = made.recv(4096)
            if over_tcp:
                while len(answer) < 2 or len(answer) < 2 + struct.unpack(">H", answer[:2])[0]:
                    more = made.recv(4096)
                    if not more: return "closed"
                    answer += more
                answer = answer[2:]
        except OSError as error:
            return said(made, error)
        return "rcode %d, %d answers" % (answer[3] & 15, struct.unpack(">H", answer[6:8])[0])

done = []
for kind, *arguments in json.loads(sys.argv[1]):
    begun = time.monotonic()
    try:
        heard = globals()[kind](*arguments)
    except OSError as error:
        heard = "no socket: %s" % error
    done.append([heard, time.monotonic() - begun])
print(json.dumps(done))
"""


def v6(address: str) -> bool:
    return ":" in address


def allow(*targets: str, **more: Any) -> dict[str, Any]:
    """A policy that denies but for these targets."""
    return {"defaultAction": "deny", "egress": [{"action": "allow", "target": target, **more} for target in targets]}


def soon(check: Callable[[], Any], seconds: float = 60.0) -> Any:
    """What `check` returns once it is true, or its last word after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := check()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return value


class Place:
    """A lab with a running sidecar; a context manager. `arguments` are those of `lab.Sidecar`."""

    def __init__(self, internet: Internet, **arguments: Any) -> None:
        internet.reset()
        self.lab = Lab(internet)
        with self.lab.sandbox.entered():  # as Docker sets it: anybody may ping
            Path("/proc/sys/net/ipv4/ping_group_range").write_text("0 2147483647")
        self.sidecar = Sidecar(self.lab, **arguments)

    def __enter__(self) -> Self:
        try:
            self.sidecar.__enter__()
        except BaseException:
            self.lab.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.sidecar.close()
        self.lab.close()

    # -- never twice ---------------------------------------------------------------------------------------------
    @staticmethod
    def name(suffix: str = "example.com") -> str:
        return f"n{next(_serial)}.{suffix}"

    @staticmethod
    def host(family: int = 4) -> str:
        """An ordinary address; behind it everything listens that the lab has."""
        number = next(_serial)
        if family == 6:
            return f"2001:db8:beef::{number:x}"
        return f"192.0.2.{number}" if number < 255 else f"203.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"

    # -- steps ---------------------------------------------------------------------------------------------------
    def policy(self, document: Any) -> None:
        """Put this policy in force."""
        answer = self.sidecar.api("POST", "/policy", document)
        assert answer.status == 200, answer.text

    def allow(self, *targets: str, **more: Any) -> None:
        self.policy(allow(*targets, **more))

    def teach(self, *addresses: str, name: str = "", ttl: int = 60, ask: bool = True) -> str:
        """Give a name these addresses and look it up; the name, a new one where none is given."""
        owner = name or self.name()
        self.lab.dns.a(owner, *addresses, ttl=ttl)
        if ask:
            for qtype, wanted in (
                ("A", [a for a in addresses if not v6(a)]),
                ("AAAA", [a for a in addresses if v6(a)]),
            ):
                if wanted:
                    reply = self.lab.query(owner, qtype)
                    assert sorted(reply.addresses) == sorted(wanted), reply
        return owner

    def ask(self, name: str, qtype: str | int = "A", **more: Any) -> Reply:
        return self.lab.query(name, qtype, **more)

    def attempt(self, tries: Sequence[Sequence[object]], identity: Identity = ROOT) -> list[str]:
        """What a program inside hears, try by try: `("tcp", address, port)`, `("udp", …)`, `("ping", address)`,
        `("dns", server, port, name, over_tcp, source_port)`. A refusal must come at once."""
        done = self.lab.python(_ATTEMPTS, json.dumps(tries), identity=identity, timeout=60)
        assert done.returncode == 0, done.stderr
        return [heard for heard, _ in json.loads(done.stdout)]

    def sets(self) -> dict[str, dict[str, float]]:
        """The learned sets as the kernel has them: set name to {address: seconds that remain}."""
        listing = json.loads(
            self.lab.sandbox.run(["nft", "-j", "list", "table", "inet", "sallyport"], check=True).stdout
        )
        found: dict[str, dict[str, float]] = {}
        for entry in listing["nftables"]:
            members_of = entry.get("set")
            if not members_of or not str(members_of["name"]).startswith("learned"):
                continue
            members = found.setdefault(members_of["name"], {})
            for member in members_of.get("elem", []):
                element = member["elem"]
                members[element["val"]] = element.get("expires", element.get("timeout", -1))
        return found

    def lease(self, address: str) -> float | None:
        """Seconds for which an address stays open, as the kernel counts; None when it is not."""
        return max((members[address] for members in self.sets().values() if address in members), default=None)
