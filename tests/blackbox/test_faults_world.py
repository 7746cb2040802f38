"""What goes wrong around the sidecar: it stays closed, keeps its policy, and goes on by itself when that is over."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab import Identity, Lab, LabError, Sidecar
from tests.blackbox.place import REJECTED, soon
from tests.blackbox.prober import FILE, FORBIDDEN, LATER, LISTED, NAMED, OTHER, POLICY, Prober, holds, in_force

STOPPED = float(os.environ.get("SALLYPORT_STOPPED", "1"))  # seconds of SIGSTOP; SALLYPORT_STOPPED=60 for the minute
TIMELORD = Identity("who may make a time namespace", capabilities=("net_admin", "sys_admin", "sys_time"))
PROJECT = str(Path(__file__).resolve().parents[2])

# `egress serve` whose kernel refuses every ruleset while a file is there.
REFUSING = r"""
import os, sys
from egress.firewall import FirewallError, nft

run = nft.Nft.run

def refused(self, text, *, check=False):
    if os.path.exists("/var/egress/refuse"):
        raise FirewallError("Device or resource busy")
    return run(self, text, check=check)

nft.Nft.run = refused
from egress.supervisor import serve
sys.exit(serve(os.environ))
"""
# One that has no descriptor left for one of its modules while a file is there.
LACKING = r"""
import os, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == MODULE and os.path.exists("/var/egress/refuse"):
            raise OSError(24, "Too many open files")

