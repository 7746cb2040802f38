"""Resolvers, descriptors, memory, files, the log's reader fail: what is allowed goes on, and nothing else does."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lab import Lab, LabError, Sidecar
from lab.client import NoReply
from tests.blackbox.place import REJECTED, allow, soon
from tests.blackbox.prober import FILE, FORBIDDEN, LATER, LISTED, NAMED, OTHER, POLICY, Prober, holds, in_force

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def zone(lab: Lab) -> None:
    lab.dns.a("api.example.com", NAMED)
    lab.dns.generate("many.example.com", "198.51.101.0/24")


# -- resolvers -------------------------------------------------------------------------------------------------------
def test_e12_resolvers_that_vanish_and_come_back(lab: Lab) -> None:
    """Silence, ICMP, no route at all: SERVFAIL in the time that was set, and an answer as soon as there is one."""
    env = {"DNS_UPSTREAM_TIMEOUT": "1", "DNS_UPSTREAM": "203.0.113.53,203.0.113.54"}
    serial = iter(range(1000))

    def ask() -> str:
        try:
            reply = lab.query(f"n{next(serial)}.many.example.com")
        except NoReply as none:
            return none.outcome
        return reply.rcode if reply.rcode != "NOERROR" else f"{len(reply.addresses)} address"

    with Sidecar(lab, policy=allow("*.many.example.com", LISTED), env=env) as sidecar:
        assert soon(lambda: ask() == "1 address")  # whose server may need more than that second
        lab.dns.behave("*", drop=True)
        assert ask() == "SERVFAIL"
        lab.dns.normal("*")
        assert soon(lambda: ask() == "1 address")
        lab.sandbox.ip("route", "del", "default")
        assert ask() == "unreachable", "who asks has no route either"
        assert lab.query("n.many.example.com", server=lab.link.gateway).rcode == "SERVFAIL"
        lab.sandbox.ip("route", "add", "default", "via", lab.link.gateway)
        assert soon(lambda: ask() == "1 address")
        lab.sandbox.ip("link", "set", "eth0", "down")
        assert ask() == "unreachable"
        lab.sandbox.ip("link", "set", "eth0", "up")
        lab.sandbox.ip("route", "add", "default", "via", lab.link.gateway)
        assert soon(lambda: ask() == "1 address")
        for lie in ("id", "source"):
            lab.dns.behave("*", forge=lie, only_forged=True)
            assert ask() == "SERVFAIL", lie
            assert lab.connect("198.51.100.66", 80) in REJECTED, "what the lie led to"
        lab.dns.behave("*", raw=b"\0\0\x81\x80 nonsense")
        assert ask() == "SERVFAIL"
        lab.dns.normal("*")
        assert soon(lambda: ask() == "1 address")
        assert sidecar.api("GET", "/healthz").status == 200
        assert "Traceback" not in sidecar.log


# -- limits ----------------------------------------------------------------------------------------------------------
@contextlib.contextmanager
def limited(pid: int, kind: int, soft: int) -> Iterator[None]:
    """A soft limit for another process while the `with` lasts."""
    before = resource.prlimit(pid, kind)
    resource.prlimit(pid, kind, (soft, before[1]))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, kind, before)


def test_e12_descriptors_exhausted(lab: Lab) -> None:
    with Sidecar(lab, policy=POLICY, env=FILE) as sidecar, Prober(lab) as prober:
        assert sidecar.api("POST", "/policy", POLICY).status == 200
        assert holds(lab)
        worker = sidecar.worker_pid
        highest = max(int(fd) for fd in os.listdir(f"/proc/{worker}/fd"))
        with limited(worker, resource.RLIMIT_NOFILE, highest + 6):
            held = []
            for _ in range(50):
                sock = lab.sandbox.socket(socket.AF_INET, socket.SOCK_STREAM)
                sock.settimeout(0.5)
                with contextlib.suppress(OSError):
                    sock.connect(("127.0.0.1", 18080))
                held.append(sock)
            assert soon(lambda: len(os.listdir(f"/proc/{worker}/fd")) >= highest), "the control: no descriptor is left"
            with contextlib.suppress(OSError):  # whatever comes of it, and whenever, it is whole
                sidecar.api("POST", "/policy", OTHER, timeout=1)
            assert soon(lambda: {lab.connect(host, 80) for host in (LISTED, LATER)} == {"connected", "refused"})
            with contextlib.suppress(NoReply):
                lab.query("api.example.com", timeout=1)
            assert lab.connect(NAMED, 80) == "connected"
            for sock in held:
                sock.close()
            # The cause is gone, the limit is not.
            assert soon(lambda: api_answers(sidecar))
        # The change whose client has left may have waited for a descriptor, and holds by now; this one comes after it.
        assert sidecar.api("POST", "/policy", POLICY).status == 200
        assert in_force(sidecar) == json.loads((sidecar.state / "policy.json").read_text()) == POLICY
        assert holds(lab)
    assert prober.openings == []


def api_answers(sidecar: Sidecar) -> bool:
    with contextlib.suppress(OSError):
        return sidecar.api("GET", "/healthz", timeout=10).status == 200
    return False


@pytest.fixture
def group(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A control group, by itself for memory."""
    kind = getattr(request, "param", "memory")
    made = Path("/sys/fs/cgroup", kind) / f"sp-faults-{os.getpid()}"
    try:
        made.mkdir()
    except OSError as error:
        pytest.skip(f"no control group for {kind} can be made here: {error}")
    yield made
    assert soon(lambda: not (made / "cgroup.procs").read_text().split())
    made.rmdir()