sys.meta_path.insert(0, Finder())
from egress.supervisor import serve
sys.exit(serve(os.environ))
"""


@pytest.fixture(autouse=True)
def zone(lab: Lab) -> None:
    lab.dns.a("api.example.com", NAMED)
    lab.dns.generate("many.example.com", "198.51.101.0/24")


# -- stopped ---------------------------------------------------------------------------------------------------------
@pytest.mark.timeout(120 + 3 * STOPPED)
@pytest.mark.parametrize("who", ["worker", "supervisor", "both"])
def test_e12_stopped_for_a_while(lab: Lab, who: str) -> None:
    """As a frozen container is, or a process under a debugger: what was allowed goes on, a question waits."""
    with Sidecar(lab, policy=POLICY) as sidecar, Prober(lab) as prober:
        assert lab.query("api.example.com").addresses == [NAMED]
        flow = lab.open(NAMED, 8000)
        pids = {"worker": [sidecar.worker_pid], "supervisor": [sidecar.pid]}
        stopped = pids.get(who) or [*pids["worker"], *pids["supervisor"]]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        asked = lab.sandbox.socket(socket.AF_INET, socket.SOCK_DGRAM)
        asked.sendto(b"\1\2\1\0\0\1\0\0\0\0\0\0\3api\7example\3com\0\0\1\0\1", ("203.0.113.53", 53))
        if who == "supervisor":
            asked.settimeout(10)
            assert asked.recv(512)[:2] == b"\1\2", "the worker does not need it"
        else:
            asked.settimeout(STOPPED / 2)
            with pytest.raises(TimeoutError):
                asked.recv(512)
        time.sleep(STOPPED / 2)
        flow.send(b"still")
        assert flow.recv(10) == b"still"
        assert lab.connect(NAMED, 80) == "connected"
        if who == "supervisor":
            os.kill(pids["worker"][0], signal.SIGKILL)  # nobody forks the next one now
            time.sleep(0.1)
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        if who != "supervisor":
            asked.settimeout(10)
            assert asked.recv(512)[:2] == b"\1\2", "the question waited in the socket"
        assert soon(lambda: holds(lab))
        sidecar.wait_ready()
        asked.close()
    assert prober.openings == []
    assert prober.tries > 10


def test_e12_stopped_while_the_next_worker_is_due(lab: Lab) -> None:
    """For longer than it is to wait: it goes on where it was, and takes that for no signal to end."""
    with Sidecar(lab, policy=POLICY) as sidecar:
        for number in range(1, 9):  # the pause before the next one grows to a second
            assert soon(lambda: working(sidecar))
            sidecar.kill_worker()
            assert soon(lambda number=number: sidecar.log.count("worker ended by signal 9") == number)  # type: ignore[misc]
            if number > 5:
                os.kill(sidecar.pid, signal.SIGSTOP)
                time.sleep(1.2)
                os.kill(sidecar.pid, signal.SIGCONT)
        sidecar.wait_ready()
        assert sidecar.returncode is None
        assert holds(lab)


def working(sidecar: Sidecar) -> bool:
    with contextlib.suppress(LabError):
        return sidecar.worker_pid > 0
    return False


# -- rulesets --------------------------------------------------------------------------------------------------------
REMOVALS = {
    "our table": "delete table inet sallyport",
    "the last door": "delete table netdev sallyport",
    "what holds cut flows": "delete table inet sallyport_cut",
    "every table there is": "flush ruleset",
    "our rules": "flush table inet sallyport",
    "its sleep": "add table inet sallyport { flags dormant; }",
}


@pytest.mark.parametrize("removal", REMOVALS.values(), ids=REMOVALS)
def test_e12_a_table_that_a_neighbour_removes_is_back_within_a_second(lab: Lab, removal: str) -> None:
    with Sidecar(lab, policy=POLICY) as sidecar:
        assert lab.query("api.example.com").addresses == [NAMED]
        flow = lab.open(NAMED, 8000)
        before = chains(lab)
        lab.sandbox.nft(removal + "\n")
        assert soon(lambda: chains(lab) == before), chains(lab) ^ before  # a second, and a busy machine's time
        sidecar.wait_for_log("somebody removed or changed the guard's tables")
        assert soon(lambda: lab.connect(NAMED, 80) == "connected"), "what was learned is back, too"
        flow.send(b"on")
        assert flow.recv(9) == b"on"
        assert holds(lab)


def chains(lab: Lab) -> set[tuple[str, str, bool]]:
    """Our chains with a hook, and whether there is a rule in each."""
    listing = json.loads(lab.sandbox.run(["nft", "-j", "list", "ruleset"], check=True).stdout)["nftables"]
    asleep = any("dormant" in entry["table"].get("flags", []) for entry in listing if "table" in entry)
    ruled = {(e["rule"]["family"], e["rule"]["table"], e["rule"]["chain"]) for e in listing if "rule" in e}
    found = [entry["chain"] for entry in listing if "chain" in entry and "hook" in entry["chain"]]
    return {
        (f"{c['family']} {c['table']}", c["name"], (c["family"], c["table"], c["name"]) in ruled)
        for c in found
        if c["table"].startswith("sallyport") and not asleep
    }


def test_e12_a_ruleset_that_the_kernel_refuses(lab: Lab) -> None:
    """At a change, at a worker's start, at a repair: what stood stands, and it is tried again by itself."""
    argv = (sys.executable, "-c", REFUSING)
    sidecar = Sidecar(lab, policy=POLICY, argv=argv, env=FILE)
    sidecar.env["PYTHONPATH"] = PROJECT
    refuse = sidecar.state / "refuse"
    with sidecar:
        assert sidecar.api("POST", "/policy", POLICY).status == 200
        assert holds(lab)
        with Prober(lab) as prober:
            refuse.touch()
            for method, body in (("POST", OTHER), ("PATCH", OTHER["egress"])):
                answer = sidecar.api(method, "/policy", body)
                assert answer.status == 500
                assert "Device or resource busy" in answer.text
            assert in_force(sidecar) == POLICY
            assert json.loads((sidecar.state / "policy.json").read_text()) == POLICY
            assert holds(lab)
            sidecar.kill_worker()  # the rules stand whole and are this policy's: nothing has to be loaded
            sidecar.wait_ready()
            assert holds(lab)
            sidecar.terminate()
            refuse.unlink()
            sidecar.restart()
            refuse.touch()
            assert sidecar.api("POST", "/policy", OTHER).status == 500
            refuse.unlink()
            assert sidecar.api("POST", "/policy", OTHER).status == 200
            assert holds(lab, LATER)
        assert prober.openings == []
        refuse.touch()
        lab.sandbox.nft("delete table inet sallyport\n")
        sidecar.wait_for_log("could not be loaded again")
        refuse.unlink()
        assert soon(lambda: lab.connect(FORBIDDEN[0], 80) in REJECTED)
        assert soon(lambda: holds(lab, LATER))


def test_e12_a_ruleset_that_the_kernel_refuses_to_the_next_life(lab: Lab) -> None:
    """It may be stricter than what the life before has left standing: nothing of that is open any more."""
    sidecar = Sidecar(lab, policy=POLICY, argv=(sys.executable, "-c", REFUSING), env=FILE)
    sidecar.env["PYTHONPATH"] = PROJECT
    refuse = sidecar.state / "refuse"
    with sidecar:
        assert holds(lab)
        sidecar.terminate()
        (sidecar.state / "policy.json").write_text(json.dumps(OTHER))
        refuse.touch()
        sidecar._wait = False
        sidecar.restart()
        sidecar.wait_for_log("the ruleset could not be loaded")
        for address in (LISTED, LATER, NAMED, *FORBIDDEN):
            assert lab.connect(address, 80, timeout=1) != "connected"
        refuse.unlink()
        sidecar.wait_ready()
        assert holds(lab, LATER)


@pytest.mark.parametrize("module", ["egress.firewall.redirects", "egress.control.api"])
def test_e12_half_of_a_start_is_not_what_it_stays_at(lab: Lab, module: str) -> None:
    """Whatever is lacking in the middle: it is there, whole, as soon as that is over."""
    argv = (sys.executable, "-c", LACKING.replace("MODULE", repr(module)))
    sidecar = Sidecar(lab, policy=POLICY, argv=argv, wait=False)
    sidecar.env["PYTHONPATH"] = PROJECT
    refuse = sidecar.state / "refuse"
    refuse.touch()
    with sidecar:
        sidecar.wait_for_log("Too many open files")
        for address in FORBIDDEN:
            assert lab.connect(address, 80) in REJECTED
        refuse.unlink()
        sidecar.wait_ready()
        assert holds(lab)
        lab.sandbox.ip("link", "add", "late7", "type", "veth", "peer", "name", "late8")
        assert soon(lambda: "late7" in lab.sandbox.run(["nft", "list", "table", "netdev", "sallyport"]).stdout)