def test_e12_the_containers_memory_is_used_up(lab: Lab, group: Path) -> None:
    """The kernel kills the worker in the middle of a change; the next one has the policy of before."""
    big = allow(*(f"n{n}.a-rather-long-name-for-a-zone.example.org" for n in range(30_000)))
    with Sidecar(lab, policy=POLICY, env={**FILE, "MAX_RULES": "0"}) as sidecar, Prober(lab) as prober:
        supervisor = sidecar.pid
        assert sidecar.api("POST", "/policy", POLICY).status == 200
        (group / "cgroup.procs").write_text(str(supervisor))
        sidecar.kill_worker()  # the next one is born there
        sidecar.wait_ready()
        used = int((group / "memory.usage_in_bytes").read_text())
        (group / "memory.limit_in_bytes").write_text(str(used + (4 << 20)))
        for _ in range(2):
            with pytest.raises(OSError, match=r".*"):
                sidecar.api("POST", "/policy", big, timeout=120)
            assert soon(lambda: "worker ended by signal 9" in sidecar.log), "the control: it was killed"
            sidecar.wait_ready()
            assert in_force(sidecar) == POLICY
            assert holds(lab)
        assert sidecar.pid == supervisor
        (group / "memory.limit_in_bytes").write_text(str(512 << 20))
        assert sidecar.api("POST", "/policy", big, timeout=120).status == 200
        assert sidecar.api("POST", "/policy", POLICY).status == 200
        assert holds(lab)
    assert prober.openings == []
    assert prober.tries > 10


def test_e12_addresses_of_memory_used_up(lab: Lab) -> None:
    """A limit of the process, which Python hears of: an error for whoever asked, and nothing else."""
    big = allow(*(f"n{n}.a-rather-long-name-for-a-zone.example.org" for n in range(30_000)))
    with Sidecar(lab, policy=POLICY, env={**FILE, "MAX_RULES": "0"}) as sidecar, Prober(lab) as prober:
        assert sidecar.api("POST", "/policy", POLICY).status == 200
        worker = sidecar.worker_pid
        size = int(Path(f"/proc/{worker}/statm").read_text().split()[0]) * resource.getpagesize()
        with limited(worker, resource.RLIMIT_AS, size + (4 << 20)):
            try:
                assert sidecar.api("POST", "/policy", big, timeout=120).status == 500
            except OSError:
                pass  # a library that could not go on ended it: the next worker has no limit
            assert soon(lambda: holds(lab))
        sidecar.wait_ready()
        assert in_force(sidecar) == POLICY
        assert json.loads((sidecar.state / "policy.json").read_text()) == POLICY
        assert sidecar.api("POST", "/policy", big, timeout=120).status == 200
    assert prober.openings == []