def test_e12_a_table_of_ours_that_belongs_to_somebody_else(lab: Lab) -> None:
    """With the owner flag only its maker may touch it: no lock-down is to be had, so no start, and it says so."""
    owner = lab.sandbox.popen(["nft", "-i"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert owner.stdin is not None
    owner.stdin.write("add table inet sallyport { flags owner; }\n")
    owner.stdin.flush()
    assert soon(lambda: "owner" in lab.sandbox.run(["nft", "list", "ruleset"]).stdout)
    sidecar = Sidecar(lab, policy=POLICY, wait=False)
    with sidecar:
        assert sidecar.process is not None
        assert sidecar.process.wait(60) == 1
        assert "cannot lock down" in sidecar.log
        assert "Traceback" not in sidecar.log
        owner.stdin.close()
        owner.wait(60)
        assert soon(lambda: "sallyport" not in lab.sandbox.run(["nft", "list", "ruleset"]).stdout)
        sidecar.restart()
        sidecar.wait_ready()
        assert holds(lab)


# -- netlink ---------------------------------------------------------------------------------------------------------
def drops(lab: Lab, pid: int) -> int:
    """Messages that the netlink sockets of a process have lost."""
    with lab.sandbox.entered():
        lines = Path("/proc/thread-self/net/netlink").read_text().splitlines()[1:]
    ours = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    return sum(int(line.split()[8]) for line in lines if f"socket:[{line.split()[9]}]" in ours)


def test_e12_news_of_devices_and_addresses_that_were_lost(lab: Lab) -> None:
    """The worker stands still while more happens than its socket holds; then it looks for itself."""
    with Sidecar(lab, policy=POLICY) as sidecar:
        pid = sidecar.worker_pid
        os.kill(pid, signal.SIGSTOP)
        for _ in range(20):
            lines = [f"addr {what} 10.9.{n}.1/32 dev lo" for what in ("add", "del") for n in range(250)]
            lab.sandbox.ip_batch(lines)
            if drops(lab, pid):
                break
        assert drops(lab, pid), "the control: its buffer is overrun"
        lab.sandbox.ip("link", "add", "late1", "type", "veth", "peer", "name", "late2")
        os.kill(pid, signal.SIGCONT)
        assert soon(lambda: "late2" in lab.sandbox.run(["nft", "list", "table", "netdev", "sallyport"]).stdout)
        assert holds(lab)
        assert sidecar.worker_pid == pid


def test_e12_news_of_refused_packets_that_were_lost(lab: Lab) -> None:
    with Sidecar(lab, policy=POLICY) as sidecar:
        pid = sidecar.worker_pid
        os.kill(pid, signal.SIGSTOP)
        flood = lab.sandbox.socket(socket.AF_INET, socket.SOCK_DGRAM)
        end = time.monotonic() + 20
        while not drops(lab, pid) and time.monotonic() < end:
            for _ in range(3000):
                with contextlib.suppress(OSError):
                    flood.sendto(b"x" * 100, (FORBIDDEN[0], 1024))
        flood.close()
        assert drops(lab, pid), "the control: its buffer is overrun"
        os.kill(pid, signal.SIGCONT)
        assert soon(lambda: holds(lab))
        assert soon(lambda: told(lab, sidecar)), "and what is refused now is told again"
        assert sidecar.worker_pid == pid


def told(lab: Lab, sidecar: Sidecar) -> bool:
    lab.connect("203.0.113.77", 7777)
    time.sleep(0.1)
    return "203.0.113.77" in sidecar.log


# -- time ------------------------------------------------------------------------------------------------------------
def test_e12_a_clock_that_jumps_between_two_lives(lab: Lab) -> None:
    """CLOCK_MONOTONIC begins anew with each boot, and is another one after a restore elsewhere: no life trusts what an
    earlier one called a time. What was learned comes back with the time that the kernel says is left of it."""
    lab.dns.remove("api.example.com")
    lab.dns.a("api.example.com", NAMED, ttl=3600)
    serve = (str(Path(sys.prefix, "bin", "egress")), "serve")
    for offset in (10_000_000, 0, 20_000_000):
        ahead = ("unshare", "--time", "--fork", "--kill-child", "--monotonic", str(offset), "--boottime", str(offset))
        with Sidecar(lab, policy=POLICY, argv=(*ahead, *serve) if offset else serve, identity=TIMELORD) as sidecar:
            if offset == 10_000_000:
                assert lab.query("api.example.com").addresses == [NAMED]
            assert lab.connect(NAMED, 80) == "connected", "learned in the first life"
            listing = lab.sandbox.run(["nft", "list", "set", "inet", "sallyport", "learned4_0"]).stdout
            assert re.search(r"expires (1h|5\dm)", listing), listing  # a minute more, and the time of three starts less
            assert in_force(sidecar) == POLICY
        assert lab.connect(FORBIDDEN[0], 80) in REJECTED


# -- restart ---------------------------------------------------------------------------------------------------------
def test_e12_a_question_from_a_port_that_asked_before_the_restart(lab: Lab) -> None:
    """Connection tracking still redirects it to the port of the earlier life, where nobody listens."""
    with Sidecar(lab, policy=POLICY) as sidecar:
        assert lab.query("api.example.com", source_port=40001).addresses == [NAMED]
        sidecar.kill()
        sidecar.restart()
        assert lab.query("api.example.com", source_port=40001).addresses == [NAMED]
        assert sidecar.returncode is None


def test_no_socket_lands_where_the_log_goes(lab: Lab) -> None:
    """Started with its output closed: the first thing opened would be descriptor 1."""
    closed = ("/bin/sh", "-c", 'exec "$0" serve >&-', str(Path(sys.prefix, "bin", "egress")))
    with Sidecar(lab, policy=POLICY, argv=closed) as sidecar:
        assert os.readlink(f"/proc/{sidecar.pid}/fd/1") == os.devnull
        assert lab.query("api.example.com").addresses == [NAMED]


def test_no_decision_is_made_by_the_wall_clock() -> None:
    """It jumps, by hand and by NTP, and a test must not move it: so it is read for what people read, and for how young
    a file is, which only makes it be read again."""
    import ast

    allowed = {
        "egress/log.py",
        "egress/webhook.py",
        "egress/exporter.py",
        "egress/control/rulefiles.py",
        "egress/docker/watch.py",  # how long ago the daemon says that a container began
    }
    words = {("time", "time"), ("time", "time_ns"), ("datetime", "now")}
    found = set()
    for path in sorted(Path(PROJECT, "egress").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
                continue
            if (node.value.id, node.attr) in words:
                found.add(str(path.relative_to(PROJECT)))
    assert "egress/log.py" in found
    assert found <= allowed