@pytest.mark.parametrize("group", ["pids"], indirect=True)
@pytest.mark.parametrize("room", [1, 2])
def test_e12_no_room_for_another_process(lab: Lab, group: Path, room: int) -> None:
    """A pod's containers share one limit, and the sandbox uses it up: for the supervisor alone there is room, or for a
    worker without a second thread."""
    with Sidecar(lab, policy=POLICY, env=FILE) as sidecar, Prober(lab) as prober:
        supervisor = sidecar.pid
        assert sidecar.api("POST", "/policy", OTHER).status == 200
        (group / "cgroup.procs").write_text(str(supervisor))
        (group / "pids.max").write_text(str(room))
        sidecar.kill_worker()
        sidecar.wait_for_log("worker cannot be started" if room == 1 else "can't start new thread")
        assert lab.connect(LATER, 80) == "connected"
        assert lab.connect(LISTED, 80) in REJECTED
        (group / "pids.max").write_text("max")
        sidecar.wait_ready()
        assert holds(lab, LATER)
        assert sidecar.pid == supervisor
        assert "Traceback" not in sidecar.log
        assert sidecar.log.count("cannot be started") <= 1
    assert prober.openings == []


# -- files and streams -----------------------------------------------------------------------------------------------
def test_e12_a_policy_file_that_is_half_written(lab: Lab) -> None:
    """By an editor, a copy that stopped, a disk that was full: closed, with the reason, until it is whole."""
    sidecar = Sidecar(lab, policy=OTHER, env=FILE)
    whole = json.dumps(POLICY)
    path = sidecar.state / "policy.json"
    path.write_text(whole)
    with sidecar:
        assert holds(lab)
        sidecar.kill()
        path.write_text(whole[: len(whole) // 2])
        sidecar._wait = False
        sidecar.restart()
        assert soon(lambda: health(sidecar)[0] == 503)
        assert "policy.json" in health(sidecar)[1]
        for address in (LISTED, LATER, NAMED, *FORBIDDEN):
            assert lab.connect(address, 80) in REJECTED
        sidecar.kill_worker()
        assert soon(lambda: health(sidecar)[0] == 503)
        mended = path.with_name("mended")  # written in its place it is empty, and a policy, while this process stands
        mended.write_text(whole)
        mended.rename(path)
        sidecar.wait_ready()
        assert holds(lab)


def test_e12_no_part_of_a_policy_file_is_a_policy() -> None:
    from policies.model import PolicyError
    from policies.parser import parse_policy

    whole = json.dumps(POLICY).encode()
    for length in range(1, len(whole)):
        with pytest.raises(PolicyError):
            parse_policy(whole[:length], yaml=False)


def health(sidecar: Sidecar) -> tuple[int, str]:
    with contextlib.suppress(OSError, LabError):
        answer = sidecar.api("GET", "/healthz", token=None)
        return answer.status, answer.text
    return 0, ""


def test_e12_nobody_reads_its_log(lab: Lab) -> None:
    """A pipe that is full must not hold up answers; what could not be said is counted."""
    sidecar = Sidecar(lab, policy=POLICY, argv=("sh", "-c", f"exec {sys.prefix}/bin/egress serve > /var/egress/log"))
    os.mkfifo(sidecar.state / "log")
    reader = os.open(sidecar.state / "log", os.O_RDONLY | os.O_NONBLOCK)
    with sidecar:
        for number in range(1500):
            assert lab.query(f"denied{number}.example.org").rcode == "NXDOMAIN"
        assert holds(lab)
        heard = b""
        with contextlib.suppress(BlockingIOError):
            while True:
                heard += os.read(reader, 1 << 16)
        assert len(heard) >= 50_000, "the control: it was full"
        assert sidecar.api("POST", "/policy", POLICY).status == 200  # which is told
        assert b"log.dropped" in os.read(reader, 1 << 16)
    os.close(reader)
